"""Options that several commands share, and what becomes of their values.

Rank 6: imports the engine; click.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from pantheon import catalog
from pantheon.engine.model import MAX_THREADS, Model, load
from pantheon.engine.sampling import SamplingParams, sampling_params
from pantheon.errors import ArgumentError, ModelFileError

DEFAULT_MODEL = "smollm2"
DEFAULT_MAX_TOKENS = 128

Function = TypeVar("Function", bound=Callable[..., Any])
Options = dict[str, Any]


_DEFAULTS = SamplingParams()


def _sampling_option(name: str, kind: Any, text: str) -> Callable[[Function], Function]:
    default = getattr(_DEFAULTS, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=kind, default=default, show_default=default is not None, help=text)


SAMPLING_OPTIONS = (
    _sampling_option("--temperature", float, "0 takes the likeliest token."),
    _sampling_option("--top-k", int, "Keep the k likeliest tokens; 0: off."),
    _sampling_option("--top-p", float, "Keep the likeliest tokens up to this probability; 1: off."),
    _sampling_option("--min-p", float, "Keep tokens of at least this share of the likeliest; 0: off."),
    _sampling_option("--repeat-penalty", float, "Weaken tokens that were seen; 1: off."),
    _sampling_option("--presence-penalty", float, "Subtracted once from tokens seen; 0: off."),
    _sampling_option("--frequency-penalty", float, "Subtracted for each time a token was seen; 0: off."),
    _sampling_option("--seed", int, "Repeat a random reply; without it each is fresh."),
    click.option(
        "--stop",
        multiple=True,
        metavar="TEXT",
        help="End a reply at this text, which is no part of it. As often as you like; \\n in it is no new line.",
    ),
)
ENGINE_OPTIONS = (
    click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="Default: PANTHEON_THREADS, or the cores."),
    click.option("--isa", help="Instruction set. Default: PANTHEON_ISA, or the best that runs here."),
)
MAX_TOKENS = click.option(
    "--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True, help="Tokens per reply."
)
SPECULATE = click.option(
    "--speculate/--no-speculate", default=False, help="Guess from what was read: the same reply, sooner if it repeats."
)
SYSTEM = click.option("--system", metavar="TEXT", help="System prompt. Default: what the model's template inserts.")
TEMPLATE = click.option("--template", metavar="STYLE|FILE", help="Instead of the model's own: a style, a Jinja file.")
FOLD_SYSTEM = click.option(
    "--fold-system", is_flag=True, help="If the template takes no system prompt: put it before the first message."
)
MARKDOWN = click.option("--markdown", is_flag=True, help="Draw the replies' Markdown, on a terminal.")
RESUME = click.option("--resume", is_flag=True, help="Go on with the last chat.")
WINDOW = click.option("--window", type=click.IntRange(1), help="Tokens of prompt and reply. Default: the model's.")

CHAT_OPTIONS = (SYSTEM, TEMPLATE, FOLD_SYSTEM, WINDOW, MARKDOWN, RESUME)


def with_options(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several option decorators as one, in the order they are written."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def sampling_from(options: Options) -> Options:
    """The sampling fields among the options, checked: a value out of range is wrong usage."""
    names = [field.name for field in fields(SamplingParams) if field.name in options]
    chosen = {name: options[name] for name in names}
    try:
        sampling_params(chosen)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from None
    return chosen


def load_model(name: str, options: Options) -> Model:
    """Load a model; a file of the catalogue's that is damaged can be had again."""
    try:
        return load(name, threads=options["threads"], isa=options["isa"])
    except ModelFileError as error:
        if name not in catalog.CATALOG:
            raise
        raise type(error)(f"{error}; to have it again: pantheon rm {name}, then pantheon pull {name}") from None
