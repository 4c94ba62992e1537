"""A conversation with a model: messages in, replies out, and only the new tokens are ever evaluated.

Rank 4: imports errors, the engine, and its siblings in chat/.

How a turn runs: the conversation, but for old turns that the window has no room for (window.py), is written by the
model's template and becomes one list of ids, in which the model's own replies stay the ids that it sampled, as long as
the template writes them as they were. Reading (reading.py) shows that very list. The longest common
prefix of that list and of what the state holds is kept, the rest is evaluated. Nothing else is remembered about the
state, so a cancelled, cut or failed reply needs no repair: the next turn compares again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pantheon import _native
from pantheon._arrays import shared_prefix
from pantheon._gate import OneAtATime
from pantheon.chat.choice import make_format
from pantheon.chat.format import ChatFormat
from pantheon.chat.messages import Message, Turn, as_messages, check_plain
from pantheon.chat.plan import Plan
from pantheon.chat.reading import Reading
from pantheon.chat.saving import AnyPath, load_chat, save_chat
from pantheon.chat.segments import Prompt
from pantheon.chat.turns import (
    Draft,
    Turns,
    edited,
    first_system,
    going_on,
    once_more,
    to_message,
    versions_of,
    with_choice,
    with_system,
    without_last_exchange,
)
from pantheon.chat.window import Dropped, Fitted, Policy, check_policy, fit
from pantheon.engine.generate import Job, Record, Reply, ReplyStream, generate
from pantheon.engine.sampling import check_integer, check_speculate, sampling_params
from pantheon.errors import ArgumentError, BusyError, ClosedError

if TYPE_CHECKING:
    from pantheon.engine.aio import AsyncReplyStream
    from pantheon.engine.model import Model


class Chat:
    """One conversation. It belongs to one caller at a time; only cancel() and close() may come from other threads.

    After a reply that was cut (by max_tokens, cancel(), Ctrl-C or a closed stream) its partial text stays in
    `messages`, marked `cut`; if not one token had come, the conversation stays as it was before the call.
    Whatever changes the conversation (undo, edit, ...) changes the list of messages and nothing else: the next reply
    compares its prompt with what was evaluated, and reads again from the first difference.
    """

    def __init__(
        self,
        model: Model,
        system: str | None = None,
        *,
        messages: Iterable[Message | Mapping[str, Any]] = (),
        window: int | None = None,
        reply_limit: int = 128,
        policy: Policy = "drop_oldest",
        fraction: float = 0.5,
        template: str | None = None,
        now: datetime | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        fold_system: bool = False,
        merge_roles: bool = False,
    ) -> None:
        """Begin a conversation.

        system: the system text; None leaves it to the model's template, which may insert one of its own.
        messages: what was said before, as Message or {"role": ..., "content": ...}.
        window: the most tokens of prompt and reply together; None: the model's context length.
        reply_limit: max_tokens of a reply where the call does not say; so many tokens are kept free for it.
        policy: what is done when prompt and reply do not fit into the window. "drop_oldest": the oldest exchanges (a
        user's message and all up to the next) are left out, as few as will do, and stay out. "drop_to_fraction": more
        at once, until the prompt fits into `fraction` of the room for it. "error": ContextError. System texts and the
        last exchange always stay, and nothing inside a message is ever cut.
        template: None follows the model's own template. Else the name of a style ("chatml", "mistral", "phi3", ... see
        pantheon.chat.STYLES), the text of a Jinja template, or the path of a file with one.
        now: freezes the clock of templates that print the date, so that the prompt's beginning stays the same.
        tools: what the template is told of tools, as JSON has it.
        fold_system: where the template takes no system text, put it in front of the next user message, a blank line
        between; `notes` says so. Else such a text is a ChatTemplateError.
        merge_roles: write neighbours of one role as one message, a blank line between; for templates that want user and
        assistant to take turns.
        Raises ChatTemplateError if there is no template for this model, or a broken one.
        """
        given = as_messages(messages)
        if system is not None:
            given = (Message("system", system), *given)
        self._window = _check_window(window, model.context_length)
        self._reply_limit = check_integer("reply_limit", reply_limit, 1, 2**31 - 1)
        self._policy, self._fraction = check_policy(policy, fraction)
        self._now = now or datetime.now()
        check_plain("tools", tools)
        self._options: dict[str, Any] = {"tools": tools, "fold_system": fold_system, "merge_roles": merge_roles}
        self._model = model
        self._template = template
        self._notes: tuple[str, ...] = ()  # of loading
        self.sampling: dict[str, Any] = {}
        self._format = format_of(model, template, self._now)
        self._turns: Turns = tuple(Turn(message) for message in given)
        self._dropped: tuple[Dropped, ...] = ()  # of them, what was left out and stays out
        self._reading: Reading | None = None
        self._state = model.state(_state_window(model, self._window))
        self._running = OneAtATime(
            BusyError, "this chat is in the middle of a reply; finish or close its stream, or cancel() it, first"
        )

    # ---- talking

    def stream(
        self,
        text: str,
        *,
        prefill: str = "",
        max_tokens: int | None = None,
        progress: _native.Progress | None = None,
        speculate: bool | int = False,
        **sampling: Any,
    ) -> ReplyStream:
        """Say something: an iterator over the reply's text, whose `reply` is set at the end.

        prefill: what the reply begins with; the model goes on from there. max_tokens: at least 1; None: reply_limit.
        progress: called with the fraction of the prompt read. speculate: as in Model.stream(). sampling: the fields of
        SamplingParams, `stop` and `logprobs` among them; without any the reply is greedy.
        Raises ContextError (with prompt_tokens, reply_limit, window) if prompt and reply do not fit into the window,
        even without the turns that may be left out; ChatTemplateError if the template refuses; BusyError while another
        reply is running.
        """
        message = Message("user", text)
        return self._open(
            lambda turns: to_message(turns, message, prefill),
            max_tokens=max_tokens,
            progress=progress,
            speculate=speculate,
            **sampling,
        )

    def send(self, text: str, **options: Any) -> Reply:
        """stream() in one go: the whole reply. options: as there."""
        return self.stream(text, **options).finish()

    def astream(self, text: str, **options: Any) -> AsyncReplyStream:
        """stream() for `async for`: the work is done in a thread, the event loop never waits for it.

        Errors come with the first piece. A cancelled task, or leaving the loop, ends the reply as elsewhere. Every
        other stream works so, too: `async for piece in chat.regenerate()`.
        """
        from pantheon.engine.aio import AsyncReplyStream

        return AsyncReplyStream(lambda: self.stream(text, **options))

    async def asend(self, text: str, **options: Any) -> Reply:
        """`await` this for the whole reply; the event loop never waits for it."""
        return await self.astream(text, **options).finish()

    def regenerate(self, *, prefill: str = "", **options: Any) -> ReplyStream:
        """Another reply in the place of the last one, with a fresh seed if none is given; all stay in `alternatives`.

        Where the conversation waits for a reply, it is the first one. options: as in stream(); nothing is remembered
        of those of the reply before, and without any the reply is greedy. ArgumentError if nothing was said yet.
        """
        return self._open(lambda turns: once_more(turns, prefill), **options)

    def continue_(self, **options: Any) -> ReplyStream:
        """More of the last reply, in the same turn: the stream and its `reply` are what is added.

        That is what a reply needs that was cut. One that the model ended can go on too: it usually ends again at once;
        behind a stop string, or after edit(), it goes on. options: as in stream(); stop strings are searched for in
        what is added. ArgumentError if the conversation does not end with a reply.
        """
        return self._open(going_on, **options)

    def edit(self, index: int, text: str, *, prefill: str = "", **options: Any) -> ReplyStream | None:
        """Let message `index` (as in `messages`) say something else, and drop all that follows.

        A user's message is then replied to: this returns a stream, and the conversation changes with its first token.
        Any other message is replaced at once, and the result is None. options: as in stream().
        """
        turns = edited(self._turns, index, text)
        if turns[-1].message.role == "user":
            return self._open(lambda turns: once_more(edited(turns, index, text), prefill), **options)
        self._change(turns)
        return None

    def undo(self) -> list[Message]:
        """Take the last exchange back: the last user's message and all that follows. What was taken back; an empty
        list where there is no user's message."""
        turns = self._turns
        rest = without_last_exchange(turns)
        self._change(rest)
        return [turn.message for turn in turns[len(rest) :]]

    def choose(self, index: int) -> None:
        """Let alternatives[index] be the last reply."""
        self._change(with_choice(self._turns, index))

    def set_system(self, text: str | None) -> None:
        """Change the system text at the beginning; None: leave it to the template. What was said stays."""
        self._change(with_system(self._turns, text))
        self._dropped = ()  # the indices of messages are others

    def cancel(self) -> None:
        """End the reply that is running, from any thread, during the prompt too. Without one: nothing happens."""
        if self._running.busy:
            with contextlib.suppress(ClosedError):
                self._state.cancel()

    def clear(self) -> None:
        """Forget everything but the system text."""
        with self._running.hold():
            self._turns, self._dropped, self._reading = first_system(self._turns), (), None
            self._state.reset()

    def save(self, path: AnyPath, *, cache: bool = False, sampling: Mapping[str, Any] | None = None) -> None:
        """Write the conversation to a file: readable JSON with messages, the ids of replies, settings and the model's
        fingerprint. It appears whole or not at all, and only its owner may read it.

        cache: write what was evaluated, too, beside it (name.json, name.kv; kv_bytes_per_token for each token), so that
        after loading only new tokens are evaluated. sampling: what the caller wants to find in `sampling` after
        loading; None: what is there now.
        Raises FileError, BusyError while a reply is running, ArgumentError.
        """
        save_chat(self, path, cache=cache, sampling=sampling)

    @classmethod
    def load(
        cls,
        path: AnyPath,
        model: Model,
        *,
        cache: bool = True,
        ignore_model: bool = False,
        trusted: bool = False,
        **options: Any,
    ) -> Chat:
        """The conversation of a saved file, which goes on as if it had never been away: the same prompts, the same
        greedy replies, the clock that its templates saw.

        cache: use the cache beside it, if it was saved with one; where that is missing or of another moment a note says
        so, where it is damaged that is an error. ignore_model: take the messages over into another model; the ids and
        the cache are left. trusted: you know who wrote the file, so control tokens among the ids of its replies, which
        no text shows, are the model's own; else such a reply is read from its text. options: window, reply_limit,
        policy, fraction, template, now, tools, fold_system, merge_roles, in place of the file's. `notes` says what of
        the file was not believed, such as the ids of a reply whose text was edited.
        Raises FileError, NotSavedFileError, DamagedFileError, OtherModelError, UnsupportedError (a newer version), and
        what Chat() raises.
        """
        return load_chat(cls, path, model, cache=cache, ignore_model=ignore_model, trusted=trusted, **options)

    # ---- looking

    sampling: dict[str, Any]
    """Settings that save() writes and load() reads. They are the caller's: no reply takes them by itself."""

    @property
    def messages(self) -> list[Message]:
        """What was said, oldest first: a list of your own. A running reply is not in it yet."""
        return [turn.message for turn in self._turns]

    @property
    def alternatives(self) -> list[Message]:
        """The replies that were made in the last one's place, oldest first, itself included; see regenerate()."""
        last = self._turns[-1] if self._turns else None
        replies = last is not None and last.message.role == "assistant"
        return [turn.message for turn in versions_of(last)] if last is not None and replies else []

    @property
    def chosen(self) -> int:
        """Which of the alternatives is the last reply."""
        return self._turns[-1].chosen if self._turns else 0

    @property
    def style(self) -> str:
        """The chat format in force, such as "ChatML", or "the file's own template"."""
        return self._format.title

    @property
    def format(self) -> ChatFormat:
        """Which template writes the prompts and why, what ends a reply, whether it takes a system text."""
        return self._format

    @property
    def notes(self) -> list[str]:
        """What a user should know about the format, and what it does with this conversation's messages."""
        notes = [*self._format.notes, *self._notes]
        if self._options["fold_system"] and not self._format.takes_system and first_system(self._turns):
            notes.append(f"{self.style} takes no system text: it is put in front of the first user message")
        return notes

    @property
    def default_system(self) -> str | None:
        """The system text that the model's template inserts when none is given."""
        return self._format.default_system

    @property
    def window(self) -> int:
        """The most tokens of prompt and reply together. It can be set to another number, or to None for the model's
        context length: a larger one starts anew with the whole conversation. BusyError while a reply is running."""
        return self._window

    @window.setter
    def window(self, window: int | None) -> None:
        with self._running.hold():
            tokens = _check_window(window, self._model.context_length)
            needed = _state_window(self._model, tokens)
            if needed != self._state.window:
                before, self._state = self._state, self._model.state(needed)
                before.close()
            if tokens > self._window:
                self._dropped = ()
            self._window = tokens

    @property
    def reply_limit(self) -> int:
        """max_tokens of a reply where the call does not say."""
        return self._reply_limit

    @property
    def policy(self) -> str:
        """What is done when prompt and reply do not fit: "drop_oldest", "drop_to_fraction" or "error"."""
        return self._policy

    @property
    def reading(self) -> Reading | None:
        """What the model read in the last turn, or is reading now; None before the first, and after clear()."""
        return self._reading

    def count(self, messages: Iterable[Message | Mapping[str, Any]] | None = None) -> int:
        """How many tokens the prompt for a reply to these messages has; None: to this conversation's.

        Exactly what stream() would evaluate for them in a fresh conversation, the header of the reply included.
        """
        turns = self._turns if messages is None else tuple(Turn(message) for message in as_messages(messages))
        return len(self._write(turns).ids)

    # ---- inside

    def _open(
        self,
        draft_of: Callable[[Turns], Draft],
        *,
        max_tokens: int | None = None,
        progress: _native.Progress | None = None,
        speculate: bool | int = False,
        **sampling: Any,
    ) -> ReplyStream:
        """A reply to be made: all that can be refused is refused here, all that is done is done by its stream."""
        self._running.check()
        params = sampling_params(sampling)
        params.check_vocab(self._model.n_vocab)
        limit = check_integer("max_tokens", self._reply_limit if max_tokens is None else max_tokens, 1, 2**31 - 1)
        seen = self._turns
        plan = self._plan(draft_of(seen), limit)
        job = Job(
            tokenizer=self._model.tokenizer,
            params=params,
            seed=params.seed_or_fresh(),
            limit=limit,
            stop_ids=self._format.stop_ids,
            progress=progress,
            speculate=check_speculate(speculate),
        )
        record = Record(plan.job(job))
        return ReplyStream(_reply(self, draft_of, seen, plan, record), record)

    def _change(self, turns: Turns) -> None:
        with self._running.hold():
            self._turns = turns
            self._dropped = tuple(out for out in self._dropped if out.messages[-1] < len(turns))

    def _write(self, turns: Turns, start: int = 0, opened: bool = False) -> Prompt:
        """The prompt for these turns, without those before `start` but for system texts."""
        return self._format.prompt(turns, self._now, start=start, opened=opened, **self._options)

    def _plan(self, draft: Draft, limit: int) -> Plan:
        """The prompt for a reply of at most `limit` tokens, with what was left out for it, or ContextError.

        It changes nothing: what it leaves out stays out once _commit() has it.
        """
        opened = draft.opening is not None
        fitted = fit(
            draft.read,
            lambda start: self._write(draft.read, start, opened),
            reserve=limit,
            window=self._window,
            policy=self._policy,
            fraction=self._fraction,
            before=self._dropped,
        )
        return Plan(draft, fitted)

    def _keep_prefix(self, fitted: Fitted) -> int:
        """Cut the state back to what it shares with the prompt, leaving at least one id to evaluate; how many it
        shares. From here on the reading is that of this prompt."""
        held, ids = self._state.token_buffer(), fitted.prompt.ids
        shared = shared_prefix(held, ids[:-1])
        if shared < len(held):
            self._state.rewind(shared)
        before = self._reading.fitted if self._reading else None
        self._reading = Reading(fitted=fitted, chat_format=self._format, reused=shared, held=held, before=before)
        return shared

    def _commit(self, plan: Plan, record: Record) -> None:
        """Make the reply part of the conversation: whole, cut, or not at all if nothing was said."""
        reply = record.finish()
        if reply.tokens or reply.finish_reason == "stop":
            content = plan.base(record.job) + reply.text
            ids = (*plan.opening_ids, *record.ids)
            self._turns = plan.draft.finished(content, ids, reply.finish_reason != "stop")
            self._dropped = plan.fitted.dropped

    # ---- the end

    @property
    def closed(self) -> bool:
        """True after close(), of the chat or of its model."""
        return self._state.closed

    def close(self) -> None:
        """Free the conversation's memory; a running reply is cancelled. Idempotent, from any thread."""
        self._state.close()

    def __enter__(self) -> Chat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a Chat holds memory of this process and cannot be pickled; save its messages instead")

    def __repr__(self) -> str:
        return f"<pantheon.Chat: {self.style}, {len(self._turns)} messages>"


