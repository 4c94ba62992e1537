"""With guesses and without: the same tokens, the same ends, the same state afterwards, to the bit.

The oracle is always the plain path. `Outcome` holds everything that a reply leaves behind. Guesses are tried without
backing off (`always`) where a test needs them to be tried; how often to try them is tests/c/test_pace.c's matter.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from test_stream import NO_STOP, held, last_error, make_params, new_state, stream
from tiny_gguf import quantized, write_model

import pantheon
from pantheon import _native
from pantheon._core import ffi, lib
from pantheon.engine.generate import Job, Record, generate_tokens
from pantheon.engine.sampling import DEFAULT_GUESSES, SamplingParams
from pantheon.errors import ArgumentError, CancelledError, ClosedError, ContextError, NumericError

PROMPT = [1, 70, 80, 90, 100, 70, 80, 90, 100, 70, 80]
N = 60
GREEDY: dict[str, Any] = {}
CHAINS: list[dict[str, Any]] = [
    GREEDY,
    {"logit_bias": {75: 4.0, 90: float("-inf")}},
    {"repeat_penalty": 1.1, "penalty_window": 20},
    {"temperature": 0.4, "seed": 3},
    {"temperature": 0.6, "seed": 4, "top_k": 20},
    {"temperature": 0.6, "seed": 5, "top_p": 0.8},
    {"temperature": 0.6, "seed": 6, "min_p": 0.1},
    {"temperature": 0.5, "seed": 7, "presence_penalty": 0.2, "frequency_penalty": 0.05, "penalty_window": -1},
    {"temperature": 0.5, "seed": 8, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "repeat_penalty": 1.05},
]
SIZES = [1, 2, DEFAULT_GUESSES, _native.GUESSES_MAX]


FEW = 70 + np.arange(24)  # the tokens that the calm model likes to say


def calm_tensors() -> dict[str, Any]:
    """Attention that whispers and few likely tokens: replies run in circles, and leave them now and then."""
    rng = np.random.default_rng(5)
    tensors: dict[str, Any] = {}
    for layer in range(2):
        weights = rng.standard_normal((64, 64)) / 30
        tensors[f"blk.{layer}.attn_output.weight"] = quantized(weights.astype(np.float32), "Q8_0")
    output = rng.standard_normal((512, 64)) / 16
    output[FEW] *= 6
    tensors["output.weight"] = quantized(output.astype(np.float32), "Q8_0")
    return tensors


@pytest.fixture(scope="module")
def calm_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("calm") / "calm.gguf", tied=False, tensors=calm_tensors())


@pytest.fixture(scope="module")
def model(calm_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(calm_model, blas=False, threads=1) as loaded:
        yield loaded


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        pantheon.State, "_speculate", lambda self, most: _native.state_speculate(self._handle, most, always=True)
    )


class Outcome(NamedTuple):
    """All that a reply leaves behind."""

    tokens: list[int]
    finish_reason: str
    error: type[Exception] | None
    held: list[int]
    logits: bytes | None
    generated_tokens: int


Tried = tuple[int, int]


def snapshot(state: pantheon.State) -> tuple[list[int], bytes | None]:
    logits = state.logits
    return state.tokens.tolist(), None if logits is None else logits.tobytes()


def reply(
    model: pantheon.Model,
    guesses: int,
    chain: dict[str, Any],
    *,
    limit: int = N,
    stop_ids: frozenset[int] = frozenset(),
    cancel_after: int | None = None,
    close_after: int | None = None,
    state: pantheon.State | None = None,
) -> tuple[Outcome, Tried]:
    """One reply by the engine's loop, to its end or to where the test cuts it; and the counts of guesses."""
    params = SamplingParams(**chain)
    seed = params.seed_or_fresh()
    job = Job(
        tokenizer=model.tokenizer, params=params, seed=seed, limit=limit, stop_ids=stop_ids, progress=None,
        speculate=guesses,
    )  # fmt: skip
    record, error = Record(job), None
    state = model.state() if state is None else state
    tokens = generate_tokens(state, np.array(PROMPT, np.uint32), record)
    try:
        for number, _ in enumerate(tokens, 1):
            if number == cancel_after:
                state.cancel()
            if number == close_after:
                tokens.close()
    except pantheon.PantheonError as caught:
        error = type(caught)
    outcome = record.finish()
    usage = outcome.usage
    made = Outcome(record.tokens, outcome.finish_reason, error, *snapshot(state), usage.generated_tokens)
    return made, (usage.proposed_tokens, usage.accepted_tokens)


