"""The conversation on a terminal, and the same over a pipe.

Rank 5: imports errors, catalog, the engine and the chat; prompt_toolkit and rich only where they are needed.

    loop      a line is asked for, obeyed or sent    commands  the table of commands
    lines     line editing, pastes, plain terminals  history   what was typed
    talker    messages out, replies in, Ctrl-C       facts     what commands show
    host      which model is talked with             keeper    which chats are kept
    output    all that is written beside replies     markdown  replies drawn
    ending    SIGTERM and SIGHUP                     keys      keys while a reply is written
"""

from pantheon.repl.commands import COMMANDS, Desk
from pantheon.repl.host import Host
from pantheon.repl.keeper import Keeper
from pantheon.repl.loop import EXIT_DONE, EXIT_INTERRUPTED, banner, conversation, run_lines, run_terminal
from pantheon.repl.output import beside, discard, harmless, note
from pantheon.repl.talker import Talker

__all__ = [
    "COMMANDS",
    "EXIT_DONE",
    "EXIT_INTERRUPTED",
    "Desk",
    "Host",
    "Keeper",
    "Talker",
    "banner",
    "beside",
    "conversation",
    "discard",
    "harmless",
    "note",
    "run_lines",
    "run_terminal",
]
