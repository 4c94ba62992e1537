"""What a model makes of texts: tokenize, read. The weights are not read.

Rank 6: imports the engine, the chat, and its siblings; click.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from pantheon import catalog, repl
from pantheon.cli.options import DEFAULT_MAX_TOKENS, DEFAULT_MODEL, FOLD_SYSTEM, TEMPLATE, WINDOW, with_options
from pantheon.cli.streams import drawing, read_file, read_text, visible
from pantheon.engine.tokenizer import Tokenizer

_POLICIES = ("drop_oldest", "drop_to_fraction", "error")
_READ_FORMS = ("view", "text", "ids", "tokens", "json", "python")


@click.command()
@click.argument("model")
@click.argument("text", required=False)
@click.option("--special", is_flag=True, help="Control tokens spelled in the text count as such.")
@click.option("--bos", is_flag=True, help="Put the beginning-of-sequence token in front if the file asks for it.")
@click.option("--ids", is_flag=True, help="Print the ids alone, on one line.")
def tokenize(model: str, text: str | None, special: bool, bos: bool, ids: bool) -> None:
    """Show the tokens of TEXT (or of stdin): one per line, id and text. The weights are not read."""
    with Tokenizer.from_file(catalog.resolve(model)) as tokenizer:
        tokens = tokenizer.encode(read_text(text), special=special, bos=bos).tolist()
        if ids:
            click.echo(" ".join(map(str, tokens)))
        else:
            for token in tokens:
                click.echo(f"{token}\t{visible(tokenizer.piece(token))}")
    repl.note(f"{len(tokens)} tokens")


@click.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--messages", "source", metavar="FILE", required=True, help="JSON: a list of messages; - reads stdin.")
@with_options(TEMPLATE, FOLD_SYSTEM, WINDOW)
@click.option("--reply-limit", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True, help="Kept free.")
@click.option(
    "--policy", type=click.Choice(_POLICIES), default=_POLICIES[0], show_default=True, help="If it is too long."
)
@click.option("--format", "form", type=click.Choice(_READ_FORMS), default="view", show_default=True)
def read(model: str, source: str, form: str, template: str | None, fold_system: bool, **how: Any) -> None:
    """Show what the model would read for a reply to these messages. The weights are not read."""
    from pantheon.chat.reader import Reader, messages_from
    from pantheon.chat.view import written

    messages, tools = messages_from(read_text("-") if source == "-" else read_file(source))
    with Reader(model, template=template, tools=tools, fold_system=fold_system) as reader:
        reading = reader.read(messages, **how)
        on_terminal = sys.stdout.isatty()
        if form == "view" and on_terminal:
            with drawing() as console:
                console.print(reading, soft_wrap=True)
        else:
            # JSON in ASCII on a terminal: its escapes would be none of JSON's.
            text = json.dumps(reading.to_dict()) if form == "json" and on_terminal else written(reading, form)
            sys.stdout.write((repl.harmless(text) if on_terminal else text) + "\n")
    if form != "view":
        for line in (f"{len(reading)} tokens", *reading.left_out):
            repl.note(line)
