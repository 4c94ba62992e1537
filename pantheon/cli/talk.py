"""Conversations and completions: chat, complete.

Rank 6: imports the terminal's face, and its siblings; click.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from pantheon import repl
from pantheon.cli.options import (
    CHAT_OPTIONS,
    DEFAULT_MODEL,
    ENGINE_OPTIONS,
    MAX_TOKENS,
    SAMPLING_OPTIONS,
    SPECULATE,
    Options,
    load_model,
    sampling_from,
    with_options,
)
from pantheon.cli.streams import read_text
from pantheon.errors import ArgumentError


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@with_options(*CHAT_OPTIONS, MAX_TOKENS, *SAMPLING_OPTIONS, SPECULATE, *ENGINE_OPTIONS)
def chat(model: str, **options: Any) -> int:
    """Hold a conversation. From a pipe: one message per line, one reply after the other on stdout."""
    return run_chat(model, options)


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@with_options(MAX_TOKENS, *SAMPLING_OPTIONS, SPECULATE, *ENGINE_OPTIONS)
def complete(model: str, prompt: str | None, **options: Any) -> int:
    """Complete a text: PROMPT, or what comes on stdin."""
    return run_complete(model, read_text(prompt), options)


def run_chat(name: str, options: Options) -> int:
    """What `pantheon chat` does; the exit code."""
    sampling = sampling_from(options)
    settings = {
        "window": options["window"],
        "reply_limit": options["max_tokens"],
        "template": options["template"],
        "fold_system": options["fold_system"],
    }
    with contextlib.closing(repl.Host(lambda other: load_model(other, options), name, settings)) as host:
        try:
            chat = host.chat(options["system"])
        except ArgumentError as error:  # a window beyond the model's
            raise click.UsageError(str(error)) from None
        how = {**sampling, "speculate": options["speculate"]}
        talker = repl.Talker(chat, options["max_tokens"], how, markdown=options["markdown"])
        on_terminal = sys.stdin is not None and sys.stdin.isatty()
        desk = repl.Desk(talker, host, repl.Keeper(autosave=on_terminal or options["resume"]))
        with repl.conversation(desk, options["resume"]):
            if options["resume"]:
                _prefer_given(talker, options, how)
            if on_terminal:
                return repl.run_terminal(desk)
            return repl.run_lines(desk, sys.stdin.buffer) if sys.stdin is not None else repl.EXIT_DONE


def _prefer_given(talker: repl.Talker, options: Options, how: Options) -> None:
    """What the command line says counts more than what the chat was kept with."""
    source = click.get_current_context().get_parameter_source
    given = {key: value for key, value in how.items() if source(key) is click.core.ParameterSource.COMMANDLINE}
    talker.sampling.update(given)
    if options["system"] is not None:
        talker.chat.set_system(options["system"])


def run_complete(name: str, prompt: str | bytes, options: Options) -> int:
    """What `pantheon complete` does; the exit code."""
    how = {"max_tokens": options["max_tokens"], "speculate": options["speculate"], **sampling_from(options)}
    on_terminal = sys.stdout.isatty()
    with load_model(name, options) as model:
        with contextlib.closing(model.stream(prompt, **how)) as stream:
            for piece in stream:
                sys.stdout.write(repl.harmless(piece) if on_terminal else piece)
                sys.stdout.flush()
        sys.stdout.write("\n")
    return repl.EXIT_DONE
