"""The ids of every pre-tokenizer against the `tokenizers` library, set up as the families' tokenizer.json files.

Vocabularies are the same on both sides, so ids differ only where pieces, normalization or whole pieces differ. Besides
a real one there is one that merges any two bytes, in an order drawn by lot: nearly each other cut changes its ids.
"""

from __future__ import annotations

import random
import struct
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pretokenizer_families import FAMILIES, reference
from vocabularies import CONTROL, NORMAL, SPELLING, Vocabulary, made_vocabulary, read_vocabulary, spell

import pantheon
from pantheon import errors

# One of each kind: the others are the same rows under other names.
KINDS = [
    *("smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "deepseek-llm", "deepseek-coder", "falcon", "command-r"),
    *("olmo", "gpt-4o", "qwen35", "dbrx"),
]
each_kind = pytest.mark.parametrize("pre", KINDS)
each_split = pytest.mark.parametrize("pre", [pre for pre in KINDS if pre not in ("command-r", "olmo", "dbrx")])


def with_pre(file: bytes, pre: str) -> bytes:
    """A file of pre-tokenizer gpt-2 with another one."""
    old, new = (struct.pack("<Q", len(name)) + name.encode() for name in ("gpt-2", pre))
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    assert file.count(key + old) == 1
    return file.replace(key + old, key + new)


class Both:
    """One vocabulary as a tokenizer of ours and as the reference, for any family."""

    def __init__(self, vocabulary: Vocabulary, folder: Path) -> None:
        self.folder = folder
        self.file = vocabulary.write(folder / "gpt-2.gguf").read_bytes()
        self.tokens = list(vocabulary.tokens)
        self.merges = [(left, right) for left, right in (merge.split(" ") for merge in vocabulary.merges)]
        self.ours = cache(self.open)
        self.reference = cache(lambda pre: reference(pre, self.tokens, self.merges))

    def open(self, pre: str) -> pantheon.Tokenizer:
        path = self.folder / f"{pre}.gguf"
        path.write_bytes(with_pre(self.file, pre))
        return pantheon.Tokenizer.from_file(path)

    def assert_equal(self, pre: str, text: str) -> None:
        expected = self.reference(pre).encode(text, add_special_tokens=False).ids
        assert self.ours(pre).encode(text).tolist() == expected


@pytest.fixture(scope="module")
def real(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """SmolLM2's tokens and the bytes that it lacks; its control tokens as ordinary ones, which no text becomes."""
    vocabulary = read_vocabulary(smollm2)
    lacking = [byte for byte in SPELLING if byte not in set(vocabulary.tokens)]
    complete = Vocabulary(tokens=[*vocabulary.tokens, *lacking], merges=vocabulary.merges)
    return Both(complete, tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Any two bytes may merge, which ones first is drawn by lot."""
    pairs = [(left, right) for left in SPELLING for right in SPELLING]
    random.Random(4).shuffle(pairs)
    vocabulary = Vocabulary(
        tokens=[*SPELLING, *(left + right for left, right in pairs)],
        merges=[f"{left} {right}" for left, right in pairs],
    )
    return Both(vocabulary, tmp_path_factory.mktemp("drawn"))


# ---- Equal ids ----

SNIPPETS = [
    "'s", "'S", "'\u017f", "'\u212a", "'re", "'RE", "'rE", "'Ll", "'LL", "'D", "'m", "'", "''", "’s", "don't",
    "I'VE", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n ", "\u0085", "\u00a0", "\u1680", "\u2028",
    "\u2003", "\u3000", "\u200b", "\ufeff", "\x00", "\x1c", "0", "7", "42", "333", "1234567", "٣٤٥٦", "½²",
    "\u2167", "三", "०", "①", "\U00011de0", "\U00016ff4", "a", "A", "ab", "Hello", "HELLO", "heLLo", "é", "É",
    "e\u0301", "\u0301", "\u0301A", "\u0323", "\u0334", "\u0344", "\u212b", "\u0958", "각", "ᆨ", "\U0001d160",
    "\u07fd", "q\u0301\u0323", "Ǆ", "ǅ", "ǆ", "ʰ", "ª", "ß", "Привет", "שלום", "नमस\u094dत\u0947", "ไทย", "한국어",
    "日本語", "漢字かな", "Ａｂ", "Ḁ", "ა", "Ꭰ", "𐐀", "ﬀ", "。", "、", "！", "‘", "’", "!", "!?", "...", "$", "+",
    "=", "<", "/", "//", "_", "(", ")", "`", "\u20dd", "\u0903", "\U0001f638",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f1e9\U0001f1ea", "؝", "⹃", "᙭",
    "\U000f0000", "\U0010ffff",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=6)), max_size=24).map("".join)


@each_kind
@settings(deadline=None, max_examples=80)
@given(text=texts)
def test_any_text_has_the_ids_of_the_reference(real: Both, drawn: Both, pre: str, text: str) -> None:
    real.assert_equal(pre, text)
    drawn.assert_equal(pre, text)


def codes_to_try() -> list[int]:
    """Both ends of each range of code points with the same properties, and some from everywhere."""
    codes = {*range(0x500), *range(0x500, 0x110000, 331), *range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)}
    before: object = None
    for code in range(0x110000):
        character = chr(code)
        here = (
            unicodedata.category(character),
            unicodedata.combining(character),
            unicodedata.decomposition(character)[:1] not in ("", "<"),
        )
        if here != before:
            codes |= {max(code - 1, 0), code}
        before = here
    return sorted(code for code in codes if not 0xD800 <= code < 0xE000)


CODES = codes_to_try()


@each_split
def test_every_kind_of_character_is_split_as_by_the_reference(drawn: Both, pre: str) -> None:
    for start in range(0, len(CODES), 128):
        drawn.assert_equal(
            pre, "".join(f"a{c}b 1{c}A2!{c}'{c}x {c}\nA{c}" for c in map(chr, CODES[start : start + 128]))
        )


@each_split
@pytest.mark.parametrize(
    "unit",
    ["A", "é", "日", " ", "\n", "\t", "\u3000", "1", "٣", "!", "/", "。", "😸", "\u0301", "\x00", "'s", "aB", "한"],
)
def test_a_long_run_has_the_ids_of_the_reference(real: Both, pre: str, unit: str) -> None:
    real.assert_equal(pre, unit * 999)
    real.assert_equal(pre, f"x{unit * 70}y{unit * 47} z{unit * 48} 1{unit * 49}")


@each_split
@pytest.mark.parametrize("unit", ["A", "日", " ", "\n", "1", "\u0301"])
def test_a_million_characters_without_a_break_are_encoded(real: Both, pre: str, unit: str) -> None:
    """Anything quadratic or recursive would not come to an end here."""
    text = unit * (1_000_000 // len(unit))
    ids = real.ours(pre).encode(text)
    assert len(real.ours(pre).decode_bytes(ids[:1000])) > 0
    assert len(ids) > 1000


def test_every_name_is_a_known_one_and_means_what_its_row_says(tmp_path: Path) -> None:
    text = "1234567 I'VE e\u0301 HELLOworld\n\n  x//\n"
    words = sorted({text[i : i + n] for n in (2, 3, 4) for i in range(len(text) - n + 1)})
    vocabulary = made_vocabulary([word.encode() for word in words if word.isascii()], [("HELLOworld", NORMAL)])
    both = Both(without_repeats(vocabulary), tmp_path)
    for pre in FAMILIES:
        both.assert_equal(pre, text)


def without_repeats(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary with each token and each merge once."""
    return Vocabulary(tokens=list(dict.fromkeys(vocabulary.tokens)), merges=list(dict.fromkeys(vocabulary.merges)))


@pytest.mark.parametrize("pre", ["deepseek-v3", "superbpe", "bloom", "viking", "chameleon", "exaone-moe", "gemma4", ""])
def test_a_name_of_another_split_is_refused(tmp_path: Path, pre: str) -> None:
    path = made_vocabulary([b"xy"]).write(tmp_path / "pre.gguf")
    path.write_bytes(with_pre(path.read_bytes(), pre))
    with pytest.raises(errors.UnsupportedError, match=f'tokenizer.ggml.pre: "{pre}" .*known: smollm, .*qwen35'):
        pantheon.Tokenizer.from_file(path)


# ---- Pieces ----

# The splits that the field knows to go wrong: text with "|" where pieces end, by family.
PIECES = {
    "qwen2": [
        *("1|2|3|4|5|6|7", "日本語|1|2|3", "٣|٤|٥|٦", "½|²", "I|'M| can|'t| ’|s", "!?\n\n|#", "a| \n\n| b", "a|  | b"),
        *("x|\t|\ty", "x|\u0301y"),
    ],
    "llama-bpe": [
        *("123|456|7", "日本語|123", "٣٤٥|٦", "½²", "I|'M| can|'t| ’|s", "!?\n\n|#", "a| \n\n| b", "a|  | b"),
        *("x|\t|\ty", "x|\u0301y"),
    ],
    "gpt-2": [
        *("1234567", "日本語|123", "٣٤٥٦", "½²", "I|'|M| can|'t| ’|s", "!?|\n|\n|#", "a| \n\n| b", "a|  | b"),
        *("x|\t|\t|y", "x|\u0301|y"),
    ],
}


@pytest.mark.parametrize("pre", PIECES)
def test_known_hard_splits_are_exactly_these(tmp_path: Path, pre: str) -> None:
    """A vocabulary that builds each text as a whole: what stays apart was cut."""
    for number, marked in enumerate(PIECES[pre]):
        text, pieces = marked.replace("|", "").encode(), [piece.encode() for piece in marked.split("|")]
        every = sorted({text[i:j] for i in range(len(text)) for j in range(i + 2, len(text) + 1)}, key=len)
        merges = [f"{spell(part[:k])} {spell(part[k:])}" for part in every for k in range(1, len(part))]
        vocabulary = Vocabulary(tokens=[*SPELLING, *map(spell, every)], merges=merges)
        ours = pantheon.Tokenizer.from_file(vocabulary.write(tmp_path / f"{number}.gguf", pre))
        assert [ours.piece(token) for token in ours.encode(text)] == pieces


def test_whole_pieces_are_taken_before_merging_only_where_the_reference_does(tmp_path: Path) -> None:
    """Tokens that no merge makes."""
    extra = [(spell(b" word"), NORMAL), (spell(b"ab"), NORMAL), ("<c>", CONTROL), (spell(b"\n\n"), NORMAL)]
    both = Both(made_vocabulary([b"wo"], extra), tmp_path)
    for pre in KINDS:
        for text in ("a word", " word ab abc", "wo", "\n\n", " word\n\nab"):
            both.assert_equal(pre, text)
    ours = both.ours("llama-bpe")
    assert [ours.piece(token) for token in ours.encode(" word ab")] == [b" word", b" ", b"a", b"b"]
    assert [ours.piece(token) for token in ours.encode("<c>")] == [b"<", b"c", b">"]
    assert [len(ours.piece(token)) for token in both.ours("dbrx").encode(" word")] == [1, 2, 1, 1]


# ---- Normalization ----

COMBINING = [chr(code) for code in CODES if unicodedata.combining(chr(code))]
DECOMPOSED = [chr(code) for code in CODES if unicodedata.decomposition(chr(code))[:1] not in ("", "<")]
hostile = st.lists(
    st.one_of(
        st.sampled_from(COMBINING),
        st.sampled_from(DECOMPOSED),
        st.sampled_from(
            ["a", "e", "A", "\u0301", "\u0323", "\u0345", "\uac00", "\u1100", "\u1161", "\u11a8", " ", "q"]
        ),
    ),
    max_size=40,
).map("".join)


@settings(deadline=None, max_examples=300)
@given(text=hostile)
def test_text_is_brought_to_form_c_as_by_the_reference(real: Both, text: str) -> None:
    for pre in ("qwen2", "command-r"):
        real.assert_equal(pre, text)


def test_every_code_point_has_the_form_c_of_the_reference(real: Both) -> None:
    ours = real.ours("qwen2")
    normalizer = tokenizers.normalizers.NFC()
    for start in range(0, len(CODES), 4096):
        text = "".join(
            f"e{c}\u0323\u0301 \u1100{c}\u11a8|\u0345{c}\u0334 " for c in map(chr, CODES[start : start + 4096])
        )
        assert ours.decode(ours.encode(text)) == normalizer.normalize_str(text)


def test_form_c_equals_pythons_but_for_what_came_after_unicode_9(real: Both) -> None:
    text = "".join(f"a{c} " for c in [*COMBINING, *DECOMPOSED] if ord(c) < 0x07FD or 0x1E00 <= ord(c) < 0xA800)
    ours = real.ours("olmo")
    assert ours.decode(ours.encode(text)) == unicodedata.normalize("NFC", text)
    assert real.ours("gpt-2").decode(real.ours("gpt-2").encode(text)) == text


@pytest.mark.parametrize("unit", ["\u0301\u0323", "\u0344", "\U0001d160", "\u1100\u1161\u11a8", "e\u0301", "\u0f73"])
def test_a_long_sequence_of_combining_characters_is_brought_to_form_c(real: Both, unit: str) -> None:
    text = "a" + unit * 20_000
    ours = real.ours("qwen2")
    assert ours.decode(ours.encode(text)) == tokenizers.normalizers.NFC().normalize_str(text)


@settings(deadline=None)
@given(data=st.lists(st.one_of(st.binary(max_size=5), hostile.map(str.encode))).map(b"".join))
def test_bytes_that_are_no_utf8_pass_through_every_splitter(drawn: Both, data: bytes) -> None:
    for pre in KINDS:
        ours = drawn.ours(pre)
        back = ours.decode_bytes(ours.encode(data))
        if FAMILIES[pre][0] is None:
            assert back == data
        else:
            assert back == normalized_around_wrong_bytes(data)


def normalized_around_wrong_bytes(data: bytes) -> bytes:
    """Form C of the stretches of UTF-8, each by itself."""
    normalize: Callable[[str], str] = tokenizers.normalizers.NFC().normalize_str
    out, stretch = b"", ""
    for character in data.decode("utf-8", "surrogateescape"):
        if "\udc80" <= character <= "\udcff":
            out += normalize(stretch).encode() + character.encode("utf-8", "surrogateescape")
            stretch = ""
        else:
            stretch += character
    return out + normalize(stretch).encode()


def test_parts_between_control_tokens_are_normalized_each_by_itself(tmp_path: Path) -> None:
    vocabulary = made_vocabulary([b"\xc3\xa9"], [("<c>", CONTROL)])
    ours = pantheon.Tokenizer.from_file(vocabulary.write(tmp_path / "c.gguf", "qwen2"))
    assert ours.decode(ours.encode("e<c>\u0301e\u0301<c>", special=True)) == "e<c>\u0301\u00e9<c>"
    assert ours.decode(ours.encode("e<c>\u0301")) == "e<c>\u0301"


# ---- Beginning and end ----

ENDS = [("<s>", CONTROL), ("</s>", CONTROL)]


def open_ends(folder: Path, pre: str = "gpt-2", **keys: Any) -> pantheon.Tokenizer:
    """A tokenizer with BOS 257 and EOS 258, as far as keys say so."""
    return pantheon.Tokenizer.from_file(made_vocabulary([b"xy"], ENDS, **keys).write(folder / "ends.gguf", pre))


def test_eos_is_put_at_the_end_once_where_file_and_caller_ask_for_it(tmp_path: Path) -> None:
    ours = open_ends(tmp_path, bos_token_id=257, eos_token_id=258, add_bos_token=True, add_eos_token=True)
    assert (ours.add_bos, ours.add_eos) == (True, True)
    assert ours.encode("xy", bos=True, eos=True).tolist() == [257, 256, 258]
    assert ours.encode("xy", bos=True).tolist() == [257, 256]
    assert ours.encode("xy", eos=True).tolist() == [256, 258]
    assert ours.encode("", eos=True).tolist() == [258]
    assert ours.encode("xy</s>", special=True, eos=True).tolist() == [256, 258]
    assert ours.encode("</s>xy", special=True, eos=True).tolist() == [258, 256, 258]
    assert ours.encode("</s>", eos=True).tolist()[-1] == 258
    for silent in ({}, {"add_eos_token": False}):
        assert open_ends(tmp_path, eos_token_id=258, **silent).encode("xy", eos=True).tolist() == [256]
    with pytest.raises(errors.MetadataError, match=r"add_eos_token: asks for an EOS, but .*eos_token_id is missing"):
        open_ends(tmp_path, add_eos_token=True)


@pytest.mark.parametrize(
    ("pre", "expected"), [("llama-bpe", True), ("tekken", True), ("qwen2", False), ("gpt-2", False)]
)
def test_a_file_that_does_not_say_gets_the_bos_that_its_reference_puts(
    tmp_path: Path, pre: str, expected: bool
) -> None:
    assert open_ends(tmp_path, pre, bos_token_id=257).add_bos == expected
    assert open_ends(tmp_path, pre).add_bos is False
    for said in (True, False):
        assert open_ends(tmp_path, pre, bos_token_id=257, add_bos_token=said).add_bos == said
