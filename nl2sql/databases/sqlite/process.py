"""The other end of ``worker.py``: one child process, the socket to it, its bounds, and what went wrong in it.

>>> reported("OperationalError", "no such table: order", timeout_s=5.0, seconds=0.1).error_kind
'unknown_table'
"""

from __future__ import annotations

import json
import mmap
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nl2sql.errors import UsageError
from nl2sql.interfaces import RunResult
from nl2sql.machine import MAX_TIMEOUT_S

# ------------------------------------------------------------------------------- bounds and results

GRACE_S = 0.25  # what a worker may overrun its deadline by before it is killed
SEND_S = 60.0  # for a worker to take a large request in
MAX_SQL_CHARS = 100_000  # bounds what a parser is asked to read

# What SQLite says -> RunResult.error_kind; the first rule that matches the message decides. Rules for messages that
# quote the statement come first and are anchored, so that no identifier can be taken for another message.
ERROR_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), kind)
    for pattern, kind in (
        (r"^no such table: |^no such view: ", "unknown_table"),
        (r"^no such column: |^cannot join using column .* not present in both", "unknown_column"),
        (r"^ambiguous column name: ", "ambiguous_column"),
        (r": syntax error$|^incomplete input|^unrecognized token|null character|surrogates not allowed", "syntax"),
        (r"clause should come after", "syntax"),
        (r"^no such |^wrong number of arguments|^misuse of |malformed", "other"),
        (r"^interrupted$", "timeout"),
        (r"^not authorized|is prohibited$|^attempt to write a readonly|may not be (modified|dropped)", "denied"),
        (r"only execute one statement", "multi_statement"),
        (r"stack overflow|too (big|large|complex|many)|^at most \d+ tables", "too_large"),
        (r"^out of memory", "memory"),
        (r"^Incorrect number of bindings", "syntax"),
    )
)


def check_bounds(timeout_s: float, max_rows: int) -> None:
    """Raises UsageError for bounds that no statement can be held to, infinity and NaN among them."""
    if not 0 < timeout_s <= MAX_TIMEOUT_S or max_rows < 0:
        raise UsageError(
            f"timeout_s must be above 0 and at most {MAX_TIMEOUT_S:.0f}, max_rows not negative; "
            f"got {timeout_s} and {max_rows}"
        )


def sqlite_error_kind(message: str) -> str:
    """The kind of a SQLite error message, by ``ERROR_RULES``; "other" when no rule matches."""
    return next((kind for pattern, kind in ERROR_RULES if pattern.search(message)), "other")


def failed_run(kind: str, message: str, seconds: float = 0.0) -> RunResult:
    return RunResult(False, error=message, error_kind=kind, seconds=seconds)


def run_result(reply: list[Any], timeout_s: float, seconds: float) -> RunResult:
    if reply[0] == "ok":
        _, columns, rows, truncated = reply
        return RunResult(True, tuple(columns), tuple(map(tuple, rows)), truncated=truncated, seconds=seconds)
    _, exception, message = reply
    return reported(exception, message, timeout_s, seconds)


def reported(exception: str, message: str, timeout_s: float, seconds: float) -> RunResult:
    """The result for what a worker reports: a kind of error (lower case) or the name of an exception."""
    message = " ".join(message.splitlines())  # a quoted identifier may hold line breaks
    kind = exception if exception.islower() else sqlite_error_kind(message)
    if kind == "timeout":
        message = f"no result within {timeout_s:g} s"
    return failed_run(kind, message, seconds)


# -------------------------------------------------------------------------------------- the process

WORKER = Path(__file__).with_name("worker.py")
START_S = 60.0  # a worker that is not ready by then never will be
LOOK_S = 0.2  # between two looks at whether the caller still wants an answer
MAX_REPLY_BYTES = 2**30
PLACE = struct.Struct("<qq")  # as in worker.py
DECODER = json.JSONDecoder(object_hook=lambda tagged: bytes.fromhex(tagged["b"]) if tagged.keys() == {"b"} else tagged)


class WorkerGone(Exception):
    """The worker process ended before it answered."""

    place: tuple[int, int] | None = None  # the statement of a batch that it was executing: (file, index)


class Interrupted(Exception):
    """The caller wants no answer any more."""


