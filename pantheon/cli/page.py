"""The page in the browser: record.

Rank 6: imports the recorder, and its siblings; click.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pantheon import catalog, repl
from pantheon.cli.options import DEFAULT_MODEL, ENGINE_OPTIONS, load_model, with_options
from pantheon.cli.streams import read_file
from pantheon.errors import ArgumentError


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--check", metavar="FILE", help="Write nothing: fail if FILE is not what would be written.")
@with_options(*ENGINE_OPTIONS)
def record(model: str, check: str | None, **options: Any) -> None:
    """Write to stdout what the page shows before a model is there: a conversation with each system prompt and window.

    The same model gives the same bytes on every machine. It takes about half a minute.
    """
    from pantheon import record as recorder

    shipped = None if check is None else read_file(check).decode("utf-8", "replace")
    with load_model(model, options) as loaded:
        entry = catalog.CATALOG.get(model)
        title = entry.title if entry is not None else catalog.printable(Path(loaded.info.path).stem)
        recorded = recorder.record(loaded, title, note=repl.note)
    text = recorder.as_json(recorded)
    if shipped is None:
        if sys.stdout.isatty():
            sys.stdout.write(repl.harmless(text))
        else:
            sys.stdout.buffer.write(text.encode("utf-8"))  # whatever the locale says
        repl.note(f"{len(recorded['turns'])} turns, {len(text.encode('utf-8')):,} bytes")
        return
    found = recorder.difference(shipped, text)
    if found is not None:
        raise ArgumentError(f"{check} is not what {title} says now: {found}; to make it anew: make recorded")
    repl.note(f"{check} is what {title} says: {len(recorded['turns'])} turns, bit for bit")
