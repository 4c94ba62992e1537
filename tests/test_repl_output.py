"""What the chat writes on a terminal: replies, drawn or not, and progress. No terminal is needed for it."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.markdown import Markdown
from wcwidth import wcwidth

import pantheon
from pantheon.repl import Talker, output
from pantheon.repl.facts import preview
from pantheon.repl.keeper import Keeper, sampling_of
from pantheon.repl.markdown import MarkdownWriter

HOSTILE = "\x1b]0;owned\x07 a\x9b31mb \u202egnp [text](http://example.org/\x1b[2J)"
REPLY = """# Title

Some *text* that goes on
over two lines.

```python
def f():

    return 1
```

1. one
2. two

| a | b |
| - | - |
| 1 | 2 |
"""


class Screen(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal_of_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


def drawn(pieces: list[str]) -> str:
    screen = Screen()
    writer = MarkdownWriter(screen)
    for piece in pieces:
        writer.push(piece)
    writer.finish()
    return screen.getvalue()


def visible(text: str) -> list[str]:
    """The lines that show something, without colours and the spaces around them."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    return [line for line in lines if line]


def test_markdown_in_blocks_shows_what_markdown_as_a_whole_does() -> None:
    whole = io.StringIO()
    Console(file=whole, width=60, force_terminal=True).print(Markdown(REPLY, hyperlinks=False))
    assert visible(drawn([REPLY])) == visible(whole.getvalue())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, len(REPLY)), max_size=8))
def test_markdown_does_not_depend_on_where_the_pieces_end(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(REPLY)]
    assert drawn([REPLY[a:b] for a, b in zip(borders, borders[1:], strict=False)]) == drawn([REPLY])


def test_a_block_is_drawn_as_soon_as_it_is_whole() -> None:
    screen = Screen()
    writer = MarkdownWriter(screen)
    writer.push("one\n\ntwo")
    assert visible(screen.getvalue()) == ["one"]
    writer.push("\n\n```\nopen\n\n")
    assert visible(screen.getvalue()) == ["one", "two"]
    writer.finish()
    assert visible(screen.getvalue()) == ["one", "two", "open"]
    writer.push("a new reply\n\n")
    assert visible(screen.getvalue())[-1] == "a new reply"


@pytest.mark.parametrize("markdown", [False, True])
def test_no_escape_sequence_of_a_model_reaches_the_terminal(markdown: bool) -> None:
    screen = Screen()
    talker = Talker(FakeChat(), 5, {}, screen, markdown=markdown)  # type: ignore[arg-type]
    talker.write(HOSTILE + "\n\n" + HOSTILE)
    talker._end()
    written = screen.getvalue()
    assert "owned" in written
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202e]", written)
    assert re.sub(r"\x1b\[[0-9;]*m", "", written).count("\x1b") == 0  # colours of the drawing alone
    assert ("\x1b[" in written) == markdown


def test_markdown_is_for_terminals() -> None:
    out = io.StringIO()
    talker = Talker(FakeChat(), 5, {}, out, markdown=True)  # type: ignore[arg-type]
    talker.write("# Title\n\n*text*")
    talker._end()
    assert out.getvalue() == "# Title\n\n*text*\n"


class FakeChat:
    reading: Any = None


def test_what_is_left_out_is_said_while_the_prompt_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with_loss: Any = FakeChat()
    talker = Talker(with_loss, 5, {}, io.StringIO())
    out = SimpleNamespace(messages=(1, 2), tokens=30)
    with_loss.reading = SimpleNamespace(window=90, newly_dropped=(out, out), evaluated=1)
    talker._progress(0.0)
    assert capsys.readouterr().err.startswith("(the window of 90 is full: messages 1 to 2 are left out, 60 tokens")
    talker._progress(0.5)
    assert capsys.readouterr().err == ""


def test_progress_comes_late_fits_the_line_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = Screen(), [0.0]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("COLUMNS", "20")
    progress = output.Progress()
    progress.show("reading: 1% of 10,000 tokens")
    progress.clear()
    assert screen.getvalue() == ""
    now[0] = 1.0
    progress.show("reading: 2% of 10,000 tokens")
    assert screen.getvalue() == "\r\x1b[Kreading: 2% of 10,0"
    progress.clear()
    assert screen.getvalue().endswith("\r\x1b[K")
    monkeypatch.setenv("TERM", "dumb")
    screen.truncate(0)
    dumb = output.Progress()
    now[0] = 2.0
    for percent in (3, 4):
        dumb.show(f"reading: {percent}%")
    assert screen.getvalue().strip("\x00") == "reading: 3%\n"


