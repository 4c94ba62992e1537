"""One conversation at the level of token ids: what was evaluated, and the logits after it.

Rank 3: imports _native. A state belongs to one caller at a time; a second one gets BusyError.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from pantheon import _native
from pantheon.engine.sampling import check_integer

if TYPE_CHECKING:
    import numpy.typing as npt


class State:
    """The evaluated tokens of one conversation and their key/value cache. Make it with model.state().

    The same list of ids gives the same logits to the bit, however it was split into calls, rewound or cancelled.
    """

    def __init__(self, handle: _native.StateHandle, n_vocab: int, window: int) -> None:
        """Internal: use model.state()."""
        self._handle = handle
        self._n_vocab = n_vocab
        self._window = window

    def eval(self, ids: Sequence[int] | npt.ArrayLike, *, progress: _native.Progress | None = None) -> _native.Floats:
        """Append ids (at least one) and return the logits after the last one, float32[n_vocab], a copy.

        progress is called with the fraction done at most every 50 ms; an exception from it stops the evaluation.
        Raises ArgumentError, BusyError, ContextError, OutOfMemoryError, NumericError, CancelledError. After a failure
        the state holds a prefix of what was asked for (see `tokens`), and no logits.
        """
        self._advance(ids, progress)
        logits = _native.state_logits(self._handle, self._n_vocab)
        assert logits is not None  # the evaluation returned without an error
        return logits

    def _advance(
        self, ids: Sequence[int] | npt.ArrayLike | _native.IdBuffer, progress: _native.Progress | None = None
    ) -> None:
        """eval() without the copy of the logits, for callers that sample."""
        _native.state_eval(self._handle, ids, progress)

    def _advance_all(self, ids: _native.Ids, out: _native.Floats) -> None:
        """Append ids and write the logits after each of them to out, float32[len(ids), n_vocab]."""
        _native.state_eval(self._handle, ids, None, out)

    def _speculate(self, most: int) -> None:
        """Guess up to `most` tokens at a time from here on; 0: none."""
        _native.state_speculate(self._handle, most)

    def _advance_one(self, token: int, n_left: int) -> None:
        """_advance() of one id, with guesses along with it. n_left: how many tokens are still to be sampled."""
        _native.state_advance(self._handle, token, n_left)

    def _speculation(self) -> tuple[int, int]:
        """Guesses that were evaluated since _speculate(), and those of them that came true."""
        return _native.state_speculation(self._handle)

    def sample(self, sampler: _native.SamplerHandle) -> int:
        """Draw a token from the current logits; it is not appended."""
        return _native.sample(sampler, self._handle)

    @property
    def tokens(self) -> _native.Ids:
        """The ids that were evaluated, uint32[n], a copy."""
        import numpy as np

        return np.array(self.token_buffer(), np.uint32)

    def token_buffer(self) -> _native.IdBuffer:
        """tokens as an array.array, for callers that do without numpy."""
        return _native.state_tokens(self._handle)

    @property
    def logits(self) -> _native.Floats | None:
        """The logits after the last token, float32[n_vocab], a copy; None when empty, rewound or after a failure."""
        return _native.state_logits(self._handle, self._n_vocab)

    @property
    def window(self) -> int:
        """The most tokens that the state may hold."""
        return self._window

    @property
    def n_bytes(self) -> int:
        """Memory that the state holds, in bytes. It grows with the tokens, not with the context length."""
        return _native.state_bytes(self._handle)

    def __len__(self) -> int:
        return _native.state_length(self._handle)

    def rewind(self, n: int) -> None:
        """Keep the first n tokens. There are no logits until the next eval()."""
        _native.state_rewind(self._handle, check_integer("the length to rewind to", n, 0, len(self)))

    def reset(self) -> None:
        """Forget everything."""
        _native.state_reset(self._handle)

    def save(self, path: str | bytes | os.PathLike[str]) -> None:
        """Write what the state holds to a file: ids, cache, logits, the model's fingerprint, checksums.

        The file is binary, about model.info.kv_bytes_per_token bytes for each token. It appears whole or not at all,
        over one that was there, and only its owner may read it.
        Raises ArgumentError, BusyError, FileError, OutOfMemoryError.
        """
        _native.state_save(self._handle, path)

    def load(self, path: str | bytes | os.PathLike[str]) -> None:
        """Become what the saved state was: what comes next has the same bits as if it had never been away.

        This holds in another process, on other instruction sets and numbers of threads. The window stays this state's
        own. All of the file is checked first; after a failure the state is as it was.
        Raises FileError, NotSavedFileError, DamagedFileError, OtherModelError, UnsupportedError (another version of the
        format), ContextError (more tokens than the window, or rotary factors for another window), BusyError,
        OutOfMemoryError.
        """
        _native.state_load(self._handle, path)

    def cancel(self) -> None:
        """Make the evaluation that runs on this state, or else the next one, raise CancelledError. Any thread."""
        _native.state_cancel(self._handle)

    def clear_cancel(self) -> None:
        """Withdraw a cancel() that no evaluation has taken."""
        _native.state_clear_cancel(self._handle)

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._handle.closed

    def close(self) -> None:
        """Free the memory; a call that is running in another thread is cancelled first. Idempotent."""
        self._handle.close()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a State holds memory of this process and cannot be pickled")

    def __repr__(self) -> str:
        return "<pantheon.State: closed>" if self.closed else "<pantheon.State>"
