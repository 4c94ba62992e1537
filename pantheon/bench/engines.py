"""The side that is measured: an engine in a process of its own, one JSON object per line in, one out.

Rank 5: imports engine, _native. Started as a program (`python .../engines.py NAME`) by workers.py, also by the Python
of another engine, where this package is not installed. So it imports nothing but the standard library until the engine
asked for is made.

The first line says what to load. Every other line is a request {"what": ..., ...}; the answer has seconds, measured
here and nowhere else. What an engine raises is answered as {"error": ..., "kind": the exception's class}.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

BATCH = 512  # what the other engine evaluates at a time
CHAIN: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}

Answer = dict[str, float]


class NotInstalled(Exception):
    """This Python does not have the engine."""


class Engine(Protocol):
    """What every engine can do. Ids are fresh in every request, so that nothing can be reused by accident."""

    def load(self) -> None:
        """Load the model; one that is loaded already is given up first."""
        ...

    def describe(self) -> dict[str, Any]:
        """name, version, how (instruction set), n_vocab, window, and whatever else is worth knowing."""
        ...

    def prompt(self, ids: list[int]) -> int:
        """Forget everything, evaluate ids, and return the likeliest next id."""
        ...

    def rewind(self, n: int) -> None:
        """Keep the first n ids."""
        ...

    def step(self, token: int) -> int:
        """Evaluate one more id and return the likeliest next one."""
        ...


class Pantheon:
    """This package, through its Python interface."""

    def __init__(self, path: str, threads: int, window: int, options: dict[str, Any]) -> None:
        self.path, self.threads, self.options = path, threads or None, options
        self.model: Any = None
        self.state: Any = None

    def load(self) -> None:
        """See Engine."""
        from pantheon.engine.model import load

        if self.model is not None:
            self.model.close()
        self.model = load(self.path, threads=self.threads, **self.options)
        self.state = self.model.state()

    def describe(self) -> dict[str, Any]:
        """See Engine."""
        from pantheon import _native

        info = self.model.info
        return {
            "name": "pantheon", "version": _native.version(), "how": info.isa, "isa": info.isa,
            "n_vocab": info.n_vocab, "window": info.n_context, "threads": info.threads,
            "threads_reason": info.threads_reason, "blas": info.blas, "weight_bytes": info.weight_bytes,
            "architecture": info.architecture, "kv_bytes_per_token": info.kv_bytes_per_token,
        }  # fmt: skip

    def prompt(self, ids: list[int]) -> int:
        """See Engine."""
        self.state.reset()
        return int(self.state.eval(ids).argmax())

    def rewind(self, n: int) -> None:
        """See Engine."""
        self.state.rewind(n)

    def step(self, token: int) -> int:
        """See Engine."""
        return int(self.state.eval([token]).argmax())


class LlamaCpp:
    """llama-cpp-python: one decode call per batch of 512, logits of the last token only."""

    def __init__(self, path: str, threads: int, window: int, options: dict[str, Any]) -> None:
        try:
            import llama_cpp
        except ModuleNotFoundError as error:
            raise NotInstalled(str(error)) from None
        import numpy

        self.module, self.c, self.numpy = llama_cpp, llama_cpp.llama_cpp, numpy
        self.path, self.threads, self.window = path, threads, window
        self.repack = options.get("repack", True)
        if not self.repack:
            self._leave_weights_as_they_are()
        self.llama: Any = None

    def _leave_weights_as_they_are(self) -> None:
        original = self.c.llama_model_default_params

        def changed() -> Any:
            params = original()
            params.use_extra_bufts = False
            return params

        self.c.llama_model_default_params = changed

    def load(self) -> None:
        """See Engine."""
        if self.llama is not None:
            self.llama.close()
        self.llama = self.module.Llama(
            self.path, n_ctx=self.window, n_batch=BATCH, n_threads=self.threads, n_threads_batch=self.threads,
            logits_all=False, verbose=False,
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """See Engine."""
        system = self.c.llama_print_system_info().decode()
        features = [part.split("=")[0].strip() for part in system.replace(":", "|").split("|") if "= 1" in part]
        how = " ".join(features).lower() + ("" if self.repack else ", repacking of weights off")
        return {
            "name": "llama-cpp-python", "version": self.module.__version__, "how": how,
            "n_vocab": int(self.llama.n_vocab()), "window": self.window, "threads": self.threads,
        }  # fmt: skip

    def prompt(self, ids: list[int]) -> int:
        """See Engine."""
        self.llama.reset()
        self.llama.eval(ids)
        return self._likeliest()

    def rewind(self, n: int) -> None:
        """See Engine."""
        self.llama.n_tokens = n  # eval() removes from the cache what lies behind it

    def step(self, token: int) -> int:
        """See Engine."""
        self.llama.eval([token])
        return self._likeliest()

    def _likeliest(self) -> int:
        logits = self.c.llama_get_logits_ith(self.llama.ctx, -1)  # waits until they are there
        return int(self.numpy.ctypeslib.as_array(logits, shape=(self.llama.n_vocab(),)).argmax())


ENGINES: dict[str, Callable[[str, int, int, dict[str, Any]], Engine]] = {"pantheon": Pantheon, "llama": LlamaCpp}


# ---- Requests -----------------------------------------------------------------------------------------------------


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run_load(engine: Engine, request: dict[str, Any]) -> Answer:
    """Load once more."""
    return {"load_s": timed(engine.load)}


def run_generate(engine: Engine, request: dict[str, Any]) -> Answer:
    """A prompt, and `decode` tokens one by one after it, apart."""
    started = time.perf_counter()
    token = engine.prompt(request["ids"])
    prompted = time.perf_counter()
    for _ in range(request["decode"]):
        token = engine.step(token)
    return {"prompt_s": prompted - started, "decode_s": time.perf_counter() - prompted}


def run_cached(engine: Engine, request: dict[str, Any]) -> Answer:
    """The same prompt again: all but its last token is in the cache, and that one is evaluated for its logits."""
    ids = request["ids"]
    engine.prompt(ids)

    def again() -> None:
        engine.rewind(len(ids) - 1)
        engine.step(ids[-1])

    return {"cached_s": timed(again)}


def run_batch(engine: Pantheon, request: dict[str, Any]) -> Answer:
    """Several conversations decode together, a token of each per step; then one of them alone."""
    prompts, n_steps = request["prompts"], request["decode"]
    states = [engine.model.state() for _ in prompts]
    rows = engine.model.eval_batch(list(zip(states, prompts, strict=True)))

    def together() -> None:
        tokens = rows.argmax(axis=1)
        for _ in range(n_steps):
            parts = [(state, [token]) for state, token in zip(states, tokens, strict=True)]
            tokens = engine.model.eval_batch(parts).argmax(axis=1)

    def one_alone() -> None:
        token = int(rows[0].argmax())
        for _ in range(n_steps):
            token = int(states[0].eval([token]).argmax())

    answer = {"batch_s": timed(together), "one_s": timed(one_alone)}
    for state in states:
        state.close()
    return answer


def run_sampling(engine: Pantheon, request: dict[str, Any]) -> Answer:
    """Draw from one set of logits, `draws` times, with the filters of an ordinary chat."""
    from pantheon.engine.sampling import SamplingParams

    engine.prompt(request["ids"])
    sampler = SamplingParams(**CHAIN).sampler(engine.model.n_vocab, 1)

    def draw() -> None:
        for _ in range(request["draws"]):
            engine.state.sample(sampler)

    answer = {"draw_s": timed(draw) / request["draws"]}
    sampler.close()
    return answer


def run_loops(engine: Pantheon, request: dict[str, Any]) -> Answer:
    """The same greedy reply by Python's loop (Model.stream, text included) and by C's own, prompt included.

    End tokens are forbidden in both, so that both generate `decode` tokens.
    """
    from pantheon import _native

    ids, n_tokens = _native.as_ids(request["ids"]), request["decode"]
    never = dict.fromkeys(engine.model.tokenizer.stop_ids, -math.inf)
    counts: list[int] = []

    def python() -> None:
        reply = engine.model.stream(ids, max_tokens=n_tokens, logit_bias=never).finish()
        counts.append(len(reply.tokens))

    def c() -> None:
        with engine.model.state() as state:
            counts.append(_native.stream_tokens(state._handle, ids, n_tokens, {}, list(never.items())))

    ways = {"python_s": python, "c_s": c}
    order = list(ways) if request["python_first"] else list(ways)[::-1]
    answer = {name: timed(ways[name]) for name in order}
    if counts[0] != counts[1]:
        raise RuntimeError(f"the two loops generated {counts} tokens instead of the same number")
    return answer


REQUESTS: dict[str, Callable[[Any, dict[str, Any]], Answer]] = {
    "load": run_load,
    "generate": run_generate,
    "cached": run_cached,
    "batch": run_batch,
    "sampling": run_sampling,
    "loops": run_loops,
}
SECONDS: dict[str, tuple[str, ...]] = {
    "load": ("load_s",),
    "generate": ("prompt_s", "decode_s"),
    "cached": ("cached_s",),
    "batch": ("batch_s", "one_s"),
    "sampling": ("draw_s",),
    "loops": ("python_s", "c_s"),
}
"""What the answer to each has."""
FACTS: dict[str, type] = {"name": str, "version": str, "how": str, "n_vocab": int, "window": int, "threads": int}
"""What the answer to the first line has, at least."""


# ---- The program --------------------------------------------------------------------------------------------------


def answered(work: Callable[[], dict[str, Any]]) -> str:
    """What `work` returns, or raises, as a line."""
    try:
        return json.dumps(work())
    except Exception as error:  # noqa: BLE001 - the other side decides what it means
        return json.dumps({"error": str(error), "kind": type(error).__name__})


WATCH_S = 0.2


def end_with(parent: int) -> None:
    """Wait until this process has another parent, then end it: nobody is left who could read what it still works on."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def main(name: str) -> None:
    """Load what the first line asks for, then answer the others until the end of input, or of the parent."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints must not get between the answers
    ask = json.loads(sys.stdin.readline())
    engines: list[Engine] = []

    def begin() -> dict[str, Any]:
        engine = ENGINES[name](ask["path"], ask["threads"], ask["window"], ask["options"])
        engine.load()
        engines.append(engine)
        return engine.describe()

    print(answered(begin), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(answered(lambda r=request: REQUESTS[r["what"]](engines[0], r)), file=out, flush=True)  # type: ignore[misc]


if __name__ == "__main__":
    # Python put this folder in front of all others, where its modules would hide those of an engine; the folder of the
    # whole package comes last instead, in case the caller has it from its own working directory.
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    sys.path.append(os.path.dirname(os.path.dirname(here)))
    main(sys.argv[1])
