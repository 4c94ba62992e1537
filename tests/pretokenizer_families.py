"""How the families of byte-level vocabularies cut text into words, as their tokenizer.json files say it.

For the `tokenizers` library: the reference of test_pretokenizers.py, test_text_tokens.py and conformance.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models

NFC = {"type": "NFC"}
GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
EACH_DIGIT = {"type": "Digits", "individual_digits": True}


def split(expression: str) -> dict[str, Any]:
    """A splitter that isolates what a regular expression finds."""
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REST_WITH_SLASHES = REST.replace(r"[\r\n]*", r"[\r\n/]*")
WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"]
# Letters of alphabets that have capitals, as deepseek-llm lists them.
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_MARKS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
DEEPSEEK_EAST = split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")

LLAMA_3 = [split(CONTRACTION + WORD + r"|\p{N}{1,3}" + REST), BYTES]
QWEN_2 = [split(CONTRACTION + WORD + r"|\p{N}" + REST), BYTES]
QWEN_35 = [
    split(
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    BYTES,
]
TEKKEN = [split("|".join(CASED) + r"|\p{N}" + REST_WITH_SLASHES), BYTES]
O200K = [split("|".join(f"{word}{CONTRACTION}?" for word in CASED) + r"|\p{N}{1,3}" + REST_WITH_SLASHES), BYTES]
FALCON = [
    {"type": "Punctuation", "behavior": "Contiguous"},
    GPT2,
    {"type": "Digits", "individual_digits": False},
    split("[0-9][0-9][0-9]"),
]
DEEPSEEK_LLM = [
    split("[\r\n]"),
    split(rf"\s?[{DEEPSEEK_LETTERS}]+"),
    split(rf"\s?[{DEEPSEEK_MARKS}]+"),
    split(r"\s+$"),
    DEEPSEEK_EAST,
    EACH_DIGIT,
    BYTES,
]
DEEPSEEK_CODER = [split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), DEEPSEEK_EAST, EACH_DIGIT, BYTES]

# Family: normalizer, list of splitters, ignore_merges.
FAMILIES: dict[str, tuple[dict[str, Any] | None, list[dict[str, Any]], bool]] = {
    "smollm": (None, [EACH_DIGIT, GPT2], False),
    "gpt-2": (None, [GPT2], False),
    "llama-bpe": (None, LLAMA_3, True),
    "qwen2": (NFC, QWEN_2, False),
    "tekken": (None, TEKKEN, True),
    "deepseek-llm": (None, DEEPSEEK_LLM, False),
    "deepseek-coder": (None, DEEPSEEK_CODER, False),
    "falcon": (None, FALCON, False),
    "starcoder": (None, [EACH_DIGIT, GPT2], False),
    "refact": (None, [EACH_DIGIT, GPT2], False),
    "command-r": (NFC, [EACH_DIGIT, GPT2], False),
    "smaug-bpe": (None, LLAMA_3, True),
    "olmo": (NFC, [GPT2], False),
    "mpt": (NFC, [GPT2], False),
    "gpt-4o": (None, O200K, False),
    "llama4": (None, O200K, False),
    "qwen35": (NFC, QWEN_35, False),
    # More names: of tokenizers taken over from a family, and of splits that the file format's table says are equal.
    **dict.fromkeys(
        ("llama3", "llama-v3", "pixtral", "lfm2", "falcon3", "falcon-h1", "midm-2.0", "glm4"), (None, LLAMA_3, True)
    ),
    **dict.fromkeys(("chatglm-bpe", "dbrx"), (None, LLAMA_3, False)),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), (NFC, QWEN_2, False)),
    "grok-2": (None, QWEN_2, False),
    **dict.fromkeys(("phi-2", "jais", "gigachat", "mellum", "granite-docling"), (None, [GPT2], False)),
    **dict.fromkeys(("codeshell", "exaone", "minerva-7b"), (None, [EACH_DIGIT, GPT2], False)),
}


def reference(pre: str, tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> tokenizers.Tokenizer:
    """The reference tokenizer of a family with another vocabulary."""
    normalizer, splitters, whole = FAMILIES[pre]
    described = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splitters},
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
    ids = {token: number for number, token in reversed(list(enumerate(tokens)))}
    tokenizer.model = models.BPE(ids, list(merges), ignore_merges=whole)
    return tokenizer
