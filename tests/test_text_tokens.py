"""User-defined tokens of byte-level vocabularies: those that are text are found as `tokenizers` finds added tokens.

Each family's added tokens stand here as its tokenizer.json has them (content, normalized); none of these has lstrip,
rstrip or single_word. Vocabularies merge any two bytes in an order drawn by lot, so nearly each other cut changes ids.
Markers in brackets are left to templates (docs/tokenizers.md), here as in SentencePiece's vocabularies (test_spm.py).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from pretokenizer_families import reference
from spm_vocabulary import Piece, trained
from tokenizers import AddedToken
from vocabularies import CONTROL, NORMAL, SPELLING, USER_DEFINED, Vocabulary, made_vocabulary, replaced

import pantheon
from pantheon.chat.choice import make_format
from pantheon.chat.segments import Special, Text
from pantheon.chat.segments import encode as encode_segments
from pantheon.engine.metadata import Metadata


@dataclass(frozen=True)
class Family:
    """Added tokens that are ordinary text, in order of their ids."""

    pre: str
    words: tuple[str, ...]
    normalized: bool = True


SPACES = tuple(" " * n for n in range(24, 1, -1))
FAMILIES = {
    "mpt, olmo": Family("mpt", SPACES),
    "phi-2": Family("phi-2", (*(" " * n for n in range(31, 1, -1)), *("\t" * n for n in range(9, 1, -1)))),
    "deepseek-llm": Family("deepseek-llm", tuple("øöúÿõ÷ûýÀùÁþü"), normalized=False),
    # Of no family: overlapping ones, and ones that only normalization brings about or takes apart.
    "overlapping": Family("gpt-2", ("bcd", "ab", "abab", "'s", "1", "\n\n", "x y", " ")),
    "whole pieces": Family("llama-bpe", ("ab", "\n\n", "각", "1234")),
    "composed": Family("qwen2", ("Ạ", " ", "\n\n", "K", "각")),
}
CONTROLS = ("<|a|>", "</s>")


def made(family: Family) -> Vocabulary:
    """256 bytes, all pairs of them, the family's words, two control tokens. A word that spells a byte or a pair is that
    token, in the reference too."""
    pairs = [(left, right) for left in SPELLING for right in SPELLING]
    random.Random(5).shuffle(pairs)
    tokens = list(dict.fromkeys([*SPELLING, *(left + right for left, right in pairs), *family.words]))
    words = set(family.words)
    types = [USER_DEFINED if token in words else NORMAL for token in tokens]
    return Vocabulary(
        tokens=[*tokens, *CONTROLS],
        merges=[" ".join(pair) for pair in pairs],
        types=[*types, *(CONTROL for _ in CONTROLS)],
    )


@dataclass(frozen=True)
class Both:
    ours: pantheon.Tokenizer
    reference: tokenizers.Tokenizer


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Both]:
    """A family's tokenizer, ours and the reference."""
    opened: dict[str, Both] = {}

    def open_both(name: str) -> Both:
        if name not in opened:
            family = FAMILIES[name]
            vocabulary = made(family)
            path = vocabulary.write(tmp_path_factory.mktemp("text") / "v.gguf", family.pre)
            merges = [(left, right) for left, right in (merge.split(" ") for merge in vocabulary.merges)]
            other = reference(family.pre, list(vocabulary.tokens), merges)
            other.add_tokens([AddedToken(word, special=False, normalized=family.normalized) for word in family.words])
            other.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
            opened[name] = Both(pantheon.Tokenizer.from_file(path), other)
        return opened[name]

    return open_both


each = pytest.mark.parametrize("name", FAMILIES)
PIECES = (
    *("a", "ab", "abcd", "ababcd", "bcd", " ", "  ", "   ", " " * 24, " " * 25, " " * 70, "\t", "\t\t", "\t" * 19),
    *("\n", "\n\n", "\n\n\n", "ø", "À", "Øø", "é", "A\u0323", "Ạ", "e\u0301", "\u0301", "\u212a", "K", "k\u0323"),
    *("각", "ᄀ", "ᅡ", "ᆨ", "1", "1234", "'s", "x y", "def f(x):\n    return x", "\x00", "😸", "日本", "\u2002"),
)
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=16).map("".join)


