"""Which format a model's chats are written in, and what there is to know about it, found out by asking it.

Rank 4: imports errors and its siblings.

In this order: what the caller forces; the file's own template, whatever it is; without one, the style that models of
this architecture were made with, if the vocabulary has its markers. Otherwise there is no chat, and the error says what
would help.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pantheon.chat.format import ChatFormat
from pantheon.chat.limits import one_budget
from pantheon.chat.messages import Message, Turn, check_text
from pantheon.chat.segments import ControlTokens, Prompt, Special, Text, beginnings, encode_prompt, join
from pantheon.chat.styles import (
    STYLES,
    Style,
    check_vocabulary,
    detect_style,
    find_style,
    missing_controls,
    plain_markers,
    spelling,
    style_from_arch,
)
from pantheon.chat.templates import KEY, TOOL_KEY, compiled
from pantheon.errors import ChatTemplateError

if TYPE_CHECKING:
    from pantheon._arrays import Ids
    from pantheon.engine.tokenizer import Tokenizer

logger = logging.getLogger("pantheon")

OWN = "the file's own template"
_USER = Turn(Message("user", "What is in the box?"))
_SYSTEM = Turn(Message("system", "Answer in one line."))
_REPLY = Turn(Message("assistant", "A pair of shoes."))


def make_format(
    tokenizer: Tokenizer,
    metadata: Mapping[str, object],
    *,
    forced: str | None = None,
    now: datetime | None = None,
) -> ChatFormat:
    """The format for a model with this tokenizer and this header.

    forced: the name of a style, the text of a Jinja template, or the path of a file with one; then the file's own
    template is not even looked at. Raises ChatTemplateError if there is no template and none can be guessed, if it is
    broken, or if a style's markers are no control tokens of this vocabulary; ArgumentError if `forced` is no str.
    """
    if forced is not None:
        check_text("template", forced)
    with one_budget() as budget:
        if forced is not None:
            chat_format = _forced(tokenizer, forced)
        else:
            chat_format = _own(tokenizer, metadata, now) or _guessed(tokenizer, metadata)
        chat_format = _find_out(chat_format, now)
    if budget.is_spent:  # what was found out is then not so: questions that were stopped count as refused
        raise ChatTemplateError(
            f"{chat_format.title} takes too long, or too much memory, to write a few short messages; {_cure()}"
        )
    logger.info("chat format: %s (%s)", chat_format.title, chat_format.reason)
    for note in chat_format.notes:
        logger.warning("chat format: %s", note)
    return chat_format


def _bare(tokenizer: Tokenizer, title: str, reason: str, **more: object) -> ChatFormat:
    facts: dict[str, object] = {"style": None, "template": None, **more}
    return ChatFormat(
        tokenizer=tokenizer,
        controls=ControlTokens(tokenizer),
        title=title,
        reason=reason,
        bos_token=spelling(tokenizer, tokenizer.bos),
        eos_token=spelling(tokenizer, tokenizer.eos),
        stop_ids=frozenset(tokenizer.stop_ids),
        **facts,  # type: ignore[arg-type]
    )


def _of_style(tokenizer: Tokenizer, style: Style, reason: str) -> ChatFormat:
    check_vocabulary(style, tokenizer)
    return _bare(tokenizer, style.title, reason, style=style, notes=_notes(style, tokenizer))


def _notes(style: Style, tokenizer: Tokenizer) -> tuple[str, ...]:
    markers = plain_markers(style, tokenizer)
    if not markers:
        return ()
    return (
        f"{style.title} writes {' and '.join(markers)} as ordinary text in this vocabulary, so a message that has them "
        "in it reads as if its turn had ended",
    )


def _forced(tokenizer: Tokenizer, forced: str) -> ChatFormat:
    if forced in STYLES:
        return _of_style(tokenizer, STYLES[forced], f"forced by template={forced!r}")
    if "{{" in forced or "{%" in forced:
        return _bare(tokenizer, "the given template", "template= has its text", template=compiled(forced))
    if os.path.isdir(forced):
        raise ChatTemplateError(f"the chat template {forced!r} is a folder; template= wants the file itself")
    if not os.path.exists(forced):
        if os.sep in forced or "." in forced:
            raise ChatTemplateError(f"there is no file {forced!r} to read a chat template from")
        find_style(forced)
    try:
        with open(forced, encoding="utf-8") as file:
            text = file.read(2_000_000)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ChatTemplateError(f"the chat template {forced!r} cannot be read: {reason}") from None
    if not text.strip():
        raise ChatTemplateError(f"the chat template {forced!r} is an empty file")
    return _bare(tokenizer, "the given template", f"read from {forced}", template=compiled(text))


def _own(tokenizer: Tokenizer, metadata: Mapping[str, object], now: datetime | None) -> ChatFormat | None:
    text, tool_text = (_text_of(metadata, key) for key in (KEY, TOOL_KEY))
    text = text or _text_of(metadata, f"{KEY}.default") or tool_text
    if text is None:
        return None
    try:
        template = compiled(text)
    except ChatTemplateError as error:
        raise ChatTemplateError(f"this file's own template: {error}; {_cure()}") from None
    chat_format = _bare(tokenizer, OWN, "the file has one", template=template, tool_template=tool_text)
    name = detect_style(text)
    if name is None:
        return chat_format
    style = STYLES[name]
    if missing_controls(style, tokenizer):
        missing = missing_controls(style, tokenizer)[0]
        note = f"the template looks like {style.title}, but {missing} is no control token of this vocabulary"
        return replace(chat_format, notes=(note,))
    chat_format = replace(chat_format, notes=_notes(style, tokenizer))
    front = _extra_front(chat_format, style, now)
    if front is None:
        return replace(chat_format, reason=f"it has the markers of {style.title}, but writes more or otherwise")
    behind = " behind a system text of its own" if front.replace(chat_format.bos_token or " ", "").strip() else ""
    reason = f"{OWN}, which writes {style.title}{behind}"
    return replace(chat_format, title=style.title, style=style, reason=reason)


def _text_of(metadata: Mapping[str, object], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value.strip() else None


def _guessed(tokenizer: Tokenizer, metadata: Mapping[str, object]) -> ChatFormat:
    architecture = metadata.get("general.architecture")
    name = style_from_arch(architecture, tokenizer) if isinstance(architecture, str) else None
    what = "has an empty chat template" if KEY in metadata else "has no chat template"
    if name is None:
        raise ChatTemplateError(f"this file {what}; {_cure()}")
    reason = f"the file {what}; chat models of {architecture!r} were made with this one"
    chat_format = _of_style(tokenizer, STYLES[name], reason)
    note = f"this file {what}: {chat_format.title} is a guess from its architecture {architecture!r}"
    return replace(chat_format, notes=(note, *chat_format.notes))


def _cure() -> str:
    names = " | ".join(map(repr, STYLES))
    return f"plain completion works, and template= gives one: {names}, or the path of a Jinja template"


# ---- Found out by asking ------------------------------------------------------------------------------------------


def _extra_front(chat_format: ChatFormat, style: Style, now: datetime | None) -> str | None:
    """What the template prints before that which the style would, for plain conversations: a system text of its own, or
    nothing. None: it does not write like the style."""
    as_style = replace(chat_format, style=style, template=None)
    fronts: set[str] = set()
    for probe in ((_USER,), (_USER, _REPLY, _USER)):
        try:
            theirs, ours = join(chat_format.segments(probe, now)), join(as_style.segments(probe))
        except ChatTemplateError:
            return None
        theirs, ours = (text.removeprefix(chat_format.bos_token) for text in (theirs, ours))
        if not theirs.endswith(ours):
            return None
        fronts.add(theirs[: len(theirs) - len(ours)])
    return fronts.pop() if len(fronts) == 1 else None


def _inserted_system(chat_format: ChatFormat, now: datetime | None) -> str | None:
    """The system text that the template inserts where a conversation has none: what stands in its place."""
    with_one = chat_format.segments((_SYSTEM, _USER), now)
    at = [n for n, piece in enumerate(with_one) if isinstance(piece, Text) and piece.message == 0]
    if len(at) != 1:
        return None
    before, after = join(with_one[: at[0]]), join(with_one[at[0] + 1 :])
    bare = join(chat_format.segments((_USER,), now))
    if not bare.startswith(before) or not bare.endswith(after) or len(bare) < len(before) + len(after):
        return None
    return bare[len(before) : len(bare) - len(after)]


def _find_out(chat_format: ChatFormat, now: datetime | None) -> ChatFormat:
    """Whether it takes a system text, which one it inserts, and what ends the assistant's turn."""
    try:
        chat_format.segments((_SYSTEM, _USER), now)
        takes_system = True
    except ChatTemplateError:
        takes_system = False
    try:
        inserted = _inserted_system(chat_format, now) if takes_system else None
    except ChatTemplateError:
        inserted = None
    return replace(
        chat_format,
        takes_system=takes_system,
        default_system=inserted,
        stop_ids=chat_format.stop_ids | _end_of_turn(chat_format, now),
        notes=(*chat_format.notes, *_bos_note(chat_format, now)),
    )