def _reply(
    chat: Chat, draft_of: Callable[[Turns], Draft], seen: Turns, plan: Plan, record: Record
) -> Generator[str, None, None]:
    """The generator behind every reply. Nothing happens before the first piece is asked for."""
    chat._running.check()
    chat._state.clear_cancel()  # before the reply counts as running: what is asked for from there on is meant for it
    with chat._running.hold():
        if chat._turns is not seen or chat._window != plan.fitted.window:  # not as it was when stream() was called
            plan = chat._plan(draft_of(chat._turns), record.job.limit)
            record.job = plan.job(record.job)
        ids, shared = plan.fitted.prompt.ids, chat._keep_prefix(plan.fitted)
        record.prompt_tokens, record.reused_tokens = len(ids), shared
        try:
            yield from generate(chat._state, ids[shared:], record)
        finally:
            chat._commit(plan, record)


def _check_window(window: int | None, context_length: int) -> int:
    if window is None:
        return context_length
    check_integer("window", window, 1, 2**31 - 1)
    if window > context_length:
        raise ArgumentError(f"window must be at most the model's context length of {context_length}, got {window}")
    return window


def _state_window(model: Model, window: int) -> int:
    """The largest window whose logits are those of this one: the memory of a state grows with its tokens, not with its
    window, and only models with two sets of rotary factors take them by the window."""
    original = model.metadata.get(f"{model.architecture}.rope.scaling.original_context_length")
    if isinstance(original, int) and window <= original:
        return min(original, model.context_length)
    return model.context_length


def format_of(model: Model, template: str | None = None, now: datetime | None = None) -> ChatFormat:
    """The model's format, made once per model and forced template. `template` and errors: as in Chat."""
    known = model.chat_formats.get(template) if template is None or isinstance(template, str) else None
    if not isinstance(known, ChatFormat):
        known = model.chat_formats[template] = make_format(model.tokenizer, model.metadata, forced=template, now=now)
    return known
