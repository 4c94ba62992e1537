"""Chats: from messages to the ids that the model reads, and back to replies.

    messages   what is said                            styles    the built-in formats
    templates  any Jinja template rendered             sandbox   Jinja in a box (limits: what it may spend)
    origin     text that knows where it is from        segments  control tokens apart from text, text to ids
    choice     which format a model's chats have       format    messages to a prompt, in that format
    window     which turns are kept                    session   the running conversation
    turns      what operations make of its messages    plan      a reply to be made, and its prompt
    reading    what the model read in one turn         reader    what it would read, from the file's header
    pieces     a prompt taken apart                    loss      why tokens were read again
    view       a reading drawn                         program   a reading as a program of its own
    saving     conversations to files and back         saved     the form of such a file, and what of it is believed
    wire       a reading for the page                  presets   what the page starts with

Rank 4: imports errors and the engine.
"""

from pantheon.chat.choice import format_first, format_turn, make_format
from pantheon.chat.format import ChatFormat
from pantheon.chat.messages import Message, Turn
from pantheon.chat.pieces import Piece, Token
from pantheon.chat.reader import Reader, count_tokens
from pantheon.chat.reading import LookAlike, Reading
from pantheon.chat.segments import Kept, Prompt, Segment, Special, Text, encode, join
from pantheon.chat.session import Chat
from pantheon.chat.styles import STYLES, Style, detect_style, style_from_arch
from pantheon.chat.templates import render
from pantheon.chat.window import Dropped, Fitted

__all__ = [
    "STYLES",
    "Chat",
    "ChatFormat",
    "Dropped",
    "Fitted",
    "Kept",
    "LookAlike",
    "Message",
    "Piece",
    "Prompt",
    "Reader",
    "Reading",
    "Segment",
    "Special",
    "Style",
    "Text",
    "Token",
    "Turn",
    "count_tokens",
    "detect_style",
    "encode",
    "format_first",
    "format_turn",
    "join",
    "make_format",
    "render",
    "style_from_arch",
]
