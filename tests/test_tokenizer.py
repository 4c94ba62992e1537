"""Token ids against the `tokenizers` library, built from the same file; files that must be refused; odd bytes.

The oracle here is Hugging Face's library with the vocabulary and merges as the `gguf` package reads them. Made
vocabularies are written with the `gguf` package, so nothing of ours takes part in making the expected ids.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    SPELLING,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    add_key,
    made_vocabulary,
    read_vocabulary,
    replaced,
    spell,
)

import pantheon
from pantheon import errors

AB = ((spell(b"ab"), NORMAL),)  # the result of the merge that made_vocabulary falls back to


@dataclass(frozen=True)
class Pair:
    """A tokenizer of ours and the reference for the same vocabulary and pre-tokenizer."""

    ours: pantheon.Tokenizer
    plain: tokenizers.Tokenizer
    special: tokenizers.Tokenizer

    def assert_equal(self, text: str, *, special: bool = False) -> None:
        expected = (self.special if special else self.plain).encode(text, add_special_tokens=False).ids
        assert self.ours.encode(text, special=special).tolist() == expected


@pytest.fixture(scope="module")
def pairs(smollm2: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """SmolLM2's vocabulary under both pre-tokenizers."""
    vocabulary = read_vocabulary(smollm2)
    gpt2 = vocabulary.write(tmp_path_factory.mktemp("gpt2") / "gpt2.gguf")
    files = {"smollm": smollm2, "gpt-2": str(gpt2)}
    return {
        pre: Pair(pantheon.Tokenizer.from_file(path), vocabulary.oracle(pre), vocabulary.oracle(pre, special=True))
        for pre, path in files.items()
    }


def open_made(vocabulary: Vocabulary, folder: Path, pre: str = "gpt-2") -> Pair:
    """Write a made vocabulary and open it on both sides."""
    ours = pantheon.Tokenizer.from_file(str(vocabulary.write(folder / "made.gguf", pre)))
    return Pair(ours, vocabulary.oracle(pre), vocabulary.oracle(pre, special=True))


both = pytest.mark.parametrize("pre", ["smollm", "gpt-2"])


# ---- Equal ids on text ----

SNIPPETS = [
    *["I'M can't ’s", "'s", "'re", "'ll", " 've", "'D", "it''s", "'", "''", "o'clock", "'tis", "'S", "'l", "'v"],
    *[" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u0085", "\u00a0", "\u1680", "\u2028", "\u3000"],
    *["\u200b", "\ufeff", "\u2060", "\x00", "\x04", "\x1c", "\x7f"],
    *["0", "7", "42", "1234567", "٣٤٥٦", "½²", "Ⅷ", "三", "\U0001d7d8", "\U00011de0", "\U00016ff4", "①", "𐄇"],
    *["a", "A", "ab", "Hello", " world", "é", "e\u0301", "\u0301", "ß", "ŉ", "Привет", "שלום", "नमस्ते", "ไทย", "한국어"],
    *[
        "日本語",
        "漢字かな",
        "。",
        "、",
        "😸",
        "👨‍👩‍👧‍👦",
        "🇩🇪",
        "\U000f0000",
        "\U0010ffff",
        "\ue000",
        "\U000e0041",
        "Ǆ",
    ],
    *["!", "!?", "...", "--", "$", "€", "_", "(", ")", "<|im_end|>", "<|", "|>", "<|im_start|>", "{}", "+="],
]
texts = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=8)), max_size=24).map("".join)


@both
@settings(deadline=None, max_examples=400)
@given(text=texts)
def test_any_text_has_the_ids_of_the_reference(pairs: dict[str, Pair], pre: str, text: str) -> None:
    pairs[pre].assert_equal(text)


@both
@settings(deadline=None, max_examples=150)
@given(text=texts)
def test_text_with_control_tokens_has_the_ids_of_the_reference(pairs: dict[str, Pair], pre: str, text: str) -> None:
    pairs[pre].assert_equal(text, special=True)


