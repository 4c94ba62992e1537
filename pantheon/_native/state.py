"""Conversations: ids into states, logits out, states to files and back.

Rank 1: imports errors, _arrays, _gate, and its siblings base and model. numpy is imported when there are logits.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pantheon import errors
from pantheon._arrays import ID_CODE, Floats, IdBuffer, Ids, check_rows, id_buffer
from pantheon._gate import Hold, OneAtATime
from pantheon._native.base import Call, Handle, Progress, check, ffi, last_error, lib, path_bytes
from pantheon._native.model import ModelHandle, model_facts

if TYPE_CHECKING:
    import numpy.typing as npt


class StateHandle(Handle):
    """Owns one pn_state. C keeps the model's memory while the state lives, in whatever order they are closed."""

    __slots__ = ("_running", "model")
    noun = "state"

    def __init__(self, model: ModelHandle, window: int) -> None:  # 0: the model's context
        self.model = model
        self._running = OneAtATime(
            errors.BusyError, "this state is in use by another call; give each thread its own state"
        )
        with model as pointer:
            super().__init__(lib.pn_state_new_window(pointer, window), lib.pn_state_free)

    def exclusive(self) -> Hold:
        """For a `with`: whoever works on the state; BusyError if someone does.

        C refuses a second evaluation by itself, but ids and logits are read here through borrowed pointers, which an
        evaluation in another thread would move.
        """
        return self._running.hold()

    def _stop_calls(self) -> None:
        if self._users > 0:
            lib.pn_state_cancel(self._pointer)


def state_eval(
    state: StateHandle,
    ids: Sequence[int] | npt.ArrayLike | IdBuffer,
    progress: Progress | None,
    all_logits: Floats | None = None,
) -> None:
    """Append ids (at least one). all_logits, if given, is float32[len(ids), n_vocab] and receives every row."""
    tokens = id_buffer(ids)
    if len(tokens) == 0:
        raise errors.ArgumentError("eval needs at least one token id")
    if all_logits is not None:
        check_rows(all_logits, (len(tokens), model_facts(state.model).n_vocab))
    call = Call(progress)
    data = ffi.new_handle(call)
    with state.exclusive(), state.model as model, state as pointer:
        piece = ffi.new("pn_slice *")
        buffer = ffi.from_buffer("uint32_t[]", tokens)
        piece.state, piece.tokens, piece.n = pointer, buffer, len(tokens)
        rows = ffi.NULL if all_logits is None else ffi.from_buffer("float[]", all_logits, True)
        piece.all_logits = rows
        status = lib.pn_eval(model, piece, 1, lib.pn_py_progress, data)
        call.check(status == 0)


def states_eval(
    model: ModelHandle, parts: Sequence[tuple[StateHandle, Ids | IdBuffer]], progress: Progress | None, n_vocab: int
) -> Floats:
    """Append ids to several states (at least one): the logits after the last id of each, float32[len(parts), n_vocab].

    Nobody waits here, so nothing can deadlock; all threads enter states in one order, so that one of them gets in.
    """
    import numpy as np

    rows = np.empty((len(parts), n_vocab), np.float32)
    call = Call(progress)
    data = ffi.new_handle(call)
    pieces = ffi.new("pn_slice[]", len(parts))
    buffers = [ffi.from_buffer("uint32_t[]", ids) for _, ids in parts]
    with contextlib.ExitStack() as stack:
        pointer = stack.enter_context(model)
        for at in sorted(range(len(parts)), key=lambda at: id(parts[at][0])):
            try:
                stack.enter_context(parts[at][0].exclusive())
                pieces[at].state = stack.enter_context(parts[at][0])
            except (errors.BusyError, errors.ClosedError) as error:
                raise type(error)(f"part {at}: {error}") from None
            pieces[at].tokens, pieces[at].n = buffers[at], len(parts[at][1])
        status = lib.pn_eval(pointer, pieces, len(parts), lib.pn_py_progress, data)
        if status in (lib.PN_ERR_ARGUMENT, lib.PN_ERR_CONTEXT):  # said before any work, so no callback was called
            refused = last_error(status)
            raise type(refused)(_refused_part(pieces, parts, n_vocab) + str(refused))
        call.check(status == 0)
        for piece, row in zip(pieces, rows, strict=True):
            ffi.memmove(ffi.from_buffer(row), lib.pn_state_logits(piece.state), row.nbytes)
    return rows


