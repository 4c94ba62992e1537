"""A Reading drawn: as text, with colours, and as what JSON has.

Rank 4: imports its siblings; rich where colours are asked for.

How to read it: each piece has a line with its name and its tokens, and below it what the template wrote and the
message said. Control tokens stand in the brackets U+27E6 and U+27E7; whatever stands outside of them is text. So that
nobody can draw such brackets in a message, they are escaped in text, as are characters that cannot be seen, spaces at
the end of a line, and the backslash itself. Colours say nothing that the brackets and the names do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pantheon.chat.pieces import Piece, Token, origin_of
from pantheon.chat.segments import Segment, Special

if TYPE_CHECKING:
    from rich.text import Text as RichText

    from pantheon.chat.reading import Reading

OPEN, CLOSE = "\u27e6", "\u27e7"
_BAR = 40
_TRAILING = re.compile(r" +(?=\n|\Z)")
_STYLES = {
    "control": "bold reverse",
    "template": "dim",
    "system": "magenta",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
    "data": "yellow",
    "head": "bold",
    "note": "bold yellow",
    "": "",
}

Drawn = Iterator[tuple[str, str]]
"""Texts, each with the name of its style."""


def as_text(reading: Reading, width: int | None = None) -> str:
    """The drawing without colours. width: how many characters a line has room for."""
    return "".join(text for text, _ in _draw(reading, width)).rstrip("\n")


def as_rich(reading: Reading, width: int | None = None) -> RichText:
    """The drawing with colours, for rich. width: as in as_text()."""
    from rich.text import Text as RichText

    drawn = RichText()
    for text, style in _draw(reading, width):
        drawn.append(text, _STYLES[style])
    drawn.rstrip()
    return drawn


def shown(text: str) -> str:
    """Text with everything escaped that is not what it looks like. Lines are broken where it breaks them."""
    text = _TRAILING.sub(lambda found: "\\x20" * len(found.group()), text.replace("\\", "\\\\"))
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\n":
        return "\\n\n"
    if "\udc80" <= character <= "\udcff":  # a byte that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    if character in (OPEN, CLOSE) or not character.isprintable():
        return character.encode("unicode_escape").decode()
    return character


# ---- The drawing --------------------------------------------------------------------------------------------------


def _draw(reading: Reading, width: int | None) -> Drawn:
    yield f"{_count(len(reading), 'token')} read: {reading.reused} reused, {reading.evaluated} evaluated\n", "head"
    for line in bar_lines(len(reading), reading.reserve, reading.window, width):
        yield f"{line}\n", ""
    yield from _facts(reading)
    segments = _segments_of(reading)
    for piece in reading.pieces:
        yield f"\n-- {reading.name_of(piece)}: {_tokens(piece)}\n", "head"
        line_open = False
        for segment in next(segments):
            text, style = _segment(segment)
            yield text, style
            line_open = not text.endswith("\n")
        if line_open:
            yield "\n", ""


def bar(used: int, reserve: int, window: int, width: int = _BAR) -> str:
    """The window as a bar: # what is read, - what is kept free for the reply, . what is left."""
    read = min(-(-used * width // window), width)
    kept = min(-(-reserve * width // window), width - read)
    left = width - read - kept
    return f"[{'#' * read}{'-' * kept}{'.' * left}] {used} read + {reserve} kept free, of a window of {window}"


def bar_lines(used: int, reserve: int, window: int, width: int | None) -> list[str]:
    """The bar on a line, or where that is too narrow the bar on one and its numbers on another."""
    line = bar(used, reserve, window)
    if width is None or len(line) <= width:
        return [line]
    drawn, numbers = bar(used, reserve, window, max(min(_BAR, width - 2), 4)).split("] ")
    return [drawn + "]", numbers]


def _facts(reading: Reading) -> Drawn:
    for line in reading.left_out:
        yield f"{line}\n", "note"
    if reading.note:
        yield f"read again: {reading.note}\n", "note"
    tokenizer = reading.chat_format.tokenizer
    ends = " ".join(f"{OPEN}{_name(tokenizer.piece(token))}{CLOSE} {token}" for token in reading.stop_ids)
    begins = "no beginning of sequence"
    if reading.bos is not None:
        begins = f"begins with {OPEN}{_name(tokenizer.piece(reading.bos))}{CLOSE} {reading.bos}"
    yield f"{begins}; the reply ends at {ends or 'nothing'}\n", ""
    if reading.inserted_system is not None:
        yield "the conversation has no system text; the template inserted one\n", ""
    for found in reading.look_alikes:
        where = "text" if found.message is None else f"message {found.message} ({found.role})"
        yield f"look-alike: {where} spells {shown(found.text)}, which is read as ordinary text\n", "note"


def _segments_of(reading: Reading) -> Iterator[list[Segment]]:
    """The segments of each piece."""
    segments = iter(reading.fitted.prompt.segments)
    for piece in reading.pieces:
        own: list[Segment] = []
        length = len(piece.text)
        while length > 0:
            own.append(next(segments))
            length -= len(own[-1].text)
        yield own


def _segment(segment: Segment) -> tuple[str, str]:
    if isinstance(segment, Special):
        return f"{OPEN}{shown(segment.text)}{CLOSE}", "control"
    return shown(segment.text), origin_of(segment)[0]


def _tokens(piece: Piece) -> str:
    count = _count(piece.tokens, "token")
    if piece.reused == piece.tokens:
        return f"{count}, reused"
    return f"{count}, {piece.reused} of them reused" if piece.reused else count


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _name(piece: bytes) -> str:
    return shown(piece.decode("utf-8", "backslashreplace"))


# ---- Other forms --------------------------------------------------------------------------------------------------


def written(reading: Reading, form: str) -> str:
    """A Reading in one of the forms of `pantheon read`: view, text, ids, tokens, json, python. No line end at the end,
    but for those of the prompt itself."""
    if form == "view":
        return as_text(reading)
    if form == "text":
        return reading.text
    if form == "ids":
        return " ".join(map(str, reading.ids))
    if form == "tokens":
        return "\n".join(_token_line(token) for token in reading.tokens)
    if form == "python":
        return reading.to_python().rstrip("\n")
    assert form == "json"
    return json.dumps(as_dict(reading), ensure_ascii=False)


def _token_line(token: Token) -> str:
    """Id, kind, origins and text, with tabs between."""
    text = shown(token.bytes.decode("utf-8", "surrogateescape")).replace("\n", "")
    text = f"{OPEN}{text}{CLOSE}" if token.kind == "control" else f'"{text}"'
    origins = "+".join(token.origins) + ("" if token.message is None else f" {token.message}")
    return f"{token.id}\t{token.kind}\t{origins}\t{text}"


# ---- JSON ---------------------------------------------------------------------------------------------------------


def as_dict(reading: Reading) -> dict[str, Any]:
    """All of a Reading in mappings, lists, texts and numbers."""
    return {
        "text": reading.text,
        "prompt_tokens": len(reading),
        "reused_tokens": reading.reused,
        "evaluated_tokens": reading.evaluated,
        "window": reading.window,
        "reserve": reading.reserve,
        "policy": reading.policy,
        "note": reading.note,
        "bos": reading.bos,
        "stop_ids": list(reading.stop_ids),
        "template": reading.chat_format.title,
        "inserted_system": reading.inserted_system,
        "dropped": [{**asdict(out), "messages": list(out.messages)} for out in reading.dropped],
        "newly_dropped": len(reading.newly_dropped),
        "look_alikes": [asdict(found) for found in reading.look_alikes],
        "pieces": [{"name": reading.name_of(piece), **asdict(piece)} for piece in reading.pieces],
        "tokens": [
            {**asdict(token), "bytes": list(token.bytes), "origins": list(token.origins)} for token in reading.tokens
        ],
    }
