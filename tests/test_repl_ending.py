"""SIGTERM and SIGHUP in a conversation, on a real (pseudo) terminal and over a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

import pantheon
from pantheon._work import TerminatedError
from pantheon.repl import Desk, Host, Keeper, Talker, loop
from pantheon.repl.commands import Leave
from pantheon.repl.ending import Ending
from pantheon.repl.lines import PlainLines, Typed

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

CODES = [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")]


def is_cooked(t: Any) -> bool:
    flags = termios.tcgetattr(t.child.child_fd)[3]
    return flags & (termios.ECHO | termios.ICANON) == termios.ECHO | termios.ICANON and not flags & termios.NOFLSH


def begin_a_story(t: Any) -> None:
    t.type("Write a very long story about a ship.\r")
    t.expect(r"\x1b\[\?2004l")  # behind what was typed
    t.expect(r"\w+ \w+ \w+ \w+ ")


@pytest.mark.parametrize(("number", "code", "said"), CODES)
def test_a_signal_in_the_first_reply_keeps_it_as_a_cut_turn(
    terminal: Any, smollm2: str, number: int, code: int, said: str
) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "1000")
    t.prompt()
    begin_a_story(t)
    t.child.kill(number)
    t.expect(said)
    assert t.leaves_with() == code
    assert [(message["role"], message.get("cut")) for message in t.messages()] == [("user", None), ("assistant", True)]
    assert len(t.messages()[1]["content"].split()) >= 4
    again = terminal("chat", smollm2, "--max-tokens", "1", "--resume")
    assert "(going on after 2 messages)" in again.prompt()


@pytest.mark.parametrize(("number", "code", "said"), CODES)
@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_signal_at_the_prompt_leaves_the_terminal_as_it_was(
    terminal: Any, tiny_model: str, number: int, code: int, said: str, term: str
) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1", term=term)
    t.prompt()
    t.ask("one")
    t.type("half a mess")
    time.sleep(0.2)
    assert is_cooked(t) == (term == "dumb")
    t.child.kill(number)
    t.expect(said)
    assert is_cooked(t)
    assert t.leaves_with() == code
    assert len(t.messages()) == 2


@pytest.mark.parametrize("line", ["/edit 0\r", "/save kept\r"])
def test_a_signal_at_a_second_prompt_ends_the_program_too(terminal: Any, tiny_model: str, line: str) -> None:
    t = terminal("chat", tiny_model, "--max-tokens", "1")
    t.prompt()
    t.ask("one")
    (t.home / "chats" / "kept.json").write_text("in the way")
    t.type(line)
    time.sleep(0.4)
    t.child.kill(signal.SIGTERM)
    t.expect("terminated")
    assert is_cooked(t)
    assert t.leaves_with() == 143


def test_a_signal_while_the_prompt_is_read_ends_it_soon(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2)
    t.prompt()
    t.type_much("\x1b[200~" + "word " * 4000 + "\x1b[201~\r", 1.0)
    t.child.kill(signal.SIGTERM)
    time.sleep(0.05)
    t.child.kill(signal.SIGHUP)  # they often come one after the other, or twice
    t.child.kill(signal.SIGTERM)
    shown = t.expect("terminated|hung up")  # the library sees them in an order of its own
    assert t.leaves_with() == (143 if shown.endswith("terminated") else 129)
    assert not (t.home / "chats" / "last.json").exists()  # nothing was answered


def test_a_terminal_that_goes_away_in_a_reply_loses_nothing_of_it(terminal: Any, smollm2: str) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "1000")
    t.prompt()
    begin_a_story(t)
    t.child.ptyproc.fileobj.close()  # its other end: the system sends SIGHUP, and whatever is written fails
    _, status = os.waitpid(t.child.pid, 0)
    t.child.ptyproc.terminated = t.child.terminated = t.child.closed = True
    assert os.waitstatus_to_exitcode(status) == 129
    assert [(message["role"], message.get("cut")) for message in t.messages()] == [("user", None), ("assistant", True)]


def test_ctrl_z_in_a_reply_leaves_the_terminal_as_it_was(smollm2: str, tmp_path: Path) -> None:
    """Under a plain shell, which unlike bash does not mend the terminal for itself."""
    everything: dict[str, Any] = {**os.environ, "TERM": "xterm", "PS1": "$ ", "PANTHEON_HOME": str(tmp_path)}
    shell = pexpect.spawn("/bin/sh", ["-i"], env=everything, encoding="utf-8", timeout=30)
    shell.expect(r"\$ ")
    shell.sendline(f"{sys.executable} -m pantheon chat {smollm2} --max-tokens 2000")
    shell.expect("> ")
    time.sleep(0.2)
    shell.send("Write a very long story about a ship.\r")
    shell.expect(r"\x1b\[\?2004l")
    shell.expect(r"\w+ \w+ \w+ \w+ ")
    shell.send("\x1a")
    shell.expect(r"Stopped[^$]*\$ ")
    shell.sendline("stty -a")
    assert shell.expect([r" echo ", r" -echo "]) == 0
    shell.expect(r"\$ ")
    shell.sendline("fg")
    shell.expect(r"\w+ \w+ \w+ \w+ ")
    shell.send("\x03")
    shell.expect(r"\(stopped\)")
    shell.close(force=True)


def pipe(model: str, home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pantheon", "chat", model, *arguments]
    everything: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, "PANTHEON_HOME": str(home)}, **everything)


@pytest.mark.parametrize("between", [False, True])
def test_a_signal_over_a_pipe_ends_it_and_a_resumed_chat_is_kept(
    terminal: Any, smollm2: str, tmp_path: Path, between: bool
) -> None:
    t = terminal("chat", smollm2, "--max-tokens", "1")
    t.prompt()
    t.ask("one")
    t.type("\x04")
    assert t.leaves_with() == 0
    piped = pipe(smollm2, tmp_path, "--resume", "--max-tokens", "2" if between else "500")
    assert piped.stdin is not None
    assert piped.stdout is not None
    piped.stdin.write(b"Write a very long story about a ship.\n")
    piped.stdin.flush()
    read = b""
    while (b"\n" if between else b" ") not in read:
        read += os.read(piped.stdout.fileno(), 1)
    time.sleep(0.3)
    piped.send_signal(signal.SIGTERM)
    assert piped.communicate(timeout=20)[1].endswith(b"terminated\n")
    assert piped.returncode == 143
    assert [message["role"] for message in t.messages()] == ["user", "assistant"] * 2
    assert t.messages()[3]["cut"]


def test_what_somebody_ignores_stays_ignored() -> None:
    code = (
        "import signal, os; from pantheon.repl.ending import Ending; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "ending = Ending()\n"
        "with ending.watched(): os.kill(os.getpid(), signal.SIGHUP); print(ending.number)\n"
        "print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"0\nTrue True\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_disturb_the_saving(tiny_model: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    kept: list[int] = []

    def keep(self: Keeper, talker: Talker) -> None:
        os.kill(os.getpid(), number)
        kept.append(len(talker.chat.messages))

    monkeypatch.setattr(Keeper, "after_turn", keep)
    monkeypatch.setattr(signal, "SIG_IGN", signal.SIG_DFL)  # what this process is left with
    settings = {"window": None, "reply_limit": 2, "template": None, "fold_system": False}
    with contextlib.closing(Host(pantheon.load, tiny_model, settings)) as host, host.chat(None) as chat:
        desk = Desk(Talker(chat, 2, {}, io.StringIO()), host, Keeper(True))
        with desk.ending.watched():
            desk.reply(lambda **options: chat.stream("one", **options))
        assert kept == [2]
        assert desk.ending.number == (number if number == signal.SIGTERM else 0)


def test_a_request_waits_for_work_and_a_late_second_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("pantheon.repl.ending.time.monotonic", lambda: now[0])
    ending, done = Ending(), []
    ending._on_signal(signal.SIGTERM, None)
    ending._on_signal(signal.SIGHUP, None)  # at once: work goes on
    done.append(1)
    with pytest.raises(TerminatedError) as raised, ending.waiting():
        done.append(2)
    assert raised.value.number == signal.SIGTERM
    now[0] = 2.0
    with pytest.raises(TerminatedError):
        ending._on_signal(signal.SIGTERM, None)
    assert done == [1]


def test_ctrl_c_in_a_command_that_is_no_reply_ends_it_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["/model other", "/quit"]

    class Lines(PlainLines):
        def ask(self, default: str = "") -> Typed:
            return Typed(lines.pop(0), True)

    def obey(desk: Desk, text: str, pasted: object) -> bool:
        if text == "/quit":
            raise Leave
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_asker", lambda desk: Lines())
    monkeypatch.setattr(loop, "obey", obey)
    nothing: Any = None
    assert loop.run_terminal(Desk(nothing, nothing, nothing)) == 0
    assert capsys.readouterr().err == "(interrupted)\n"
    assert lines == []
