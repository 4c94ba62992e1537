"""What `make conformance` compares with: conversations, what other libraries need to know, and differences on purpose.

Facts about the models come from the tokenizer.json and tokenizer_config.json that their authors publish. Whoever finds
one more difference between llama.cpp and a model's own reference adds it to EXPECTED, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

PACKAGE = "llama-cpp-python==0.3.36"
SDIST = "llama_cpp_python-0.3.36.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
MEMBERS = "vendor/llama.cpp/models/"

# ---- Vocabularies

_NO_PRE = "the file does not say how text is cut into words (tokenizer.ggml.pre), so its ids would be a guess"
_NO_CHAT = "the kind of vocabulary of models that do not chat"
REFUSED: Mapping[str, str] = {
    "aquila": _NO_PRE,
    "gpt-neox": _NO_PRE,
    "bert-bge": _NO_CHAT,
    "nomic-bert-moe": _NO_CHAT,
    "gemma-4": "a kind of vocabulary that this version does not know",
}
"""Vocabularies that are refused, with the reason. All others must be read."""


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

OUR_WORDS: Mapping[str, str] = {
    r"access to attribute '(\w+)' of '(\w+)' object is unsafe": r"uses \2.\1, which is not supported here",
    r"No filter named '(\w+)' found": r"uses the filter '\1', which Jinja does not have",
}
"""What plain Jinja2 says of a failure that we put into words of our own: a pattern, and what our sentence must hold."""

LENIENT: Mapping[str, Sequence[str]] = {
    "llama-cpp-deepseek-r1": (
        "tools", "tools with a system", "a call and its result", "a call whose arguments are text",
    ),
}  # fmt: skip
LENIENT_REASON = "tojson of what a filter yields: plain Jinja2 fails there, we write the list that is meant"
"""By template: conversations on which it fails under transformers, but not here."""

_NAMED = {
    "chatml": (
        "Bielik-11B-v3.0-Instruct", "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct",
        "MiMo-VL", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-QwQ-32B", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B",
        "Qwen3-Coder", "Qwen3.5-4B", "StepFun3.5-Flash", "openbmb-MiniCPM5-1B",
    ),
    "llama3": (
        "fireworks-ai-llama-3-firefunction-v2", "meetkai-functionary-medium-v3.1", "meetkai-functionary-medium-v3.2",
        "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "meta-llama-Llama-3.3-70B-Instruct",
    ),
    "gemma": ("google-gemma-2-2b-it",),
    "phi3": ("microsoft-Phi-3.5-mini-instruct",),
    "mistral-tekken": ("mistralai-Mistral-Nemo-Instruct-2407",),
}  # fmt: skip
STYLES: Mapping[str, str] = {template: style for style, templates in _NAMED.items() for template in templates}
"""What detect_style says of a template; of those that are not here it says None: they are written by their own template
and nothing else."""
