"""The built-in chat styles: one table of data, how a style is recognized, and how it writes a conversation.

Rank 4: imports errors, and its siblings.

They serve files without a template, callers who force one with template="...", and format_first and format_turn. A file
that has a template is written by that template, and the table only gives it a name. To add a style, add an entry to
STYLES.

The one thing to know first: a marker that this vocabulary does not have as a control token is no marker but text, so
check_vocabulary() comes before a style is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pantheon.chat.messages import check_text
from pantheon.chat.origin import TEMPLATE, Traced, concat, mark, traced
from pantheon.chat.templates import render
from pantheon.errors import ChatTemplateError

if TYPE_CHECKING:
    from pantheon.engine.tokenizer import Tokenizer

EOS = "{eos}"
"""In the table: the spelling of the file's end of sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One family of chat formats. A message is what stands before it, its content, and what stands after it."""

    name: str
    title: str
    roles: Mapping[str, tuple[str, str]]
    """Role to (before, after). Roles that are not here cannot be written; most often that is system text."""
    opening: str = ""
    """What the prompt ends with, so that the assistant writes next."""
    controls: tuple[str, ...] = ()
    """Each must be a control token of the vocabulary."""
    plain: tuple[str, ...] = ()
    """Markers that this family spells as ordinary text: whoever writes them in a message forges them."""
    markers: tuple[str, ...] = ()
    """A template is of this style if all of these stand in its text,"""
    absent: tuple[str, ...] = ()
    """none of these does, and it frames a user's message as `roles` has it."""
    trims: frozenset[str] = field(default_factory=frozenset)
    """Roles whose content loses the white space around it."""
    alternates: bool = False
    """Whether user and assistant must take turns, the user first."""

    def write(
        self, messages: Sequence[Mapping[str, Any]], *, eos_token: str = "", add_generation_prompt: bool = True
    ) -> Traced:
        """The text of a conversation, without a beginning of sequence. ChatTemplateError, with the index of the message
        at fault, where this style has no way to write it."""
        parts: list[str] = []
        for index, message in enumerate(messages):
            role = str(message["role"])
            self._check_role(index, role)
            before, after = (text.replace(EOS, eos_token) for text in self.roles[role])
            content = traced(message["content"])
            parts += [_own(before), content.strip() if role in self.trims else content, _own(after)]
        return concat([*parts, _own(self.opening)] if add_generation_prompt else parts)

    def _check_role(self, index: int, role: str) -> None:
        sentence = ""
        if role not in self.roles:
            sentence = f"{self.title} has no way to write a message of the role {role!r}"
        elif self.alternates and role != ("user", "assistant")[index % 2]:
            sentence = f"in {self.title} user and assistant take turns, and the user begins"
        if sentence:
            raise ChatTemplateError(f"message {index} ({role}): {sentence}", index=index, sentence=sentence)


def _own(text: str) -> Traced:
    return mark(text, TEMPLATE)


def _roles(before: str, after: str, *roles: str, **names: str) -> dict[str, tuple[str, str]]:
    """The same frame for several roles: `role` in it becomes the role's name in this style."""
    return {role: (before.replace("role", names.get(role, role)), after) for role in roles or names}


_ALL = ("system", "user", "assistant")
STYLES: dict[str, Style] = {
    style.name: style
    for style in (
        Style(
            name="chatml",
            title="ChatML",
            roles=_roles("<|im_start|>role\n", "<|im_end|>\n", *_ALL),
            opening="<|im_start|>assistant\n",
            controls=("<|im_start|>", "<|im_end|>"),
            markers=("<|im_start|>", "<|im_end|>"),
        ),
        Style(  # as the first models of the family have it: the space is behind the end of a reply
            name="mistral",
            title="Mistral",
            roles={"user": ("[INST] ", " [/INST]"), "assistant": ("", EOS + " ")},
            controls=(EOS,),
            plain=("[INST]", "[/INST]"),
            markers=("[INST] ", " [/INST]"),
            absent=("<<SYS>>", "[SYSTEM_PROMPT]"),
            alternates=True,
        ),
        Style(
            name="mistral-v3",
            title="Mistral v3",
            roles={"user": ("[INST] ", "[/INST]"), "assistant": (" ", EOS)},
            controls=(EOS, "[INST]", "[/INST]"),
            markers=("[INST] ", "[/INST]"),
            absent=(" [/INST]", "<<SYS>>", "[SYSTEM_PROMPT]"),
            trims=frozenset({"assistant"}),
            alternates=True,
        ),
        Style(
            name="mistral-tekken",
            title="Mistral tekken",
            roles={"user": ("[INST]", "[/INST]"), "assistant": ("", EOS)},
            controls=(EOS, "[INST]", "[/INST]"),
            markers=("[INST]", "[/INST]"),
            absent=("[INST] ", " [/INST]", "<<SYS>>", "[SYSTEM_PROMPT]"),
            alternates=True,
        ),
        Style(
            name="phi3",
            title="Phi-3",
            roles=_roles("<|role|>\n", "<|end|>\n", *_ALL),
            opening="<|assistant|>\n",
            controls=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
            markers=("<|user|>", "<|assistant|>", "<|end|>"),
        ),
        Style(
            name="llama3",
            title="Llama-3",
            roles=_roles("<|start_header_id|>role<|end_header_id|>\n\n", "<|eot_id|>", *_ALL),
            opening="<|start_header_id|>assistant<|end_header_id|>\n\n",
            controls=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            markers=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            trims=frozenset(_ALL),
        ),
        Style(
            name="gemma",
            title="Gemma",
            roles=_roles("<start_of_turn>role\n", "<end_of_turn>\n", user="user", assistant="model"),
            opening="<start_of_turn>model\n",
            controls=("<start_of_turn>", "<end_of_turn>"),
            markers=("<start_of_turn>", "<end_of_turn>"),
            trims=frozenset(_ALL),
            alternates=True,
        ),
        Style(
            name="zephyr",
            title="Zephyr",
            roles=_roles("<|role|>\n", EOS + "\n", *_ALL),
            opening="<|assistant|>\n",
            controls=(EOS,),
            plain=("<|system|>", "<|user|>", "<|assistant|>"),
            markers=("<|user|>", "<|assistant|>", "eos_token"),
            absent=("<|end|>", "[gMASK]"),
        ),
        Style(name="passthrough", title="passthrough", roles={"user": ("", ""), "assistant": ("", "")}),
    )
}

ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "llama": ("chatml", "llama3"),
    "mistral": ("mistral",),
    "qwen2": ("chatml",),
    "qwen3": ("chatml",),
    "smollm3": ("chatml",),
    "phi3": ("phi3",),
    "gemma": ("gemma",),
    "gemma2": ("gemma",),
    "gemma3": ("gemma",),
}
"""What the chat models of an architecture were made with, the likeliest first."""


