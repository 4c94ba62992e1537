"""Chat templates in Jinja: any template's text rendered, and which of a file's templates are its own.

Rank 4: imports errors, messages, origin; the sandbox (and with it Jinja) at the first template.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pantheon.chat.messages import Message, check_plain, check_text
from pantheon.chat.origin import TEMPLATE, mark
from pantheon.errors import ArgumentError, ChatTemplateError

if TYPE_CHECKING:
    from pantheon.chat.sandbox import CompiledTemplate

KEY = "tokenizer.chat_template"
TOOL_KEY = "tokenizer.chat_template.tool_use"


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
    reads as "". Values are those of JSON: an object would lend a template its methods.
    Raises ChatTemplateError: not valid Jinja, the template's own refusal, or a limit; ArgumentError for what is no
    text, no message or no JSON.
    """
    for name, text in (("template", template), ("bos_token", bos_token), ("eos_token", eos_token)):
        check_text(name, text)
    check_plain("tools", tools)
    plain: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if isinstance(message, Message):
            message = {"role": message.role, "content": message.content, **message.extras()}
        if not isinstance(message, Mapping):
            raise ArgumentError(f"message {index} must be a Message or a mapping, got {type(message).__name__}")
        check_plain(f"message {index}", message)
        plain.append({key: "" if key == "content" and value is None else value for key, value in message.items()})
    variables = variables_of(plain, tools, bos_token, eos_token, add_generation_prompt)
    return "".join((compiled(template).render(variables, now),))  # without the origins


def variables_of(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool,
) -> dict[str, Any]:
    """What a template finds when it is rendered; the two tokens count as the template's own text."""
    return {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "bos_token": mark(bos_token, TEMPLATE),
        "eos_token": mark(eos_token, TEMPLATE),
        "add_generation_prompt": add_generation_prompt,
    }


@functools.lru_cache(maxsize=16)
def compiled(template: str) -> CompiledTemplate:
    """The template, ready to be rendered. ChatTemplateError says what is wrong with it."""
    if not is_jinja(template) and "{{" in template:
        raise ChatTemplateError("the chat template is written for Go, as Ollama has them ({{ .Name }}), not in Jinja")
    from pantheon.chat.sandbox import CompiledTemplate

    return CompiledTemplate(template)


def is_jinja(template: str) -> bool:
    """False for a template of Go, whose variables begin with a dot."""
    opening = template.replace("{{-", "{{").split("{{")[1:]
    words = [text.lstrip().removeprefix("if ").removeprefix("range ").lstrip() for text in opening]
    return "{%" in template or not any(word[:1] in (".", "$") for word in words)
