"""The kind of vocabulary "llama": ids against `sentencepiece` and `tokenizers`, spaces, bytes, decoding, odd files.

`sentencepiece` says how a text becomes ids; `tokenizers`, set up as the models are published, says what happens round
control tokens (spm_vocabulary.py has both). Vocabularies are trained here, or made up where training would not make
them odd enough. The real ones are compared by `make conformance`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spm_vocabulary import BYTE, CONTROL, MARK, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Piece, Vocabulary, byte_pieces
from spm_vocabulary import trained as train
from tiny_gguf import VType, array_of, write_model

import pantheon
from pantheon import errors
from pantheon.chat.segments import Special, Text
from pantheon.chat.segments import encode as encode_segments

ROLES = (Piece("<unk>", 0.0, UNKNOWN), Piece("<s>", 0.0, CONTROL), Piece("</s>", 0.0, CONTROL))
PHI3 = ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")

Open = Callable[[Vocabulary], pantheon.Tokenizer]


@pytest.fixture(scope="module")
def open_(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Write a vocabulary and open it."""
    known: dict[Vocabulary, pantheon.Tokenizer] = {}

    def opened(vocabulary: Vocabulary) -> pantheon.Tokenizer:
        if vocabulary not in known:
            path = vocabulary.write(tmp_path_factory.mktemp("spm") / "v.gguf")
            known[vocabulary] = pantheon.Tokenizer.from_file(path)
        return known[vocabulary]

    return opened


WORDS = [
    *["The capital", " of France", "is", "the ", " morning", "brother", "def main(", "Straße", "日本語", "文"],
    *[" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", MARK, MARK * 2, "\u00a0", "\u3000", "\u200b", "\x00", "\x7f"],
    *["<0x0A>", "<unk>", "<s>", "</s>", "<", ">", "[", "0", "12", "3.14", "é", "e\u0301", "ﬁ", "①", "½", "™"],
    *["Ａ", "ｶﾞ", "Привет", "😀", "👨\u200d👩", "\U0010ffff", "\ue000", "\ufffd", "q", "zz", "aaaaaaaaaaaa", "-----"],
]
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=12).map("".join)


def made(words: Sequence[str | tuple[str, float]], *more: Piece, bytes_: bool = True, **flags: Any) -> Vocabulary:
    """Roles, bytes, characters of the words, then the words, the first with the highest score unless they say."""
    pieces = [*ROLES, *(byte_pieces() if bytes_ else [])]
    for number, word in enumerate(words):
        text, score = word if isinstance(word, tuple) else (word, float(-number))
        pieces.append(Piece(text, score))
    return Vocabulary(pieces=(*pieces, *more), **flags)


# ---- Equal ids ----

CONFIGS = {
    "llama": train(),
    "without a space in front": train(space=False),
    "without bytes": train(bytes_=False),
    "spaces removed": train(collapse=True),
    "spaces removed, none in front": train(collapse=True, space=False),
    "nmt_nfkc": train(rule="nmt_nfkc", collapse=True),
    "nmt_nfkc_cf, spaces kept": train(rule="nmt_nfkc_cf"),
    "user-defined": train(space=False, symbols=("\n\n", "\n", MARK * 2, MARK * 3, "\t", "№5", "fé", "ab")),
    "user-defined, nfkc": train(space=True, rule="nmt_nfkc", symbols=("\n", "①", "ﬁ", "½")),
    "html": train(space=False, symbols=("<table>", "<s>x", "</td>", "<b>", "\n")),
}


@pytest.mark.parametrize("name", CONFIGS)
@settings(deadline=None, max_examples=60)
@given(text=texts)
def test_ids_equal_sentencepiece(name: str, open_: Open, text: str) -> None:
    vocabulary = CONFIGS[name]
    words = [piece.text for piece in vocabulary.pieces if piece.kind == USER_DEFINED]
    text += random.Random(len(text)).choice([*words, "", "  "]) + text[:3]
    assert open_(vocabulary).encode(text).tolist() == vocabulary.sentencepiece().encode(text)