def _bos_note(chat_format: ChatFormat, now: datetime | None) -> Iterator[str]:
    """A template that begins twice is followed, for its prompt is the model's; but most often that is a mistake."""
    tokenizer = chat_format.tokenizer
    try:
        _, count = beginnings(chat_format.segments((_USER,), now), tokenizer.bos)
    except ChatTemplateError:
        return
    if count > 1:
        name = spelling(tokenizer, tokenizer.bos)
        yield f"the template writes {name} {count} times where once begins a sequence; they are all kept"


def _end_of_turn(chat_format: ChatFormat, now: datetime | None) -> frozenset[int]:
    """The control token that stands right behind what the assistant said; white space between does not count."""
    for probe in ((_USER, _REPLY), (_USER, _REPLY, _USER)):
        try:
            pieces = chat_format.segments(probe, now, generation_prompt=False)
        except ChatTemplateError:
            continue
        said = [n for n, piece in enumerate(pieces) if isinstance(piece, Text) and piece.message == 1]
        for piece in pieces[said[-1] + 1 :] if said else ():
            if isinstance(piece, Special) and piece.id is not None:
                return frozenset({piece.id})
            if piece.text.strip():
                break
    return frozenset()


def facts(chat_format: ChatFormat) -> Iterator[tuple[str, str]]:
    """What is in force and why, in pairs of a word and a text."""
    tokenizer = chat_format.tokenizer
    yield "template", f"{chat_format.title}: {chat_format.reason}"
    if not chat_format.takes_system:
        yield "system text", "not taken; --fold-system puts it in front of the user's message"
    elif chat_format.default_system is None:
        yield "system text", "taken; the template inserts none"
    else:
        yield "system text", f"taken; without one the template inserts {chat_format.default_system!r}"
    try:
        begins = beginnings(chat_format.segments([_USER]), tokenizer.bos)[0] > 0
    except ChatTemplateError:
        begins = False
    yield "begins with", _named(tokenizer, tokenizer.bos) if begins and tokenizer.bos is not None else "no BOS"
    yield "stops at", ", ".join(_named(tokenizer, token) for token in sorted(chat_format.stop_ids)) or "nothing"
    for note in chat_format.notes:
        yield "note", note


