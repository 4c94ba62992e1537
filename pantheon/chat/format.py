"""The format in force for one model: which template or style writes its prompts, and what it does with them.

Rank 4: imports errors and its siblings.

How a prompt comes about: the messages are handed to the template, each text with a number for where it came from; what
the template prints still has these numbers on its characters (origin.py); from them follow the segments, and from the
segments the ids (segments.py). The built-in styles write the same kind of text and take the same way from there.

The one thing to know first: the prompt is the template's own output. Nothing is repaired in silence. Where a template
refuses a message, or swallows a system text without a word, that is a ChatTemplateError with the index of the message;
fold_system and merge_roles are the caller's word that the messages may be arranged anew before they are written.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pantheon._arrays import ID_CODE
from pantheon.chat.limits import one_budget
from pantheon.chat.messages import Turn
from pantheon.chat.origin import DATA, FIRST_SOURCE, TEMPLATE, Traced, concat, mark, sources_in
from pantheon.chat.segments import (
    ControlTokens,
    Kept,
    Prompt,
    Segment,
    Source,
    Span,
    encode_prompt,
    segments_of,
    with_bos,
)
from pantheon.chat.styles import Style
from pantheon.chat.templates import compiled, variables_of
from pantheon.errors import ArgumentError, ChatTemplateError

if TYPE_CHECKING:
    from pantheon.chat.sandbox import CompiledTemplate
    from pantheon.engine.tokenizer import Tokenizer

_BLANK_LINE = Traced("\n\n")
_TOOLS = FIRST_SOURCE
FOLD_CURE = "leave the system text out, or let fold_system=True (--fold-system) put it in front of the user's message"
MERGE_CURE = "merge_roles=True joins neighbours of one role"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How to write conversations for one model."""

    tokenizer: Tokenizer
    controls: ControlTokens
    title: str
    """What it is called: "ChatML", or "the file's own template"."""
    reason: str
    """Why it is this one."""
    style: Style | None
    """The style that it is, or that the template is known to write like."""
    template: CompiledTemplate | None
    """None: the style writes."""
    tool_template: str | None = None
    """The text of the one that is used when tools are given."""
    bos_token: str = ""
    eos_token: str = ""
    default_system: str | None = None
    """What the template inserts when a conversation does not begin with a system message."""
    takes_system: bool = True
    stop_ids: frozenset[int] = frozenset()
    """What ends a reply: the file's stop ids and the control token that stands behind an assistant's message."""
    notes: tuple[str, ...] = ()
    """What a user should know about it."""

    def prompt(
        self,
        turns: Sequence[Turn],
        now: datetime | None = None,
        *,
        generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        fold_system: bool = False,
        merge_roles: bool = False,
        start: int = 0,
        opened: bool = False,
    ) -> Prompt:
        """What the model reads for this conversation, ready for the assistant to write if generation_prompt.

        start: the turns before this index are left out, but for system texts; all indices stay those in `turns`.
        opened: the last turn is the assistant's, and the model is to go on with it: its text stands behind the header
        of a reply, and nothing closes it.
        Raises ChatTemplateError, with `index` and `sentence`, where the template refuses a message, and where it prints
        nothing at all; ArgumentError for tools that are no list.
        """
        segments = self.segments(
            turns[:-1] if opened else turns,
            now,
            generation_prompt=generation_prompt,
            tools=tools,
            fold_system=fold_system,
            merge_roles=merge_roles,
            start=start,
        )
        prompt = encode_prompt(self.controls, segments)
        if opened:
            prompt = self._open(prompt, turns[-1], len(turns) - 1)
        if turns and not prompt.ids:
            raise ChatTemplateError(f"{self.title} prints nothing for these messages, so there is nothing to read")
        return prompt

    def _open(self, prompt: Prompt, turn: Turn, index: int) -> Prompt:
        """The prompt with the beginning of a reply behind it, as ids that it keeps from then on."""
        content, ids = turn.message.content, turn.ids
        if ids is None:
            ids = tuple(self.tokenizer.encode_buffer(content, after=prompt.ids[-1] if prompt.ids else None))
        if not ids:
            return prompt
        n_segments, n_ids = len(prompt.segments), len(prompt.ids)
        span = Span(slice(n_segments, n_segments + 1), slice(n_ids, n_ids + len(ids)))
        kept = Kept(content, ids, index)
        return Prompt((*prompt.segments, kept), prompt.ids + array(ID_CODE, ids), (*prompt.spans, span))

    def segments(
        self,
        turns: Sequence[Turn],
        now: datetime | None = None,
        *,
        generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        fold_system: bool = False,
        merge_roles: bool = False,
        start: int = 0,
    ) -> list[Segment]:
        """The prompt before it is encoded."""
        if tools is not None and not isinstance(tools, (list, tuple)):
            raise ArgumentError(f"tools must be a list, got {type(tools).__name__}")
        fold_system = fold_system and not self.takes_system
        groups = arrange(turns, fold_system=fold_system, merge_roles=merge_roles, start=start)
        messages = [_message(turns, group) for group in groups]
        try:
            written = self._write(messages, now, generation_prompt, tools)
        except ChatTemplateError as error:
            raise self._refused(error, turns, groups, messages, now, tools) from None
        _check_system(turns, written)
        return with_bos(segments_of(written, _Sources(turns), self.controls), self.tokenizer)

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        now: datetime | None,
        generation_prompt: bool,
        tools: Sequence[Any] | None,
    ) -> Traced:
        template = compiled(self.tool_template) if tools and self.tool_template is not None else self.template
        if template is None:
            assert self.style is not None
            if tools:
                raise ChatTemplateError(f"{self.title} has no way to tell the model of tools")
            return self.style.write(messages, eos_token=self.eos_token, add_generation_prompt=generation_prompt)
        named = None if tools is None else _labelled(list(tools), _TOOLS)
        variables = variables_of(messages, named, self.bos_token, self.eos_token, generation_prompt)
        return template.render(variables, now)

    def _refused(
        self,
        error: ChatTemplateError,
        turns: Sequence[Turn],
        groups: Sequence[Group],
        messages: Sequence[Mapping[str, Any]],
        now: datetime | None,
        tools: Sequence[Any] | None,
    ) -> ChatTemplateError:
        """The error with the index of the message at fault: the last of the shortest beginning that is refused too."""
        at = error.index
        if at is None and messages and error.sentence is not None:
            low, high = 0, len(messages)  # what begins with `low` messages is taken, with `high` it is refused
            with one_budget() as budget:
                while high - low > 1:
                    middle = (low + high) // 2
                    try:
                        self._write(messages[:middle], now, False, tools)
                        low = middle
                    except ChatTemplateError:
                        high = middle
            at = None if budget.is_spent else high - 1
        if at is None:
            return error
        group, sentence = groups[at], error.sentence or str(error)
        cure = ""
        if group.role == "system":
            cure = f"; {FOLD_CURE}"
        elif at and groups[at - 1].role == group.role:
            cure = f"; {MERGE_CURE}"
        index = group.turns[0]
        text = f"{self.title} refuses message {index} ({turns[index].message.role}): {sentence}{cure}"
        return ChatTemplateError(text, index=index, sentence=sentence)


