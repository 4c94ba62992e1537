"""A Reading as a program: Python of the standard library that leaves out the same turns and prints the same prompt.

Rank 4: imports its siblings.

It is meant to be read. The template is written out in the simplest of three forms that prints this very prompt: one
function for all roles, a table of what stands around each role's messages, or the messages as they were printed.

The one thing to know first: what a message says reaches the program as the literal of a text, never as a comment or a
name, so no message can write code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pantheon.chat.pieces import Piece

if TYPE_CHECKING:
    from pantheon.chat.reading import Reading

Frames = dict[str, tuple[str, str]]
"""Role to what the template writes before and after a message."""


def program_of(reading: Reading) -> str:
    """The text of the program."""
    frames = _frames_of(reading)
    template = _literal_template() if frames is None else _template(frames)
    return "\n".join([*_head(), *template, *_exchanges(reading, frames), *_loop(reading)]) + "\n"


def quoted(text: str) -> str:
    """The literal of a text, in double quotes where that needs no backslash."""
    literal = repr(text)
    if literal.startswith("'") and '"' not in literal and "\\'" not in literal:
        return f'"{literal[1:-1]}"'
    return literal


# ---- The template -------------------------------------------------------------------------------------------------


def _frames_of(reading: Reading) -> Frames | None:
    """What stands around the messages of each role, if that is the same for all messages of it."""
    frames: Frames = {}
    for piece in reading.pieces:
        if piece.message is None:
            continue
        if frames.setdefault(piece.role, (piece.before, piece.after)) != (piece.before, piece.after):
            return None
    return frames or None


def _head() -> list[str]:
    return ["# What the model reads in this turn: the chat template written out, and old turns left out to fit.", ""]


def _template(frames: Frames) -> list[str]:
    one = _one_frame(frames)
    if one is not None:
        return ["def piece(role, content):", f"    return {one}", ""]
    rows = [f"    {quoted(role)}: ({quoted(before)}, {quoted(after)})," for role, (before, after) in frames.items()]
    return [
        "AROUND = {  # what the template writes before and after a message",
        *rows,
        "}",
        "",
        "def piece(role, content):",
        "    before, after = AROUND[role]",
        "    return before + content + after",
        "",
    ]


def _one_frame(frames: Frames) -> str | None:
    """The frame as a formatted literal in which only the role differs, if that is so."""
    forms: set[tuple[str, str, str]] = set()
    for role, (before, after) in frames.items():
        if before.count(role) != 1:
            return None
        head, tail = before.split(role)
        forms.add((head, tail, after))
    if len(forms) != 1:
        return None
    texts = [quoted(text)[1:-1] if quoted(text)[0] == '"' else None for text in forms.pop()]
    if any(text is None or "{" in text or "}" in text for text in texts):
        return None
    return 'f"{}{{role}}{}{{content}}{}"'.format(*texts)


def _literal_template() -> list[str]:
    return [
        "def piece(role, content):",
        "    return content  # this template does not write all messages of a role alike: they stand as it wrote them",
        "",
    ]


# ---- The conversation ---------------------------------------------------------------------------------------------


def _exchanges(reading: Reading, frames: Frames | None) -> Iterator[str]:
    """The pieces before the first exchange, the exchanges with their counts, and what follows the last."""
    front, bodies, back = _share_out(reading)
    turns = reading.fitted.turns
    yield "# Each list: how many tokens, then the messages. Control tokens split the text, and the counts add up."
    yield f"front = {_entry(front, frames)}"
    yield "turns = ["
    for out in reading.dropped:
        said = [(turns[index].message.role, turns[index].message.content) for index in out.messages]
        yield f"    ({out.tokens}, [{', '.join(f'({quoted(role)}, {quoted(text)})' for role, text in said)}]),"
    for body in bodies[:-1]:
        yield f"    {_entry(body, frames)},"
    yield "]"
    yield f"last = {_entry(bodies[-1] if bodies else [], frames)}"
    yield f"header = ({sum(piece.tokens for piece in back)}, {quoted(''.join(piece.text for piece in back))})"
    yield ""


def _share_out(reading: Reading) -> tuple[list[Piece], list[list[Piece]], list[Piece]]:
    """The pieces in front of the first exchange that is kept, those of each exchange, and those behind the last."""
    front: list[Piece] = []
    bodies: list[list[Piece]] = []
    for piece in reading.pieces:
        if piece.role == "user" or (not bodies and piece.role in ("assistant", "tool")):
            bodies.append([])
        (bodies[-1] if bodies else front).append(piece)
    back: list[Piece] = []
    while bodies and bodies[-1] and bodies[-1][-1].message is None:
        back.insert(0, bodies[-1].pop())
    if not bodies:
        while front and front[-1].message is None:
            back.insert(0, front.pop())
    return front, bodies, back


def _entry(pieces: Sequence[Piece], frames: Frames | None) -> str:
    """Tokens and messages of some pieces. What is the template's own has the role None and stands as it is."""
    said: list[str] = []
    for piece in pieces:
        literal = piece.message is None or frames is None
        role = "None" if piece.message is None else quoted(piece.role)
        said.append(f"({role}, {quoted(piece.text if literal else piece.content)})")
    return f"({sum(piece.tokens for piece in pieces)}, [{', '.join(said)}])"


def _loop(reading: Reading) -> list[str]:
    """The loop that leaves turns out. Those of earlier turns are out before it begins."""
    already = len(reading.dropped) - len(reading.newly_dropped)
    kept = f"turns[{already}:]  # the turns before were left out earlier, and stay out" if already else "list(turns)"
    to_fraction = reading.policy == "drop_to_fraction"
    lower = [f"    limit = {reading.fitted.target}  # once a turn must go, more go, so that this is not soon again"]
    return [
        "def render(kept):",
        '    text = ""',
        "    for _, messages in [front, *kept, last]:",
        "        for role, content in messages:",
        "            text += content if role is None else piece(role, content)",
        "    return text + header[1]",
        "",
        f"window, reply_limit = {reading.window}, {reading.reserve}  # room is kept for the reply",
        "limit = window - reply_limit",
        f"kept = {kept}",
        "while True:",
        "    used = front[0] + sum(tokens for tokens, _ in kept) + last[0] + header[0]",
        "    if used <= limit or not kept:",
        "        break",
        "    kept.pop(0)  # leave out the oldest turn",
        *(lower if to_fraction else ()),
        "",
        "left_out = len(turns) - len(kept)",
        "print(f\"{left_out} turn{'s' * (left_out != 1)} left out; the prompt is {used} tokens:\")",
        "print(render(kept))",
    ]
