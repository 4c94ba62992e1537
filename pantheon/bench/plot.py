"""A picture of decode speed over context length. matplotlib is an extra: `pip install 'pantheon[plot]'`.

Rank 5: imports catalog, measure; matplotlib inside of functions.
"""

from __future__ import annotations

import os
from typing import Any

from pantheon.bench.measure import DECODE_PROMPT, Plan, Result, read_file_facts
from pantheon.catalog import printable
from pantheon.errors import ArgumentError, BenchmarkError

CONTEXTS = (128, 512, 1024, 2048, 4096)


def contexts_for(model: str, decode: int) -> tuple[int, ...]:
    """The lengths that are drawn if nobody names any: those that the model has room for."""
    window = read_file_facts(model).window or 0
    return tuple(context for context in CONTEXTS if context + decode <= window)


def _new_figure() -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise BenchmarkError("--plot needs matplotlib: pip install 'pantheon[plot]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def check(path: str) -> None:
    """Say before anything is measured that a picture cannot be written: BenchmarkError, ArgumentError."""
    known = _new_figure().canvas.get_supported_filetypes()
    kind = os.path.splitext(path)[1].lower().removeprefix(".")
    if kind not in known:
        raise ArgumentError(f"--plot {path}: the name must end in one of {', '.join('.' + k for k in sorted(known))}")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ArgumentError(f"--plot {path}: there is no folder {folder}")
    _try_to_open(path)


def _try_to_open(path: str) -> None:
    """Open the file as savefig() will, changing nothing: minutes of measuring lie between."""
    is_new = not os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
        if is_new:
            os.unlink(os.path.realpath(path))  # of a link to nothing, what it points to
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: str, error: OSError) -> BenchmarkError:
    return BenchmarkError(f"--plot {path} cannot be written: {error.strerror or error}")


def draw(result: Result, path: str) -> None:
    """Write the picture: median and spread of each engine, and what the memory allows."""
    figure = _new_figure()
    axes = figure.add_subplot()
    for label, figures in result.figures.items():
        series = {DECODE_PROMPT: figures.decode, **figures.contexts}
        at = sorted(series)
        line = axes.plot(at, [series[n].median for n in at], marker="o", label=_name(result, label))[0]
        axes.fill_between(
            at, [series[n].low for n in at], [series[n].high for n in at], color=line.get_color(), alpha=0.2
        )
    at = sorted({DECODE_PROMPT, *result.figures["pantheon"].contexts})
    axes.plot(at, [_limit(result, n) for n in at], linestyle="--", color="gray", label="limit of the memory")
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("tokens per second")
    axes.set_ylim(bottom=0)
    axes.set_title(_title(result.plan, result))
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise _unwritable(path, error) from None


def _name(result: Result, label: str) -> str:
    return _plain(f"{result.facts[label]['name']} {result.facts[label]['version']}")


def _plain(text: str) -> str:
    """A text that fonts have letters for, and in which a dollar sign begins no formula."""
    return printable(text).replace("$", r"\$")


def _title(plan: Plan, result: Result) -> str:
    facts = result.facts["pantheon"]
    return _plain(f"{os.path.basename(result.file.path)}, {facts['threads']} threads, decode {plan.decode}")


def _limit(result: Result, n: int) -> float:
    """Tokens per second if reading the weights and n tokens of cache were all there is to do."""
    cache = result.facts["pantheon"]["kv_bytes_per_token"] * n
    return result.bandwidth.bytes_per_s / (result.bandwidth.token_bytes + float(cache))
