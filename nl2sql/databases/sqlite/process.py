"""Child processes and the sockets to them: ``Worker``, the other end of ``worker.py`` with its bounds and what went
wrong in it, and ``FramedChild``, a process of this package that answers one request at a time.

Messages both ways are 8 bytes of big-endian length and UTF-8 JSON, a blob as ``{"b": hex}``.

>>> reported("OperationalError", "no such table: order", timeout_s=5.0, seconds=0.1).error_kind
'unknown_table'
"""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from nl2sql.databases.sqlite.worker import receive, send
from nl2sql.errors import Nl2SqlError, UsageError
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


def _started(
    program: Sequence[str], stderr: int = subprocess.DEVNULL, **options: Any
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A Python process that runs ``program``, and the socket to what is its standard input."""
    ours, theirs = socket.socketpair()
    with theirs:
        process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, *program],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # Ctrl-C in the terminal is for the parent
            **options,
        )
    return ours, process


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(8, "big") + payload


class Worker:
    """One child process that runs ``worker.py`` (or another ``program`` of that protocol), and the socket to it.

    The program gets the number of the file descriptor of its ``Place`` as its last argument. ``environment``: its
    environment variables; None: ours.
    """

    def __init__(self, program: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
        program = program or ("-I", "-S", str(WORKER))
        self._place = Place()
        self.socket, self.process = _started(
            [*program, str(self._place.file)], pass_fds=(self._place.file,), env=environment
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
        try:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            self.socket.sendall(_framed(json.dumps(request).encode()))
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


# ------------------------------------------------------------------- processes of this package

ROOT = str(Path(__file__).resolve().parents[3])
PATIENCE = 8.0  # for what is not the file's fault: see ``FramedChild.ask``
READY = {"ready": True}  # a request that every process answers, with itself
PROGRAM = "import sys; sys.path.insert(0, {root!r}); from {module} import main; main()"


class FramedChild:
    """One process that runs ``main()`` of ``module``, and the socket to it. Not thread-safe: one request at a time.

    One that hangs or dies is for the caller to close. last_words: what the process writes to stderr is kept, and its
    last line is the text of the ConnectionError.
    """

    def __init__(self, module: str, *, last_words: bool = False) -> None:
        self.closed = False
        self.socket, self.process = _started(
            ["-I", "-c", PROGRAM.format(root=ROOT, module=module)],
            subprocess.PIPE if last_words else subprocess.DEVNULL,
        )

    def ask(self, request: dict[str, Any], seconds: float, *, patience: float = 1.0) -> dict[str, Any]:
        """The reply. Raises TimeoutError, and ConnectionError where the process has ended.

        seconds: for all of it. patience: how many times as long a process may take that has not had the processor
        for ``seconds`` yet, because others have it; one that sleeps is not waited for.
        """
        time_left = _TimeLeft(self.process.pid, seconds, patience)
        self.socket.settimeout(seconds)
        try:
            self.socket.sendall(_framed(_encoded(request)))
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
        remaining = self._granted - (used - self._used)
        now = time.monotonic()
        if not working or remaining < 0.1 * self._granted or now >= self._last:
            raise TimeoutError
        self._end = min(now + remaining, self._last)


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
