"""How fast a model runs here: bench.

Rank 6: imports the bench, and its siblings; click.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from pantheon import repl
from pantheon.cli.options import DEFAULT_MODEL, ENGINE_OPTIONS, with_options
from pantheon.cli.streams import drawing
from pantheon.errors import ArgumentError

_COUNT = click.IntRange(1, 1_000_000)
_BENCH_OPTIONS = (
    click.option("--prompt", type=_COUNT, default=512, show_default=True, help="Tokens of the prompt."),
    click.option("--decode", type=_COUNT, default=64, show_default=True, help="Tokens decoded one by one."),
    click.option("--runs", type=click.IntRange(1, 1000), default=5, show_default=True, help="After a warm-up."),
    click.option("--context", "contexts", type=_COUNT, multiple=True, help="Decode also after so many tokens. Repeat."),
    click.option("--batch", type=click.IntRange(1, 256), default=8, show_default=True, help="Conversations together."),
    click.option("--peer", type=click.Choice(["llama-cpp-python"]), help="Measure this engine too, in turn."),
    click.option("--peer-python", metavar="PATH", help="The Python that has it. Default: this one."),
    click.option("--plot", metavar="FILE", type=click.Path(dir_okay=False), help="Draw speed over context length."),
    click.option("--json", "as_json", is_flag=True, help="One object on stdout, with every run."),
)


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@with_options(*_BENCH_OPTIONS, *ENGINE_OPTIONS)
def bench(model: str, plot: str | None, as_json: bool, peer: str | None, **options: Any) -> None:
    """Measure how fast a model runs here: load, prompt, decode, batch, sampling, and the memory's own speed."""
    from pantheon.bench import measure, report
    from pantheon.bench import plot as picture

    if plot is not None:
        try:
            picture.check(plot)
        except ArgumentError as error:
            raise click.UsageError(str(error)) from None
        options["contexts"] = options["contexts"] or picture.contexts_for(model, options["decode"])
    if peer is not None:
        options["peer_python"] = options["peer_python"] or sys.executable
    result = measure.run_plan(measure.Plan(model=model, **options), repl.note)
    if as_json:
        click.echo(json.dumps(report.as_json(result)))
    else:
        with drawing() as console:
            report.print_table(result, console)
    if plot is not None:
        picture.draw(result, plot)
        repl.note(f"drawn: {plot}")