def _refused_part(pieces: Any, parts: Sequence[tuple[StateHandle, Ids | IdBuffer]], n_vocab: int) -> str:
    """ "part 3: " of the first part whose ids are too many or too large; C's own words do not say which it refused."""
    count = ffi.new("size_t *")
    for at, (_, ids) in enumerate(parts):
        lib.pn_state_tokens(pieces[at].state, count)
        if count[0] + len(ids) > lib.pn_state_window(pieces[at].state) or max(ids) >= n_vocab:
            return f"part {at}: "
    return ""


GUESSES_MAX = int(lib.PN_GUESSES_MAX)


def state_speculate(state: StateHandle, most: int, always: bool = False) -> None:
    """Let state_advance() guess up to `most` tokens at a time (0: off); always: it never backs off."""
    with state.exclusive(), state as pointer:
        check(lib.pn_state_speculate(pointer, most, always))


def state_speculation(state: StateHandle) -> tuple[int, int]:
    """How many guesses were evaluated, and how many of them came true."""
    counts = ffi.new("uint64_t[2]")
    with state.exclusive(), state as pointer:
        lib.pn_state_speculation(pointer, counts, counts + 1)
    return int(counts[0]), int(counts[1])


def state_advance(state: StateHandle, token: int, n_left: int) -> None:
    """Append one id as state_eval() does, perhaps with guesses along. n_left: how many will still be sampled."""
    call = Call(None)
    data = ffi.new_handle(call)
    with state.exclusive(), state as pointer:
        call.check(lib.pn_advance(pointer, token, n_left, lib.pn_py_progress, data) == 0)


def state_reset(state: StateHandle) -> None:
    """Forget everything."""
    with state.exclusive(), state as pointer:
        check(lib.pn_state_reset(pointer))


def state_rewind(state: StateHandle, n: int) -> None:
    """Keep the first n tokens."""
    with state.exclusive(), state as pointer:
        check(lib.pn_state_rewind(pointer, n))


def state_tokens(state: StateHandle) -> IdBuffer:
    """A copy of the ids that were evaluated."""
    count = ffi.new("size_t *")
    with state.exclusive(), state as pointer:
        tokens = lib.pn_state_tokens(pointer, count)
        n = int(count[0])
        return array(ID_CODE, bytes(ffi.buffer(tokens, 4 * n)) if n else b"")


def state_length(state: StateHandle) -> int:
    """How many ids were evaluated."""
    count = ffi.new("size_t *")
    with state.exclusive(), state as pointer:
        lib.pn_state_tokens(pointer, count)
    return int(count[0])


def state_logits(state: StateHandle, n_vocab: int) -> Floats | None:
    """A copy of the logits after the last evaluated token, or None if there are none."""
    import numpy as np

    with state.exclusive(), state as pointer:
        logits = lib.pn_state_logits(pointer)
        if logits == ffi.NULL:
            return None
        return np.frombuffer(ffi.buffer(logits, 4 * n_vocab), np.float32).copy()


def state_bytes(state: StateHandle) -> int:
    """Bytes that the state holds."""
    with state.exclusive(), state as pointer:
        return int(lib.pn_state_bytes(pointer))


def state_save(state: StateHandle, path: str | bytes | os.PathLike[str]) -> None:
    """Write ids, cache and logits to a file, whole or not at all."""
    with state.exclusive(), state as pointer:
        check(lib.pn_state_save(pointer, path_bytes(path)))


def state_load(state: StateHandle, path: str | bytes | os.PathLike[str]) -> None:
    """Become what the file's state was; after a failure it is as it was."""
    with state.exclusive(), state as pointer:
        check(lib.pn_state_load(pointer, path_bytes(path)))


def state_cancel(state: StateHandle) -> None:
    """Ask the running evaluation to stop; the request stays until one takes it."""
    with state as pointer:
        lib.pn_state_cancel(pointer)


def state_clear_cancel(state: StateHandle) -> None:
    """Withdraw a request that no evaluation has taken."""
    with state as pointer:
        lib.pn_state_clear_cancel(pointer)
