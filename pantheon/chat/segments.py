"""A prompt in pieces, control tokens kept apart from text, each piece with its origin; and the pieces as token ids.

Rank 4: imports errors, the engine's Tokenizer, and its siblings.

The one thing to know first: safety is a type here. Only a `Special` is ever looked up as a control token, and only
`ControlTokens.split` makes them, out of characters that came from the template one and all. Whatever a message says
travels in a `Text` and stays text. Texts that follow each other are encoded as one, so that tokens merge across the
border of template and message exactly as in the joined text.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pantheon._arrays import ID_CODE, IdBuffer, Ids
from pantheon.chat.origin import TEMPLATE, runs_of
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import ChatTemplateError

Origin = Literal["template", "system", "user", "assistant", "tool", "data"]
"""Whose characters they are. data: the caller's, but of no message, or no longer known of which."""


@dataclass(frozen=True, slots=True)
class Special:
    """A control token, by its exact text; `id` where it is known already."""

    text: str
    id: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text, of the template or of a message. It never becomes a control token."""

    text: str
    origin: Origin = "template"
    message: int | None = None
    """The index in the conversation of the message that it stands in."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the model itself wrote: its ids stay as they were sampled, `text` is what they read as."""

    text: str
    ids: tuple[int, ...]
    message: int | None = None


Segment = Special | Text | Kept


@dataclass(frozen=True, slots=True)
class Source:
    """What one text that the template was given is part of."""

    origin: Origin
    message: int | None = None
    kept: Kept | None = None
    """If the text comes out of the template as it went in, this takes its place."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a prompt that was encoded at once."""

    segments: slice
    """Of Prompt.segments: one Special, one Kept, or neighbouring Texts."""
    ids: slice
    """Of Prompt.ids."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads, as text and as the ids that it gets: the spans, in order, cover both without gaps."""

    segments: tuple[Segment, ...]
    ids: IdBuffer
    spans: tuple[Span, ...]

    @property
    def text(self) -> str:
        """The whole prompt, as the chat template printed it (and a beginning of sequence, if that was added)."""
        return join(self.segments)


def join(segments: Iterable[Segment]) -> str:
    """The text of all segments, as a chat template would print it."""
    return "".join(segment.text for segment in segments)


# ---- Control tokens -----------------------------------------------------------------------------------------------


def special_id(tokenizer: Tokenizer, text: str) -> int:
    """The single id of a control token; ChatTemplateError if this vocabulary has none of that name."""
    token = tokenizer.token_id(text)
    if token is None:
        raise ChatTemplateError(
            f"this model's vocabulary has no control token {text!r}, so this chat format would reach it as plain text; "
            "plain completion works"
        )
    return token


_REMEMBERED = 1_000_000
"""Characters of texts whose ids are remembered, for each format."""


class ControlTokens:
    """The control and user-defined tokens of one vocabulary, as they stand in the texts of one template.

    A template says the same few texts again and again, and a conversation the same messages, so what is found in a
    text, and its ids, are remembered.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._found: dict[str, tuple[Segment, ...]] = {}
        self._encoded: dict[tuple[str, int | None], IdBuffer] = {}
        self._room = _REMEMBERED

    def split(self, text: str) -> tuple[Segment, ...]:
        """A text of the template in Specials and Texts: leftmost first, of those the longest, as the tokenizer says."""
        found = self._found.get(text)
        if found is None:
            found = tuple(self._find(text))
            if len(self._found) < 1000 and len(text) < 10_000:
                self._found[text] = found
        return found

    def encode(self, text: str, previous: int | None) -> IdBuffer:
        """The ids of a text that follows the token `previous` (None: it begins). Not to be changed."""
        key = (text, previous)
        ids = self._encoded.get(key)
        if ids is None:
            ids = self.tokenizer.encode_buffer(text, after=previous)
            if len(text) > self._room:
                self._encoded, self._room = {}, _REMEMBERED  # another thread may still read the one that was
            if len(text) <= _REMEMBERED // 10:
                self._encoded[key] = ids
                self._room -= len(text) + 100
        return ids

    def _find(self, text: str) -> Iterable[Segment]:
        at = 0
        for token in self.tokenizer.encode_buffer(text, special=True):
            piece = self.tokenizer.piece(token)
            if self.tokenizer.token_id(piece) != token:
                continue
            name = piece.decode("utf-8", "replace")
            start = text.find(name, at)  # between two of them nothing is spelled like one, so the first is it
            if start < 0:
                continue
            if start > at:
                yield Text(text[at:start])
            yield Special(name, token)
            at = start + len(name)
        if at < len(text):
            yield Text(text[at:])


# ---- From the template's output to segments -----------------------------------------------------------------------


def segments_of(written: str, source_of: Callable[[int], Source], controls: ControlTokens) -> list[Segment]:
    """The template's output in segments: `source_of` knows what the numbers in its origins stand for."""
    runs = runs_of(written)
    numbers = [source for _, source in runs]
    segments: list[Segment] = []
    at = 0
    for length, number in runs:
        text = str.__getitem__(written, slice(at, at + length))
        at += length
        if number == TEMPLATE:
            segments += controls.split(text)
            continue
        source = source_of(number)
        if source.kept is not None and source.kept.text == text and numbers.count(number) == 1:
            segments.append(_with_its_space(source.kept, segments, controls.tokenizer))
        elif text:
            segments.append(Text(text, source.origin, source.message))
    return segments


