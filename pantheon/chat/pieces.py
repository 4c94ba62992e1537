"""The tokens of a prompt with their origins, and the pieces that it is made of: its messages, and the template's parts.

Rank 4: imports the engine's Tokenizer and its siblings.

A piece is a message with what the template writes around it, or a part that is the template's alone: a beginning of
sequence, a system text of its own, the opening of the reply. Where one piece ends is read off the prompt: behind a
control token that ends a turn, and the white space after it. Where the template writes no such token between two
messages, what stands there counts to the first of them. Pieces follow each other without gaps, so their tokens add up
to the prompt's.

The one thing to know first: tokens are those of the prompt's ids, and a token may straddle two origins ("]" of the
template and " H" of a message). It then counts to the one that has more of its bytes, on a tie to the first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from pantheon.chat.messages import Turn
from pantheon.chat.segments import Kept, Prompt, Segment, Special, Text, join
from pantheon.engine.tokenizer import Tokenizer

_BORDERS = 64  # of one run of texts are looked for exactly; where more are, their places are estimated

Kind = Literal["control", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token that the model read."""

    id: int
    bytes: bytes
    """What it stands for; for a control token its spelling."""
    kind: Kind
    """control: it steers the model. text: it does not, whatever it looks like."""
    origin: str
    """Whose text it is: template, system, user, assistant, tool, or data (the caller's, but of no message)."""
    origins: tuple[str, ...]
    """All origins that it has bytes of, in order: more than one where it straddles a border."""
    message: int | None
    """The index in the conversation of the message whose text it is, or None."""
    piece: int
    """The index of the piece that it counts to."""
    reused: bool
    """True if it was in the state already, False if it was evaluated this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A message as the template writes it, or a part that is the template's alone."""

    role: str
    """The message's role, or "template"."""
    message: int | None
    """The index of the message in the conversation; None: it is the template's."""
    tokens: int
    reused: int
    """How many of its tokens, at their beginning, were in the state already."""
    before: str
    """What the template writes before the message's text; all of a piece that is the template's."""
    content: str
    """The message's text as the template writes it, from its first character to its last."""
    after: str

    @property
    def text(self) -> str:
        """The whole piece."""
        return self.before + self.content + self.after


@dataclass(slots=True)
class _Part:
    """A piece in the making: segments first..last-1, of which own_first..own_last-1 are the message's."""

    message: int | None
    first: int
    last: int
    own: tuple[int, int] | None = None


# ---- Which segment each token is of ------------------------------------------------------------------------------