# ---- Whole replies


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_reply_is_the_same_with_guesses(model: pantheon.Model, chain: dict[str, Any]) -> None:
    plain, tried = reply(model, 0, chain)
    assert tried == (0, 0)
    assert (len(plain.tokens), plain.finish_reason) == (N, "length")
    assert plain.held == PROMPT + plain.tokens[:-1]
    for guesses in SIZES:
        outcome, (proposed, accepted) = reply(model, guesses, chain)
        assert outcome == plain
        assert 0 < accepted <= proposed


@pytest.mark.usefixtures("_always")
def test_guesses_come_true_and_fail_in_these_tests(model: pantheon.Model) -> None:
    counts = [reply(model, guesses, chain)[1] for guesses in SIZES for chain in CHAINS]
    assert sum(accepted for _, accepted in counts) > 200
    assert sum(proposed - accepted for proposed, accepted in counts) > 200
    one, most = (reply(model, guesses, GREEDY)[1] for guesses in (1, _native.GUESSES_MAX))
    assert one[0] < N / 2 + 1  # one guess per pass, never more
    assert most[0] > one[0]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_reply_is_the_same_with_guesses_that_back_off(model: pantheon.Model, chain: dict[str, Any]) -> None:
    plain, _ = reply(model, 0, chain)
    state = model.state()
    for _ in range(3):  # what was learned in one reply is used in the next
        assert reply(model, DEFAULT_GUESSES, chain, state=state)[0] == plain
        state.reset()


@pytest.mark.usefixtures("_always")
def test_threads_and_instruction_sets_change_nothing(calm_model: str, model: pantheon.Model, isa: str) -> None:
    chain = CHAINS[-1]
    with pantheon.load(calm_model, blas=False, threads=2, isa=isa) as other:
        assert reply(other, 8, chain) == reply(model, 8, chain)
        assert reply(other, 8, chain)[0] == reply(model, 0, chain)[0]


# ---- Ends in the middle of a guess


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("chain", [GREEDY, CHAINS[3], CHAINS[8]], ids=str)
def test_a_stop_token_anywhere(model: pantheon.Model, chain: dict[str, Any]) -> None:
    tokens = reply(model, 0, chain)[0].tokens
    for stop in set(tokens):
        plain, _ = reply(model, 0, chain, stop_ids=frozenset([stop]))
        assert (plain.finish_reason, plain.held) == ("stop", PROMPT + plain.tokens)
        assert plain.logits is not None
        for guesses in SIZES:
            assert reply(model, guesses, chain, stop_ids=frozenset([stop]))[0] == plain


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("chain", [GREEDY, CHAINS[8]], ids=str)
def test_a_limit_anywhere_and_no_guess_beyond_it(model: pantheon.Model, chain: dict[str, Any]) -> None:
    for limit, guesses in itertools.product(range(45), SIZES):
        outcome, (proposed, _) = reply(model, guesses, chain, limit=limit)
        assert outcome == reply(model, 0, chain, limit=limit)[0]
        if limit <= 2:
            assert proposed == 0  # the first token comes from the prompt, the second from the first: none is left


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("cut", ["cancel_after", "close_after"])
def test_a_cancel_or_a_close_anywhere(model: pantheon.Model, cut: str) -> None:
    for number, guesses in itertools.product(range(1, 40), SIZES):
        how: dict[str, Any] = {cut: number}
        plain, _ = reply(model, 0, GREEDY, **how)
        assert (len(plain.tokens), plain.finish_reason) == (number, "cancelled")
        assert plain.held == PROMPT + plain.tokens[:-1]
        assert reply(model, guesses, GREEDY, **how)[0] == plain


