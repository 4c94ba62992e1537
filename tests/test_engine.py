"""Models, states and tokenizers at the level of ids."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pantheon
from pantheon import _native
from pantheon.engine.sampling import SamplingParams
from pantheon.errors import (
    ArgumentError,
    CancelledError,
    ContextError,
    FileError,
    ISAError,
    ModelFileError,
    NoModelError,
    PantheonError,
    UnsupportedError,
)

IDS = [5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def tokenizer(tiny_model: str) -> pantheon.Tokenizer:
    return pantheon.Tokenizer.from_file(tiny_model)


# ---- Loading


def test_a_path_may_be_spelled_in_any_script_and_be_a_path_object(tiny_model: str, tmp_path: Path) -> None:
    folder = tmp_path / "模型" / "ü  Загрузки"
    folder.mkdir(parents=True)
    odd = folder / "мод.gguf"
    odd.write_bytes(Path(tiny_model).read_bytes())
    with pantheon.load(odd) as by_path, pantheon.load(str(odd), mmap=False) as by_name:
        assert (by_path.logits(IDS) == by_name.logits(IDS)).all()
    tail = odd.with_name("\udcff.gguf")  # a byte that is no UTF-8, as Python spells it
    os.rename(odd, tail)
    with pantheon.load(tail) as odd_bytes:
        assert odd_bytes.n_vocab > 0


def test_what_is_not_a_model_is_refused_with_its_reason(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.gguf", tmp_path / "page.gguf"
    empty.write_bytes(b"")
    text.write_bytes(b"<!DOCTYPE html><html></html>" * 10)
    for path, error in (
        (tmp_path / "missing.gguf", FileError), (tmp_path, ModelFileError), (empty, ModelFileError),
        (text, pantheon.NotGGUFError),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            pantheon.load(path)
        assert len(str(caught.value)) > 10
        assert "\n" not in str(caught.value)


def test_a_truncated_file_is_refused(tiny_model: str, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(tiny_model).read_bytes()[:-100])
    with pytest.raises(ModelFileError):
        pantheon.load(cut)


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(NoModelError, match="smollm2"):
        pantheon.load("smolm2")


def test_the_instruction_set_can_be_forced_and_a_wrong_one_is_named(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pantheon.load(tiny_model, isa="portable") as forced:
        assert forced.info.isa == "portable"
    monkeypatch.setenv("PANTHEON_ISA", "portable")
    with pantheon.load(tiny_model) as forced:
        assert forced.info.isa == "portable"
    monkeypatch.setenv("PANTHEON_ISA", "mmx")
    with pytest.raises(ISAError, match=r"PANTHEON_ISA='mmx'.*portable"):
        pantheon.load(tiny_model)
    with pytest.raises(ISAError, match="isa='sse9'"):
        pantheon.load(tiny_model, isa="sse9")


def test_threads_come_from_the_argument_the_environment_or_the_machine(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PANTHEON_THREADS", raising=False)
    with pantheon.load(tiny_model) as loaded:
        assert loaded.info.threads >= 1
        assert (loaded.info.threads, loaded.info.threads_reason) == _native.default_threads()
    monkeypatch.setenv("PANTHEON_THREADS", "3")
    with pantheon.load(tiny_model) as loaded:
        assert (loaded.info.threads, loaded.info.threads_reason) == (3, "PANTHEON_THREADS")
    with pantheon.load(tiny_model, threads=2) as loaded:
        assert loaded.info.threads == 2
    for bad in ("0", "257", "x", "-1", "1.5", "²"):
        monkeypatch.setenv("PANTHEON_THREADS", bad)
        with pytest.raises(ArgumentError, match="PANTHEON_THREADS"):
            pantheon.load(tiny_model)
    for number in (0, 257, True, 1.0):
        with pytest.raises(ArgumentError, match="threads"):
            pantheon.load(tiny_model, threads=number)  # type: ignore[arg-type]


def test_blas_is_refused_where_the_build_has_none(tiny_model: str) -> None:
    if _native.has_blas():
        with pantheon.load(tiny_model, blas=True) as loaded:
            assert loaded.info.blas
    else:
        with pytest.raises(UnsupportedError, match="USE_BLAS"):
            pantheon.load(tiny_model, blas=True)


# ---- The header


def test_metadata_is_what_another_reader_reads(tiny_model: str, model: pantheon.Model) -> None:
    reader = gguf.GGUFReader(tiny_model)
    theirs = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(model.metadata) == list(theirs)
    for key, field in theirs.items():
        value = model.metadata[key]
        if isinstance(value, np.ndarray):
            assert value.tolist() == field.contents()
        elif isinstance(value, float):
            assert value == pytest.approx(field.contents(), rel=1e-7)
        else:
            assert value == field.contents(), key
    with pytest.raises(KeyError):
        model.metadata["no.such.key"]
    assert model.metadata.text("general.architecture") == model.architecture == "llama"


def test_the_tensor_directory_is_what_another_reader_reads(tiny_model: str, model: pantheon.Model) -> None:
    theirs = [
        (t.name, tuple(int(d) for d in t.shape), t.tensor_type.name.lower(), int(t.data_offset), int(t.n_bytes))
        for t in gguf.GGUFReader(tiny_model).tensors
    ]
    assert [(t.name, t.shape, t.type_name.lower(), t.offset, t.size) for t in model.metadata.tensors] == theirs


# ---- Tokenizer


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_decoding_gives_back_the_text(tokenizer: pantheon.Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids.dtype == np.uint32
    assert tokenizer.decode(ids) == text


@settings(deadline=None, max_examples=200)
@given(st.binary())
def test_bytes_survive_whatever_they_are(tokenizer: pantheon.Tokenizer, data: bytes) -> None:
    assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_streamed_pieces_joined_equal_the_whole(tokenizer: pantheon.Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30))
    for special in (True, False):
        decoder = tokenizer.decoder(special=special)
        pieces = [decoder.push(token) for token in ids] + [decoder.finish()]
        assert "".join(pieces) == tokenizer.decode(ids, special=special)


def test_a_character_split_over_tokens_comes_out_whole_and_at_once(tokenizer: pantheon.Tokenizer) -> None:
    decoder = tokenizer.decoder()
    pieces = [decoder.push(token) for token in tokenizer.encode("a😸b").tolist()]
    assert "".join(pieces) == "a😸b"
    assert all("\ufffd" not in piece for piece in pieces)
    half = tokenizer.decoder()
    held = half.push(int(tokenizer.encode(b"\xf0")[0]))
    assert (held, half.finish()) == ("", "\ufffd")


def test_control_tokens_come_from_text_only_when_asked(tokenizer: pantheon.Tokenizer) -> None:
    marker = "<|im_end|>"
    token = tokenizer.token_id(marker)
    assert token is not None
    assert token not in tokenizer.encode(marker).tolist()
    assert tokenizer.encode(marker, special=True).tolist() == [token]
    assert tokenizer.decode(tokenizer.encode(marker)) == marker
    assert tokenizer.decode([token], special=False) == ""
    assert tokenizer.piece(token) == marker.encode()
    assert tokenizer.token_id("<|nothing|>") is None
    assert tokenizer.token_id("a") is None


def test_nul_and_empty_text_are_ordinary(tokenizer: pantheon.Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("ab\0cd")) == "ab\0cd"
    assert tokenizer.encode("").tolist() == []
    with pytest.raises(ValueError, match="index 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(ArgumentError, match="str or bytes"):
        tokenizer.encode(3)  # type: ignore[arg-type]


def test_ids_outside_of_the_vocabulary_are_refused(tokenizer: pantheon.Tokenizer) -> None:
    for bad in (-1, tokenizer.n_vocab, 2**40, True):
        with pytest.raises(ArgumentError, match="token id"):
            tokenizer.piece(bad)
    with pytest.raises(ArgumentError):
        tokenizer.decode([tokenizer.n_vocab])


# ---- Evaluation


def test_logits_are_the_same_bits_however_the_ids_arrive(model: pantheon.Model) -> None:
    whole = model.logits(IDS)
    assert whole.shape == (len(IDS), model.n_vocab)
    assert whole.dtype == np.float32
    for cut in range(1, len(IDS)):
        with model.state() as state:
            assert (state.eval(IDS[:cut]) == whole[cut - 1]).all()
            assert (state.eval(IDS[cut:]) == whole[-1]).all()
            assert state.tokens.tolist() == IDS
            state.rewind(cut)
            assert state.logits is None
            assert len(state) == cut
            assert (state.eval(IDS[cut:]) == whole[-1]).all()
            state.reset()
            assert state.tokens.tolist() == []
            assert (state.eval(np.array(IDS)) == whole[-1]).all()


def test_what_a_state_gives_out_is_a_copy(model: pantheon.Model) -> None:
    with model.state() as state:
        logits, tokens = state.eval(IDS), state.tokens
        kept = logits.copy()
        state.eval([1])
        assert (logits == kept).all()
        assert tokens.tolist() == IDS


def test_wrong_evaluations_are_refused_and_change_nothing(model: pantheon.Model) -> None:
    with model.state() as state:
        state.eval(IDS)
        for bad in ([], [model.n_vocab], [-1]):
            with pytest.raises(ArgumentError):
                state.eval(bad)
        for length in (-1, len(IDS) + 1, True):
            with pytest.raises(ArgumentError):
                state.rewind(length)
        assert state.tokens.tolist() == IDS
        with pytest.raises(ContextError):
            state.eval([1] * (model.context_length + 1))


def test_a_cancel_stays_until_an_evaluation_takes_it_or_it_is_withdrawn(model: pantheon.Model) -> None:
    with model.state() as state:
        state.cancel()
        with pytest.raises(CancelledError):
            state.eval(IDS)
        state.reset()
        assert (state.eval(IDS) == model.logits(IDS)[-1]).all()
        state.cancel()
        state.clear_cancel()
        state.eval([1])


def test_scores_are_natural_log_probabilities(model: pantheon.Model) -> None:
    ids = [(7 * i) % model.n_vocab for i in range(100)]
    logits = model.logits(ids).astype(np.float64)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    wanted = [np.log(probabilities[i, ids[i + 1]]) for i in range(len(ids) - 1)]
    scores = model.score(ids)
    assert scores.dtype == np.float32
    assert (scores <= 0).all()
    np.testing.assert_allclose(scores, wanted, rtol=1e-5)
    assert model.score([1]).shape == (0,)
    assert model.score([]).shape == (0,)
    assert model.logits([]).shape == (0, model.n_vocab)


def test_a_score_of_an_id_outside_of_the_vocabulary_is_refused(model: pantheon.Model) -> None:
    with pytest.raises(ArgumentError):
        model.score([1, model.n_vocab])


def test_eight_threads_share_one_model(model: pantheon.Model) -> None:
    wanted = model.logits(IDS)[-1]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            with model.state() as state:
                state.eval(IDS[: 1 + number % 4])
                if not (state.eval(IDS[1 + number % 4 :]) == wanted).all():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- Sampling and generation


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("temperature", [-0.1, float("nan"), float("inf"), "1", None, True]),
        ("top_k", [-1, 1.5, 2**31]),
        ("top_p", [0, -0.5, 1.01, float("nan")]),
        ("min_p", [-0.1, 1.1]),
        ("repeat_penalty", [0, -1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("penalty_window", [-2, 0.5]),
        ("seed", [-1, 2**64, 1.0]),
        ("logit_bias", [{-1: 0.0}, {1: float("nan")}, {1: float("inf")}, {"a": 1.0}]),
    ],
)
def test_a_sampling_value_out_of_range_raises_and_is_named(name: str, bad: list[object]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_an_unknown_sampling_name_is_refused(model: pantheon.Model) -> None:
    for call in (model.stream, model.generate, model.chat().stream, model.chat().send):
        with pytest.raises(
            TypeError, match=r"no argument 'temprature'; those of sampling are temperature, top_k"
        ) as caught:
            call("a", temprature=1.0)
        assert "SamplingParams" not in str(caught.value)


def test_greedy_takes_the_highest_logit_and_the_stream_is_the_reply(model: pantheon.Model) -> None:
    reply = model.generate(IDS, max_tokens=12)
    ids = list(IDS)
    for token in reply.tokens:
        assert token == int(model.logits(ids)[-1].argmax())
        ids.append(token)
    stream = model.stream(IDS, max_tokens=12)
    assert stream.reply is None
    assert "".join(stream) == reply.text
    assert stream.reply is not None
    assert stream.reply.tokens == reply.tokens
    assert reply.usage.generated_tokens == len(reply.tokens)
    assert reply.usage.prompt_tokens == reply.usage.evaluated_tokens == len(IDS)


def test_equal_seeds_give_equal_replies_and_fresh_ones_are_told(model: pantheon.Model) -> None:
    options = {"max_tokens": 12, "temperature": 5.0}
    first = model.generate(IDS, seed=7, **options)  # type: ignore[arg-type]
    model.generate(IDS, **options)  # type: ignore[arg-type]
    assert model.generate(IDS, seed=7, **options).tokens == first.tokens  # type: ignore[arg-type]
    assert first.seed == 7
    fresh = [model.generate(IDS, **options) for _ in range(4)]  # type: ignore[arg-type]
    assert len({reply.seed for reply in fresh}) == 4
    assert len({reply.tokens for reply in fresh}) > 1
    again = model.generate(IDS, seed=fresh[0].seed, **options)  # type: ignore[arg-type]
    assert again.tokens == fresh[0].tokens


def test_a_logit_bias_forbids_and_forces_tokens(model: pantheon.Model) -> None:
    usual = model.generate(IDS, max_tokens=1).tokens[0]
    assert model.generate(IDS, max_tokens=1, logit_bias={usual: float("-inf")}).tokens[0] != usual
    assert model.generate(IDS, max_tokens=3, logit_bias={40: 1000.0}).tokens == (40, 40, 40)


def test_a_stop_id_ends_a_reply_and_is_not_shown(model: pantheon.Model) -> None:
    stop = model.tokenizer.stop_ids[0]
    reply = model.generate(IDS, logit_bias={stop: 1000.0})
    assert (reply.tokens, reply.text, reply.finish_reason) == ((), "", "stop")


def test_the_limit_is_kept_exactly_and_too_much_is_refused(model: pantheon.Model) -> None:
    avoid = {token: float("-inf") for token in model.tokenizer.stop_ids}
    for limit in (0, 1, 5):
        reply = model.generate(IDS, max_tokens=limit, logit_bias=avoid)
        assert (len(reply.tokens), reply.finish_reason) == (limit, "length")
    room = model.context_length - len(IDS)
    full = model.generate(IDS, max_tokens=None, logit_bias=avoid)
    assert (len(full.tokens), full.finish_reason) == (room, "length")
    with pytest.raises(ContextError) as caught:
        model.generate(IDS, max_tokens=room + 1)
    numbers = (caught.value.prompt_tokens, caught.value.reply_limit, caught.value.window)
    assert numbers == (len(IDS), room + 1, model.context_length)
    with pytest.raises(ContextError):
        model.generate([1] * (model.context_length + 1), max_tokens=None)
    with pytest.raises(ArgumentError, match="empty"):
        model.generate([])


def test_leaving_a_stream_frees_its_state(tiny_model: str) -> None:
    def open_states() -> int:
        return sum(not handle.closed for handle in model._states)

    # A model of its own: states that other tests left to the garbage collector must not go away in between.
    with pantheon.load(tiny_model) as model:
        for _ in model.stream("abc", max_tokens=20, logit_bias={40: 1000.0}):
            break
        assert open_states() == 0
        stream = model.stream("abc", max_tokens=20, logit_bias={40: 1000.0})
        next(stream)
        assert open_states() == 1
        stream.close()
        stream.close()
        assert open_states() == 0
        assert stream.reply is not None
        assert (stream.reply.finish_reason, len(stream.reply.tokens)) == ("cancelled", 1)


def test_text_gets_the_beginning_of_sequence_only_where_the_file_asks(model: pantheon.Model) -> None:
    reply = model.generate("ab", max_tokens=1)
    wanted = len(model.tokenizer.encode("ab")) + model.tokenizer.add_bos
    assert reply.usage.prompt_tokens == wanted


def test_errors_of_the_engine_share_one_base() -> None:
    with pytest.raises(PantheonError):
        pantheon.load("/nonexistent/model.gguf")


def test_a_stream_that_outlives_its_model_ends_quietly_with_what_came(tiny_model: str) -> None:
    model = pantheon.load(tiny_model)
    stream = model.stream([40, 41], max_tokens=8)
    first = next(stream)
    model.close()
    stream.close()
    assert stream.reply is not None
    assert stream.reply.finish_reason == "cancelled"
    assert stream.reply.text.startswith(first)


@pytest.mark.parametrize("open_", [pantheon.load, pantheon.Tokenizer.from_file, pantheon.Metadata.from_file])
def test_a_path_is_text_bytes_or_a_path_everywhere(open_: Callable[[Any], Any], tiny_model: str) -> None:
    for path in (tiny_model, os.fsencode(tiny_model), Path(tiny_model)):
        open_(path)
    for wrong in (None, 5, [tiny_model]):
        with pytest.raises(
            ArgumentError, match=f"a path must be a str, bytes or os.PathLike, got {type(wrong).__name__}"
        ):
            open_(wrong)
