"""The commands of the chat: one table, and a function for each row.

Rank 5: imports errors, the chat, and its siblings.

A function gets the desk and the text behind the command's name, without the spaces around it; where a text was pasted
behind it that the command takes as such, that stays as it came. It says what it has done;
a PantheonError that it raises is said by the loop, and the conversation goes on.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pantheon import catalog
from pantheon.chat.session import Chat
from pantheon.chat.view import as_text, written
from pantheon.engine.generate import Reply, ReplyStream
from pantheon.engine.sampling import SamplingParams, sampling_params
from pantheon.errors import ArgumentError
from pantheon.repl import facts
from pantheon.repl.ending import Ending
from pantheon.repl.host import Host
from pantheon.repl.keeper import AUTOSAVED, Keeper, is_empty, sampling_of
from pantheon.repl.lines import Asker, Offer, PlainLines
from pantheon.repl.output import aside, coloured, columns, draw, harmless, note
from pantheon.repl.talker import Talker

_SHAPE = re.compile(r"/([A-Za-z]+)(?:\s+(.*))?", re.DOTALL)
_FORMS = ("view", "text", "ids", "tokens", "json", "python")


class Leave(Exception):
    """The user wants to leave."""


class Usage(Exception):
    """A command was given something that it cannot take."""


@dataclass(slots=True)
class Desk:
    """All that a command may look at and change."""

    talker: Talker
    host: Host
    keeper: Keeper
    asker: Asker = field(default_factory=PlainLines)
    ending: Ending = field(default_factory=Ending)

    def reply(self, open_stream: Callable[..., ReplyStream], unsaid: str = "nothing changed", **changes: Any) -> None:
        """Write a reply that Ctrl-C stops, say what it does not show, and keep the chat.

        unsaid: what is said to a reply that was stopped before it began. The rest is as in Talker.play().
        """

        def talk() -> Reply | None:
            with self.keeping(), self.ending.stopping(self.talker.stop):
                reply = self.talker.play(open_stream, **changes)
                comment(reply, unsaid)
                return reply

        self.talker.interruptibly(talk)  # all of it: a second Ctrl-C must not disturb the saving

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep the chat after what is done inside, if need be as far as it came when that failed."""
        said = self.talker.chat.messages
        try:
            yield
        except BaseException:
            if self.talker.chat.messages != said:
                self.keep()
            raise
        self.keep()

    def keep(self) -> None:
        """Save the chat as it is now, as after each turn."""
        self.keeper.after_turn(self.talker)

    def load(self, name: str) -> None:
        """Go on with a chat that was kept, and with its sampling."""
        chat = self.keeper.load(self.host, name)
        before, self.talker.chat = self.talker.chat, chat
        before.close()
        self.talker.sampling.update(sampling_of(chat))


def say_notes(chat: Chat) -> None:
    """Say what is to be known of a chat, but for what was logged when its format was chosen."""
    if not is_empty(chat):
        aside(f"(going on after {facts.plural(len(chat.messages), 'message')})")
    for text in chat.notes:
        if text not in chat.format.notes:
            note(f"({text})")


def comment(reply: Reply | None, unsaid: str) -> None:
    """Say what a reply alone does not show."""
    if reply is None or (reply.finish_reason == "cancelled" and not reply.tokens):
        aside(f"(stopped before the reply began; {unsaid})")
    elif reply.finish_reason == "cancelled":
        aside("(stopped)")
    elif reply.finish_reason == "length":
        aside(f"(cut at {len(reply.tokens)} tokens; /continue goes on, --max-tokens allows more)")


# ---- Looking ------------------------------------------------------------------------------------------------------


def _help(desk: Desk, argument: str) -> None:
    rows = [(f"/{command.name} {command.arguments}".rstrip(), command.help) for command in COMMANDS]
    rows += [
        ("Alt-Enter", "a new line, as a \\ at the end of one"),
        ("Ctrl-C", "stops a reply, or clears the line; twice at an empty one it leaves"),
        ("Ctrl-D", "leaves"),
        ("a space first", "makes a line that begins with / a message"),
    ]
    note("\n".join(facts.in_two_columns(rows)))


