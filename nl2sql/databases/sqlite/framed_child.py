"""A child process of this package that answers requests over one socket: both ends.

Messages both ways are 8 bytes of big-endian length and UTF-8 JSON, a blob as ``{"b": hex}``, as in ``worker.py``
(whose own parent, ``process.py``, can do more). A child that hangs or dies is closed and another one started;
that is for the caller to do. Not thread-safe: one request at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nl2sql.databases.sqlite.process import DECODER, forgets_after_fork
from nl2sql.databases.sqlite.worker import receive, send
from nl2sql.errors import Nl2SqlError

ROOT = str(Path(__file__).resolve().parents[3])
PATIENCE = 8.0  # for what is not the file's fault: see ``FramedChild.ask``
START_S = 60.0  # for a process to be there
READY = {"ready": True}  # a request that every process answers, with itself
PROGRAM = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"


class FramedChild:
    """One process that runs ``main()`` of ``module``, and the socket to it.

    last_words: what the process writes to stderr is kept, and its last line is the text of the ConnectionError.
    """

    def __init__(self, module: str, *, last_words: bool = False) -> None:
        self.closed = False
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", PROGRAM.format(root=ROOT, module=module)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if last_words else subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
            )

    def ask(self, request: dict[str, Any], seconds: float, *, patience: float = 1.0) -> dict[str, Any]:
        """The reply. Raises TimeoutError, and ConnectionError where the process has ended.

        seconds: for all of it. patience: how many times as long a process may take that has not had the processor
        for ``seconds`` yet, because others have it; one that sleeps is not waited for.
        """
        time_left = _TimeLeft(self.process.pid, seconds, patience)
        payload = _encoded(request)
        self.socket.settimeout(seconds)
        try:
            self.socket.sendall(len(payload).to_bytes(8, "big") + payload)
            size = int.from_bytes(self._receive(8, time_left), "big")
            reply = DECODER.decode(self._receive(size, time_left).decode())
        except ConnectionError:  # reset, where the process had not read all of the request
            raise ConnectionError(self._last_words()) from None
        assert isinstance(reply, dict), reply
        return reply

    def close(self) -> None:
        """End the process for certain."""
        self.closed = True
        self.socket.close()
        self.process.kill()
        if self.process.stderr:
            self.process.stderr.close()
        self.process.wait()

    def forget(self) -> None:
        """In a forked child: drop our copy of the socket; the process belongs to the parent."""
        self.closed = True
        self.socket.close()
        self.process.returncode = 0  # not ours to wait for

    def _receive(self, size: int, time_left: _TimeLeft) -> bytes:
        data = bytearray()
        while len(data) < size:
            self.socket.settimeout(time_left.seconds())
            try:
                piece = self.socket.recv(min(size - len(data), 2**20))
            except TimeoutError:
                time_left.extend()
                continue
            if not piece:
                raise ConnectionResetError
            data += piece
        return bytes(data)

    def _last_words(self) -> str:
        self.process.kill()
        lines = (self.process.communicate()[1] or b"").decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""


class _TimeLeft:
    """How long to wait for a process: by the clock, and where others have the processor, by its own time on it."""

    def __init__(self, pid: int, seconds: float, patience: float) -> None:
        self._pid, self._granted = pid, seconds
        self._began = time.monotonic()
        self._end, self._last = self._began + seconds, self._began + seconds * patience
        self._used = _processor_seconds(pid)[0]

    def seconds(self) -> float:
        """Until the next look."""
        return max(self._end - time.monotonic(), 0.001)

    def extend(self) -> None:
        """Wait for what the process has not had yet. Raises TimeoutError where that is nothing, or it sleeps."""
        used, working = _processor_seconds(self._pid)
        owed = self._granted - (used - self._used)
        now = time.monotonic()
        if not working or owed < 0.1 * self._granted or now >= self._last:
            raise TimeoutError
        self._end = min(now + owed, self._last)


def _processor_seconds(pid: int) -> tuple[float, bool]:
    """What a process has computed, and whether it wants to go on (or the disk lets it wait); (0, False): unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] in "RD"
    except (OSError, ValueError, IndexError):
        return 0.0, False


class Children:
    """Processes of one module, each lent to one caller at a time and kept for the next; ended with this process."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.idle: list[FramedChild] = []
        self._lock = threading.Lock()
        atexit.register(self.close)
        forgets_after_fork(self)

    @contextlib.contextmanager
    def lent(self) -> Iterator[FramedChild]:
        """A process that is ready, so that no deadline pays for its start.

        One that was closed in the block, or left it by another exception than ours, is not lent again.
        """
        with self._lock:
            child = self.idle.pop() if self.idle else None
        fresh = child is None
        child = child or FramedChild(self.module)
        try:
            if fresh:
                child.ask(READY, START_S)
            yield child
        except Nl2SqlError:
            self._keep(child)
            raise
        except BaseException:
            child.close()
            raise
        self._keep(child)

    def _keep(self, child: FramedChild) -> None:
        if not child.closed:
            with self._lock:
                self.idle.append(child)

    def close(self) -> None:
        """End all that are idle."""
        while self.idle:
            with contextlib.suppress(OSError):
                self.idle.pop().close()

    def forget_after_fork(self) -> None:
        """In a forked child: the processes are the parent's."""
        self._lock = threading.Lock()
        while self.idle:
            self.idle.pop().forget()


def requests() -> Iterator[dict[str, Any]]:
    """In the child: what the parent asks, until the socket closes."""
    while len(header := receive(8)) == 8:
        request = DECODER.decode(receive(int.from_bytes(header, "big")).decode())
        if request == READY:
            reply(READY)
        else:
            yield request


def reply(message: dict[str, Any]) -> None:
    """In the child: answer the last request."""
    send(_encoded(message))


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message, default=lambda blob: {"b": blob.hex()}).encode()
