"""The page "A chat, as the model reads it": plain files, and where they are.

Rank 5: imports nothing of the package. It serves nothing: pantheon.server does, under a strict content security policy.

The one thing to know first: there is no build step. `static/` is what a browser loads: index.html, style sheets, and ES
modules named for what they are about; main.js is where they begin.
"""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""The folder of index.html and everything that it asks for."""
