"""A loaded model. Rank 1: imports its sibling base."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from pantheon._native.base import Borrowed, Call, Handle, Progress, check, ffi, lib, path_bytes, text_bytes


class ModelHandle(Handle):
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
        call = Call(progress)
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

    def tokenizer(self) -> Borrowed:
        """The model's tokenizer, usable while the model is open."""
        return Borrowed(self, lib.pn_model_tokenizer)

    def gguf(self) -> Borrowed:
        """The header of the model's file, usable while the model is open."""
        return Borrowed(self, lib.pn_model_gguf)


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
        check(lib.pn_model_fingerprint(pointer, value))
    return int(value[0])