def columns_of(text: str) -> int:
    """By the tables of another library than the one that the program asks."""
    return sum(max(wcwidth(character), 0) for character in text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \u0301\u65e5\uac00\U0001f917\u200b\uff21", max_size=30), st.integers(0, 12))
def test_a_text_is_cut_by_columns(text: str, width: int) -> None:
    cut = output.fitting(text, width)
    assert text.startswith(cut)
    assert columns_of(cut) <= width
    if cut != text:
        assert columns_of(text[: len(cut) + 1]) > width  # nothing more would fit, and no accent is torn off


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("e\u0301" * 60, "e\u0301" * 60),
        ("e\u0301" * 61, "e\u0301" * 57 + "..."),
        ("\u65e5" * 30, "\u65e5" * 30),
        ("\u65e5" * 31, "\u65e5" * 28 + "..."),
        ("a\n\n  b" + "c" * 1000, "a b" + "c" * 54 + "..."),
        ("x" + " " * 1000 + "y", "x..."),
    ],
)
def test_a_preview_has_60_columns(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert preview(text) == shown


def test_progress_of_wide_characters_stays_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "_PATIENCE", 0)
    monkeypatch.setenv("COLUMNS", "20")
    output.Progress().show("\u65e5" * 30)
    assert screen.getvalue() == "\r\x1b[K" + "\u65e5" * 9


@pytest.mark.parametrize(("columns", "shown"), [(27, "40%"), (28, "40% of 10,000 tokens"), (12, "40%")])
def test_progress_shows_no_half_a_number(monkeypatch: pytest.MonkeyPatch, columns: int, shown: str) -> None:
    screen, chat = Screen(), FakeChat()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(output, "_PATIENCE", 0)
    monkeypatch.setenv("COLUMNS", str(columns + 2))
    chat.reading = SimpleNamespace(window=90, newly_dropped=(), evaluated=10_000)
    Talker(chat, 5, {}, io.StringIO())._progress(0.4)  # type: ignore[arg-type]
    assert screen.getvalue() == f"\r\x1b[Kreading: {shown}"


def test_sentences_end_their_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("NO_COLOR", "1")
    output.aside("(the window of 90 is full: /a/path/that/is/too/long/for/it --max-tokens)")
    assert screen.getvalue() == "(the window of 90 is\nfull:\n/a/path/that/is/too/long/for/it\n--max-tokens)\n"
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert output.prose("a b " * 20) == "a b " * 20


@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        ({"temperature": 0.5, "seed": 3, "other": [1]}, {"temperature": 0.5, "seed": 3}),
        ({"temperature": -1}, {}),
        ({"temperature": "hot"}, {}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop": [1]}, {}),
    ],
)
def test_the_sampling_of_a_kept_chat_is_checked(
    kept: dict[str, Any], wanted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chat: Any = FakeChat()
    chat.sampling = kept
    assert sampling_of(chat) == wanted
    assert ("is not used" in capsys.readouterr().err) == (not wanted)


@pytest.mark.parametrize("name", ["last", "Last"])
def test_no_chat_is_saved_where_the_next_turn_would_write_over_it(name: str) -> None:
    talker: Any = SimpleNamespace(chat=FakeChat(), sampling={})
    with pytest.raises(pantheon.ArgumentError, match="another name"):
        Keeper(True).save(talker, name)


def test_what_replies_took_is_added_up(tiny_model: str) -> None:
    with pantheon.load(tiny_model) as model, model.chat() as chat:
        talker = Talker(chat, 4, {}, io.StringIO())
        replies = [talker.say("one"), talker.say("two")]
        assert talker.totals.replies == 2
        assert talker.totals.generated_tokens == sum(reply.usage.generated_tokens for reply in replies if reply)
        assert talker.totals.evaluated_tokens == sum(reply.usage.evaluated_tokens for reply in replies if reply)
        assert talker.last is replies[1]
        assert talker.first_piece_s is not None
