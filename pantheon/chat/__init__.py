"""Chats: from messages to the ids that the model reads, and back to replies.

    messages  what is said                     templates  how a model wants it written (sandbox: Jinja in a box)
    segments  control tokens apart from text   session    the running conversation

Rank 4: imports errors and the engine.
"""

from pantheon.chat.messages import Message
from pantheon.chat.segments import Kept, Segment, Special, Text, encode, join
from pantheon.chat.session import Chat
from pantheon.chat.templates import STYLES, ChatFormat, Style, detect_style, render

__all__ = [
    "STYLES",
    "Chat",
    "ChatFormat",
    "Kept",
    "Message",
    "Segment",
    "Special",
    "Style",
    "Text",
    "detect_style",
    "encode",
    "join",
    "render",
]