# ---- Which messages are written -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Group:
    """Turns that are written as one message."""

    role: str
    turns: list[int] = field(default_factory=list)


def arrange(turns: Sequence[Turn], *, fold_system: bool, merge_roles: bool, start: int = 0) -> list[Group]:
    """Each turn a message of its own, unless the caller wants system texts in front of the user's next message, or
    neighbours of one role as one message. Turns before `start` that are no system texts are passed over."""
    groups: list[Group] = []
    waiting: list[int] = []
    for index, turn in enumerate(turns):
        role = turn.message.role
        if index < start and role != "system":
            continue
        if fold_system and role == "system":
            waiting.append(index)
            continue
        mergeable = merge_roles and role != "tool" and not turn.message.extras()
        own = [*waiting, index] if role == "user" else [index]
        if mergeable and groups and groups[-1].role == role and not turns[groups[-1].turns[-1]].message.extras():
            groups[-1].turns += own
        else:
            groups.append(Group(role, own))
        if role == "user":
            waiting = []
    if waiting:
        sentence = "no user message follows that this system text could be folded into"
        raise ChatTemplateError(f"message {waiting[0]} (system): {sentence}", index=waiting[0], sentence=sentence)
    return groups


def _message(turns: Sequence[Turn], group: Group) -> dict[str, Any]:
    """A message as a template gets it: its role is the template's own text, all else is marked with its turn."""
    parts: list[str] = []
    for index in group.turns:
        parts += [_BLANK_LINE, mark(turns[index].message.content, _content_source(index))]
    message: dict[str, Any] = {"role": mark(group.role, TEMPLATE), "content": concat(parts[1:])}
    index = group.turns[-1]
    return {**message, **_labelled(turns[index].message.extras(), _content_source(index) + 1)}


def _labelled(value: Any, source: int) -> Any:
    """A copy in which every text has this source."""
    if isinstance(value, str):
        return mark(value, source)
    if isinstance(value, Mapping):
        return {_labelled(key, source): _labelled(part, source) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_labelled(part, source) for part in value]
    return value


def _content_source(index: int) -> int:
    """The number of a turn's content; the next number is that of its other texts."""
    return _TOOLS + 1 + 2 * index


class _Sources:
    """What the numbers in a template's output stand for."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns

    def __call__(self, number: int) -> Source:
        if number in (DATA, _TOOLS):
            return Source("data" if number == DATA else "tool")
        index, other = divmod(number - _TOOLS - 1, 2)
        turn = self._turns[index]
        kept = None
        if turn.ids is not None and not other:
            kept = Kept(turn.message.content, turn.ids, index)
        return Source(turn.message.role, index, kept)  # type: ignore[arg-type]


def _check_system(turns: Sequence[Turn], written: Traced) -> None:
    """ChatTemplateError if a system text is nowhere in what the template printed."""
    present = sources_in(written)
    for index, turn in enumerate(turns):
        content = turn.message.content.strip()
        if turn.message.role != "system" or not content or _content_source(index) in present or content in written:
            continue
        sentence = "the chat template leaves this system text out without a word"
        raise ChatTemplateError(f"message {index} (system): {sentence}; {FOLD_CURE}", index=index, sentence=sentence)
