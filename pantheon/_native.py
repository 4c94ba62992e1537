"""The only module that talks to C: statuses become exceptions, pointers become handles, bytes become values.

Rank 1: imports errors, _arrays, _gate. Nothing above it sees `ffi`. One function per C function, no policy.

The one thing to know first: C calls back into Python at most every 50 ms (see `_Call`). Python runs pending signal
handlers when that callback starts, so Ctrl-C raises KeyboardInterrupt *inside* it; the exception is kept, C is told
to stop, and the caller gets the kept exception. That is how a long evaluation ends at once without a helper thread.

What this module deliberately does not do: convert or check what C checks itself (ranges of ids, parameters, files).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pantheon import errors
from pantheon._arrays import ID_CODE, check_rows, id_buffer
from pantheon._arrays import Floats as Floats
from pantheon._arrays import IdBuffer as IdBuffer
from pantheon._arrays import Ids as Ids
from pantheon._arrays import as_ids as as_ids
from pantheon._gate import Hold, OneAtATime

try:
    from pantheon._core import ffi, lib
except ImportError as error:  # a source tree that was not built, or one that shadows the installed package
    raise ImportError(
        f"pantheon's compiled part (pantheon._core) cannot be imported from {os.path.dirname(__file__)!r}: {error}. "
        "Build it (`make build`, or `pip install .`), or run outside of the source tree."
    ) from error

if TYPE_CHECKING:
    import numpy.typing as npt

Progress = Callable[[float], object]
"""Called with the fraction done, 0.0 to 1.0. What it raises stops the call and reaches the caller."""

ERROR_BY_STATUS: dict[int, type[errors.PantheonError]] = {
    lib.PN_ERR_ARGUMENT: errors.ArgumentError,
    lib.PN_ERR_IO: errors.FileError,
    lib.PN_ERR_NOT_GGUF: errors.NotGGUFError,
    lib.PN_ERR_TRUNCATED: errors.TruncatedError,
    lib.PN_ERR_CORRUPT: errors.CorruptFileError,
    lib.PN_ERR_METADATA: errors.MetadataError,
    lib.PN_ERR_UNSUPPORTED: errors.UnsupportedError,
    lib.PN_ERR_MEMORY: errors.OutOfMemoryError,
    lib.PN_ERR_BUSY: errors.BusyError,
    lib.PN_ERR_CANCELLED: errors.CancelledError,
    lib.PN_ERR_CONTEXT: errors.ContextError,
    lib.PN_ERR_ISA: errors.ISAError,
    lib.PN_ERR_NUMERIC: errors.NumericError,
    lib.PN_ERR_NOT_STATE: errors.NotSavedFileError,
    lib.PN_ERR_DAMAGED: errors.DamagedFileError,
    lib.PN_ERR_OTHER_MODEL: errors.OtherModelError,
}


def _last_error(status: int) -> errors.PantheonError:
    message = bytes(ffi.string(lib.pn_last_error())).decode("utf-8", "replace")
    return ERROR_BY_STATUS.get(status, errors.PantheonError)(message)


def _fail() -> NoReturn:
    raise _last_error(int(lib.pn_last_status()))


def _check(status: int) -> None:
    """Raise the exception that stands for a non-zero pn_status; return quietly for PN_OK."""
    if status != 0:
        raise _last_error(status)


# ---- Progress and Ctrl-C ------------------------------------------------------------------------------------------


class _Call:
    """What one call into C carries with it: the user's progress function, and the exception that stopped it."""

    __slots__ = ("error", "progress")

    def __init__(self, progress: Progress | None) -> None:
        if progress is not None and not callable(progress):
            raise errors.ArgumentError(f"progress must be a function or None, got {type(progress).__name__}")
        self.progress = progress
        self.error: BaseException | None = None

    def check(self, ok: bool) -> None:
        """Raise what the callback raised, else C's own failure, else nothing."""
        kept, self.error = self.error, None
        if kept is not None:
            raise kept
        if not ok:
            _fail()


