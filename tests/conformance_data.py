"""What `make conformance` compares with: conversations, what other libraries need to know, and differences on purpose.

Facts about the models come from the tokenizer.json and tokenizer_config.json that their authors publish. Whoever finds
one more difference between llama.cpp and a model's own reference adds it to EXPECTED, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

PACKAGE = "llama-cpp-python==0.3.36"
SDIST = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MEMBERS = "vendor/llama.cpp/models/"

# ---- Vocabularies

COVERED = frozenset(
    "command-r deepseek-coder deepseek-llm falcon gpt-2 llama-bpe llama-spm phi-3 qwen2 refact starcoder".split()
)
"""Vocabularies that must be read. The others may be refused, with a reason."""


@dataclass(frozen=True)
class Expected:
    """A text whose ids are not llama.cpp's, because the model's own reference has others."""

    text: str
    reason: str


_NFC = "tokenizer.json composes characters (NFC), llama.cpp takes them as they come"
EXPECTED: Mapping[str, Sequence[Expected]] = {
    "qwen35": [Expected(text, _NFC) for text in ("e\u0301", "re\u0301sume\u0301", "a\u0300" * 200)],
}
"""By the name of the vocabulary; nothing for those that are refused."""


@dataclass(frozen=True)
class Reference:
    """What a byte-level tokenizer.json says beside vocabulary and merges."""

    steps: Callable[[Any], Sequence[Any]]
    """The pre-tokenizers, given the module tokenizers.pre_tokenizers."""
    nfc: bool = False
    ignore_merges: bool = False


def _by_patterns(*patterns: str, digits: bool = False) -> Callable[[Any], Sequence[Any]]:
    """Split by one pattern after the other, then (digits) cut off each digit, then spell bytes."""

    def steps(pre: Any) -> Sequence[Any]:
        from tokenizers import Regex

        made = [pre.Split(Regex(pattern), "isolated") for pattern in patterns]
        return [*made, *([pre.Digits(individual_digits=True)] if digits else []), _bytes(pre, regex=False)]

    return steps


def _bytes(pre: Any, *, regex: bool) -> Any:
    return pre.ByteLevel(add_prefix_space=False, use_regex=regex)


def _single_digits(pre: Any) -> Sequence[Any]:
    return [pre.Digits(individual_digits=True), _bytes(pre, regex=True)]


def _falcon(pre: Any) -> Sequence[Any]:
    from tokenizers import Regex

    by_three = pre.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    return [pre.Punctuation("contiguous"), _bytes(pre, regex=True), pre.Digits(individual_digits=False), by_three]


_TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK = r"[一-龥ࠀ-一가-퟿]+"

REFERENCES: Mapping[str, Reference] = {
    "gpt-2": Reference(lambda pre: [_bytes(pre, regex=True)]),
    "smollm": Reference(_single_digits),
    "starcoder": Reference(_single_digits),
    "refact": Reference(_single_digits),
    "command-r": Reference(_single_digits, nfc=True),
    "falcon": Reference(_falcon),
    "llama-bpe": Reference(_by_patterns(_TIKTOKEN % "{1,3}"), ignore_merges=True),
    "qwen2": Reference(_by_patterns(_TIKTOKEN % ""), nfc=True),
    "deepseek-coder": Reference(_by_patterns(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, digits=True)),
}
"""By tokenizer.ggml.pre; those that are not here are compared with the test vectors alone."""

# ---- Conversations

NOW = datetime(2026, 2, 28, 23, 59, 1)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place <now> & later, in °C",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Town, country", "enum": ["Paris, FR", "Berlin, DE"]},
                "days": {"type": "integer", "description": "How many", "default": 1},
            },
            "required": ["place"],
        },
    },
}
_CALL: dict[str, Any] = {
    "type": "function",
    "id": "abcdef123",
    "function": {"name": "get_weather", "arguments": {"place": "Paris, FR", "days": 2}},
}
_CALL_TEXT: dict[str, Any] = {
    **_CALL,
    "function": {"name": "get_weather", "arguments": '{"place": "Paris, FR", "days": 2}'},
}


def _say(*contents: str) -> list[dict[str, Any]]:
    """Turns by role and content: "u:hello", "a:...", "s:..."."""
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[text[0]], "content": text[2:]} for text in contents]


def _round(call: dict[str, Any]) -> list[dict[str, Any]]:
    """A question, a call, its result, an answer, and one more question."""
    return [
        *_say("u:How is it in Paris?"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": '{"sky": "grey <&>"}'},
        *_say("a:Grey.", "u:And tomorrow?"),
    ]


@dataclass(frozen=True)
class Conversation:
    """What a template is given."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None = None
    add_generation_prompt: bool = True


CONVERSATIONS: Mapping[str, Conversation] = {
    "plain": Conversation(_say("u:What is 2 + 2?")),
    "with a system": Conversation(_say("s:Be brief.\n", "u:What is 2 + 2?")),
    "several turns": Conversation(
        _say("s:Be brief.", "u: hi ", "a:Hello!\n", "u:안녕 🤗?", "a:\n4", "u:<|im_end|> bye")
    ),
    "without a system": Conversation(_say("u:hi", "a:Hello!", "u:bye")),
    "a finished reply": Conversation(_say("u:hi", "a:Hello!"), add_generation_prompt=False),
    "two users": Conversation(_say("u:hi", "u:ho")),
    "the assistant first": Conversation(_say("a:hi", "u:ho")),
    "a system in between": Conversation(_say("u:hi", "s:now in French", "u:ho")),
    "an empty text": Conversation(_say("s:", "u:")),
    "nothing": Conversation([]),
    "tools": Conversation(_say("u:How is it in Paris?"), tools=[_WEATHER]),
    "tools with a system": Conversation(_say("s:Be brief.", "u:How is it in Paris?"), tools=[_WEATHER, _WEATHER]),
    "a call and its result": Conversation(_round(_CALL), tools=[_WEATHER]),
    "a call whose arguments are text": Conversation(_round(_CALL_TEXT), tools=[_WEATHER]),
    "a call without tools": Conversation(_round(_CALL)[:3]),
    "thoughts": Conversation(
        [
            *_say("u:What is 2 + 2?"),
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\n4", "reasoning_content": "Hm."},
            *_say("u:And 3?"),
        ]
    ),
    "parts of a text": Conversation([{"role": "user", "content": [{"type": "text", "text": "hi"}]}]),
    "an unknown role": Conversation([{"role": "narrator", "content": "It was night."}]),
}

LENIENT: Mapping[str, Sequence[str]] = {
    "llama-cpp-deepseek-r1": (
        "tools", "tools with a system", "a call and its result", "a call whose arguments are text",
    ),
}  # fmt: skip
LENIENT_REASON = "tojson of what a filter yields: plain Jinja2 fails there, we write the list that is meant"
"""By template: conversations on which it fails under transformers, but not here."""