def detect_style(template: str) -> str | None:
    """The name of the style whose markers stand in a template's text, and in whose form it writes a user's message; or
    None. It is a name, not a promise: a template may do more than its family does.

    A template that cannot write one message of a user (it wants tools, or is a part of one) has its markers alone.
    """
    check_text("template", template)
    named = [style for style in STYLES.values() if _has_markers(style, template)]
    if not named:
        return None
    written = _sample(template)
    return next((style.name for style in named if written is None or _framed(style) in written), None)


_SAMPLE = "What is in the box?"
_SAMPLE_EOS = "<e>"


def _has_markers(style: Style, template: str) -> bool:
    foreign = any(marker in template for marker in style.absent)
    return bool(style.markers) and not foreign and all(marker in template for marker in style.markers)


def _framed(style: Style) -> str:
    """The user's sample as the style writes it."""
    before, after = style.roles["user"]
    return before + _SAMPLE + after.replace(EOS, _SAMPLE_EOS)


def _sample(template: str) -> str | None:
    """What the template makes of one message; None if it fails."""
    try:
        return render(template, [{"role": "user", "content": _SAMPLE}], eos_token=_SAMPLE_EOS)
    except ChatTemplateError:
        return None


def style_from_arch(architecture: str, tokenizer: Tokenizer | None = None) -> str | None:
    """The name of the style of an architecture's chat models (`general.architecture` of the file), or None.

    With a tokenizer: the first of its styles that this vocabulary can write.
    """
    for name in ARCHITECTURES.get(architecture, ()):
        if tokenizer is None or not missing_controls(STYLES[name], tokenizer):
            return name
    return None


def find_style(name: str | Style) -> Style:
    """The style of a name, or ChatTemplateError with the names that there are."""
    style = name if isinstance(name, Style) else STYLES.get(name)
    if style is None:
        raise ChatTemplateError(f"there is no chat style {name!r}; there is: {', '.join(STYLES)}")
    return style


# ---- A style in a vocabulary --------------------------------------------------------------------------------------


def spelling(tokenizer: Tokenizer, token: int | None) -> str:
    """How a control token is spelled; "" for none."""
    return "" if token is None else tokenizer.piece(token).decode("utf-8", "replace")


def missing_controls(style: Style, tokenizer: Tokenizer) -> list[str]:
    """Which of the control tokens that a style needs this vocabulary does not have."""
    eos = spelling(tokenizer, tokenizer.eos)
    texts = (text.replace(EOS, eos) for text in style.controls)
    return [text or "the end of a sequence" for text in texts if not text or tokenizer.token_id(text) is None]


def check_vocabulary(style: Style, tokenizer: Tokenizer) -> None:
    """ChatTemplateError if a marker of the style would reach the model as plain text."""
    missing = missing_controls(style, tokenizer)
    if missing:
        raise ChatTemplateError(
            f"this model's vocabulary has no control token {missing[0]!r}, so {style.title} would reach it as plain "
            "text; plain completion works"
        )


def plain_markers(style: Style, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The markers of a style that anyone can write in this vocabulary, since they are ordinary text there."""
    return tuple(marker for marker in style.plain if tokenizer.token_id(marker) is None)
