"""The program: what it does without a command, and the commands.

Rank 6: imports its siblings; click.
"""

from __future__ import annotations

from typing import Any

import click

from pantheon import _native
from pantheon.cli import models, page, speed, talk, texts
from pantheon.cli.options import CHAT_OPTIONS, ENGINE_OPTIONS, MAX_TOKENS, SAMPLING_OPTIONS, SPECULATE, with_options


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_native.version(), prog_name="pantheon")
@click.option("--model", metavar="FILE", help="A path, a name of the catalogue, or hf:owner/repo/file.gguf.")
@click.option("--chat", is_flag=True, help="Hold a conversation.")
@click.option("--prompt", metavar="TEXT", help="Complete a text.")
@with_options(*CHAT_OPTIONS, MAX_TOKENS, *SAMPLING_OPTIONS, SPECULATE, *ENGINE_OPTIONS)
@click.pass_context
def root(context: click.Context, /, **options: Any) -> int | None:
    """Chat with a GGUF model on this CPU: `pantheon pull smollm2`, then `pantheon chat`."""
    given = [name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if context.invoked_subcommand is not None:
        if given:
            flag = "--" + given[0].replace("_", "-")
            command = context.invoked_subcommand
            if flag == "--model":
                raise click.UsageError(f"with a command the model has no flag: pantheon {command} MODEL ...")
            raise click.UsageError(f"{flag} must stand after the command: pantheon {command} {flag} ...")
        return None
    if not given:
        click.echo(context.get_help())
        return None
    if options["model"] is None:
        raise click.UsageError("--model is missing; to chat with the default model: pantheon chat")
    if options["chat"] == (options["prompt"] is not None):
        raise click.UsageError("give either --chat or --prompt TEXT")
    for flag in ("system", "template", "fold_system", "window", "markdown", "resume"):
        if flag in given and not options["chat"]:
            raise click.UsageError(f"--{flag.replace('_', '-')} goes with --chat")
    if options["chat"]:
        return talk.run_chat(options["model"], options)
    return talk.run_complete(options["model"], options["prompt"], options)


_COMMANDS = (
    *(talk.chat, talk.complete),
    *(models.pull, models.models, models.rm, models.info, models.quantize),
    *(texts.tokenize, texts.read),
    speed.bench,
    page.record,
)
for _command in _COMMANDS:
    root.add_command(_command)