def _show(desk: Desk, argument: str) -> None:
    reading = desk.talker.chat.reading
    form = argument or "view"
    if form not in _FORMS:
        raise Usage
    if reading is None:
        note("(nothing was read yet; say something first)")
    elif form == "view":
        if coloured(sys.stderr):
            draw(reading)
        else:
            note(as_text(reading, columns()))
    elif form == "json":
        note(json.dumps(reading.to_dict()))  # in ASCII: the terminal's escapes would be none of JSON's
    else:
        note(written(reading, form))


def _tokens(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    note("\n".join(facts.tokens(desk.host.model.tokenizer, argument) if argument else facts.counts(chat)))


def _stats(desk: Desk, argument: str) -> None:
    note("\n".join(facts.stats(desk.talker)))


# ---- The conversation ---------------------------------------------------------------------------------------------


def _clear(desk: Desk, argument: str) -> None:
    desk.talker.chat.clear()
    desk.keeper.begin_anew()


def _system(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    if argument:
        text = None if argument == "-" else "" if argument == '""' else argument
        chat.set_system(text)
        desk.keep()
    given = [message.content for message in chat.messages[:1] if message.role == "system"]
    if given:
        note(f"system text: {given[0]}" if given[0] else "the system text is empty")
    elif chat.default_system:
        note(f"no system text; the template inserts: {chat.default_system}")
    else:
        note("no system text")


def _window(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    if argument:
        chat.window = None if argument == "max" else _integer(argument)
    note("\n".join(facts.window(chat)))


def _regenerate(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    if argument:
        number, versions = _integer(argument), len(chat.alternatives)
        if versions and not 1 <= number <= versions:
            there = f"there are {versions}, /regenerate 1 to {versions}" if versions > 1 else "there is one reply alone"
            raise ArgumentError(f"there is no reply {number}: {there}")
        chat.choose(number - 1)
        desk.keep()
        note(f"(reply {chat.chosen + 1} of {len(chat.alternatives)})\n{chat.messages[-1].content}")
        return
    desk.reply(chat.regenerate, seed=None)
    if len(chat.alternatives) > 1:
        greedy = "; greedy replies are all the same, see /temperature" * (not desk.talker.sampling.get("temperature"))
        aside(f"(reply {chat.chosen + 1} of {len(chat.alternatives)}; /regenerate N takes another{greedy})")


def _undo(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    gone = chat.undo()
    if not gone:
        note("(there is nothing to take back)")
        return
    desk.keep()
    note(f"(taken back: {facts.preview(gone[0].content)})")


def _edit(desk: Desk, argument: str) -> None:
    chat = desk.talker.chat
    said = chat.messages
    number, text = (*re.split(r"\s", argument, maxsplit=1), "")[:2]
    users = [index for index, message in enumerate(said) if message.role == "user"]
    if not argument and users:
        number = str(users[-1])
    if not number or not 0 <= _integer(number) < len(said):
        note("\n".join(("which message? /edit N, with N one of:", *facts.messages(chat))) if said else "(no messages)")
        return
    index = int(number)
    if not text.strip():
        try:
            text = desk.asker.ask(said[index].content).text
        except (EOFError, KeyboardInterrupt):  # gives up the edit, not the conversation
            text = ""
    if not text.strip():
        note("(nothing changed)")
    elif said[index].role == "user":
        desk.reply(lambda **options: _stream_of(chat.edit(index, text, **options)))
    else:
        chat.edit(index, text)
        desk.keep()
        note(f"(message {index} says this now; what followed it is gone)")


def _stream_of(stream: ReplyStream | None) -> ReplyStream:
    assert stream is not None  # a user's message is replied to
    return stream


def _continue(desk: Desk, argument: str) -> None:
    desk.reply(desk.talker.chat.continue_)
    if desk.talker.last is not None and desk.talker.last.finish_reason == "stop" and not desk.talker.last.tokens:
        aside("(the model has nothing to add)")


# ---- Keeping ------------------------------------------------------------------------------------------------------


def _save(desk: Desk, argument: str) -> None:
    if is_empty(desk.talker.chat):
        raise ArgumentError("there is nothing to save: nothing was said yet")
    changed = desk.keeper.other(argument)
    if changed is not None:
        question = f"there is another chat {argument!r}, of {facts.moment(changed)}: replace it?"
        if not desk.asker.confirm(question):
            note("(not saved; /save NAME takes another name)")
            return
    note(f"({'saved' if changed is None else 'saved in its place'}: {desk.keeper.save(desk.talker, argument)})")


def _load(desk: Desk, argument: str) -> None:
    if argument:
        was_last = desk.keeper.is_last
        desk.load(argument)  # it becomes the last one with its next turn: until then nothing of the one before is lost
        say_notes(desk.talker.chat)
        for message in desk.talker.chat.messages[-2:]:
            note(f"{message.role}: {message.content}")
        if was_last and not desk.keeper.is_last:
            aside(f"(/load {AUTOSAVED} goes back to the chat before, until this one changes)")
        return
    names = list(desk.keeper.listed())
    note("\n".join(("which chat? /load NAME, with NAME one of:", *names)) if names else "(no chat was kept yet)")


# ---- How it is answered -------------------------------------------------------------------------------------------


def _seed(desk: Desk, argument: str) -> None:
    sampling, last = desk.talker.sampling, desk.talker.last
    if argument:
        sampling.update(_checked(sampling, seed=None if argument == "random" else _integer(argument)))
    now = "a fresh one for each reply" if sampling.get("seed") is None else str(sampling["seed"])
    note(f"seed: {now}" + (f"; the last reply's was {last.seed}" if last is not None else ""))


def _temperature(desk: Desk, argument: str) -> None:
    sampling = desk.talker.sampling
    if argument:
        try:
            value = float(argument)
        except ValueError:
            raise Usage from None
        sampling.update(_checked(sampling, temperature=value))
    value = sampling.get("temperature", SamplingParams().temperature)
    note(f"temperature: {value:g}" + (" (the likeliest token each time)" if value == 0 else ""))


def _stop(desk: Desk, argument: str) -> None:
    sampling = desk.talker.sampling
    stops = list(sampling_params({"stop": sampling.get("stop")}).stops)
    if argument:
        stops = [] if argument == "-" else [*stops, *[argument] * (argument not in stops)]
        sampling.update(_checked(sampling, stop=stops))
    note("a reply ends at: " + ", ".join(map(facts.quoted, stops)) if stops else "no text ends a reply")


def _checked(sampling: dict[str, object], **change: object) -> dict[str, object]:
    """A change of the sampling, or ArgumentError."""
    fields = {key: value for key, value in sampling.items() if key != "speculate"}
    sampling_params({**fields, **change})
    return change


def _model(desk: Desk, argument: str) -> None:
    talker, host = desk.talker, desk.host
    if argument:
        talker.chat = host.switch(argument, talker.chat)
        desk.keep()
        say_notes(talker.chat)
    info = host.model.info
    note(f"model: {host.name} ({info.architecture}, {info.n_params:,} parameters, {info.n_context:,} tokens)")
    note(f"chat format: {talker.chat.style}")


def _quit(desk: Desk, argument: str) -> None:
    raise Leave


# ---- What an argument may be --------------------------------------------------------------------------------------


def _said(desk: Desk) -> Iterator[Offer]:
    """The messages with their numbers. A space follows: behind it the text may stand."""
    for index, line in enumerate(facts.messages(desk.talker.chat)):
        yield Offer(f"{index} ", harmless(line))


def _replies(desk: Desk) -> Iterator[Offer]:
    """The replies that were made in the last one's place."""
    versions = desk.talker.chat.alternatives
    for number, message in enumerate(versions if len(versions) > 1 else (), 1):
        yield Offer(str(number), harmless(f"{number}  {facts.preview(message.content)}"))


# ---- The table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table."""

    name: str
    arguments: str
    """What may stand behind the name, as help shows it; empty: nothing."""
    help: str
    run: Callable[[Desk, str], None]
    suggest: Callable[[Desk], Iterable[str | Offer]] = lambda desk: ()
    """What an argument may be, for completion. A str is listed as it is."""
    words: int | None = None
    """Behind how many words (0 or 1) the argument is a text, of which nothing pasted is lost. None: there is none."""


COMMANDS: Sequence[Command] = (
    Command("help", "", "this list", _help),
    Command("show", "[FORM]", f"what the model read for the last reply; {', '.join(_FORMS)}", _show, lambda _: _FORMS),
    Command("tokens", "[TEXT]", "how many tokens each message has; or the tokens of a text", _tokens, words=0),
    Command("stats", "", "how fast it was", _stats),
    Command("window", "[N|max]", "how full the window is; or another size", _window, lambda _: ("max",)),
    Command("system", "[TEXT|-]", "the system text; or another; - leaves it to the template", _system, words=0),
    Command("regenerate", "[N]", "another reply instead of the last; or back to the N-th", _regenerate, _replies),
    Command("continue", "", "more of the last reply", _continue),
    Command("undo", "", "take the last message and its reply back", _undo),
    Command(
        "edit", "[N [TEXT]]", "change your last message, or message N, and go on from there", _edit, _said, words=1
    ),
    Command("save", "[NAME]", "keep the chat", _save, lambda desk: desk.keeper.names()),
    Command("load", "[NAME]", "go on with a chat that was kept; or list them", _load, lambda desk: desk.keeper.names()),
    Command("temperature", "[T]", "0 takes the likeliest token, above 0 draws", _temperature),
    Command("seed", "[N|random]", "repeat a draw; or a fresh one each time", _seed, lambda _: ("random",)),
    Command("stop", "[TEXT|-]", "which texts end a reply; or one more; - forgets them", _stop, words=0),
    Command("model", "[NAME]", "which model this is; or go on with another", _model, lambda _: sorted(catalog.CATALOG)),
    Command("clear", "", "forget everything but the system text", _clear),
    Command("quit", "", "leave", _quit),
    Command("exit", "", "leave", _quit),
)
_BY_NAME = {command.name: command for command in COMMANDS}


def obey(desk: Desk, text: str, pasted: tuple[int, int] | None = None) -> bool:
    """Obey the command that a text is; False if it is none. Leave, if that is what it says.

    pasted: from where to where it was pasted, behind the command's name.
    """
    found = _SHAPE.fullmatch(text.rstrip())
    if found is None:
        return False
    name, argument = found[1], (found[2] or "").strip()
    command = _BY_NAME.get(name)
    if command is None:
        note(unknown(name))
        return True
    if command.words is not None:
        argument = _text_of(text, found.end(1), pasted, command.words)
    try:
        if argument and not command.arguments:
            raise Usage
        command.run(desk, argument)
    except Usage:
        note(f"usage: /{name} {command.arguments}".rstrip() + f": {command.help}")
    return True


def _text_of(text: str, behind: int, pasted: tuple[int, int] | None, words: int) -> str:
    """What stands in a text behind a command's name, with the spaces that were pasted and without those that were typed
    around it; one typed space is left behind the first word, if `words` is 1."""
    start, stop = pasted if pasted is not None and pasted[0] > behind else (len(text), 0)
    end = max(len(text.rstrip()), stop)
    typed = text[behind : min(start, end)].lstrip()
    if words:
        typed = re.sub(r"^(\S+)\s+", r"\1 ", typed)
    return typed + text[start:end]


def unknown(name: str) -> str:
    """What is said to a command that does not exist."""
    near = [other for other in _BY_NAME if other.startswith(name.lower())]
    near += difflib.get_close_matches(name.lower(), _BY_NAME, n=2)
    offer = f", perhaps /{near[0]}?" if near else ";"
    return f"there is no command /{name}{offer} /help lists them"


def suggestions(desk: Desk, text: str) -> Iterator[Offer]:
    """The lines that the beginning of a command may become. A space stands behind a name that takes something."""
    name, space, argument = text.partition(" ")
    if not text.startswith("/") or "\n" in text:
        return
    if not space:
        for other in sorted(_BY_NAME):
            if other.startswith(name[1:]):
                yield Offer(f"/{other} " if _BY_NAME[other].arguments else f"/{other}", f"/{other}")
    elif name[1:] in _BY_NAME:
        argument = argument.lstrip(" ")
        for it in _BY_NAME[name[1:]].suggest(desk):
            offer = Offer(it, it) if isinstance(it, str) else it
            if offer.line.startswith(argument):
                yield Offer(f"{name} {offer.line}", offer.listed)


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise ArgumentError(f"a whole number belongs there, not {text!r}")
    return int(text)
