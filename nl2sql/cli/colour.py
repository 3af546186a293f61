"""Colour where a terminal has it; none in a pipe, on a dumb terminal, or with NO_COLOR (https://no-color.org)."""

from __future__ import annotations

import os
from typing import TextIO

CODES = {"red": 31, "green": 32, "yellow": 33, "bold": 1}


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour of ``CODES``, where ``stream`` shows colours; else the text as it is."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain or not colour else f"\x1b[{CODES[colour]}m{text}\x1b[0m"