def _with_its_space(kept: Kept, before: list[Segment], tokenizer: Tokenizer) -> Kept:
    """A reply that was sampled with a space in front, which its text is shown without, as SentencePiece has it: where
    the template writes that space, the sampled ids have it already."""
    last = before[-1] if before else None
    if not isinstance(last, Text) or last.origin != "template" or not last.text.endswith(" "):
        return kept
    first = next((token for token in kept.ids if not tokenizer.is_control(token)), None)
    if first is None or kept.text.startswith(" ") or not tokenizer.piece(first).startswith(b" "):
        return kept
    before[-1:] = [Text(last.text[:-1])] if len(last.text) > 1 else []
    return Kept(" " + kept.text, kept.ids, kept.message)


def beginnings(segments: Iterable[Segment], bos: int | None) -> tuple[int, int]:
    """How often a beginning of sequence stands before the first message, and how many of these stand in a row, with
    white space between them at most. In some vocabularies it is what every turn begins with, too."""
    count = row = longest = 0
    for segment in segments:
        if isinstance(segment, Special):
            is_bos = segment.id is not None and segment.id == bos
            count += is_bos
            row = row + 1 if is_bos else 0
            longest = max(longest, row)
        elif isinstance(segment, Kept) or segment.origin != "template":
            break
        elif segment.text.strip():
            row = 0
    return count, longest


def with_bos(segments: list[Segment], tokenizer: Tokenizer) -> list[Segment]:
    """The segments with a beginning of sequence in front, if the file asks for one and the template writes none before
    the first message; white space, or a text of its own, may stand before that one."""
    bos = tokenizer.bos
    if bos is None or not tokenizer.add_bos or beginnings(segments, bos)[0]:
        return segments
    return [Special(tokenizer.piece(bos).decode("utf-8", "replace"), bos), *segments]


# ---- From segments to ids -----------------------------------------------------------------------------------------


def encode(tokenizer: Tokenizer, segments: Iterable[Segment]) -> Ids:
    """The ids of a prompt, uint32[n]."""
    import numpy as np

    return np.array(encode_prompt(ControlTokens(tokenizer), segments).ids, np.uint32)


def encode_prompt(controls: ControlTokens, segments: Iterable[Segment]) -> Prompt:
    """Segments and their ids. ChatTemplateError for a Special that this vocabulary does not have."""
    tokenizer = controls.tokenizer
    pieces: Sequence[Segment] = tuple(segments)
    ids = array(ID_CODE)
    spans: list[Span] = []
    at = 0
    while at < len(pieces):
        start, begun = at, len(ids)
        piece = pieces[at]
        at += 1
        if isinstance(piece, Special):
            token = piece.id if piece.id is not None else special_id(tokenizer, piece.text)
            ids.append(token)
        elif isinstance(piece, Kept):
            ids.extend(piece.ids)
        else:
            texts = [piece.text]
            while at < len(pieces) and isinstance(following := pieces[at], Text):
                texts.append(following.text)
                at += 1
            ids.extend(controls.encode("".join(texts), ids[-1] if ids else None))
        spans.append(Span(slice(start, at), slice(begun, len(ids))))
    return Prompt(tuple(pieces), ids, tuple(spans))