def shares_of(prompt: Prompt, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """For each token the indices of the segments that it has bytes of, the one that it counts to first."""
    shares: list[tuple[int, ...]] = []
    for span in prompt.spans:
        first, ids = span.segments.start, prompt.ids[span.ids]
        segments = prompt.segments[span.segments]
        if len(segments) == 1:
            shares += [(first,)] * len(ids)
            continue
        after = prompt.ids[span.ids.start - 1] if span.ids.start else None
        pieces = [tokenizer.piece(token) for token in ids]
        ends = _ends_of([segment.text for segment in segments], pieces, tokenizer, after)
        at = 0
        for piece in pieces:
            shares.append(tuple(first + index for index in _covered(at, at + len(piece), ends)))
            at += len(piece)
    return shares


def _ends_of(texts: Sequence[str], pieces: Sequence[bytes], tokenizer: Tokenizer, after: int | None) -> list[int]:
    """Where each text ends among the bytes of the tokens. Where these are not the bytes of the texts (a vocabulary that
    puts a space in front, or changes its texts), a border is where the tokens of what stands before it would end."""
    total = sum(map(len, pieces))
    ends = list(accumulate(len(text.encode()) for text in texts))
    space = total - ends[-1]
    if space == 0 or (space == 1 and tokenizer.adds_space(after)):
        return [end + space for end in ends]
    if len(texts) > _BORDERS:
        return [end * total // max(ends[-1], 1) for end in ends]
    before = ["".join(texts[:n]) for n in range(1, len(texts))]
    lengths = [
        sum(len(tokenizer.piece(token)) for token in tokenizer.encode_buffer(text, after=after)) for text in before
    ]
    return [*accumulate([min(length, total) for length in lengths], max), total]


def _covered(start: int, stop: int, ends: Sequence[int]) -> list[int]:
    """The texts that bytes start..stop-1 are of, the one with most of them first, then in order."""
    index = min(bisect_right(ends, start), len(ends) - 1)
    sizes: dict[int, int] = {}
    while True:
        end = stop if index == len(ends) - 1 else min(stop, ends[index])
        if end > start or not sizes:
            sizes[index] = end - start
        start = max(start, end)
        if start >= stop or index == len(ends) - 1:
            break
        index += 1
    most = max(sizes, key=lambda text: (sizes[text], -text))
    return [most, *(text for text in sizes if text != most)]


def origin_of(segment: Segment) -> tuple[str, int | None]:
    """Whose text a segment is, and of which message."""
    if isinstance(segment, Special):
        return "template", None
    if isinstance(segment, Kept):
        return "assistant", segment.message
    return segment.origin, segment.message


# ---- Pieces -------------------------------------------------------------------------------------------------------


def split(prompt: Prompt, turns: Sequence[Turn], start: int, ends: frozenset[int], bos: int | None) -> list[_Part]:
    """The segments of a prompt in parts. start: the turns before it are left out, but for system texts. ends: the
    control tokens that end a turn."""
    segments = prompt.segments
    kept = [n for n, turn in enumerate(turns) if n >= start or turn.message.role == "system"]
    parts: list[_Part] = []
    at = 0
    first = segments[0] if segments else None
    if isinstance(first, Special) and first.id == bos and segments.count(first) == 1:  # it opens no message
        parts.append(_Part(None, 0, 1))
        at = 1
    previous: _Part | None = None
    for message, own in _contents(segments):
        opening = _close(segments, previous, at, own[0], ends, parts, _between(kept, previous, message))
        previous = _Part(message, opening, own[1], own)
        parts.append(previous)
        at = own[1]
    rest = _close(segments, previous, at, len(segments), ends, parts, _between(kept, previous, None))
    if rest < len(segments):
        parts.append(_Part(None, rest, len(segments)))
    return parts


def _contents(segments: Sequence[Segment]) -> Iterator[tuple[int, tuple[int, int]]]:
    """The messages in the order in which they stand in the prompt: (index, first and behind the last segment)."""
    found: list[tuple[int, tuple[int, int]]] = []
    for at, segment in enumerate(segments):
        message = origin_of(segment)[1]
        if message is None:
            continue
        if found and found[-1][0] == message:
            found[-1] = (message, (found[-1][1][0], at + 1))
        else:
            found.append((message, (at, at + 1)))
    yield from found


def _between(kept: Sequence[int], previous: _Part | None, following: int | None) -> list[int]:
    """The messages that must stand between two others: those that have no text."""
    low = -1 if previous is None or previous.message is None else previous.message
    return [n for n in kept if low < n and (following is None or n < following)]


def _close(
    segments: Sequence[Segment],
    previous: _Part | None,
    at: int,
    stop: int,
    ends: frozenset[int],
    parts: list[_Part],
    missing: list[int],
) -> int:
    """Share out what the template writes between two messages; where the opening of the second begins."""
    borders = [at]
    for n in range(at, stop):
        segment = segments[n]
        if not (isinstance(segment, Special) and segment.id in ends):
            continue
        behind = segments[n + 1] if n + 1 < stop else None
        blank = isinstance(behind, Text) and not behind.text.strip() and (n + 2 == len(segments) or n + 2 < stop)
        borders.append(n + 2 if blank else n + 1)
    whole = list(pairwise(borders))
    if previous is not None:
        if not whole:
            previous.last = stop
            return stop
        previous.last = whole.pop(0)[1]
    if len(missing) == len(whole):
        parts += [_Part(message, *borders) for message, borders in zip(missing, whole, strict=True)]
    else:
        parts += [_Part(None, *borders) for borders in whole]
    return borders[-1]


def make_pieces(
    parts: Sequence[_Part], prompt: Prompt, turns: Sequence[Turn], counts: Sequence[int], reused: int
) -> tuple[Piece, ...]:
    """The parts with their texts. counts: how many tokens each has."""
    pieces: list[Piece] = []
    at = 0
    for part, tokens in zip(parts, counts, strict=True):
        own = part.own or (part.last, part.last)
        pieces.append(
            Piece(
                role="template" if part.message is None else turns[part.message].message.role,
                message=part.message,
                tokens=tokens,
                reused=min(max(reused - at, 0), tokens),
                before=join(prompt.segments[part.first : own[0]]),
                content=join(prompt.segments[slice(*own)]),
                after=join(prompt.segments[own[1] : part.last]),
            )
        )
        at += tokens
    return tuple(pieces)


def take_apart(
    prompt: Prompt,
    turns: Sequence[Turn],
    start: int,
    tokenizer: Tokenizer,
    ends: frozenset[int],
    reused: int,
) -> tuple[tuple[Token, ...], tuple[Piece, ...]]:
    """All tokens and all pieces of a prompt."""
    parts = split(prompt, turns, start, ends, tokenizer.bos)
    piece_of = [number for number, part in enumerate(parts) for _ in range(part.last - part.first)]
    origins = [origin_of(segment) for segment in prompt.segments]
    counts = [0] * len(parts)
    tokens: list[Token] = []
    for at, (token, share) in enumerate(zip(prompt.ids, shares_of(prompt, tokenizer), strict=True)):
        origin, message = origins[share[0]]
        counts[piece_of[share[0]]] += 1
        control = isinstance(prompt.segments[share[0]], Special) or tokenizer.is_control(token)
        tokens.append(
            Token(
                id=token,
                bytes=tokenizer.piece(token),
                kind="control" if control else "text",
                origin=origin,
                origins=tuple(dict.fromkeys(origins[segment][0] for segment in sorted(share))),
                message=message,
                piece=piece_of[share[0]],
                reused=at < reused,
            )
        )
    return tuple(tokens), make_pieces(parts, prompt, turns, counts, reused)