@pytest.mark.usefixtures("_always")
def test_a_full_context(tmp_path: Path) -> None:
    with pantheon.load(
        write_model(tmp_path / "small.gguf", n_ctx=48, tied=False, tensors=calm_tensors()), blas=False
    ) as small:
        for limit, guesses, chain in itertools.product((37, 38, 39, 60), SIZES, (GREEDY, CHAINS[8])):
            plain, _ = reply(small, 0, chain, limit=limit)
            assert plain.error is (ContextError if limit > 48 - len(PROMPT) + 1 else None)
            assert reply(small, guesses, chain, limit=limit)[0] == plain


# ---- States


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_between_two_tokens_the_state_is_that_of_plain_evaluation(
    model: pantheon.Model, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    plain, state = model.state(), model.state()
    _native.state_speculate(state._handle, int(rng.choice(SIZES)), always=True)
    for both in (plain, state):
        both._advance(PROMPT)
    for _ in range(200):
        logits = plain.logits
        action = rng.random()
        if logits is not None and action < 0.9:
            token = int(logits.argmax())
        elif action < 0.93:
            length = int(rng.integers(max(1, len(plain) - 12), len(plain) + 1))
            plain.rewind(length)
            state.rewind(length)
            token = int(rng.integers(0, 512))
        elif action < 0.94:
            plain.reset()
            state.reset()
            token = int(rng.integers(0, 512))
        elif action < 0.96:
            more = rng.integers(0, 512, 3)
            plain._advance(more)
            state._advance(more)
            continue
        else:
            token = int(rng.integers(0, 512))
        if len(plain) == model.context_length:
            plain.rewind(60)
            state.rewind(60)
        if action > 0.995:
            state.cancel()
            with pytest.raises(CancelledError):
                state._advance_one(token, 40)
            assert snapshot(state) == (plain.tokens.tolist(), None)
        state._advance_one(token, int(rng.integers(0, 40)))
        plain._advance([token])
        assert snapshot(state) == snapshot(plain)
    proposed, accepted = state._speculation()
    assert proposed > accepted > 8


def test_a_cancel_takes_effect_where_no_work_is_left_to_do(model: pantheon.Model) -> None:
    state = model.state()
    _native.state_speculate(state._handle, 8, always=True)
    state._advance(PROMPT)
    for _ in range(100):
        assert state.logits is not None
        token = int(state.logits.argmax())
        state.cancel()
        before = state.tokens.tolist()
        with pytest.raises(CancelledError):
            state._advance_one(token, 100)
        assert snapshot(state) == (before, None)
        state._advance_one(token, 100)  # the request was taken; the guesses still hold
    assert state._speculation()[1] > 20


def guess_ahead(model: pantheon.Model, most: int = 8) -> tuple[pantheon.State, int]:
    """A state with a guess that is ready and right, and that guess: what the plain path takes next."""
    state = model.state()
    _native.state_speculate(state._handle, most, always=True)
    state._advance(PROMPT)
    for _ in range(100):
        assert state.logits is not None
        token, (proposed, accepted) = int(state.logits.argmax()), state._speculation()
        if accepted and proposed - accepted > 3:
            return state, token
        state._advance_one(token, 100)
    raise AssertionError("no guess came true")


def test_guesses_are_void_once_others_have_written_to_the_state(model: pantheon.Model) -> None:
    state, token = guess_ahead(model)
    held = state.tokens
    state.rewind(len(held) - 2)
    state._advance([200, 201])  # as long as before, another text
    state._advance_one(token, 100)
    plain = model.state()
    plain._advance([*held[:-2], 200, 201, token])
    assert snapshot(state) == snapshot(plain)


def test_no_guess_beyond_what_is_wanted(model: pantheon.Model) -> None:
    for n_left, wanted in ((0, 0), (1, 0), (2, 1), (5, 4), (9, 8), (100, 8)):
        state = model.state()
        _native.state_speculate(state._handle, 8, always=True)
        state._advance(PROMPT)
        state._advance_one(90, n_left)
        assert state._speculation()[0] == wanted


@pytest.mark.parametrize("window", [None, 100])
def test_no_guess_beyond_the_window(model: pantheon.Model, window: int | None) -> None:
    """Neither of the model nor of the state; where the window is full the token is refused as it is without guesses."""
    for room, wanted in ((1, 0), (2, 1), (5, 4), (9, 8), (30, 8)):
        state = model.state(window)
        _native.state_speculate(state._handle, 8, always=True)
        state._advance((PROMPT * 40)[-(state.window - room) :])
        state._advance_one(90, 100)
        assert state._speculation()[0] == wanted
        if room > 1:
            state._advance([90] * (room - 1))
        before = snapshot(state)
        with pytest.raises(ContextError, match=str(state.window)):
            state._advance_one(90, 100)
        assert snapshot(state) == before
        assert state._speculation()[0] == wanted


@pytest.mark.parametrize("cut", ["rewind", "reset", "cancel"])
def test_a_state_that_was_cut_guesses_as_a_fresh_one(model: pantheon.Model, cut: str) -> None:
    fresh, used = model.state(), model.state()
    for state in (fresh, used):
        _native.state_speculate(state._handle, 8, always=True)
    fresh._advance(PROMPT)
    used._advance(PROMPT)
    used._advance_one(90, 1)  # all is known to the guesses from here on
    if cut == "rewind":
        used.rewind(len(PROMPT) - 3)
        used._advance(PROMPT[-3:])
    elif cut == "reset":
        used.reset()
        used._advance(PROMPT)
    else:
        fresh._advance([90])
        used.cancel()
        with pytest.raises(CancelledError):
            used._advance_one(101, 100)
    for token in (90, 100, 70, 80, 91, 70, 80, 90, 90):
        used._advance_one(token, 100)
        fresh._advance_one(token, 100)
        assert used._speculation() == fresh._speculation()
    assert used._speculation()[0] > 8


def test_two_states_do_not_share_guesses_and_off_means_off(model: pantheon.Model) -> None:
    one, two = model.state(), model.state()
    empty = one.n_bytes
    _native.state_speculate(one._handle, 30, always=True)
    assert one.n_bytes >= empty + 31 * model.n_vocab * 4
    for state in (one, two):
        state._advance(PROMPT)
        for token in PROMPT[3:]:
            state._advance_one(token, 50)
    assert one._speculation()[0] > 0
    assert two._speculation() == (0, 0)
    assert snapshot(one) == snapshot(two)
    one._speculate(0)
    assert one._speculation() == (0, 0)
    assert one.n_bytes == two.n_bytes or one.n_bytes - two.n_bytes < 31 * model.n_vocab * 4  # cache blocks may differ
    one._advance_one(70, 50)
    two._advance([70])
    assert snapshot(one) == snapshot(two)


def test_advance_refuses_what_eval_refuses(model: pantheon.Model) -> None:
    state = model.state()
    _native.state_speculate(state._handle, 8, always=True)
    state._advance(PROMPT)
    before = snapshot(state)
    with pytest.raises(ArgumentError, match="512"):
        state._advance_one(512, 10)
    assert snapshot(state) == before
    state._advance_one(90, 10)
    assert state.tokens.tolist() == [*PROMPT, 90]
    state._advance(np.full(model.context_length - len(state), 70))
    before = snapshot(state)
    with pytest.raises(ContextError):
        state._advance_one(70, 10)
    assert snapshot(state) == before
    for most in (-1, 31):
        with pytest.raises(ArgumentError, match=str(most)):
            state._speculate(most)
    assert snapshot(state) == before


def test_a_guess_that_cannot_be_evaluated_costs_nothing(tmp_path: Path) -> None:
    """The logits after token BAD overflow; no one asks for them, until it is guessed."""
    bad, dim = 200, 0
    rng = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> Any:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    embedding, output = matrix(512, 64), matrix(512, 64)
    embedding[:, dim], output[:, dim] = 0, 0
    embedding[bad, dim], output[300, dim] = 100, 3e38  # only BAD has anything in this dimension
    tensors: dict[str, Any] = {"token_embd.weight": embedding, "output.weight": output}
    for layer in range(2):
        for name, columns in (("attn_output", 64), ("ffn_down", 96)):
            weights = matrix(64, columns)
            weights[dim] = 0
            tensors[f"blk.{layer}.{name}.weight"] = weights
    path = write_model(tmp_path / "bad.gguf", tied=False, dtype="F32", tensors=tensors)
    with pantheon.load(path, blas=False) as model:
        plain, state = model.state(), model.state()
        with pytest.raises(NumericError):
            plain.eval([70, bad])
        plain.reset()
        _native.state_speculate(state._handle, 8, always=True)
        for both in (plain, state):
            both._advance([70, 80, 90, bad, 71, 70, 80])
        for token in (90, 91, 92):
            plain._advance([token])
            state._advance_one(token, 50)
            assert snapshot(state) == snapshot(plain)


# ---- The stream in C


def c_model(path: str) -> Any:
    pointer = lib.pn_load(path.encode())
    assert pointer != ffi.NULL, last_error()
    return ffi.gc(pointer, lib.pn_free)


def guessing_state(model: Any, most: int) -> Any:
    state = new_state(model)
    assert lib.pn_state_speculate(state, most, True) == 0
    return state


def last_logits(model: Any, state: Any) -> bytes | None:
    logits = lib.pn_state_logits(state)
    return None if logits == ffi.NULL else bytes(ffi.buffer(logits, 512 * 4))


def stopper(after: int) -> Callable[[int, bytes], int]:
    """A callback that wants no more after so many tokens."""
    count = itertools.count(1)
    return lambda _token, _data: int(next(count) == after)


def test_a_stream_in_c_is_the_same_with_guesses(calm_model: str) -> None:
    model = c_model(calm_model)
    total = 0
    for chain in ({}, {"temperature": 0.5, "seed": 9, "repeat_penalty": 1.05}, {"temperature": 0.5, "top_p": 0.9}):
        for limit, stop_after in ((50, 99), (17, 99), (50, 1), (50, 13), (50, 30), (300, 999)):
            plain, state = new_state(model), guessing_state(model, 8)
            results = []
            for each in (plain, state):
                params = make_params(NO_STOP, **chain)
                result = stream(model, each, PROMPT, limit, params, stopper(stop_after))
                results.append((result, held(each), last_logits(model, each)))
            assert results[0] == results[1]
            proposed, accepted = ffi.new("uint64_t *"), ffi.new("uint64_t *")
            lib.pn_state_speculation(state, proposed, accepted)
            total += accepted[0]
            assert result[0] == min(limit, stop_after, 256 - len(PROMPT) + 1)
    assert total > 100


def test_a_stream_in_c_stops_and_goes_on_with_guesses(calm_model: str) -> None:
    model = c_model(calm_model)
    for bias in (2.0, 3.0, 4.0):
        for seed in range(10):
            params = make_params(((2, bias),), temperature=0.7, seed=seed)
            plain, state = new_state(model), guessing_state(model, 8)
            for prompt in (PROMPT, [90, 100], [70]):  # the same state goes on, with what was learned
                assert stream(model, plain, prompt, 40, params) == stream(model, state, prompt, 40, params)
                assert (held(plain), last_logits(model, plain)) == (held(state), last_logits(model, state))


def test_a_cancel_from_another_thread_leaves_a_prefix(calm_model: str) -> None:
    model = c_model(calm_model)
    params = make_params(NO_STOP)
    expected = stream(model, new_state(model), PROMPT, 200, params)[1]
    for after in (3, 20, 60):
        state = guessing_state(model, 8)
        count = itertools.count(1)

        def cancel(_token: int, _data: bytes, state: Any = state, count: Any = count, after: int = after) -> int:
            if next(count) == after:
                canceller = threading.Thread(target=lib.pn_state_cancel, args=(state,))
                canceller.start()
                canceller.join()
            return 0

        result, ids, _ = stream(model, state, PROMPT, 200, params, cancel)
        assert (result, lib.pn_last_status()) == (-1, lib.PN_ERR_CANCELLED)
        assert ids == expected[:after]
        assert held(state) == PROMPT + ids[:-1]


# ---- Python's faces


def test_speculate_in_model_and_chat_gives_the_same_replies(model: pantheon.Model) -> None:
    for sampling in CHAINS:
        plain = model.generate(PROMPT, max_tokens=40, **{"seed": 1, **sampling})
        for value in (True, 1, 30):
            guessed = model.generate(PROMPT, max_tokens=40, speculate=value, **{"seed": 1, **sampling})
            assert (guessed.text, guessed.tokens, guessed.finish_reason) == (
                plain.text, plain.tokens, plain.finish_reason,
            )  # fmt: skip
    assert plain.usage.proposed_tokens == plain.usage.accepted_tokens == 0


@pytest.mark.usefixtures("_always")
def test_a_chat_with_guesses_is_the_same_chat_turn_by_turn(model: pantheon.Model) -> None:
    with model.chat() as plain, model.chat() as chat:
        for turn, speculate in enumerate((True, 3, False, True)):
            cut = 5 + turn
            for each, how in ((plain, False), (chat, speculate)):
                pieces = each.stream(f"Say {turn}", max_tokens=20, speculate=how, temperature=0.4, seed=turn)
                for number, _ in enumerate(pieces):
                    if turn % 2 and number == cut:
                        each.cancel()
            assert chat.messages == plain.messages
            assert snapshot(chat._state) == snapshot(plain._state)
        reply = chat.send("Say it again", max_tokens=20, speculate=True)
        assert reply.tokens == plain.send("Say it again", max_tokens=20).tokens
        assert reply.usage.proposed_tokens > 0


@pytest.mark.parametrize("value", [-1, 31, 2.5, "8", None])
def test_a_wrong_number_of_guesses_is_refused_before_anything_happens(model: pantheon.Model, value: Any) -> None:
    with pytest.raises(ArgumentError, match="speculate"):
        model.stream(PROMPT, speculate=value)
    with model.chat() as chat, pytest.raises(ArgumentError, match="speculate"):
        chat.stream("Hi", speculate=value)


@pytest.mark.usefixtures("_always")
def test_counts_are_in_usage_of_a_reply_that_was_left_and_a_closed_model_is_no_failure(calm_model: str) -> None:
    with pantheon.load(calm_model, blas=False) as model:
        with model.stream(PROMPT, max_tokens=200, speculate=True) as pieces:
            for _ in range(30):
                next(pieces)
        assert pieces.reply is not None
        assert 0 < pieces.reply.usage.accepted_tokens <= pieces.reply.usage.proposed_tokens
        pieces = model.stream(PROMPT, max_tokens=200, speculate=True)
        said = [next(pieces) for _ in range(30)]
        model.close()
        with pytest.raises(ClosedError):
            next(pieces)
        assert pieces.reply is not None
        assert (pieces.reply.text, pieces.reply.finish_reason) == ("".join(said), "cancelled")


def test_the_real_model_copies_with_guesses(smollm2: str) -> None:
    text = "\n".join(f"{n}. The {what} is in the box." for n, what in enumerate(("pen", "cup", "key", "map", "hat"), 1))
    prompt = f"The list:\n{text}\n\nThe same list once more:\n1. The"
    with pantheon.load(smollm2, blas=False) as real:
        for sampling in (GREEDY, {"temperature": 0.3, "seed": 2}, {"temperature": 1.0, "seed": 3, "top_p": 0.95}):
            plain = real.generate(prompt, max_tokens=48, **sampling)
            guessed = real.generate(prompt, max_tokens=48, speculate=True, **sampling)
            assert (guessed.text, guessed.tokens, guessed.finish_reason) == (
                plain.text, plain.tokens, plain.finish_reason,
            )  # fmt: skip
            if not sampling:
                assert guessed.usage.accepted_tokens > 0