@settings(deadline=None, max_examples=150)
@given(
    words=st.lists(st.text("ab" + MARK + "é", min_size=1, max_size=5), min_size=1, max_size=12, unique=True),
    scores=st.lists(st.integers(-3, 0), min_size=12, max_size=12),
    text=st.text("ab é" + MARK + "q", max_size=120),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_ids_equal_sentencepiece_with_any_pieces_and_equal_scores(
    tmp_path_factory: pytest.TempPathFactory,
    words: list[str],
    scores: list[int],
    text: str,
    flags: tuple[bool, bool, bool],
) -> None:
    """Pieces whose halves are none, characters without a piece inside of pieces, ties: the leftmost counts."""
    scored = [(word, float(score)) for word, score in zip(words, scores, strict=False)]
    vocabulary = made(scored, bytes_=flags[0], space=flags[1], collapse=flags[2])
    path = vocabulary.write(tmp_path_factory.mktemp("any") / "v.gguf")
    with pantheon.Tokenizer.from_file(path) as ours:
        assert ours.encode(text).tolist() == vocabulary.sentencepiece().encode(text)


ODD = {
    "a tie goes to the leftmost, whatever the ids": ([("bc", 0.0), ("ab", 0.0), "a", "b", "c"], "abc"),
    "a character without a piece ends one": ([("aq", 0.0), "a"], "aq"),
    "a character without a piece begins one": ([("qa", 0.0), "a"], "qaq"),
    "a half that is no piece": ([("abab", 0.0), "a", "b"], "abab"),
    "a space without a piece": (["a", ("b a", 9.0)], "b a"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("times", [1, 100])
def test_odd_vocabularies_equal_sentencepiece(name: str, times: int, open_: Open) -> None:
    words, text = ODD[name]
    for bytes_ in (True, False):
        vocabulary = made(words, bytes_=bytes_)
        assert open_(vocabulary).encode(text * times).tolist() == vocabulary.sentencepiece().encode(text * times)


@pytest.mark.parametrize("text", ["a" * 100_000, " " * 50_000, "ab" * 50_000, "The capital of France is Paris." * 3000])
def test_long_runs_equal_sentencepiece(open_: Open, text: str) -> None:
    for name in ("llama", "user-defined"):
        vocabulary = CONFIGS[name]
        assert open_(vocabulary).encode(text).tolist() == vocabulary.sentencepiece().encode(text)


# ---- Spaces round control tokens ----

LLAMA = train(control=("<|im_start|>", "<|im_end|>"))
MISTRAL = train(control=("[INST]", "[/INST]"))
PHI = replace(train(control=PHI3), architecture="phi3")
GEMMA = replace(
    train(space=False, symbols=("\n\n", "\n", "<b>", "<table>"), control=("<start_of_turn>", "<end_of_turn>")),
    architecture="gemma3",
)
FAST = {
    "llama": (LLAMA, LLAMA.fast("always")),
    "mistral v3": (MISTRAL, MISTRAL.fast("first")),
    "phi-3": (PHI, PHI.fast("always", rstrip=("</s>", *PHI3[1:]))),
    "gemma": (replace(GEMMA, space=None), GEMMA.fast("never")),
}
pieces_of_chats = st.lists(
    st.sampled_from(["<s>", "</s>", "<unk>x", "<|im_start|>", "[INST]", "[/INST]", *PHI3, "<start_of_turn>", "user\n"])
    | st.sampled_from(WORDS),
    max_size=10,
)


@pytest.mark.parametrize("name", FAST)
@settings(deadline=None, max_examples=80)
@given(parts=pieces_of_chats)
def test_ids_with_special_tokens_equal_the_published_tokenizers(name: str, open_: Open, parts: list[str]) -> None:
    vocabulary, fast = FAST[name]
    text = "".join(parts).replace("<unk>", "")
    if name == "mistral v3":  # at the very start this reference swallows a space that SentencePiece keeps
        text = text.lstrip(" " + MARK)
    ours = open_(vocabulary)
    assert ours.encode(text, special=True).tolist() == fast.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", FAST)
@settings(deadline=None, max_examples=40)
@given(parts=pieces_of_chats)
def test_segments_of_a_chat_equal_the_joined_text(name: str, open_: Open, parts: list[str]) -> None:
    vocabulary, _ = FAST[name]
    ours = open_(vocabulary)
    controls = {piece.text for piece in vocabulary.pieces if piece.kind == CONTROL}
    parts = [part for part in parts if part in controls or "<" not in part]
    segments = [Special(part) if part in controls else Text(part) for part in parts]
    assert encode_segments(ours, segments).tolist() == ours.encode("".join(parts), special=True).tolist()


def test_examples_of_spaces(open_: Open) -> None:
    def shown(vocabulary: Vocabulary, text: str, **how: Any) -> list[str]:
        return [vocabulary.pieces[number].text for number in open_(vocabulary).encode(text, **how)]

    user = shown(LLAMA, "user")
    assert user[0].startswith(MARK)
    assert shown(LLAMA, "<|im_start|>user", special=True) == ["<|im_start|>", *user]
    assert shown(MISTRAL, "[INST] user[/INST]", special=True) == ["[INST]", *user, "[/INST]"]
    assert shown(MISTRAL, "[INST]user[/INST]", special=True)[1] != user[0]
    assert shown(PHI, "<|user|> \n\u3000 user<|end|>\n<|assistant|>\n", special=True) == [
        *["<|user|>", *user, "<|end|>", "<|assistant|>"]
    ]
    assert shown(PHI, "<s> \n", special=True) == ["<s>", *shown(PHI, " \n")]
    assert shown(GEMMA, "<start_of_turn>user\n", special=True)[0::2][0] == "<start_of_turn>"
    assert shown(GEMMA, "user")[0][0] != MARK
    for vocabulary in (LLAMA, MISTRAL, PHI, GEMMA):
        assert shown(vocabulary, "") == []
    assert shown(LLAMA, " ") == shown(LLAMA, MARK)
    assert shown(LLAMA, "  two")[0][0] == MARK


def test_a_file_says_itself_whether_a_space_is_put_in_front(open_: Open) -> None:
    start = open_(replace(LLAMA, space=None)).encode("user").tolist()
    assert start == open_(LLAMA).encode("user").tolist()
    assert start != open_(replace(LLAMA, space=False)).encode("user").tolist()
    assert start == open_(replace(LLAMA, architecture="gemma3", space=True)).encode("user").tolist()


# ---- What text becomes, and what it does not ----


@pytest.mark.parametrize("name", [*CONFIGS, "phi-3", "gemma"])
@settings(deadline=None, max_examples=40)
@given(parts=pieces_of_chats)
def test_text_never_becomes_a_control_token(name: str, open_: Open, parts: list[str]) -> None:
    vocabulary = CONFIGS[name] if name in CONFIGS else FAST[name][0]
    kinds = {vocabulary.pieces[number].kind for number in open_(vocabulary).encode("".join(parts))}
    assert CONTROL not in kinds


def test_user_defined_tokens_in_brackets_are_left_to_templates(open_: Open) -> None:
    markers = ["<|user|>", "[INST]", "<think>", "<b>", " <pre> ", "<start_of_turn>"]
    others = ["\n\n", "7", "<-", "[]", "def"]
    vocabulary = made(["a"], *(Piece(text, 0.0, USER_DEFINED) for text in [*markers, *others]))
    ours = open_(vocabulary)
    for text in markers:
        assert vocabulary.id_of(text) not in ours.encode(f"a{text}a")
        assert vocabulary.id_of(text) in ours.encode(f"a{text}a", special=True)
        assert ours.token_id(text) == vocabulary.id_of(text)
    for text in others:
        assert vocabulary.id_of(text) in ours.encode(f"a{text}a")
        assert vocabulary.id_of(text) in ours.encode(f"a{text}a", special=True)
        assert ours.token_id(text) is None
    html = replace(vocabulary, pieces=(*vocabulary.pieces, Piece("<table>", 0.0, USER_DEFINED)))
    assert html.id_of("<b>") in open_(html).encode("a<b>a")
    assert html.id_of("<think>") not in open_(html).encode("a<think>a")
    eos = replace(html, keys=(("eot_token_id", html.id_of("<b>")),))
    assert eos.id_of("<b>") not in open_(eos).encode("a<b>a")


def test_byte_pieces(open_: Open) -> None:
    vocabulary = made(["a"], space=False)
    ours = open_(vocabulary)
    ids = ours.encode("깰").tolist()
    assert [vocabulary.pieces[number].text for number in ids] == ["<0xEA>", "<0xB9>", "<0xB0>"]
    assert ours.decode(ids) == "깰"
    assert [ours.piece(number) for number in ids] == [b"\xea", b"\xb9", b"\xb0"]
    assert len(ours.encode("<0x0A>")) == 6
    assert ours.decode(ours.encode("<0x0A>")) == "<0x0A>"
    assert ours.encode(b"\xe6\xad a\xff").tolist() == [vocabulary.id_of("<0xE6>"), vocabulary.id_of("<0xAD>"),
        *ours.encode(" ").tolist(), vocabulary.id_of("a"), vocabulary.id_of("<0xFF>")]  # fmt: skip


def test_byte_pieces_of_type_normal_are_byte_pieces_where_the_file_has_no_others(open_: Open) -> None:
    typed = made(["a", "<", "0", "x", "A", ">", "<0", "<0x", "<0x0", "<0x0A", "<0x0A>"][:6], space=False)
    untyped = replace(
        typed, pieces=tuple(piece._replace(kind=NORMAL) if piece.kind == BYTE else piece for piece in typed.pieces)
    )
    for text in ("\n", "깰a", "<0x0A>"):
        assert open_(untyped).encode(text).tolist() == open_(typed).encode(text).tolist()
    assert open_(untyped).piece(untyped.id_of("<0x0A>")) == b"\n"


def test_a_byte_without_a_piece_is_unknown_or_refused(open_: Open) -> None:
    whole = made(["a", MARK], space=False)
    vocabulary = replace(whole, pieces=tuple(piece for piece in whole.pieces if piece.text != "<0x0A>"))
    ours = open_(vocabulary)
    a = vocabulary.id_of("a")
    assert ours.encode("a\na\n\na").tolist() == [a, 0, a, 0, a]
    assert ours.encode("\t").tolist() == [vocabulary.id_of("<0x09>")]
    control = replace(vocabulary, pieces=(Piece("<unk>", 0.0, CONTROL), *vocabulary.pieces[1:]))
    with pytest.raises(errors.ArgumentError, match=r"byte 0x0A.* names no unknown token"):
        open_(control).encode("a\na")
    named = replace(control, keys=(("unknown_token_id", 0),))
    assert open_(named).encode("a\na").tolist() == [a, a]  # text becomes no control token
    unnamed = replace(vocabulary, keys=(("unknown_token_id", None),))
    assert open_(unnamed).encode("a\na").tolist() == [a, 0, a]


# ---- Decoding ----


@pytest.mark.parametrize("name", ["llama", "user-defined", "without a space in front", "html", "phi-3", "gemma"])
@settings(deadline=None, max_examples=60)
@given(text=texts)
def test_decoding_gives_the_text_back(name: str, open_: Open, text: str) -> None:
    vocabulary = CONFIGS[name] if name in CONFIGS else FAST[name][0]
    ours = open_(vocabulary)
    wanted = text.replace(MARK, " ")  # the two are one to every reference
    assert ours.decode(ours.encode(text)) == wanted
    for after in (1, vocabulary.id_of("<s>"), vocabulary.id_of("e"), vocabulary.id_of(ours.decode([]) or "t")):
        if name != "phi-3" or vocabulary.pieces[after].kind == NORMAL:
            assert ours.decode(ours.encode(text, after=after), after=after) == wanted


@pytest.mark.parametrize("name", ["llama", "without a space in front", "user-defined"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_streams_join_to_the_decoded_text_and_that_equals_sentencepiece(
    name: str, open_: Open, data: st.DataObject
) -> None:
    vocabulary = CONFIGS[name]
    ours = open_(vocabulary)
    ids = data.draw(st.lists(st.integers(0, len(vocabulary.pieces) - 1), max_size=12))
    after = data.draw(st.none() | st.integers(0, len(vocabulary.pieces) - 1))
    for special in (False, True):
        decoder = ours.decoder(special=special, after=after)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == ours.decode(ids, special=special, after=after)
    plain = [number for number in ids if vocabulary.pieces[number].kind in (NORMAL, USER_DEFINED)]
    assert ours.decode(plain) == vocabulary.sentencepiece().decode(plain)


def test_the_space_in_front_is_taken_off_once_and_only_at_the_beginning(open_: Open) -> None:
    vocabulary = made([MARK, MARK + "leading", MARK + "x"])
    ours = open_(vocabulary)
    mark, leading, x = (vocabulary.id_of(text) for text in (MARK, MARK + "leading", MARK + "x"))
    bos, eos = 1, 2
    assert ours.decode([mark, leading, x]) == " leading x"
    assert ours.decode([bos, leading], special=False) == "leading"
    assert ours.decode([bos, leading]) == "<s>leading"
    assert ours.decode([leading, eos, x]) == "leading</s> x"
    assert ours.decode([leading], after=x) == " leading"
    assert ours.decode([leading], after=eos) == "leading"
    assert [ours.adds_space(after) for after in (None, x, eos)] == [True, False, True]
    assert ours.piece(leading) == b" leading"


def write_spm_model(path: Path, vocabulary: Vocabulary, **shape: Any) -> str:
    """A random model with this vocabulary and a ChatML template."""
    entries = {f"tokenizer.ggml.{name}": value for name, value in vocabulary.metadata().items()}
    kinds = {"tokens": VType.STRING, "scores": VType.FLOAT32, "token_type": VType.INT32}
    metadata: dict[str, Any] = {}
    for key, value in entries.items():
        name = key.rpartition(".")[2]
        if name in kinds:
            metadata[key] = array_of(kinds[name], value)
        else:
            kind = VType.BOOL if isinstance(value, bool) else VType.STRING if isinstance(value, str) else VType.UINT32
            metadata[key] = (value, kind)
    return write_model(path, n_vocab=len(vocabulary.pieces), metadata=metadata, **shape)


def test_a_continuation_keeps_its_space_and_a_chat_begins_without(tmp_path: Path) -> None:
    with pantheon.load(write_spm_model(tmp_path / "m.gguf", LLAMA)) as model:
        word = next(number for number, piece in enumerate(LLAMA.pieces) if piece.text == MARK + "the")
        force: dict[str, Any] = {"logit_bias": {word: 1000.0}, "max_tokens": 2}
        assert model.generate("The capital of France is", **force).text == " the the"
        assert model.generate("<s>", **force).text == " the the"  # that is text
        assert model.generate([1], **force).text == "the the"
        assert model.generate(model.tokenizer.encode("a</s>", special=True), **force).text == "the the"
        chat = model.chat()
        assert chat.send("Hi", **force).text == "the the"
        assert "".join(chat.stream("Hi", **force)) == "the the"


# ---- BOS ----


def test_bos_is_put_in_front_unless_the_file_says_no(open_: Open) -> None:
    plain = open_(LLAMA).encode("user").tolist()
    assert open_(LLAMA).encode("user", bos=True).tolist() == [1, *plain]
    assert open_(replace(LLAMA, keys=(("add_bos_token", False),))).encode("user", bos=True).tolist() == plain
    assert open_(LLAMA).encode("<s>user", bos=True, special=True).tolist() == [1, *plain]
    assert open_(replace(LLAMA, keys=(("bos_token_id", None),))).encode("user", bos=True).tolist() == plain
    assert open_(LLAMA).encode("user", eos=True).tolist() == plain
    assert open_(replace(LLAMA, keys=(("add_eos_token", True),))).encode("user", eos=True).tolist() == [*plain, 2]
    with pytest.raises(errors.ArgumentError, match="BOS stands at the beginning"):
        open_(LLAMA).encode("user", bos=True, after=5)
    with pytest.raises(errors.ArgumentError, match="token id"):
        open_(LLAMA).encode("user", after=len(LLAMA.pieces))


# ---- Files that must be refused, and odd ones that must not crash ----

REFUSED = {
    "no scores": ({"scores": None}, "scores is missing"),
    "a score that is no number": ({"scores": [0.0, float("nan")]}, "token 1 is not a number"),
    "too few scores": ({"scores": [0.0]}, "has 1 entries"),
    "scores that are integers": ({"scores": [0, 1]}, "wanted f32"),
    "a type that does not exist": ({"token_type": [1, 9]}, "unknown type 9"),
    "an unknown token that does not exist": ({"unknown_token_id": 2}, "token 2 does not exist"),
    "a flag that is none": ({"add_space_prefix": 1}, "add_space_prefix"),
    "a map of characters that is too short": ({"precompiled_charsmap": b"\x08\x00\x00\x00abcd"}, "charsmap"),
    "a map of characters with a replacement of 257 bytes": (
        {"precompiled_charsmap": b"\x04\x00\x00\x00" + bytes(4) + b"x" * 257 + b"\0"},
        "a replacement has 257 bytes",
    ),
    "a map of characters of another type": ({"precompiled_charsmap": [0.5]}, "wanted u8"),
    "a piece of 1025 bytes": ({"tokens": ["a", "b" * 1025]}, "token 1 has 1025 bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    base: dict[str, Any] = {"tokens": ["a", "b"], "scores": [0.0, -1.0], "token_type": [1, 1], "unknown_token_id": None}
    vocabulary = Vocabulary(pieces=(), keys=tuple({**base, **changes}.items()))
    with pytest.raises(errors.PantheonError, match=message):
        pantheon.Tokenizer.from_file(vocabulary.write(tmp_path / "v.gguf"))


def test_a_file_without_types_keeps_its_roles_out_of_text(open_: Open) -> None:
    pieces = (Piece("<unk>"), Piece("<s>"), Piece("</s>"), *byte_pieces(), *(Piece(text, -1.0) for text in "<s/>"))
    more = (Piece("</", -2.0), Piece("s>", -3.0))
    keys = (("token_type", None), ("unknown_token_id", 0))
    vocabulary = Vocabulary(pieces=(*pieces, *more), space=False, keys=keys)
    ours = open_(vocabulary)
    assert [vocabulary.pieces[number].text for number in ours.encode("</s>\n")] == ["</", "s>", "<0x0A>"]
    assert ours.encode("</s>", special=True).tolist() == [2]
    assert ours.piece(vocabulary.id_of("<0x0A>")) == b"\n"


def test_pieces_twice_empty_infinite_or_of_odd_bytes(open_: Open) -> None:
    infinite = float("inf")
    words = [("a", -infinite), ("ab", infinite), ("b", 0.0), ("ab", 5.0), ("", 0.0), ("bb", 9.0), ("a ", 99.0)]
    pieces = (*ROLES, *(Piece(*word) for word in words), Piece("\x00"))
    odd = (Piece("<0xZZ>", 0.0, BYTE), Piece("<0x41>", 0.0, BYTE), Piece("", 0.0, CONTROL))
    vocabulary = Vocabulary(pieces=(*pieces, *odd, Piece("c", 0.0, UNUSED)), space=False)
    ours = open_(vocabulary)
    assert ours.encode("abb").tolist() == [vocabulary.id_of("ab"), vocabulary.id_of("b")]
    assert ours.encode("a b").tolist() == [vocabulary.id_of("a"), 0, vocabulary.id_of("b")]
    assert ours.encode("A\x00c").tolist() == [vocabulary.id_of(text) for text in ("<0x41>", "\x00", "c")]
    assert ours.decode(range(ours.n_vocab)).startswith("<unk><s></s>")


def test_random_files_and_texts_never_crash(tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(60):
        n = draw.randrange(1, 40)
        alphabet = ["a", "b", MARK, " ", "<", ">", "<0x0A>", "é", "\x00", "<table>", "[x]"]
        tokens = ["".join(draw.choices(alphabet, k=draw.randrange(4))) for _ in range(n)]
        keys: dict[str, Any] = {
            "tokens": tokens,
            "scores": [draw.choice([0.0, -1.0, 1e30, float("inf"), draw.random()]) for _ in range(n)],
            "token_type": [draw.randrange(1, 7) for _ in range(n)],
            "unknown_token_id": draw.choice([None, draw.randrange(n)]),
            "bos_token_id": draw.choice([None, draw.randrange(n)]),
            "add_space_prefix": draw.choice([None, False, True]),
            "remove_extra_whitespaces": draw.choice([None, False, True]),
            "precompiled_charsmap": draw.choice([None, (8).to_bytes(4, "little") + draw.randbytes(12) + b"\0"]),
        }
        architecture = draw.choice(["llama", "phi3", "gemma", "x"])
        vocabulary = Vocabulary(pieces=(), architecture=architecture, keys=tuple(keys.items()))
        with pantheon.Tokenizer.from_file(vocabulary.write(tmp_path / "v.gguf")) as ours:
            for _ in range(20):
                text = draw.randbytes(draw.randrange(30)) + "".join(draw.choices(tokens + alphabet, k=4)).encode()
                for special in (False, True):
                    try:
                        ids = ours.encode(text, special=special, bos=True)
                    except errors.ArgumentError:
                        continue
                    ours.decode(ids)
