"""Chat formats: the table of built-in styles, their detection, and the check against the model's own template.

Rank 4: imports errors, messages, segments; the sandbox (and with it Jinja) at the first template.

A style says how a conversation is cut into control tokens and text. The model's own template says what the prompt
must read like. A chat uses the style and holds it against the template: once on probe conversations, when the format
is made (that also finds the system text that a template inserts by itself), and again on every prompt that is sent.
To add a style, add an entry to STYLES.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pantheon.chat.messages import Message, Turn
from pantheon.chat.segments import Kept, Segment, Special, Text, join, special_id
from pantheon.errors import ChatTemplateError

if TYPE_CHECKING:
    from pantheon.chat.sandbox import CompiledTemplate
    from pantheon.engine.tokenizer import Tokenizer

logger = logging.getLogger("pantheon")


# ---- The table of styles ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One family of chat formats.

    A message is head(role), its content, tail; the prompt for a reply ends with head("assistant").
    """

    name: str
    title: str
    markers: tuple[str, ...]
    """Texts that a template of this style contains; each must be a control token of the vocabulary."""
    head: Callable[[str], tuple[Segment, ...]]
    tail: tuple[Segment, ...]
    end_of_turn: str
    """The control token that ends what the assistant writes."""


def _chatml_head(role: str) -> tuple[Segment, ...]:
    return Special("<|im_start|>"), Text(f"{role}\n")


STYLES: dict[str, Style] = {
    "chatml": Style(
        name="chatml",
        title="ChatML",
        markers=("<|im_start|>", "<|im_end|>"),
        head=_chatml_head,
        tail=(Special("<|im_end|>"), Text("\n")),
        end_of_turn="<|im_end|>",
    ),
}


def detect_style(template: str) -> Style | None:
    """The style whose markers all stand in the text of a template, or None."""
    for style in STYLES.values():
        if all(marker in template for marker in style.markers):
            return style
    return None


# ---- Rendering any template ---------------------------------------------------------------------------------------


def render(
    template: str,
    messages: Iterable[Message | Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    bos_token: str = "",
    eos_token: str = "",
    add_generation_prompt: bool = True,
    now: datetime | None = None,
) -> str:
    """What a chat template prints for these messages, which may have any keys and are not changed.

    The template runs in a sandbox with limits on steps, time and size. `now` freezes its clock. Content that is None
    reads as "". Raises ChatTemplateError: not valid Jinja, the template's own refusal, or a limit.
    """
    from pantheon.chat.sandbox import CompiledTemplate

    variables = _variables(messages, bos_token, eos_token, add_generation_prompt, tools)
    return CompiledTemplate(template).render(variables, now)


def _variables(
    messages: Iterable[Message | Mapping[str, Any]],
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool,
    tools: Sequence[Any] | None = None,
) -> dict[str, Any]:
    plain: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, Message):
            message = {"role": message.role, "content": message.content}
        plain.append({key: "" if key == "content" and value is None else value for key, value in message.items()})
    return {
        "messages": plain,
        "tools": tools,
        "documents": None,
        "bos_token": bos_token,
        "eos_token": eos_token,
        "add_generation_prompt": add_generation_prompt,
    }


# ---- The format of one model --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How to write conversations for one model: a style, and the model's template to hold it against."""

    style: Style
    template: CompiledTemplate | None
    """None: the style was forced, there is nothing to compare with."""
    default_system: str | None
    """What the template inserts when a conversation does not begin with a system message."""
    bos: str
    """The beginning-of-sequence token to put in front, or ""."""
    bos_printed: bool
    """Whether the template prints it itself."""
    bos_token: str
    eos_token: str
    stop_ids: frozenset[int]
    """What ends a reply: the file's stop ids and the style's end of turn."""

    def segments(self, turns: Sequence[Turn], *, generation_prompt: bool = True) -> list[Segment]:
        """The whole conversation in segments, ready for the assistant to write if generation_prompt."""
        pieces: list[Segment] = [Special(self.bos)] if self.bos else []
        first = turns[0].message.role if turns else None
        if first != "system" and first is not None and self.default_system is not None:
            pieces += self._message(Turn(Message("system", self.default_system)))
        for turn in turns:
            pieces += self._message(turn)
        if generation_prompt:
            pieces += self.style.head("assistant")
        return pieces

    def _message(self, turn: Turn) -> tuple[Segment, ...]:
        content = turn.message.content
        body: Segment = Text(content) if turn.ids is None else Kept(content, turn.ids)
        return *self.style.head(turn.message.role), body, *self.style.tail

    def check(self, turns: Sequence[Turn], now: datetime | None, *, generation_prompt: bool = True) -> list[Segment]:
        """segments(), after comparing their text with what the model's own template prints.

        Raises ChatTemplateError where they differ, or with the template's own words if it refuses the messages.
        """
        pieces = self.segments(turns, generation_prompt=generation_prompt)
        if self.template is None:
            return pieces
        messages = [turn.message for turn in turns]
        variables = _variables(messages, self.bos_token, self.eos_token, generation_prompt)
        theirs = self.template.render(variables, now)
        ours = join(pieces[1:] if self.bos and not self.bos_printed else pieces)
        if ours != theirs:
            raise ChatTemplateError(
                f"the model's own chat template writes these messages differently than {self.style.title}: "
                f"{_difference(theirs, ours)}; template={self.style.name!r} forces {self.style.title}"
            )
        return pieces