def _keep_error(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    """cffi calls this instead of printing an exception that left a callback. The frame holds the callback's data."""
    ffi.from_handle(trace.tb_frame.f_locals["user_data"]).error = error


@ffi.def_extern(name="pn_py_progress", error=1, onerror=_keep_error)  # type: ignore[untyped-decorator]
def _on_progress(user_data: Any, fraction: float) -> int:
    progress = ffi.from_handle(user_data).progress
    if progress is not None:
        progress(fraction)
    return 0


# ---- Handles ------------------------------------------------------------------------------------------------------


class _Handle:
    """Owns one C pointer. `with handle as pointer:` uses it; the collector is only the safety net.

    cffi releases the GIL during a call, so another thread may close the handle meanwhile. Then the pointer is marked
    closed at once (later use raises ClosedError) and freed when the last running call has left.
    """

    __slots__ = ("__weakref__", "_closed", "_lock", "_pointer", "_users")
    noun = "object"

    def __init__(self, pointer: Any, free: Any) -> None:
        if pointer == ffi.NULL:
            _fail()
        self._pointer: Any = ffi.gc(pointer, free)
        self._users = 0
        self._closed = False
        self._lock = threading.RLock()  # a signal handler may come back to it, to cancel or to close

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def __enter__(self) -> Any:
        with self._lock:
            self._users += 1  # first: whoever closes from a signal handler after this line leaves the pointer to us
            if self._closed:
                self._users -= 1
                raise errors.ClosedError(f"this {self.noun} is closed")
            return self._pointer

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            pointer = self._take_if_unused()
        if pointer is not None:
            ffi.release(pointer)

    def close(self) -> None:
        """Free the pointer now, or as soon as the running calls have left. Idempotent, from any thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._stop_calls()
            pointer = self._take_if_unused()
        if pointer is not None:
            ffi.release(pointer)

    def _take_if_unused(self) -> Any:
        """With the lock held: give up the pointer if it is closed and idle (after release it would dangle)."""
        if not self._closed or self._users > 0:
            return None
        pointer, self._pointer = self._pointer, None
        return pointer

    def _stop_calls(self) -> None:
        """With the lock held: make running calls end early, where the object knows how."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self.noun} holds memory of this process and cannot be pickled")