def _named(tokenizer: Tokenizer, token: int) -> str:
    return f"{spelling(tokenizer, token)} ({token})"


# ---- Single turns, for programs that keep the ids themselves ------------------------------------------------------


def format_first(style: str | Style, tokenizer: Tokenizer, system: str | None, user: str) -> Ids:
    """The first turn in a built-in style: beginning of sequence (if the file asks for one), system text, user's
    message, and the opening of the reply. uint32[n].

    system None: none is written. ChatTemplateError if the style has no place for one (fold it into `user` yourself), or
    if a marker of the style is no control token of this vocabulary.
    """
    turns = [Turn(Message("user", user))]
    if system is not None:
        turns.insert(0, Turn(Message("system", system)))
    return _ids(_of_style(tokenizer, find_style(style), "asked for").prompt(turns))


def format_turn(style: str | Style, tokenizer: Tokenizer, user: str) -> Ids:
    """A later turn: the end of the reply that was just sampled, the user's message, and the opening of the next reply.
    uint32[n], to be evaluated behind the reply's ids."""
    chat_format = _of_style(tokenizer, find_style(style), "asked for")
    pieces = chat_format.segments([_USER, _REPLY, Turn(Message("user", user))])
    said = [n for n, piece in enumerate(pieces) if isinstance(piece, Text) and piece.message == 1]
    return _ids(encode_prompt(chat_format.controls, pieces[said[-1] + 1 :]))


def _ids(prompt: Prompt) -> Ids:
    import numpy as np

    return np.array(prompt.ids, np.uint32)