def _difference(theirs: str, ours: str) -> str:
    """Where two texts part, in one line."""
    at = next((i for i, (a, b) in enumerate(zip(theirs, ours, strict=False)) if a != b), min(len(theirs), len(ours)))
    start = max(at - 12, 0)
    return f"at character {at} it has {theirs[start : at + 24]!r} where {ours[start : at + 24]!r} was expected"


def make_format(tokenizer: Tokenizer, template: str | None, forced: str | None, now: datetime | None) -> ChatFormat:
    """The format for a model with this tokenizer and this template text; `forced` names a style to use regardless.

    Raises ChatTemplateError if there is no template, if it is broken, or if it is not of a style in STYLES.
    """
    if forced is not None:
        return _forced_format(tokenizer, forced)
    if template is None or not template.strip():
        what = "has no chat template" if template is None else "has an empty chat template"
        raise ChatTemplateError(f"this file {what}; {_cure()}")
    style = detect_style(template)
    if style is None:
        raise ChatTemplateError(f"this file's chat template is of a style that is not known here; {_cure()}")
    from pantheon.chat.sandbox import CompiledTemplate

    bare = _bare_format(tokenizer, style, CompiledTemplate(template))
    chat_format = _fit_to_template(bare, tokenizer.add_bos, now)
    for probe in _PROBES:
        for generation_prompt in (True, False):
            chat_format.check(probe, now, generation_prompt=generation_prompt)
    logger.info("chat format %s, checked against the file's own template", style.title)
    return chat_format


def _cure() -> str:
    names = " or ".join(f"template={name!r}" for name in STYLES)
    return f"plain completion works, and {names} forces a style"


def _forced_format(tokenizer: Tokenizer, name: str) -> ChatFormat:
    style = STYLES.get(name)
    if style is None:
        raise ChatTemplateError(f"there is no chat style {name!r}; there is: {', '.join(STYLES)}")
    bare = _bare_format(tokenizer, style, None)
    logger.info("chat format %s, forced", style.title)
    return replace(bare, bos=bare.bos_token if tokenizer.add_bos else "")


def _bare_format(tokenizer: Tokenizer, style: Style, template: CompiledTemplate | None) -> ChatFormat:
    for marker in style.markers:
        special_id(tokenizer, marker)

    def spelling(token: int | None) -> str:
        return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")

    return ChatFormat(
        style=style,
        template=template,
        default_system=None,
        bos="",
        bos_printed=False,
        bos_token=spelling(tokenizer.bos),
        eos_token=spelling(tokenizer.eos),
        stop_ids=frozenset((*tokenizer.stop_ids, special_id(tokenizer, style.end_of_turn))),
    )


_USER = Turn(Message("user", "What is in the box?"))
_PROBES: tuple[tuple[Turn, ...], ...] = (
    (_USER,),
    (Turn(Message("system", "Answer in one line.")), _USER),
    (
        Turn(Message("system", "Answer in one line.")),
        _USER,
        Turn(Message("assistant", "A pair of shoes.")),
        Turn(Message("user", "And in the other?")),
    ),
)


def _fit_to_template(bare: ChatFormat, add_bos: bool, now: datetime | None) -> ChatFormat:
    """Find out from one rendering what the template puts in front: a beginning of sequence, a system text."""
    assert bare.template is not None
    theirs = bare.template.render(_variables([_USER.message], bare.bos_token, bare.eos_token, True), now)
    prints_bos = bool(bare.bos_token) and theirs.startswith(bare.bos_token) and bare.bos_token not in bare.style.markers
    if prints_bos:
        theirs = theirs[len(bare.bos_token) :]
    bos = bare.bos_token if prints_bos or (add_bos and not theirs.startswith(bare.bos_token)) else ""
    before, after = join(bare.style.head("system")), join(bare.style.tail) + join(bare.segments([_USER]))
    inserted: str | None = None
    if theirs.startswith(before) and theirs.endswith(after) and len(theirs) >= len(before) + len(after):
        inserted = theirs[len(before) : len(theirs) - len(after)]
    return replace(bare, bos=bos, bos_printed=prints_bos, default_system=inserted)
