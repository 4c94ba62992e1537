"""The command line: flags to values, values to the library, results to stdout, everything else to stderr.

Rank 6: imports everything below; click always, rich where something is drawn. No logic lives here.

    root     the program and its commands       options    options that several commands share
    talk     chat, complete                     models     pull, models, rm, info, quantize
    texts    tokenize, read                     speed      bench
    page     record                             streams  what is read and drawn

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted, 143 terminated,
129 hung up.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence

import click

from pantheon import repl
from pantheon._work import TerminatedError
from pantheon.cli.root import root
from pantheon.errors import PantheonError

EXIT_SIGNAL = 128  # and the number of the signal


def main() -> None:
    """The program `pantheon`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; nothing is raised, no traceback is shown."""
    _mend_streams()
    try:
        with root.make_context("pantheon", list(arguments)) as context:
            code = root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        with repl.beside():
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        repl.note("interrupted")
        return repl.EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough
        repl.discard(sys.stdout)
        return repl.EXIT_DONE
    except TerminatedError as error:
        repl.note("hung up" if error.number == signal.SIGHUP else "terminated")
        if error.number == signal.SIGHUP:  # nobody can read any more what stdout still holds
            repl.discard(sys.stdout)
        return EXIT_SIGNAL + error.number
    except (PantheonError, MemoryError) as error:
        repl.note(f"error: {error or 'out of memory'}")
        return 1
    except OSError as error:
        repl.note(f"error: {f'cannot write to stdout: {error.strerror}' if _is_of_stdout(error) else error}")
        return 1
    return code if isinstance(code, int) else repl.EXIT_DONE


def _mend_streams() -> None:
    """Streams that a caller closed become empty ones, and no character of a reply can fail to be written."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _is_of_stdout(error: OSError) -> bool:
    """Whether it is about room for what was printed, which is given up then: all other files are written by the core,
    whose errors name them."""
    if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return False
    repl.discard(sys.stdout)
    return True