@each
@settings(deadline=None, max_examples=80)
@given(text=texts)
def test_any_text_has_the_ids_of_the_reference(both: Callable[[str], Both], name: str, text: str) -> None:
    pair = both(name)
    assert pair.ours.encode(text).tolist() == pair.reference.encode(text, add_special_tokens=False).ids


@each
@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.sampled_from(CONTROLS) | texts, max_size=6))
def test_parts_between_control_tokens_have_them_too(both: Callable[[str], Both], name: str, parts: list[str]) -> None:
    pair = both(name)
    text = "".join(parts)
    expected = pair.reference.encode(text, add_special_tokens=False).ids
    assert pair.ours.encode(text, special=True).tolist() == expected
    segments = [Special(part) if part in CONTROLS else Text(part, "user", 0) for part in parts]
    assert encode_segments(pair.ours, segments).tolist() == expected


@each
@settings(deadline=None, max_examples=40)
@given(text=texts)
def test_decoding_gives_the_text_back(both: Callable[[str], Both], name: str, text: str) -> None:
    ours = both(name).ours
    ids = ours.encode(text)
    normalizer = both(name).reference.normalizer
    expected = text if normalizer is None else normalizer.normalize_str(text)
    assert ours.decode(ids, special=False) == ours.decode(ids) == expected
    stream = ours.decoder()
    assert "".join([*(stream.push(token) for token in ids.tolist()), stream.finish()]) == expected


def test_examples(both: Callable[[str], Both]) -> None:
    mpt = both("mpt, olmo").ours
    assert [mpt.piece(token) for token in mpt.encode("a" + " " * 30 + "b")] == [b"a", b" " * 24, b" " * 6, b"b"]
    deepseek = both("deepseek-llm").ours
    assert [deepseek.piece(token) for token in deepseek.encode("øø")] == ["ø".encode(), "ø".encode()]
    overlapping = both("overlapping").ours
    pieces = [overlapping.piece(token) for token in overlapping.encode("abcd")]
    assert pieces[0] == b"ab"
    assert b"bcd" not in pieces
    assert overlapping.token_id("ab") is None  # no template looks for it


@pytest.mark.parametrize(("name", "unit"), [("mpt, olmo", " "), ("mpt, olmo", "  x"), ("overlapping", "ab")])
def test_a_million_characters_with_them_are_encoded(both: Callable[[str], Both], name: str, unit: str) -> None:
    """Anything quadratic would not come to an end here."""
    ours = both(name).ours
    text = unit * (1_000_000 // len(unit))
    ids = ours.encode(text)
    assert text.startswith(ours.decode(ids[:1000]))
    assert len(ids) > 10_000


def test_markers_in_brackets_are_left_to_templates(tmp_path: Path) -> None:
    markers = ["<think>", "[TOOL]", "<|user|>", "<b>", " <pre> "]
    others = ["\n\n", "77", "<-", "[]", "END"]
    vocabulary = made_vocabulary([b"aa"], [(text, USER_DEFINED) for text in [*markers, *others]])
    number = list(vocabulary.tokens).index

    def open_(made: Vocabulary) -> pantheon.Tokenizer:
        return pantheon.Tokenizer.from_file(made.write(tmp_path / "v.gguf"))

    ours = open_(vocabulary)
    for text in markers:
        assert number(text) not in ours.encode(f"a{text}a")
        assert number(text) in ours.encode(f"a{text}a", special=True)
        assert ours.token_id(text) == number(text)
    for text in others:
        assert number(text) in ours.encode(f"a{text}a")
        assert ours.token_id(text) is None
    table = replaced(vocabulary, tokens=[*vocabulary.tokens, "<table>"], types=[*vocabulary.types, USER_DEFINED])
    assert number("<b>") in open_(table).encode("a<b>a")
    ends = open_(replaced(vocabulary, keys=(("eot_token_id", number("END")),)))
    assert number("END") not in ends.encode("aENDa")
    assert number("END") in ends.encode("aENDa", special=True)


def test_a_file_without_types_keeps_its_roles_out_of_text(tmp_path: Path) -> None:
    vocabulary = made_vocabulary([b"</s>"], [("<s>", NORMAL)])
    ends = list(vocabulary.tokens).index("</s>")
    ours = pantheon.Tokenizer.from_file(
        replaced(vocabulary, types=None, keys=(("eos_token_id", ends),)).write(tmp_path / "v.gguf")
    )
    assert ends not in ours.encode("</s>")
    assert ours.encode("</s>", special=True).tolist() == [ends]
    assert ours.is_control(ends)


# ---- Flags and types that a file does not have, or has wrong

PHI4 = ("<|endoftext|>", "<|endofprompt|>", "<|assistant|>", "<|end|>", "<|user|>", "<|tool|>")


@settings(deadline=None, max_examples=60)
@given(parts=st.lists(st.sampled_from(PHI4) | texts, max_size=6))
def test_phi_4_minis_special_tokens_swallow_white_space(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    vocabulary = made_vocabulary([b"  ", b"\n\n"], [(text, CONTROL) for text in PHI4[:-1]] + [(PHI4[-1], USER_DEFINED)])
    path = vocabulary.write(tmp_path_factory.mktemp("phi") / "v.gguf", "gpt-4o", architecture="phi3")
    merges = [(left, right) for left, right in (merge.split(" ") for merge in vocabulary.merges)]
    other = reference("gpt-4o", list(vocabulary.tokens), merges)
    swallowing = PHI4[2:]
    other.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=text in swallowing) for text in PHI4]
    )
    text = "".join(parts)
    with pantheon.Tokenizer.from_file(path) as ours:
        assert ours.encode(text, special=True).tolist() == other.encode(text, add_special_tokens=False).ids


