"""Why a template failed, in words for whoever runs the model: what the engine of templates says is about its own parts.

Rank 4: imports the limits and the origins; jinja2, so only the sandbox imports this module.

The one thing to know first: three causes sound alike and are told apart here. What Jinja does not have is the
template's fault; what Jinja has and this sandbox leaves out is ours; what outgrew a limit because the messages are long
is the caller's to shorten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.filters

from pantheon.chat.limits import MAX_CHARS, LimitError, weigh

_LONG = MAX_CHARS // 20  # characters of messages from which on they are the likely cause of a giant text
_MISSING = re.compile(r"No (filter|test) named '(\w+)'")
_UNSAFE = re.compile(r"access to attribute '([a-zA-Z]\w*)' of '(\w+)' object is unsafe")
_OURS = re.compile(r"\b(?:pantheon\.chat\.\w+\.)?(Traced|_Markup|_Namespace)\b")
_PLAIN = {"Traced": "str", "_Markup": "str", "_Namespace": "namespace"}


def plain(text: object) -> str:
    """The text of an error, with the types that templates know in place of ours."""
    return _OURS.sub(lambda match: _PLAIN[match[1]], str(text))


def of_missing(error: Exception) -> str | None:
    """The sentence for a filter, a test or a file that is not here, or None for any other error."""
    if isinstance(error, TypeError) and str(error).startswith("no loader for this environment"):
        return "the chat template includes or imports another file, which is not supported here"
    match = _MISSING.match(str(error))
    if match is None:
        return None
    line = f" in line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
    known = match[1] == "filter" and match[2] in jinja2.filters.FILTERS
    why = "which is not supported here" if known else "which Jinja does not have"
    return f"the chat template uses the {match[1]} {match[2]!r}{line}, {why}"


def of_syntax(error: jinja2.TemplateSyntaxError) -> str:
    """What is wrong with a template that Jinja does not take."""
    return of_missing(error) or f"the chat template is not valid Jinja: line {error.lineno}: {plain(error)}"


def of_security(error: jinja2.exceptions.SecurityError) -> str:
    """What the sandbox has refused."""
    match = _UNSAFE.match(plain(error))
    if match is not None:
        return f"the chat template uses {match[2]}.{match[1]}, which is not supported here"
    return f"the chat template does something that is not allowed: {plain(error)}"


def of_limit(error: Exception, messages: Any) -> str:
    """Which limit stopped the template, and whether the messages are so long that they are the likely cause."""
    sizes = [_size(message) for message in messages] if isinstance(messages, (list, tuple)) else []
    if sum(sizes) < _LONG:
        return f"the chat template was stopped: {error}"
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    return (
        f"the messages are too long for the chat template: they have about {sum(sizes):,} characters together, the "
        f"longest (message {longest}) {sizes[longest]:,}, and it was stopped: {error}"
    )


def _size(message: Any) -> int:
    try:
        content = message.get("content", "") if isinstance(message, Mapping) else message
        return weigh(content)
    except LimitError:  # of a list of giants
        return MAX_CHARS
