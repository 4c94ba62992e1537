"""A prompt in pieces, control tokens kept apart from text, and the pieces as token ids.

Rank 4: imports errors and the engine's Tokenizer.

The one thing to know first: safety is a type here. Only a `Special` is ever looked up as a control token, and only
templates make them; whatever a message says travels in a `Text` and stays text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from pantheon._arrays import ID_CODE, IdBuffer, Ids
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import ChatTemplateError


@dataclass(frozen=True, slots=True)
class Special:
    """A control token, by its exact text."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text, of the template or of a message. It never becomes a control token."""

    text: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What the model itself wrote: its ids stay as they were sampled, `text` is what they read as."""

    text: str
    ids: tuple[int, ...]


Segment = Special | Text | Kept


def join(segments: Iterable[Segment]) -> str:
    """The text of all segments, as a chat template would print it."""
    return "".join(segment.text for segment in segments)


def special_id(tokenizer: Tokenizer, text: str) -> int:
    """The single id of a control token; ChatTemplateError if this vocabulary has none of that name."""
    token = tokenizer.token_id(text)
    if token is None:
        raise ChatTemplateError(
            f"this model's vocabulary has no control token {text!r}, so this chat format would reach it as plain text; "
            "plain completion works"
        )
    return token


def encode(tokenizer: Tokenizer, segments: Iterable[Segment]) -> Ids:
    """The ids of a prompt, uint32[n]."""
    import numpy as np

    return np.array(encode_buffer(tokenizer, segments), np.uint32)


def encode_buffer(tokenizer: Tokenizer, segments: Iterable[Segment]) -> IdBuffer:
    """The ids of a prompt.

    Neighbouring texts are joined before they are encoded, so pieces merge across the border of header and content
    just as in the whole text.
    """
    ids = array(ID_CODE)
    run: list[str] = []

    def end_run() -> None:
        if run:
            ids.extend(tokenizer.encode_buffer("".join(run)))
            run.clear()

    for segment in segments:
        if isinstance(segment, Text):
            run.append(segment.text)
            continue
        end_run()
        kept = segment.ids if isinstance(segment, Kept) else (special_id(tokenizer, segment.text),)
        ids.extend(kept)
    end_run()
    return ids
