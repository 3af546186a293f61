"""One line on a terminal that says what is being done, and goes away when it is done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from nl2sql.errors import printable
from nl2sql.machine import masked


class StatusLine:
    """Writes to standard error where that is a terminal, and nothing elsewhere; as a block it ends empty."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._on = self._stream.isatty()

    def say(self, text: str) -> None:
        """Show a text in place of the last one, cut to the terminal's width."""
        if self._on:
            width = shutil.get_terminal_size().columns - 1
            line = masked(printable(" ".join(text.split())))[:width]
            print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)

    def event(self, event: Mapping[str, Any]) -> None:
        """Show a trace record: the action that was done, or what the model wrote."""
        if "action" in event:
            seen = event.get("observation")
            sql = seen.get("sql") if isinstance(seen, Mapping) else None
            self.say(f"step {event['step']}: {event['action'] or 'no action'} {sql or ''}")
        elif "llm" in event:
            self.say(f"step {event['step']}: {event['llm']}")

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.say("")
