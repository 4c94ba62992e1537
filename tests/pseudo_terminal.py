"""A program on a pseudo-terminal, and what it shows.

The fixture `terminal` of conftest.py opens them, each with a folder of its own for chats and history.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pexpect

PASTE = "\x1b[200~{}\x1b[201~"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


def _as_a_shell_does() -> None:
    """Whoever started the tests may ignore what a terminal sends (nohup)."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """`pantheon` on a pseudo-terminal."""

    def __init__(self, *arguments: str, home: Path, term: str = "xterm-256color", columns: int = 200, **env: str):
        self.home = home
        self.dumb = term == "dumb"
        size = {"TERM": term, "COLUMNS": str(columns), "LINES": "50"}
        whole: dict[str, Any] = {**os.environ, **size, "PANTHEON_HOME": str(home), **env}
        if "NO_COLOR" not in env:
            whole.pop("NO_COLOR", None)
        command = ["-m", "pantheon", *arguments]
        shape = (50, columns)
        how: dict[str, Any] = {"encoding": "utf-8", "timeout": 60, "dimensions": shape, "preexec_fn": _as_a_shell_does}
        self.child = pexpect.spawn(sys.executable, command, env=whole, **how)

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Wait for a pattern; what was shown up to its end, without escape sequences."""
        self.child.expect(pattern, timeout=timeout)
        return _ESCAPES.sub("", self.child.before + self.child.after)

    def prompt(self) -> str:
        """Wait until a line is asked for."""
        shown = self.expect("> ")
        time.sleep(0.15)  # the line editor has drawn the prompt but may still be setting up
        return shown

    def type(self, text: str) -> None:
        self.child.send(text)

    def raw(self, text: str, end: str = "\r") -> str:
        """Enter a line; what was written behind it, up to the next prompt."""
        self.child.send(text + end)
        self.child.expect(r"\r\n> " if self.dumb else r"\x1b\[\?2004h.*?> ")
        time.sleep(0.1)
        shown: str = self.child.before
        return shown.partition("\r\n")[2] if self.dumb else shown.rpartition("\x1b[?2004l")[2]

    def ask(self, text: str, end: str = "\r") -> str:
        """raw() without escape sequences."""
        return _ESCAPES.sub("", self.raw(text, end)).replace("\r\n", "\n").strip("\n")

    def type_much(self, text: str, seconds: float) -> None:
        """Send a large text while reading what comes back: neither side may block the other."""
        sender = threading.Thread(target=self.child.send, args=(text,))
        sender.start()
        self.child.expect([pexpect.TIMEOUT, "never shown"], timeout=seconds)
        sender.join()

    def messages(self, name: str = "last") -> list[dict[str, Any]]:
        """The messages of a chat that was kept."""
        kept = json.loads((self.home / "chats" / f"{name}.json").read_text("utf-8"))
        messages: list[dict[str, Any]] = kept["messages"]
        return messages

    def leaves_with(self) -> int:
        self.child.expect(pexpect.EOF)
        self.child.close()
        return int(self.child.exitstatus)