HARD = [
    "1234567", "日本語123", "٣٤٥٦", "½²", "I'M can't ’s", "!?\n\n#", "a \n\n b", "a   b", "x\t\ty", "e\u0301a",
    "", " ", "  ", "\n", " a", "a ", "a  ", "\u00a0a", "\u00a0 a", " \u00a0a", "\u3000日本", "a\u0085b", "a \u0085 b",
    "a\u200bb", "a \u200b b", "ab\u0000cd", "\ufeffhi", "a 1", "a  1", "a   1b", "1 2  3", " 12", "1a2", "'s1", "1's",
    "don't I'll we've you're I'm he'd it's", "DON'T", "''s", "'''ll", " 's", "x' s", "x'sy", "...'re", "\r\n\r\n",
    "\U00011de0\U00016ff4 \U00011de3", "a\U00011de0", " \U00011de0", "!\U00016ff5?", "Ⅷ Ⅸ", "12½③", "x²+y³=z⁴",
    "def f(x):\n    return x  # done\n", "http://example.org/a?b=c&d=%20", "<|im_start|>user\nhi<|im_end|>\n",
    "The  quick\tbrown\u2003fox", "🤦🏽‍♂️🤦🏽‍♂️", "नमस्ते दुनिया", "ความสุข", "\x1f\x1e\x1d\x1c", "\u180e\u200d\u2060",
]  # fmt: skip


@both
@pytest.mark.parametrize("text", HARD, ids=ascii)
def test_a_hard_case_has_the_ids_of_the_reference(pairs: dict[str, Pair], pre: str, text: str) -> None:
    pairs[pre].assert_equal(text)
    pairs[pre].assert_equal(text, special=True)


@both
def test_every_code_point_is_split_as_by_the_reference(tmp_path: Path, pre: str) -> None:
    """Merges of "a", "1", "!" with any byte show, for each character, which of the three it keeps company with."""
    heads = [bytes([head, byte]) for head in b"a1!" for byte in range(256) if bytes([head, byte]) != b"ab"]
    pair = open_made(made_vocabulary(heads), tmp_path, pre)
    sparse = {*range(0x30000, 0x110000, 61), *range(0xE0000, 0xE0200), 0x10FFFF}
    codes = [code for code in [*range(0x30000), *sorted(sparse)] if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 4096):
        pair.assert_equal("".join(f"a{c}1{c}!{c}" for c in map(chr, codes[start : start + 4096])))


@both
@pytest.mark.parametrize(
    "unit", ["A", " ", "\n", "\t", "1", "!", "é", "日", "😸", "\u3000", "\x00", "ab", "'s", "\u0301"]
)
def test_a_long_run_has_the_ids_of_the_reference(pairs: dict[str, Pair], pre: str, unit: str) -> None:
    pairs[pre].assert_equal(unit * 3001)
    pairs[pre].assert_equal("x" + unit * 500 + "y" + unit * 47 + " z" + unit * 48 + " 1" + unit * 49)


@both
@pytest.mark.parametrize("unit", ["A", " ", "\n", "1", "!", "日", "😸", "\u3000", "\x00", "ab", "\u0301"])
def test_a_million_characters_without_a_break_are_encoded(pairs: dict[str, Pair], pre: str, unit: str) -> None:
    """Anything quadratic or recursive would not come to an end here."""
    ours = pairs[pre].ours
    text = unit * (1_000_000 // len(unit))
    counts = Counter(ours.encode(text).tolist())
    assert sum(len(ours.piece(token)) * count for token, count in counts.items()) == len(text.encode())


def test_equal_ranks_are_merged_from_the_left_however_long_the_run(tmp_path: Path) -> None:
    pair = open_made(made_vocabulary([b"aaa", b"ba"]), tmp_path)
    for n in range(1, 120):
        pair.assert_equal("a" * n)
        pair.assert_equal("ab" * n + "a" * (n % 7))


# ---- Control tokens ----


@pytest.mark.parametrize(
    ("specials", "text", "expected"),
    [
        (("ab", "bcd"), "abcd", ["ab", "c", "d"]),
        (("ab", "abc"), "abcab", ["abc", "ab"]),
        (("a", "aa", "aaa"), "aaaaa", ["aaa", "aa"]),
        (("bcd", "abcde"), "abcdx", ["a", "bcd", "x"]),
        (("b", "abx"), "abab", ["a", "b", "a", "b"]),
        (("", "x"), "axa", ["a", "x", "a"]),
    ],
)
def test_overlapping_special_tokens_are_taken_leftmost_then_longest(
    tmp_path: Path, specials: tuple[str, ...], text: str, expected: list[str]
) -> None:
    vocabulary = made_vocabulary(extra=[*AB, *((special, CONTROL) for special in specials)])
    ours = open_made(vocabulary, tmp_path).ours
    assert [ours.piece(token).decode() for token in ours.encode(text, special=True)] == expected


@settings(deadline=None, max_examples=60)
@given(
    specials=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=8, unique=True),
    probes=st.lists(st.text("abcd ", max_size=40), min_size=1, max_size=12),
)
def test_random_sets_of_special_tokens_split_as_in_the_reference(
    tmp_path_factory: pytest.TempPathFactory, specials: list[str], probes: list[str]
) -> None:
    # The reference has one dictionary for all tokens, so the texts here are kept apart from the bytes' spellings.
    marked = [f"{special}#" if len(special) == 1 else special for special in specials]
    vocabulary = made_vocabulary([b"dd"], [(text, (CONTROL, USER_DEFINED)[i % 2]) for i, text in enumerate(marked)])
    pair = open_made(vocabulary, tmp_path_factory.mktemp("specials"))
    for probe in probes:
        pair.assert_equal(probe, special=True)


