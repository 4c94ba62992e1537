"""Figures as one JSON object for machines, and as a table for people. No figure is made here that is not a median.

Rank 5: imports catalog, measure, workers; rich is imported where the table is drawn.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pantheon.bench import engines
from pantheon.bench.measure import DECODE_PROMPT, Figures, Result, Series
from pantheon.bench.workers import cpu_name, usable_cores
from pantheon.catalog import printable

if TYPE_CHECKING:
    from rich.console import Console

Json = dict[str, Any]

# ---- For machines -------------------------------------------------------------------------------------------------


def as_json(result: Result) -> Json:
    """The whole result as one object. Rates in tokens per second (`tokens_per_s`), times in seconds (`s`, `_s`).

    Every measured figure is {name of the unit: median, "low", "high", "runs": each run in its order}.
    """
    plan, facts, ours = result.plan, result.facts["pantheon"], result.figures["pantheon"]
    return {
        "engine": "pantheon", "version": facts["version"], "model": os.path.basename(result.file.path),
        "model_bytes": result.file.n_bytes, "architecture": facts["architecture"], "type": result.file.dtype,
        "threads": facts["threads"], "threads_reason": facts["threads_reason"], "isa": facts["isa"],
        "blas": facts["blas"], "window": facts["window"], "cpu": cpu_name(), "cores": usable_cores(),
        "runs": plan.runs,
        "load_s": ours.load_s.median,
        **_common(result, ours),
        "batch": _batch(result, ours),
        "sampling": _sampling(ours),
        "python": {"overhead": _series(ours.python_overhead, "fraction")},
        "bandwidth": _bandwidth(result, ours),
        "cores_busy_with_other_work": result.other_work,
        "peer": _peer(result),
    }  # fmt: skip


def _series(series: Series | None, unit: str) -> Json | None:
    if series is None:
        return None
    return {unit: series.median, "low": series.low, "high": series.high, "runs": list(series.runs)}


def _common(result: Result, figures: Figures) -> Json:
    plan = result.plan
    return {
        "load": _series(figures.load_s, "s"),
        "prompt": {"tokens": plan.prompt, **(_series(figures.prompt, "tokens_per_s") or {})},
        "prompt_cached": {"tokens": plan.prompt, "evaluated": 1, **(_series(figures.cached_s, "s") or {})},
        "decode": {
            "tokens": plan.decode, "context": DECODE_PROMPT, **(_series(figures.decode, "tokens_per_s") or {})
        },
        "contexts": [
            {"context": context, "tokens": plan.decode, **(_series(series, "tokens_per_s") or {})}
            for context, series in figures.contexts.items()
        ],
    }  # fmt: skip


def _batch(result: Result, ours: Figures) -> Json:
    gain = ours.batch_gain.median if ours.batch_gain else None
    return {"conversations": result.plan.batch, "gain": gain, **(_series(ours.batch, "tokens_per_s") or {})}


def _sampling(ours: Figures) -> Json:
    share = ours.draw_s.median * ours.decode.median if ours.draw_s else None
    return {"fraction_of_decode": share, "chain": engines.CHAIN, **(_series(ours.draw_s, "s") or {})}


def _bandwidth(result: Result, ours: Figures) -> Json:
    limit = result.bandwidth
    return {
        "bytes_per_s": limit.bytes_per_s, "before": limit.before, "after": limit.after,
        "bytes_per_token": limit.token_bytes, "fraction": limit.fraction(ours.decode.median),
    }  # fmt: skip


def ratios(ours: Figures, theirs: Figures) -> dict[str, float]:
    """How many times as fast Pantheon is, by figure: of medians, above 1 where Pantheon is faster."""
    out = {
        "load": theirs.load_s.median / ours.load_s.median,
        "prompt": ours.prompt.median / theirs.prompt.median,
        "prompt_cached": theirs.cached_s.median / ours.cached_s.median,
        "decode": ours.decode.median / theirs.decode.median,
    }
    for context, series in ours.contexts.items():
        out[f"decode_after_{context}"] = series.median / theirs.contexts[context].median
    return out


def _peer(result: Result) -> Json | None:
    if "llama" not in result.figures:
        return None
    facts, theirs = result.facts["llama"], result.figures["llama"]
    return {
        **{key: facts[key] for key in ("name", "version", "how", "threads", "window")},
        "load_s": theirs.load_s.median,
        **_common(result, theirs),
        "ratios": ratios(result.figures["pantheon"], theirs),
    }


# ---- For people ---------------------------------------------------------------------------------------------------


def print_table(result: Result, console: Console) -> None:
    """What ran, one line per figure with its spread, the other engine beside it if it took part.

    Names of files and what another engine says of itself come from elsewhere: no line has power over a terminal.
    """
    from rich.table import Table

    for line in _opening(result):
        console.print(printable(line))
    table = Table("", box=None, pad_edge=False)
    names: list[str] = [label for label in ("pantheon", "llama") if label in result.figures]
    for label in names:
        title = printable(f"{result.facts[label]['name']} {result.facts[label]['version']}")
        table.add_column(title, justify="right")
        table.add_column("lowest to highest", justify="right")
    if len(names) > 1:
        table.add_column("ratio", justify="right")
    for row in _rows(result, names):
        table.add_row(*row)
    console.print(table)
    for line in _closing(result):
        console.print(printable(line))


def _opening(result: Result) -> list[str]:
    facts = result.facts["pantheon"]
    return [
        f"{os.path.basename(result.file.path)}: {facts['architecture']}, {result.file.dtype}, "
        f"{result.file.n_bytes / 1e6:,.0f} MB, window {facts['window']:,}",
        f"{facts['threads']} thread{'s' * (facts['threads'] > 1)} ({facts['threads_reason']}), {facts['isa']}"
        f"{', BLAS for prompts' if facts['blas'] else ''}; {cpu_name()}, {usable_cores()} cores; "
        f"medians of {result.plan.runs} runs",
    ]


def _cells(series: Series | None, scale: float = 1.0) -> tuple[str, str]:
    """Median and spread with as many decimals as make three digits."""
    if series is None:
        return "", ""
    low, middle, high = (value * scale for value in (series.low, series.median, series.high))
    digits = 0 if abs(middle) >= 100 else 1 if abs(middle) >= 10 else 2
    return f"{middle:,.{digits}f}", f"{low:,.{digits}f} to {high:,.{digits}f}"


def _rows(result: Result, names: list[str]) -> list[tuple[str, ...]]:
    plan, figures = result.plan, result.figures
    compared = ratios(figures["pantheon"], figures["llama"]) if "llama" in figures else {}

    def row(title: str, key: str, by_label: dict[str, Series | None], scale: float = 1.0) -> tuple[str, ...]:
        cells = [cell for label in names for cell in _cells(by_label.get(label), scale)]
        ratio = [f"{compared[key]:.2f}" if key in compared else ""] if len(names) > 1 else []
        return (title, *cells, *ratio)

    ours = figures["pantheon"]
    rows = [
        row("load, ms", "load", {label: f.load_s for label, f in figures.items()}, 1e3),
        row(f"prompt of {plan.prompt}, tokens/s", "prompt", {label: f.prompt for label, f in figures.items()}),
        row("the same again, its last token, ms", "prompt_cached", {k: f.cached_s for k, f in figures.items()}, 1e3),
        row(f"decode {plan.decode}, tokens/s", "decode", {label: f.decode for label, f in figures.items()}),
    ]
    for context in ours.contexts:
        series: dict[str, Series | None] = {label: f.contexts[context] for label, f in figures.items()}
        rows.append(row(f"decode after {context:,}, tokens/s", f"decode_after_{context}", series))
    rows += [
        row(f"{plan.batch} conversations together, tokens/s", "", {"pantheon": ours.batch}),
        row("  that is so many times one alone", "", {"pantheon": ours.batch_gain}),
        row("drawing a token, microseconds", "", {"pantheon": ours.draw_s}, 1e6),
        row("Python over C, % of a reply's time", "", {"pantheon": ours.python_overhead}, 100),
    ]
    return rows


def _closing(result: Result) -> list[str]:
    limit, ours = result.bandwidth, result.figures["pantheon"]
    lines = [
        f"memory: {limit.bytes_per_s / 1e9:.1f} GB/s read on as many threads (before {limit.before / 1e9:.1f}, after "
        f"{limit.after / 1e9:.1f}); decoding reads {limit.token_bytes / 1e6:,.1f} MB per token: "
        f"{limit.fraction(ours.decode.median):.0%} of it",
    ]
    if ours.draw_s is not None:
        chain = ", ".join(f"{name} {value}" for name, value in engines.CHAIN.items())
        lines.append(f"sampling ({chain}): {ours.draw_s.median * ours.decode.median:.1%} of a decoded token")
    if "llama" in result.facts:
        facts = result.facts["llama"]
        lines.append(f"{facts['name']}: window {facts['window']:,}, {facts['how']}")
        lines.append("ratio: how many times as fast pantheon is")
    if result.other_work is not None:
        lines.append(f"other work kept {result.other_work:.1f} cores busy meanwhile")
    return lines
