"""Published chat templates against plain Jinja: what we print for a set of conversations, what detection says.

`check_template` is for anyone who has a template's text, `check_vocabulary` for who has a vocabulary too; nothing of
them is kept. As a program:

    python tests/chat_conformance.py FOLDER...        a table over all *.jinja files; exit code 1 if a text differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chat_worlds import NOW, reference

import pantheon
from pantheon.chat import Message, detect_style, make_format, render
from pantheon.chat.messages import Turn
from pantheon.chat.origin import TEMPLATE, Traced, mark, runs_of
from pantheon.chat.sandbox import CompiledTemplate
from pantheon.chat.templates import variables_of
from pantheon.errors import ChatTemplateError

_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Today's weather: temp > 10 & hum < 50 (user's) 안녕",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "where"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
_S = {"role": "system", "content": "Be brief."}
_U = {"role": "user", "content": " Hi there,\n<|im_end|> friend. "}
_A = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello! "}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "call00001",
            "type": "function",
            "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}},
        }
    ],
}
_RESULT = {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": '{"temp": -3}'}
CASES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "u": ([_U], None),
    "su": ([_S, _U], None),
    "uau": ([_U, _A, _U], None),
    "suauau": ([_S, _U, _A, _U, _A, _U], None),
    "ua": ([_U, _A], None),
    "uu": ([_U, _U], None),
    "tools": ([_U], [_TOOL]),
    "call": ([_U, _CALL, _RESULT], [_TOOL]),
    "calls": ([_S, _U, _CALL, _RESULT, _A, _U], [_TOOL]),
}


@dataclass(frozen=True)
class Outcome:
    """What one template does. `same`: cases whose text is that of plain Jinja. `refused`: refused by both."""

    style: str | None
    same: tuple[str, ...]
    refused: tuple[str, ...]
    lenient: tuple[str, ...]
    """Cases that plain Jinja fails at and we print, since here lazy values are lists."""
    differ: dict[str, str]
    """Case to what differs. Only this one is a fault of ours."""
    own_share: float
    """Of the characters of "uau", how many count as the template's."""


def check_template(text: str, bos_token: str = "<s>", eos_token: str = "</s>") -> Outcome:
    """Render every case with and without the opening of a reply, here and in Jinja set up as transformers does."""
    same: list[str] = []
    refused: list[str] = []
    lenient: list[str] = []
    differ: dict[str, str] = {}
    for name, (messages, tools) in CASES.items():
        for opening in (True, False):
            variables = {**variables_of(messages, tools, bos_token, eos_token, opening)}
            plain = {
                key: str.__str__(value) if isinstance(value, Traced) else value for key, value in variables.items()
            }
            reason = ""
            theirs: str | None
            try:
                theirs = reference(text, **plain)
            except Exception as error:  # noqa: BLE001  whatever a template runs into
                theirs, reason = None, f"{type(error).__name__}: {error}"
            ours: str | None
            try:
                ours = render(
                    text, messages, tools=tools, bos_token=bos_token, eos_token=eos_token,
                    add_generation_prompt=opening, now=NOW,
                )  # fmt: skip
            except ChatTemplateError as error:
                ours, reason = None, str(error)
            if theirs is None and ours is not None and "generator" in reason:
                lenient.append(name)
            elif ours != theirs:
                differ[name] = reason if ours is None or theirs is None else _difference(ours, theirs)
            elif ours is None:
                refused.append(name)
            else:
                same.append(name)
    unique = (tuple(dict.fromkeys(names)) for names in (same, refused, lenient))
    return Outcome(detect_style(text), *unique, differ, _own_share(text, bos_token, eos_token))


_CONTENTS = ("Hello there.", " two", "\nfoo", "a  b\n", "", "日本語 123", "x")


def check_vocabulary(path: str | Path, template: str) -> list[str]:
    """What is wrong with chats in this template for a real vocabulary (a GGUF file; no weights are needed).

    The ids of conversations without markers must be those of the whole text with its control tokens; and no control
    token, spelled in a message, may change which control tokens the prompt has.
    """
    wrong: list[str] = []
    with pantheon.Tokenizer.from_file(path) as tokenizer:
        metadata = {**pantheon.Metadata.from_file(path), "tokenizer.chat_template": template}
        chat_format = make_format(tokenizer, metadata, now=NOW)
        for count in (1, 3):
            for first in range(len(_CONTENTS)):
                said = [_CONTENTS[(first + n) % len(_CONTENTS)] for n in range(count)]
                roles = ("user", "assistant", "user")
                prompt = chat_format.prompt([Turn(Message(*pair)) for pair in zip(roles, said, strict=False)], NOW)
                if prompt.ids != tokenizer.encode_buffer(prompt.text, special=True):
                    wrong.append(f"other ids than the whole text for {said}")

        def controls(text: str) -> list[int]:
            ids = chat_format.prompt([Turn(Message("user", text))], NOW).ids
            return [token for token in ids if tokenizer.is_control(token)]

        bare = controls("x")
        for marker in (tokenizer.piece(token) for token in range(tokenizer.n_vocab) if tokenizer.is_control(token)):
            if controls("x" + marker.decode("utf-8", "replace")) != bare:
                wrong.append(f"{marker!r} in a message is a control token")
    return wrong


def _own_share(text: str, bos_token: str, eos_token: str) -> float:
    messages = [{**message, "role": mark(message["role"], TEMPLATE)} for message in CASES["uau"][0]]
    try:
        out = CompiledTemplate(text).render(variables_of(messages, None, bos_token, eos_token, True), NOW)
    except ChatTemplateError:
        return 0.0
    return sum(length for length, source in runs_of(out) if source == TEMPLATE) / max(len(out), 1)


def _difference(ours: str, theirs: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return f"at {at}: {ours[at - 10 : at + 30]!r} instead of {theirs[at - 10 : at + 30]!r}"


def main(folders: Iterable[str]) -> int:
    """Print the table."""
    worst = 0
    for folder in folders:
        for path in sorted(Path(folder).glob("*.jinja")):
            outcome = check_template(path.read_text(encoding="utf-8"))
            verdict = "differs: " + str(outcome.differ) if outcome.differ else "same"
            worst |= bool(outcome.differ)
            same, refused = len(outcome.same), " ".join(outcome.refused) or "-"
            facts = f"{path.stem:<52}{outcome.style or '-':<16}{same:>2} same  {refused:<24}"
            print(f"{facts}{outcome.own_share:>5.0%}  {verdict}")
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
