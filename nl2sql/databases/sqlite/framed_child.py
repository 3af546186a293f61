"""A child process of this package that answers requests over one socket: both ends.

Messages both ways are 8 bytes of big-endian length and UTF-8 JSON, a blob as ``{"b": hex}``, as in ``worker.py``
(whose own parent, ``process.py``, can do more). A child that hangs or dies is closed and another one started;
that is for the caller to do. Not thread-safe: one request at a time.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.process import DECODER
from nl2sql.databases.sqlite.worker import receive, send

ROOT = str(Path(__file__).resolve().parents[3])
PROGRAM = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"


class FramedChild:
    """One process that runs ``main()`` of ``module``, and the socket to it.

    last_words: what the process writes to stderr is kept, and its last line is the text of the ConnectionError.
    """

    def __init__(self, module: str, *, last_words: bool = False) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", PROGRAM.format(root=ROOT, module=module)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if last_words else subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
            )

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The reply. Raises TimeoutError, and ConnectionError where the process has ended."""
        deadline = time.monotonic() + seconds
        payload = _encoded(request)
        self.socket.settimeout(seconds)
        self.socket.sendall(len(payload).to_bytes(8, "big") + payload)
        size = int.from_bytes(self._receive(8, deadline), "big")
        reply = DECODER.decode(self._receive(size, deadline).decode())
        assert isinstance(reply, dict), reply
        return reply

    def close(self) -> None:
        """End the process for certain."""
        self.socket.close()
        self.process.kill()
        if self.process.stderr:
            self.process.stderr.close()
        self.process.wait()

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = self.socket.recv(min(size - len(data), 2**20))
            if not piece:
                raise ConnectionError(self._last_words())
            data += piece
        return bytes(data)

    def _last_words(self) -> str:
        self.process.kill()
        lines = (self.process.communicate()[1] or b"").decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


def requests() -> Iterator[dict[str, Any]]:
    """In the child: what the parent asks, until the socket closes."""
    while len(header := receive(8)) == 8:
        yield DECODER.decode(receive(int.from_bytes(header, "big")).decode())


def reply(message: dict[str, Any]) -> None:
    """In the child: answer the last request."""
    send(_encoded(message))


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message, default=lambda blob: {"b": blob.hex()}).encode()
