"""pn_stream_tokens and pn_stream against a loop over the step calls that they stand on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import VType, write_model

from pantheon._core import ffi, lib

STOP = 2  # the tiny model's only stop id
PROMPT = [1, 70, 80, 90, 100]
Callback = Callable[[int, bytes], int]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Any:
    return load(tiny_model)


def load(path: str) -> Any:
    pointer = lib.pn_load(path.encode())
    assert pointer != ffi.NULL, last_error()
    return ffi.gc(pointer, lib.pn_free)


def new_state(model: Any, window: int = 0) -> Any:
    state = lib.pn_state_new_window(model, window) if window else lib.pn_state_new(model)
    return ffi.gc(state, lib.pn_state_free)


def last_error() -> str:
    return bytes(ffi.string(lib.pn_last_error())).decode()


def held(state: Any) -> list[int]:
    n = ffi.new("size_t *")
    ids = lib.pn_state_tokens(state, n)
    return [int(ids[i]) for i in range(n[0])]


def make_params(bias: Sequence[tuple[int, float]] = (), **values: Any) -> Any:
    params = ffi.new("pn_sampling_params *", lib.pn_sampling_defaults())
    for name, value in values.items():
        setattr(params, name, value)
    entries = ffi.new("pn_logit_bias[]", list(bias))
    params.logit_bias, params.n_logit_bias = entries, len(bias)
    return ffi.gc(params, lambda _: ffi.release(entries))  # the entries live as long as the parameters


NO_STOP = ((STOP, float("-inf")),)


def stream(
    model: Any,
    state: Any,
    prompt: Sequence[int] | str,
    max_tokens: int,
    params: Any = ffi.NULL,
    callback: Callback | None = None,
) -> tuple[int, list[int], bytes]:
    """(result, the ids that the callback saw, their bytes)."""
    ids: list[int] = []
    text: list[bytes] = []

    @ffi.callback("int(void *, uint32_t, const char *, size_t)")  # type: ignore[untyped-decorator]
    def on_token(user_data: Any, token: int, data: Any, size: int) -> int:
        assert user_data == ffi.NULL
        ids.append(token)
        text.append(bytes(ffi.buffer(data, size)))
        return callback(token, text[-1]) if callback else 0

    if isinstance(prompt, str):
        result = lib.pn_stream(model, state, prompt.encode(), max_tokens, params, on_token, ffi.NULL)
    else:
        result = lib.pn_stream_tokens(model, state, list(prompt), len(prompt), max_tokens, params, on_token, ffi.NULL)
    return int(result), ids, b"".join(text)


def evaluate(model: Any, state: Any, ids: Sequence[int]) -> None:
    tokens = ffi.new("uint32_t[]", list(ids))
    piece = ffi.new("pn_slice *", {"state": state, "tokens": tokens, "n": len(ids), "all_logits": ffi.NULL})
    assert lib.pn_eval(model, piece, 1, ffi.NULL, ffi.NULL) == 0, last_error()


def loop(model: Any, prompt: Sequence[int], max_tokens: int, params: Any) -> tuple[list[int], bool]:
    """The ids of a reply and whether a stop id ended it, by the step calls in a fresh state."""
    state = new_state(model)
    info = ffi.new("pn_model_info *")
    lib.pn_model_describe(model, info)
    sampler = ffi.gc(lib.pn_sampler_new(info.n_vocab, params), lib.pn_sampler_free)
    token = ffi.new("uint32_t *")
    out: list[int] = []
    evaluate(model, state, prompt)
    while len(out) < max_tokens:
        assert lib.pn_sample_state(sampler, state, token) == 0
        if token[0] == STOP:
            return out, True
        out.append(int(token[0]))
        if len(out) < max_tokens:
            evaluate(model, state, [token[0]])
    return out, False


CHAINS: list[dict[str, float]] = [
    {},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 1.2, "seed": 6, "top_k": 30, "top_p": 0.9, "repeat_penalty": 1.3, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_a_stream_is_the_loop_of_evaluating_and_sampling(model: Any, chain: dict[str, float]) -> None:
    params = make_params(NO_STOP, **chain)
    expected, _ = loop(model, PROMPT, 30, params)
    state = new_state(model)
    result, ids, text = stream(model, state, PROMPT, 30, params)
    assert (result, ids) == (30, expected)
    assert held(state) == PROMPT + ids[:-1]  # the last one is sampled but not evaluated
    size = ffi.new("size_t *")
    tokenizer = lib.pn_model_tokenizer(model)
    pieces = (lib.pn_token_piece(tokenizer, i, size) for i in ids)
    assert text == b"".join(bytes(ffi.buffer(piece, size[0])) for piece in pieces)


def test_no_callback_and_no_parameters_is_greedy_and_counts(model: Any) -> None:
    expected, _ = loop(model, PROMPT, 10, make_params())
    state = new_state(model)
    assert lib.pn_stream_tokens(model, state, PROMPT, len(PROMPT), 10, ffi.NULL, ffi.NULL, ffi.NULL) == len(expected)
    assert held(state) == PROMPT + expected[:9]


def test_a_stop_id_ends_the_reply_and_is_neither_reported_nor_evaluated_nor_counted(model: Any) -> None:
    lengths = set()
    for seed in range(30):
        params = make_params(((STOP, 4.0),), temperature=1.0, seed=seed)
        expected, stopped = loop(model, PROMPT, 40, params)
        state = new_state(model)
        result, ids, _ = stream(model, state, PROMPT, 40, params)
        assert (result, ids) == (len(expected), expected)
        assert held(state) == PROMPT + (ids if stopped else ids[:-1])
        if stopped:
            lengths.add(result)
    assert len(lengths) > 3  # it did stop, and not only at once
    result, ids, _ = stream(model, new_state(model), PROMPT, 40, make_params(((STOP, 1000.0),)))
    assert (result, ids) == (0, [])


@pytest.mark.parametrize("stop_after", [1, 4, 10])
def test_a_callback_that_returns_non_zero_ends_the_reply_after_that_token(model: Any, stop_after: int) -> None:
    params = make_params(NO_STOP)
    expected, _ = loop(model, PROMPT, 10, params)
    state = new_state(model)
    seen: list[int] = []

    def enough(token: int, _: bytes) -> int:
        seen.append(token)
        return -7 if len(seen) == stop_after else 0

    result, ids, _ = stream(model, state, PROMPT, 10, params, enough)
    assert (result, ids) == (stop_after, expected[:stop_after])
    assert held(state) == PROMPT + ids[:-1]


def test_max_tokens_zero_evaluates_the_prompt_and_a_stream_without_tokens_goes_on_from_there(model: Any) -> None:
    params = make_params(NO_STOP)
    expected, _ = loop(model, PROMPT, 12, params)
    state = new_state(model)
    assert stream(model, state, PROMPT, 0, params) == (0, [], b"")
    assert held(state) == PROMPT
    result, ids, _ = stream(model, state, [], 5, params)
    assert (result, ids) == (5, expected[:5])
    result, more, _ = stream(model, state, ids[-1:], 7, params)  # the token that was not evaluated comes first
    assert (result, ids + more) == (7, expected)


@pytest.mark.parametrize(("n_ctx", "window"), [(32, 0), (64, 32)])
def test_a_reply_ends_cleanly_when_the_context_or_window_is_full(tmp_path: Path, n_ctx: int, window: int) -> None:
    small = load(write_model(tmp_path / "small.gguf", n_ctx=n_ctx))
    params = make_params(NO_STOP)
    for n_prompt in (1, 30, 31, 32):
        prompt = [70 + i for i in range(n_prompt)]
        state = new_state(small, window)
        result, ids, _ = stream(small, state, prompt, 100, params)
        assert result == 32 - n_prompt + 1  # the last token needs no room
        assert held(state) == prompt + ids[:-1]
        assert len(held(state)) == 32
        state = new_state(small, window)
        assert stream(small, state, prompt, result, params)[1] == ids  # prompt + max_tokens - 1 fits with equality
    state = new_state(small, window)
    assert stream(small, state, [70] * 33, 5, params)[:2] == (-1, [])
    assert lib.pn_last_status() == lib.PN_ERR_CONTEXT
    assert held(state) == []


def test_a_window_beyond_the_context_is_refused(tmp_path: Path) -> None:
    small = load(write_model(tmp_path / "small.gguf", n_ctx=32))
    assert lib.pn_state_window(new_state(small)) == lib.pn_state_window(new_state(small, 32)) == 32
    assert lib.pn_state_new_window(small, 33) == ffi.NULL
    assert lib.pn_last_status() == lib.PN_ERR_ARGUMENT
    assert "33 tokens" in last_error()


def test_a_cancel_from_another_thread_ends_the_stream_and_the_state_goes_on_as_if_nothing_happened(model: Any) -> None:
    params = make_params(NO_STOP)
    state = new_state(model)
    reached, cancelled = threading.Event(), threading.Event()

    def cancel() -> None:
        reached.wait(10)
        lib.pn_state_cancel(state)
        cancelled.set()

    def wait_at_the_third(_: int, __: bytes) -> int:
        count.append(1)
        if len(count) == 3:
            reached.set()
            assert cancelled.wait(10)
        return 0

    count: list[int] = []
    thread = threading.Thread(target=cancel)
    thread.start()
    result, ids, _ = stream(model, state, PROMPT, 100, params, wait_at_the_third)
    status = lib.pn_last_status()
    thread.join()
    assert (result, len(ids), status) == (-1, 3, lib.PN_ERR_CANCELLED)
    assert held(state) == PROMPT + ids[:2]
    result, more, _ = stream(model, state, ids[2:], 4, params)
    assert ids + more == loop(model, PROMPT, 7, params)[0]


def test_a_cancel_that_waits_is_taken_before_a_token_is_sampled(model: Any) -> None:
    state = new_state(model)
    assert stream(model, state, PROMPT, 0)[0] == 0
    lib.pn_state_cancel(state)
    assert stream(model, state, [], 1)[:2] == (-1, [])
    assert lib.pn_last_status() == lib.PN_ERR_CANCELLED
    assert stream(model, state, [], 1)[0] == 1  # it was taken, and the logits are still there


def test_a_state_belongs_to_its_stream_until_the_reply_ends(model: Any) -> None:
    """Between two tokens too: a second call is refused as busy and changes nothing."""
    state = new_state(model)
    one = ffi.new("uint32_t[1]", [5])
    piece = ffi.new("pn_slice *", {"state": state, "tokens": one, "n": 1})
    sampler, token = lib.pn_sampler_new(lib.pn_tokenizer_n_vocab(lib.pn_model_tokenizer(model)), ffi.NULL), one
    seen: list[int] = []

    def meddle(_: int, __: bytes) -> int:
        seen.append(lib.pn_eval(model, piece, 1, ffi.NULL, ffi.NULL))
        seen.append(lib.pn_state_rewind(state, 0))
        seen.append(lib.pn_state_reset(state))
        seen.append(lib.pn_sample_state(sampler, state, token))
        seen.append(stream(model, state, PROMPT, 1)[0])
        return 0

    params = make_params(NO_STOP)
    undisturbed = stream(model, new_state(model), PROMPT, 4, params)
    assert stream(model, state, PROMPT, 4, params, meddle) == undisturbed
    assert set(seen) == {lib.PN_ERR_BUSY, -1}
    lib.pn_sampler_free(sampler)


def test_two_streams_at_once_give_what_each_gives_alone(model: Any) -> None:
    params = make_params(NO_STOP)
    prompts = [PROMPT, PROMPT[::-1]]
    alone = [stream(model, new_state(model), prompt, 24, params)[1] for prompt in prompts]
    together: list[list[int]] = [[], []]

    def work(index: int) -> None:
        together[index] = stream(model, new_state(model), prompts[index], 24, params)[1]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_text_is_streamed_as_its_ids(model: Any) -> None:
    params = make_params(NO_STOP)
    text = "The capital of <|im_start|>"  # spelled by a user: no control token
    ids = encode(model, text, 0)
    assert 1 not in ids
    by_ids, by_text = new_state(model), new_state(model)
    assert stream(model, by_text, text, 8, params) == stream(model, by_ids, ids, 8, params)
    assert held(by_text) == held(by_ids)


def encode(model: Any, text: str, flags: int) -> list[int]:
    data = text.encode()
    out = ffi.new("uint32_t[]", len(data) + 1)
    n = lib.pn_tokenize(lib.pn_model_tokenizer(model), data, len(data), flags, out, len(data) + 1)
    return [int(out[i]) for i in range(n)]


def test_a_text_gets_the_files_bos_only_at_the_start_of_a_conversation(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.add_bos_token": (True, VType.BOOL)}
    with_bos = load(write_model(tmp_path / "bos.gguf", metadata=metadata))
    state = new_state(with_bos)
    plain = encode(with_bos, "the water", 0)
    assert stream(with_bos, state, "the water", 0)[0] == 0
    assert held(state) == [1, *plain]
    assert stream(with_bos, state, "the water", 0)[0] == 0
    assert held(state) == [1, *plain, *plain]


def test_bad_arguments_are_refused_and_change_nothing(model: Any, tmp_path: Path) -> None:
    other_model = load(write_model(tmp_path / "other.gguf", n_vocab=300))
    state, other = new_state(model), new_state(other_model)
    tokens = ffi.new("uint32_t[]", PROMPT)
    null = ffi.NULL
    bad: list[tuple[str, tuple[Any, ...]]] = [
        ("model is NULL", (null, state, tokens, 5, 3, null, null, null)),
        ("state is NULL", (model, null, tokens, 5, 3, null, null, null)),
        ("tokens is NULL", (model, state, null, 5, 3, null, null, null)),
        ("n_tokens is -1", (model, state, tokens, -1, 3, null, null, null)),
        ("max_tokens is -2", (model, state, tokens, 5, -2, null, null, null)),
        ("no logits", (model, state, tokens, 0, 3, null, null, null)),
        ("no logits", (model, state, null, 0, 0, null, null, null)),
        ("does not belong", (model, other, tokens, 5, 3, null, null, null)),
        ("temperature is -1", (model, state, tokens, 5, 3, make_params(temperature=-1), null, null)),
        ("token 512 ", (model, state, tokens, 5, 3, make_params(((512, 1.0),)), null, null)),
    ]
    for message, arguments in bad:
        assert lib.pn_stream_tokens(*arguments) == -1, message
        assert lib.pn_last_status() == lib.PN_ERR_ARGUMENT, message
        assert message in last_error()
    for message, texts in (
        ("model is NULL", (null, state, b"a")),
        ("state is NULL", (model, null, b"a")),
        ("prompt is NULL", (model, state, null)),
        ("max_tokens is -1", (model, state, b"a")),
    ):
        assert lib.pn_stream(*texts, -1, null, null, null) == -1
        assert message in last_error()
    assert stream(model, state, [512], 3)[0] == -1
    assert lib.pn_last_status() == lib.PN_ERR_ARGUMENT
    assert held(state) == held(other) == []
    evaluate(other_model, other, PROMPT)
    assert stream(model, other, [], 3)[0] == -1  # 300 logits are there, and this model has 512 tokens
    assert "does not belong" in last_error()


def test_a_sampler_for_another_vocabulary_is_refused_on_a_state(model: Any) -> None:
    state = new_state(model)
    token = ffi.new("uint32_t *")
    right = ffi.gc(lib.pn_sampler_new(512, ffi.NULL), lib.pn_sampler_free)
    wrong = ffi.gc(lib.pn_sampler_new(513, ffi.NULL), lib.pn_sampler_free)
    assert lib.pn_sample_state(right, state, token) == lib.PN_ERR_ARGUMENT
    assert "no logits" in last_error()
    evaluate(model, state, PROMPT)
    assert lib.pn_sample_state(wrong, state, token) == lib.PN_ERR_ARGUMENT
    assert "513" in last_error()
    assert lib.pn_sample_state(right, state, token) == 0