TURNS = ("<start_of_turn>", "<end_of_turn>")
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
    " + m.content | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}"
    "{% endif %}"
)
WELL_TYPED = replace(trained(space=False, control=TURNS), architecture="gemma2", template=GEMMA_TEMPLATE)
KINDS = (NORMAL if piece.text in TURNS else piece.kind for piece in WELL_TYPED.pieces)
ILL_TYPED = replace(
    WELL_TYPED,
    pieces=tuple(Piece(piece.text, piece.score, kind) for piece, kind in zip(WELL_TYPED.pieces, KINDS, strict=True)),
)


@settings(deadline=None, max_examples=40)
@given(parts=st.lists(st.sampled_from((*TURNS, "user\n", "<start_of", "_turn>")) | texts, max_size=6))
def test_markers_of_gemma_that_a_file_has_as_ordinary_tokens_are_control_tokens(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    text = "".join(parts)
    path = ILL_TYPED.write(tmp_path_factory.mktemp("gemma") / "v.gguf")
    with pantheon.Tokenizer.from_file(path) as ours:
        expected = WELL_TYPED.fast("never").encode(text, add_special_tokens=False).ids
        assert ours.encode(text, special=True).tolist() == expected
        assert not set(map(WELL_TYPED.id_of, TURNS)) & set(ours.encode(text).tolist())


def test_they_are_so_only_in_gemmas_files_whose_template_writes_them(tmp_path: Path) -> None:
    def open_(architecture: str = "gemma3", template: str = GEMMA_TEMPLATE) -> pantheon.Tokenizer:
        vocabulary = replace(ILL_TYPED, architecture=architecture, template=template)
        return pantheon.Tokenizer.from_file(vocabulary.write(tmp_path / "v.gguf"))

    for architecture in ("gemma", "gemma2", "gemma3"):
        ours = open_(architecture=architecture)
        assert [ours.token_id(text) for text in TURNS] == [WELL_TYPED.id_of(text) for text in TURNS]
        assert all(ours.is_control(WELL_TYPED.id_of(text)) for text in TURNS)
        chat = make_format(ours, Metadata.from_file(tmp_path / "v.gguf"))
        assert (chat.title, sorted(chat.stop_ids)) == ("Gemma", sorted((*ours.stop_ids, WELL_TYPED.id_of(TURNS[1]))))
    assert open_(architecture="llama").token_id("<start_of_turn>") is None
    for template in ("", "<start_of_tur", "{{ messages }}"):
        assert open_(template=template).token_id("<start_of_turn>") is None
    ours = open_(template="{{ '<end_of_turn>' }}")
    assert [ours.token_id(text) is None for text in TURNS] == [True, False]