class Place:
    """Memory shared with a worker, in which it notes the statement that it executes: (file, index), or nothing."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.file = os.memfd_create("nl2sql-place")
        else:
            with tempfile.TemporaryFile() as temporary:
                self.file = os.dup(temporary.fileno())
        os.truncate(self.file, PLACE.size)
        self.memory = mmap.mmap(self.file, PLACE.size)
        PLACE.pack_into(self.memory, 0, -1, -1)

    def read(self) -> tuple[int, int] | None:
        file, index = PLACE.unpack_from(self.memory)
        return None if index < 0 else (file, index)

    def close(self) -> None:
        self.memory.close()
        os.close(self.file)


class Parent(Protocol):
    """What holds child processes."""

    def forget_after_fork(self) -> None:
        """In a forked child: the processes are its parent's, and a lock may have been held by a thread that is gone."""


_parents: weakref.WeakSet[Parent] = weakref.WeakSet()


def forgets_after_fork(parent: Parent) -> None:
    """``parent.forget_after_fork()`` is called in every forked child, as long as ``parent`` is in use."""
    _parents.add(parent)


def _after_fork_in_child() -> None:
    for parent in list(_parents):
        parent.forget_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Worker:
    """One child process that runs ``worker.py`` (or another ``program`` of that protocol), and the socket to it.

    The program gets the number of the file descriptor of its ``Place`` as its last argument. ``environment``: its
    environment variables; None: ours.
    """

    def __init__(self, program: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
        program = program or ("-I", "-S", str(WORKER))
        self.socket, theirs = socket.socketpair()
        self._place = Place()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *program, str(self._place.file)],
                stdin=theirs.fileno(),
                pass_fds=(self._place.file,),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
            )
        self.uris: set[str] = set()
        self._unread = bytearray()  # the beginning of the next message
        self._receive(time.monotonic() + START_S)

    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, request: list[Any], deadline: float) -> list[Any]:
        """The reply to ``request``. Raises TimeoutError past ``deadline``, WorkerGone when the process ended."""
        self.tell(request, deadline)
        return self.hear(deadline)

    def tell(self, request: list[Any] | dict[str, Any], deadline: float) -> None:
        """Send a request. Raises as ``ask``."""
        payload = json.dumps(request).encode()
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(len(payload).to_bytes(8, "big") + payload)
        except ConnectionError as error:
            raise WorkerGone(str(error)) from None

    def hear(self, deadline: float, stop: threading.Event | None = None) -> list[Any]:
        """The next message. Raises as ``ask``, and Interrupted soon after ``stop`` is set."""
        try:
            reply = DECODER.decode(self._receive(deadline, stop))
        except ConnectionError as error:
            raise WorkerGone(str(error)) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WorkerGone(f"an unintelligible reply: {error}") from None
        assert isinstance(reply, list), reply
        return reply

    def place(self) -> tuple[int, int] | None:
        """The statement of a batch that the process executes, or executed when it ended."""
        return self._place.read()

    def _receive(self, deadline: float, stop: threading.Event | None = None) -> str:
        data = self._unread
        size: int | None = None
        while True:
            if size is None and len(data) >= 8:
                size = int.from_bytes(data[:8], "big")
                if size > MAX_REPLY_BYTES:
                    raise WorkerGone(f"a reply of {size} bytes")
                if len(data) < 8 + size:
                    deadline += 10.0  # executed in time: what remains is transfer
            if size is not None and len(data) >= 8 + size:
                with memoryview(data) as view:
                    message = str(view[8 : 8 + size], "utf-8")  # without a copy: it may be large
                del data[: 8 + size]
                return message
            data += self._piece(deadline, stop, 65536 if size is None else min(max(8 + size - len(data), 65536), 2**20))

    def _piece(self, deadline: float, stop: threading.Event | None, most: int) -> bytes:
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            self.socket.settimeout(left if stop is None else min(left, LOOK_S))
            try:
                piece = self.socket.recv(most)
            except TimeoutError:
                if stop is None or left <= LOOK_S:
                    raise
            else:
                if not piece:
                    raise WorkerGone("the connection closed")
                return piece
            if stop is not None and stop.is_set():
                raise Interrupted

    def kill(self) -> int:
        """End the process for certain; its exit status."""
        self.socket.close()  # a worker that waits for work ends by this
        self.process.kill()
        self._place.close()
        return self.process.wait()

    def forget(self) -> None:
        """In a forked child: drop our copy of the socket; the process belongs to the parent."""
        self.socket.close()
        self._place.close()
        self.process.returncode = 0  # not ours to wait for