class _Borrowed:
    """A pointer that another handle owns: using it uses the owner."""

    __slots__ = ("_get", "_owner")

    def __init__(self, owner: _Handle, get: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._get = get

    @property
    def closed(self) -> bool:
        return self._owner.closed

    def __enter__(self) -> Any:
        return self._get(self._owner.__enter__())

    def __exit__(self, *exc: object) -> None:
        self._owner.__exit__(*exc)

    def close(self) -> None:
        """Nothing: the owner closes."""


# ---- Values in and out --------------------------------------------------------------------------------------------


def path_bytes(path: str | bytes | os.PathLike[str]) -> bytes:
    """A path as the bytes that the operating system wants."""
    try:
        name = os.fsencode(path)
    except TypeError:
        raise errors.ArgumentError(f"a path must be a str, bytes or os.PathLike, got {type(path).__name__}") from None
    except UnicodeEncodeError as error:
        raise errors.ArgumentError(
            f"a path holds a lone surrogate (U+{ord(error.object[error.start]):04X}), which no file name has: {path!a}"
        ) from None
    if b"\0" in name:
        raise errors.ArgumentError(f"a path cannot hold a NUL character: {path!r}")
    return name


def text_bytes(text: str | bytes) -> bytes:
    """UTF-8 of a str (bytes pass through); ArgumentError names the index of a lone surrogate."""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise errors.ArgumentError(f"text must be str or bytes, got {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise errors.ArgumentError(
            f"text holds a lone surrogate (U+{ord(text[error.start]):04X}) at index {error.start}; it has no UTF-8 form"
        ) from None


def _decode(pointer: Any, length: int) -> str:
    return bytes(ffi.buffer(pointer, length)).decode("utf-8", "replace")


# ---- Facts about the build and the machine ------------------------------------------------------------------------


def version() -> str:
    """The version of the C core, "0.1.0"."""
    return bytes(ffi.string(lib.pn_version())).decode("ascii")


def has_blas() -> bool:
    """True if this build can evaluate prompts through BLAS."""
    return bool(lib.pn_has_blas())


def isa_available() -> list[str]:
    """The instruction sets that this machine can run, best first."""
    return bytes(ffi.string(lib.pn_isa_available())).decode("ascii").split()


def default_threads() -> tuple[int, str]:
    """How many threads a model uses by default, and one line on where the number comes from."""
    why = ffi.new("char[]", 256)
    count = int(lib.pn_default_threads(why, 256))
    return count, bytes(ffi.string(why)).decode("utf-8", "replace")


def known(what: str) -> list[str]:
    """A list of what this build knows, in the order of its table.

    what: "architectures", "types" (readable), "matrix_types", "targets" (of quantize), "tokenizers", "pretokenizers".
    """
    number = int(getattr(lib, "PN_KNOWN_" + what.upper()))
    names: list[str] = []
    while (name := lib.pn_known(number, len(names))) != ffi.NULL:
        names.append(bytes(ffi.string(name)).decode("ascii"))
    return names


def read_bandwidth(threads: int, n_bytes: int, runs: int) -> float:
    """Bytes per second at which `threads` read a buffer of n_bytes (1 MiB to 32 GiB) together, median of `runs`."""
    rate = ffi.new("double *")
    _check(lib.pn_read_bandwidth(threads, n_bytes, runs, rate))
    return float(rate[0])


# ---- GGUF files ---------------------------------------------------------------------------------------------------


class Tensor(NamedTuple):
    """One entry of the tensor directory. `shape` has the contiguous dimension first; `offset`, `size` in bytes.

    `offset` is from the start of the file; of a model that was split, `part` is the number of that file, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    size: int
    part: int = 0


_NUMBER_TYPES: dict[int, str] = {
    lib.PN_VALUE_U8: "<u1",
    lib.PN_VALUE_I8: "<i1",
    lib.PN_VALUE_U16: "<u2",
    lib.PN_VALUE_I16: "<i2",
    lib.PN_VALUE_U32: "<u4",
    lib.PN_VALUE_I32: "<i4",
    lib.PN_VALUE_F32: "<f4",
    lib.PN_VALUE_BOOL: "?",
    lib.PN_VALUE_U64: "<u8",
    lib.PN_VALUE_I64: "<i8",
    lib.PN_VALUE_F64: "<f8",
}
_SIGNED = {lib.PN_VALUE_I8, lib.PN_VALUE_I16, lib.PN_VALUE_I32, lib.PN_VALUE_I64}
_FLOATING = {lib.PN_VALUE_F32, lib.PN_VALUE_F64}


class GGUFHandle(_Handle):
    """Owns one pn_gguf: a file whose header was read and checked."""

    __slots__ = ()
    noun = "GGUF file"

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        super().__init__(lib.pn_gguf_open(path_bytes(path)), lib.pn_gguf_free)


def gguf_version(gguf: GGUFHandle | _Borrowed) -> int:
    """The version of the container, 2 or 3."""
    with gguf as pointer:
        return int(lib.pn_gguf_version(pointer))


def gguf_files(gguf: GGUFHandle | _Borrowed) -> tuple[int, int]:
    """Of how many files the model consists, and how many bytes they have together."""
    with gguf as pointer:
        return int(lib.pn_gguf_n_parts(pointer)), int(lib.pn_gguf_size(pointer))


def gguf_keys(gguf: GGUFHandle | _Borrowed) -> dict[str, int]:
    """Metadata keys in file order, each with its index."""
    entry = ffi.new("pn_metadata *")
    keys: dict[str, int] = {}
    with gguf as pointer:
        for index in range(int(lib.pn_gguf_n_metadata(pointer))):
            _check(lib.pn_gguf_metadata(pointer, index, entry))
            keys[_decode(entry.key, entry.key_len)] = index
    return keys


def gguf_value(gguf: GGUFHandle | _Borrowed, index: int) -> object:
    """The value of entry `index`: int, float, bool, str, a numpy array of numbers, or a list of str."""
    entry = ffi.new("pn_metadata *")
    with gguf as pointer:
        _check(lib.pn_gguf_metadata(pointer, index, entry))
        kind = int(entry.type)
        if kind == lib.PN_VALUE_STRING:
            return _decode(entry.str, entry.len)
        if kind == lib.PN_VALUE_ARRAY:
            return _array_value(int(entry.element_type), int(entry.n), bytes(ffi.buffer(entry.str, entry.len)))
        if kind == lib.PN_VALUE_BOOL:
            return bool(entry.u)
        if kind in _FLOATING:
            return float(entry.f)
        return int(entry.i) if kind in _SIGNED else int(entry.u)


def _array_value(element: int, n: int, data: bytes) -> object:
    if element != lib.PN_VALUE_STRING:
        import numpy as np

        return np.frombuffer(data, _NUMBER_TYPES[element], n)  # over bytes: read-only
    strings: list[str] = []
    at = 0
    for _ in range(n):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        strings.append(data[at + 8 : end].decode("utf-8", "replace"))
        at = end
    return strings


def gguf_tensors(gguf: GGUFHandle | _Borrowed) -> list[Tensor]:
    """The tensor directory in file order."""
    info = ffi.new("pn_tensor_info *")
    tensors: list[Tensor] = []
    with gguf as pointer:
        for index in range(int(lib.pn_gguf_n_tensors(pointer))):
            _check(lib.pn_gguf_tensor(pointer, index, info))
            shape = tuple(int(info.dims[d]) for d in range(info.n_dims))
            type_name = bytes(ffi.string(info.type_name)).decode("ascii")
            name = _decode(info.name, info.name_len)
            tensors.append(Tensor(name, shape, type_name, int(info.offset), int(info.size), int(info.part)))
    return tensors


def gguf_rows(gguf: GGUFHandle | _Borrowed, tensor: int, row: int, n_rows: int) -> Floats:
    """Rows row .. row + n_rows - 1 of tensor `tensor` as float32[n_rows, its contiguous dimension]."""
    import numpy as np

    info = ffi.new("pn_tensor_info *")
    with gguf as pointer:
        if not 0 <= tensor < int(lib.pn_gguf_n_tensors(pointer)):
            raise errors.ArgumentError(f"there is no tensor {tensor}; the file has {lib.pn_gguf_n_tensors(pointer)}")
        _check(lib.pn_gguf_tensor(pointer, tensor, info))
        dims = [int(info.dims[d]) for d in range(info.n_dims)]
        total = math.prod(dims[1:])
        if not (0 <= row <= total and 0 <= n_rows <= total - row):
            raise errors.ArgumentError(f"rows {row} + {n_rows} of tensor {tensor}, which has {total}")
        out = np.empty((n_rows, dims[0]), np.float32)
        _check(lib.pn_gguf_read_rows(pointer, tensor, row, n_rows, ffi.from_buffer("float[]", out, True)))
    return out


_TARGETS = [name.lower() for name in known("targets")]
QUANTIZE_TYPES = (*_TARGETS, *(name.removesuffix("_m") for name in _TARGETS if name.endswith("_m")))
"""What the core writes, and its mixtures by their short names too: "q4_k" is "q4_k_m"."""


def quantize(
    in_path: str | bytes | os.PathLike[str],
    out_path: str | bytes | os.PathLike[str],
    type_name: str,
    progress: Progress | None = None,
) -> None:
    """Rewrite a GGUF file with its matrices as one of QUANTIZE_TYPES; whole or not at all; an old one is replaced."""
    call = _Call(progress)
    data = ffi.new_handle(call)
    status = lib.pn_quantize(path_bytes(in_path), path_bytes(out_path), text_bytes(type_name), lib.pn_py_progress, data)
    call.check(status == 0)


# ---- Tokenizer ----------------------------------------------------------------------------------------------------

ENCODE_SPECIAL = int(lib.PN_ENCODE_SPECIAL)
ENCODE_BOS, ENCODE_EOS = int(lib.PN_ENCODE_BOS), int(lib.PN_ENCODE_EOS)
TOKEN_CONTROL = 3


class TokenizerHandle(_Handle):
    """Owns one pn_tokenizer, built from a file's header alone."""

    __slots__ = ()
    noun = "tokenizer"

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        gguf = GGUFHandle(path)
        try:
            with gguf as pointer:
                super().__init__(lib.pn_tokenizer_new(pointer), lib.pn_tokenizer_free)
        finally:
            gguf.close()


AnyTokenizer = TokenizerHandle | _Borrowed


class TokenizerFacts(NamedTuple):
    """What a tokenizer says about itself; ids are None where the file names none."""

    n_vocab: int
    bos: int | None
    eos: int | None
    add_bos: bool
    add_eos: bool
    stop_ids: tuple[int, ...]


def tokenizer_facts(tokenizer: AnyTokenizer) -> TokenizerFacts:
    """Read them all at once: they never change."""
    with tokenizer as pointer:
        n_stop = int(lib.pn_tokenizer_stop_ids(pointer, ffi.NULL, 0))
        stop = ffi.new("uint32_t[]", max(n_stop, 1))
        lib.pn_tokenizer_stop_ids(pointer, stop, n_stop)
        bos, eos = int(lib.pn_tokenizer_bos(pointer)), int(lib.pn_tokenizer_eos(pointer))
        return TokenizerFacts(
            int(lib.pn_tokenizer_n_vocab(pointer)),
            bos if bos >= 0 else None,
            eos if eos >= 0 else None,
            bool(lib.pn_tokenizer_add_bos(pointer)),
            bool(lib.pn_tokenizer_add_eos(pointer)),
            tuple(int(stop[i]) for i in range(n_stop)),
        )


def tokenize(tokenizer: AnyTokenizer, text: bytes, flags: int, previous: int = -1) -> IdBuffer:
    """Ids of `text`, which may hold NUL and invalid UTF-8; previous: the token that it follows, -1: it begins."""
    ids, n = array(ID_CODE), len(text) + 2  # seldom more
    with tokenizer as pointer:
        while n > len(ids):
            ids = array(ID_CODE, bytes(4 * n))
            room = ffi.from_buffer("uint32_t[]", ids, True)
            n = int(lib.pn_tokenize_after(pointer, previous, ffi.from_buffer(text), len(text), flags, room, len(ids)))
    if n < 0:
        raise _last_error(-n)
    return ids[:n]


def adds_space(tokenizer: AnyTokenizer, previous: int) -> bool:
    """Whether a text that follows this token (-1: begins) gets a space in front, which decoding drops."""
    with tokenizer as pointer:
        return bool(lib.pn_tokenizer_adds_space(pointer, previous))


def token_piece(tokenizer: AnyTokenizer, token: int) -> bytes:
    """The bytes of a token, for a control token its spelling."""
    length = ffi.new("size_t *")
    with tokenizer as pointer:
        piece = lib.pn_token_piece(pointer, token, length)
        if piece == ffi.NULL:
            _fail()
        return bytes(ffi.buffer(piece, length[0]))


def detokenize(tokenizer: AnyTokenizer, ids: Ids | IdBuffer, special: bool, previous: int) -> bytes:
    """The bytes of many tokens at once; special: control tokens are spelled out; previous: as in tokenize()."""
    with tokenizer as pointer:
        room = ffi.from_buffer("uint32_t[]", ids)
        n = int(lib.pn_detokenize(pointer, previous, room, len(ids), special, ffi.NULL, 0))
        if n < 0:
            raise _last_error(-n)
        out = bytearray(n)
        lib.pn_detokenize(pointer, previous, room, len(ids), special, ffi.from_buffer("char[]", out, True), n)
    return bytes(out)


def token_id(tokenizer: AnyTokenizer, text: bytes) -> int | None:
    """The id of the control or user-defined token with exactly this text."""
    with tokenizer as pointer:
        token = int(lib.pn_token_id(pointer, ffi.from_buffer("char[]", text), len(text)))
    return token if token >= 0 else None


def token_type(tokenizer: AnyTokenizer, token: int) -> int:
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; 0 if there is no such token."""
    with tokenizer as pointer:
        return int(lib.pn_token_type(pointer, token))


# ---- Model and state ----------------------------------------------------------------------------------------------


class ModelHandle(_Handle):
    """Owns one pn_model. Nothing of the file is needed once it exists."""

    __slots__ = ()
    noun = "model"

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        threads: int,
        isa: str | None,
        mmap: bool,
        blas: bool | None,
        progress: Progress | None,
    ) -> None:
        call = _Call(progress)
        data = ffi.new_handle(call)
        isa_name = ffi.NULL if isa is None else ffi.new("char[]", text_bytes(isa))
        params = ffi.new("pn_load_params *", lib.pn_load_defaults())
        params.n_threads = threads
        params.isa = isa_name
        params.use_mmap = mmap
        if blas is not None:
            params.use_blas = blas
        params.progress = lib.pn_py_progress
        params.progress_data = data
        pointer = lib.pn_load_with(path_bytes(path), params)
        call.check(pointer != ffi.NULL)
        super().__init__(pointer, lib.pn_free)

    def tokenizer(self) -> _Borrowed:
        """The model's tokenizer, usable while the model is open."""
        return _Borrowed(self, lib.pn_model_tokenizer)

    def gguf(self) -> _Borrowed:
        """The header of the model's file, usable while the model is open."""
        return _Borrowed(self, lib.pn_model_gguf)


class ModelFacts(NamedTuple):
    """pn_model_info, field by field."""

    architecture: str
    isa: str
    n_vocab: int
    n_context: int
    n_embed: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_threads: int
    blas: bool
    n_params: int
    weight_bytes: int
    kv_bytes_per_token: int


def model_facts(model: ModelHandle) -> ModelFacts:
    """What the loaded model is and how it runs."""
    info = ffi.new("pn_model_info *")
    with model as pointer:
        lib.pn_model_describe(pointer, info)
    facts: dict[str, Any] = {name: int(getattr(info, name)) for name in ModelFacts._fields[2:]}
    facts["blas"] = bool(info.blas)
    for name in ("architecture", "isa"):
        facts[name] = bytes(ffi.string(getattr(info, name))).decode("utf-8", "replace")
    return ModelFacts(**facts)


def model_fingerprint(model: ModelHandle) -> int:
    """Which model this is, in 64 bits; never 0."""
    value = ffi.new("uint64_t *")
    with model as pointer:
        _check(lib.pn_model_fingerprint(pointer, value))
    return int(value[0])


class StateHandle(_Handle):
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
    call = _Call(progress)
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
    call = _Call(progress)
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
            refused = _last_error(status)
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
        _check(lib.pn_state_speculate(pointer, most, always))


def state_speculation(state: StateHandle) -> tuple[int, int]:
    """How many guesses were evaluated, and how many of them came true."""
    counts = ffi.new("uint64_t[2]")
    with state.exclusive(), state as pointer:
        lib.pn_state_speculation(pointer, counts, counts + 1)
    return int(counts[0]), int(counts[1])


def state_advance(state: StateHandle, token: int, n_left: int) -> None:
    """Append one id as state_eval() does, perhaps with guesses along. n_left: how many will still be sampled."""
    call = _Call(None)
    data = ffi.new_handle(call)
    with state.exclusive(), state as pointer:
        call.check(lib.pn_advance(pointer, token, n_left, lib.pn_py_progress, data) == 0)


def state_reset(state: StateHandle) -> None:
    """Forget everything."""
    with state.exclusive(), state as pointer:
        _check(lib.pn_state_reset(pointer))


def state_rewind(state: StateHandle, n: int) -> None:
    """Keep the first n tokens."""
    with state.exclusive(), state as pointer:
        _check(lib.pn_state_rewind(pointer, n))


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
        _check(lib.pn_state_save(pointer, path_bytes(path)))


def state_load(state: StateHandle, path: str | bytes | os.PathLike[str]) -> None:
    """Become what the file's state was; after a failure it is as it was."""
    with state.exclusive(), state as pointer:
        _check(lib.pn_state_load(pointer, path_bytes(path)))


def state_cancel(state: StateHandle) -> None:
    """Ask the running evaluation to stop; the request stays until one takes it."""
    with state as pointer:
        lib.pn_state_cancel(pointer)


def state_clear_cancel(state: StateHandle) -> None:
    """Withdraw a request that no evaluation has taken."""
    with state as pointer:
        lib.pn_state_clear_cancel(pointer)


# ---- Sampling -----------------------------------------------------------------------------------------------------


Bias = Sequence[tuple[int, float]]


def _sampling_params(fields: dict[str, float], logit_bias: Bias) -> tuple[Any, Any]:
    """A pn_sampling_params, and what it points to: both must live until C has read them."""
    params = ffi.new("pn_sampling_params *", lib.pn_sampling_defaults())
    for name, value in fields.items():
        setattr(params, name, value)
    bias = ffi.new("pn_logit_bias[]", list(logit_bias)) if logit_bias else ffi.NULL
    params.logit_bias, params.n_logit_bias = bias, len(logit_bias)
    return params, bias


class SamplerHandle(_Handle):
    """Owns one pn_sampler: parameters and a random generator. `fields` are named as in pn_sampling_params."""

    __slots__ = ()
    noun = "sampler"

    def __init__(self, n_vocab: int, fields: dict[str, float], logit_bias: Bias) -> None:
        params, _bias = _sampling_params(fields, logit_bias)
        super().__init__(lib.pn_sampler_new(n_vocab, params), lib.pn_sampler_free)


def sample(sampler: SamplerHandle, state: StateHandle) -> int:
    """Draw the next token from the state's logits."""
    token = ffi.new("uint32_t *")
    with state.exclusive(), sampler as draw, state as pointer:
        _check(lib.pn_sample_state(draw, pointer, token))
    return int(token[0])


def stream_tokens(
    state: StateHandle, ids: Ids | IdBuffer, max_tokens: int, fields: dict[str, float], logit_bias: Bias
) -> int:
    """C's own loop: append ids, generate, return how many tokens came. Only state_cancel() interrupts it."""
    params, _bias = _sampling_params(fields, logit_bias)
    with state.exclusive(), state.model as model, state as pointer:
        buffer = ffi.from_buffer("uint32_t[]", ids)
        count = int(lib.pn_stream_tokens(model, pointer, buffer, len(ids), max_tokens, params, ffi.NULL, ffi.NULL))
    return count if count >= 0 else _fail()