@both
@settings(deadline=None)
@given(
    parts=st.lists(st.one_of(st.sampled_from(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"]), texts))
)
def test_text_never_becomes_a_control_token_without_leave(
    pairs: dict[str, Pair], smollm2: str, pre: str, parts: list[str]
) -> None:
    types = read_vocabulary(smollm2).types
    assert types is not None
    ids = pairs[pre].ours.encode("".join(parts))
    assert all(types[token] == NORMAL for token in ids)


def test_merges_that_spell_a_control_token_do_not_make_it_from_text(tmp_path: Path) -> None:
    vocabulary = made_vocabulary([b"<e", b"xy"])
    types = [CONTROL if token == "<e" else NORMAL for token in vocabulary.tokens]
    ours = open_made(replaced(vocabulary, types=types), tmp_path).ours
    assert [ours.piece(token) for token in ours.encode("<exy")] == [b"<", b"e", b"xy"]
    assert [ours.piece(token) for token in ours.encode("<exy", special=True)] == [b"<e", b"xy"]


def test_token_id_knows_the_exact_text_of_control_and_user_defined_tokens_only(tmp_path: Path) -> None:
    extra = [*AB, ("<c>", CONTROL), ("<u>", USER_DEFINED), ("<unk>", UNKNOWN), ("<c>", CONTROL), ("", CONTROL)]
    ours = open_made(made_vocabulary(extra=extra), tmp_path).ours
    assert [ours.token_id(text) for text in ("<c>", "<u>")] == [257, 258]
    assert [ours.token_id(text) for text in ("a", "ab", "<unk>", "<c", "c>", "<c>>", "", "Ġ")] == [None] * 8


def test_ten_thousand_special_tokens_that_share_long_beginnings_do_not_slow_the_scan(tmp_path: Path) -> None:
    """A scanner that tries each token at each position, or goes back after a near miss, would not come to an end."""
    specials = ["<" + "a" * n for n in range(1, 1500)] + ["a" * 1000 + "b"] + [f"<|t{n}|>" for n in range(8500)]
    vocabulary = made_vocabulary(extra=[*AB, *((special, CONTROL) for special in specials)])
    ours = open_made(vocabulary, tmp_path).ours
    assert ours.decode_bytes(ours.encode("a" * 1_000_000, special=True)) == b"a" * 1_000_000
    turns = "".join(f"<|t{n * 17 % 8500}|>user\nsome text<|t{n}|>\n" for n in range(500))
    ids = ours.encode(turns, special=True)
    assert ours.decode_bytes(ids) == turns.encode()
    assert sum(token >= 256 + len(AB) for token in ids.tolist()) == 1000


# ---- The conversation whose counts are known ----


def test_the_pieces_of_a_known_conversation_count_as_recorded(pairs: dict[str, Pair]) -> None:
    def count(role: str, content: str) -> int:
        piece = f"<|im_start|>{role}\n{content}<|im_end|>\n"
        return len(pairs["smollm"].ours.encode(piece, special=True))

    assert count("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face") == 21
    assert len(pairs["smollm"].ours.encode("<|im_start|>assistant\n", special=True)) == 4
    assert count("user", "What is my name?") == 10
    assert count("user", "Hi! My name is Priya.") == 13
    assert count("assistant", "Hello, Priya! How can I help you today?") == 18
    assert count("user", "Give me one tip for sleeping better.") == 13
    assert count("assistant", "Go to bed and wake up at the same time every day, even on weekends.") == 23


def test_the_facts_of_the_model_file_are_reported(pairs: dict[str, Pair]) -> None:
    ours = pairs["smollm"].ours
    assert (ours.n_vocab, ours.bos, ours.eos, ours.stop_ids) == (49152, 1, 2, (2,))
    assert (ours.token_id("<|im_start|>"), ours.token_id("<|im_end|>"), ours.piece(2)) == (1, 2, b"<|im_end|>")


def test_every_token_of_the_model_decodes_as_in_the_reference(pairs: dict[str, Pair], smollm2: str) -> None:
    byte_of = {character: byte for byte, character in enumerate(SPELLING)}
    tokens = read_vocabulary(smollm2).tokens
    for token, text in enumerate(tokens):
        assert pairs["smollm"].ours.piece(token) == bytes(byte_of[character] for character in text)


# ---- Bytes ----


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pantheon.Tokenizer]:
    """A vocabulary with all bytes and words that cross the borders of characters, under both pre-tokenizers."""
    words = [b"the", b" the", b"\xe6\xad", b"\xff\xfe", "日本".encode(), b"\x00\x00", b"  ", b"'s"]
    folder = tmp_path_factory.mktemp("complete")
    return {pre: open_made(made_vocabulary(words), folder, pre).ours for pre in ("smollm", "gpt-2")}


@both
@settings(deadline=None)
@given(data=st.lists(st.one_of(st.binary(max_size=6), texts.map(str.encode))).map(b"".join))
def test_any_bytes_come_back_from_a_vocabulary_that_has_all_bytes(
    complete: dict[str, pantheon.Tokenizer], pre: str, data: bytes
) -> None:
    assert complete[pre].decode_bytes(complete[pre].encode(data)) == data
    assert complete[pre].decode_bytes(complete[pre].encode(data, special=True)) == data


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"a\x00b", b"\xe6\xad", b"\xff" * 100, b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
)
def test_hostile_bytes_come_back(tmp_path: Path, data: bytes) -> None:
    ours = open_made(made_vocabulary([b"aa"]), tmp_path).ours
    assert ours.decode_bytes(ours.encode(data)) == data
    assert ours.decode_bytes(ours.encode(data, special=True)) == data


def test_an_invalid_byte_is_a_character_that_is_no_letter_number_or_space(tmp_path: Path) -> None:
    words = [head + b"\xff" for head in (b"a", b"1", b" ", b"!")]
    ours = open_made(made_vocabulary(words), tmp_path).ours
    pieces = [ours.piece(token) for token in ours.encode(b"a\xff1\xff \xff!\xff")]
    assert pieces == [b"a", b"\xff", b"1", b"\xff", b" \xff", b"!\xff"]


def without_bytes(missing: bytes, **keys: Any) -> Vocabulary:
    """A vocabulary that lacks the tokens of some bytes, followed by an unknown and a control token."""
    tokens = [SPELLING[byte] for byte in range(256) if byte not in missing]
    tokens += ["!?", "<unk>", "<end>"]
    types = [NORMAL] * (len(tokens) - 2) + [UNKNOWN, CONTROL]
    return Vocabulary(tokens=tokens, merges=["! ?"], types=types, keys=tuple(keys.items()))


def test_a_byte_without_a_token_becomes_the_unknown_token(tmp_path: Path) -> None:
    vocabulary = without_bytes(b"\x04\xff", unknown_token_id=255)
    ours = open_made(vocabulary, tmp_path).ours
    assert vocabulary.tokens[255] == "<unk>"
    assert [ours.piece(token) for token in ours.encode(b"a\x04b\xff")] == [b"a", b"<unk>", b"b", b"<unk>"]


def test_a_byte_without_a_token_is_refused_by_name_where_there_is_no_unknown_token(tmp_path: Path) -> None:
    ours = open_made(without_bytes(b"\x04"), tmp_path).ours
    with pytest.raises(errors.ArgumentError, match="0x04 at offset 5"):
        ours.encode("hello\x04")
    assert ours.decode(ours.encode("hello")) == "hello"


def test_a_byte_without_a_token_is_left_out_rather_than_become_a_control_token(tmp_path: Path) -> None:
    vocabulary = without_bytes(b"\x04", unknown_token_id=257)
    assert vocabulary.tokens[257] == "<end>"
    pair = open_made(vocabulary, tmp_path)
    assert [pair.ours.piece(token) for token in pair.ours.encode("x!\x04?")] == [b"x", b"!?"]
    pair.assert_equal("x!\x04?")


def test_tokens_of_every_kind_stand_for_the_right_bytes(tmp_path: Path) -> None:
    extra = [
        *AB,
        ("é", CONTROL),
        ("é", USER_DEFINED),
        ("Ġx", UNUSED),
        ("日本", NORMAL),  # characters outside the byte alphabet: the spelling itself
        ("Ġ日", NORMAL),
        ("<0x0A>", BYTE),
        ("<0x-1>", BYTE),
        ("<0xZZ>", BYTE),
        ("", NORMAL),
    ]
    ours = open_made(made_vocabulary(extra=extra), tmp_path).ours
    pieces = [ours.piece(token) for token in range(257, ours.n_vocab)]
    e, nihon = "é".encode(), "日本".encode()
    assert pieces == [e, e, b" x", nihon, "Ġ日".encode(), b"\n", b"<0x-1>", b"<0xZZ>", b""]
    assert ours.decode(ours.encode("<0x0A>")) == "<0x0A>"


def test_equal_tokens_keep_the_first_id_for_encoding_and_all_for_decoding(tmp_path: Path) -> None:
    ours = open_made(made_vocabulary([b"xy"], [("xy", NORMAL), ("a", NORMAL)]), tmp_path).ours
    assert ours.encode("xya").tolist() == [256, ours.encode("a")[0]]
    assert [ours.piece(token) for token in (256, 257, 258)] == [b"xy", b"xy", b"a"]


def test_threads_share_one_tokenizer(pairs: dict[str, Pair]) -> None:
    ours = pairs["smollm"].ours
    probes = [("word " * n + "A" * 20 * n) for n in range(1, 40)]
    expected = [ours.encode(text).tolist() for text in probes]
    results: list[list[list[int]]] = []
    threads = [
        threading.Thread(target=lambda: results.append([ours.encode(text).tolist() for text in probes]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


# ---- Beginning and end ----


def test_bos_is_put_in_front_once_where_the_file_asks_for_it(tmp_path: Path) -> None:
    extra = [*AB, ("<s>", CONTROL), ("</s>", CONTROL)]
    keys: dict[str, Any] = {"bos_token_id": 257, "eos_token_id": 258}
    asks = open_made(made_vocabulary(extra=extra, add_bos_token=True, **keys), tmp_path).ours
    for text, special, n_bos in [
        ("x", False, 1),
        ("", False, 1),
        ("<s>x", True, 1),
        ("<s><s>x", True, 2),
        ("x<s>", True, 2),
    ]:
        ids = asks.encode(text, special=special, bos=True).tolist()
        assert ids[0] == 257
        assert ids.count(257) == n_bos
    assert asks.encode("<s>", bos=True).tolist()[1:] == asks.encode("<s>").tolist()
    for silent in (made_vocabulary(extra=extra, **keys), made_vocabulary(extra=extra, add_bos_token=False, **keys)):
        assert 257 not in open_made(silent, tmp_path).ours.encode("x", bos=True)


def test_stop_ids_are_what_the_keys_of_the_file_name_and_nothing_else(tmp_path: Path) -> None:
    extra = [*AB, *((text, CONTROL) for text in ("<s>", "</s>", "<|eot_id|>", "<|im_end|>", "<eom>", "<end>"))]
    vocabulary = made_vocabulary(
        extra=extra, eos_token_id=258, eot_token_id=259, eom_token_id=261, eos_token_ids=[262, 258]
    )
    assert open_made(vocabulary, tmp_path).ours.stop_ids == (258, 259, 261, 262)
    assert open_made(made_vocabulary(extra=extra), tmp_path).ours.stop_ids == ()


# ---- Files that are refused ----


@pytest.mark.parametrize("pre", ["default", "llama-bpe-of-tomorrow", "gpt-2 ", "GPT-2", None])
def test_an_unknown_or_missing_pre_tokenizer_is_refused_naming_it_and_the_known_ones(
    tmp_path: Path, pre: str | None
) -> None:
    path = made_vocabulary([b"xy"]).write(tmp_path / "pre.gguf", pre)
    with pytest.raises(errors.UnsupportedError) as caught:
        pantheon.Tokenizer.from_file(str(path))
    for part in ("tokenizer.ggml.pre", "smollm", "gpt-2", "missing" if pre is None else f'"{pre}"'):
        assert part in str(caught.value)


def test_an_unknown_tokenizer_model_is_refused_by_name(tmp_path: Path) -> None:
    path = made_vocabulary([b"xy"]).write(tmp_path / "model.gguf", model="wordpiece")
    with pytest.raises(errors.UnsupportedError, match=r'tokenizer.ggml.model: "wordpiece".*gpt2'):
        pantheon.Tokenizer.from_file(str(path))


GOOD = made_vocabulary([b"xy"], [("<e>", CONTROL)])
BAD = {
    "types too short": (replaced(GOOD, types=[NORMAL] * 10), "token_type.*10.*258"),
    "unknown type": (replaced(GOOD, types=[*[NORMAL] * 257, 9]), "token 257.*type 9"),
    "negative type": (replaced(GOOD, types=[-1, *[NORMAL] * 257]), "token 0.*type -1"),
    "scores of integers": (replaced(GOOD, keys=(("scores", [1] * 258),)), "scores.*f32"),
    "scores too short": (replaced(GOOD, keys=(("scores", [0.5] * 3),)), "scores.*3.*258"),
    "eos beyond the vocabulary": (replaced(GOOD, keys=(("eos_token_id", 258),)), "eos_token_id.*258"),
    "bos beyond the vocabulary": (replaced(GOOD, keys=(("bos_token_id", 2**32 - 1),)), "bos_token_id.*4294967295"),
    "eot beyond the vocabulary": (replaced(GOOD, keys=(("eot_token_id", 999),)), "eot_token_id.*999"),
    "unknown beyond the vocabulary": (replaced(GOOD, keys=(("unknown_token_id", 999),)), "unknown_token_id.*999"),
    "list of eos beyond the vocabulary": (replaced(GOOD, keys=(("eos_token_ids", [1, 258]),)), "eos_token_ids.*258"),
    "bos wanted but not named": (replaced(GOOD, keys=(("add_bos_token", True),)), "add_bos_token.*bos_token_id"),
    "add_bos of the wrong type": (replaced(GOOD, keys=(("add_bos_token", "yes"),)), "add_bos_token"),
    "merge without a space": (replaced(GOOD, merges=["x y", "xy"]), 'entry 1, "xy"'),
    "merge with two spaces": (replaced(GOOD, merges=["x y z"]), 'entry 0, "x y z"'),
    "merge of nothing with something": (replaced(GOOD, merges=[" y"]), 'entry 0, " y"'),
    "merge of something with nothing": (replaced(GOOD, merges=["x "]), 'entry 0, "x "'),
    "merge of an unknown token": (replaced(GOOD, merges=["x y", "xq y"]), 'entry 1 names "xq"'),
    "merge to an unknown token": (replaced(GOOD, merges=["x y", "y x"]), 'entry 1 names "yx"'),
    "merges that are no strings": (replaced(GOOD, merges=[1, 2]), "merges.*strings"),
    "tokens that are no strings": (replaced(GOOD, tokens=list(range(258))), "tokens.*strings"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_vocabulary_that_makes_no_sense_is_refused_naming_the_key(tmp_path: Path, case: str) -> None:
    vocabulary, message = BAD[case]
    path = tmp_path / "bad.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    add_key(writer, "tokenizer.ggml.model", "gpt2")
    add_key(writer, "tokenizer.ggml.pre", "gpt-2")
    for name in ("tokens", "types", "merges"):
        add_key(writer, f"tokenizer.ggml.{'token_type' if name == 'types' else name}", getattr(vocabulary, name))
    for name, value in vocabulary.keys:
        add_key(writer, f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(errors.MetadataError, match=message):
        pantheon.Tokenizer.from_file(str(path))
