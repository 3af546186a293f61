"""The process that executes hostile SQL: a stand-alone program, started as ``python -I -S worker.py``.

It imports nothing of nl2sql, talks over one socket (file descriptor 0) and ends when that closes. Messages both
ways are 8 bytes of big-endian length and UTF-8 JSON; a blob travels as ``{"b": hex}`` (no other SQLite value is an
object, so the tag cannot be forged). JSON rather than pickle or marshal: whatever the statement does to this
process, the parent only ever parses text.

Request: ``[mode, uri, version, sql, timeout_s, max_rows]`` with mode "run", "explain" (EXPLAIN QUERY PLAN) or
"steps" (the one row is the number of the virtual machine's steps).
Reply: ``["ok", columns, rows, truncated]``, or ``["error", exception, message]``.
Many statements at once: a JSON object, and several messages back (see ``worker_batch.py``).

A small file that has not changed for a while and that nobody is writing to is read into memory once several
statements ask for it (``Sandbox.load``); the same layers hold there, and the file is opened for reading only.

What one statement may do is bounded in ``sandbox.py``. Of the process: RLIMIT_FSIZE is 0, so that it cannot grow
any file; RLIMIT_AS bounds its memory; SIGALRM ends it where it outlives a deadline by far (an orphan's last resort:
the parent kills sooner).
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import sqlite3
import struct
import sys
import time
from collections.abc import Callable
from urllib.parse import unquote

try:
    import resource
except ImportError:  # not POSIX: the other layers remain
    resource = None  # type: ignore[assignment]

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/")[0])
    import worker_batch as batches  # type: ignore[import-not-found]
    from sandbox import ENCODER, Rejected, Sandbox, single_statement  # type: ignore[import-not-found]
else:
    from nl2sql.databases.sqlite import worker_batch as batches
    from nl2sql.databases.sqlite.sandbox import ENCODER, Rejected, Sandbox, single_statement

__all__ = ["Rejected", "Sandbox", "receive", "restrict_process", "send", "single_statement"]

PROCESS_BYTES = 2 * 2**30  # address space of the process
MAX_CONNECTIONS = 32  # each holds a file open and a page cache
MEMORY_BYTES = 16 * 2**20  # the largest file that is read into memory
MEMORY_BYTES_PER_STATEMENT = 2**20  # reading in costs as much as some statements on the file
MEMORY_CONNECTIONS = 4  # so that what is in memory stays small beside HEAP_BYTES
SETTLED_SECONDS = 2.0  # a file changed more recently may change again within one tick of its time stamp
LAST_RESORT_SECONDS = 5.0  # past the deadline: the parent kills sooner, so only an orphan gets there
PLACE = struct.Struct("<qq")  # file and index of the statement that is being executed; -1, -1: none
# Rows between two searches for cycles: every row is an object to Python's collector, which looks at each 700th by
# default, and rows of plain values form no cycles.
GARBAGE = 50_000


def restrict_process(file_bytes: int = 0) -> None:
    """Limits of the whole process; where a platform lacks one, the other layers remain.

    file_bytes: the size up to which it may grow a file.
    """
    if resource is None:
        return
    for name, value in (("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", file_bytes), ("RLIMIT_AS", PROCESS_BYTES)):
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, OSError, ValueError):
            continue


def receive(size: int) -> bytes:
    """Exactly ``size`` bytes from the parent; fewer when it has gone."""
    data = bytearray()
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def send(payload: bytes) -> None:
    view = memoryview(len(payload).to_bytes(8, "big") + payload)
    while view:
        view = view[os.write(0, view) :]


class OpenDatabases:
    """The open databases of this process, the youngest last; what is in memory is limited by itself."""

    def __init__(self) -> None:
        self.open: dict[str, Sandbox] = {}
        self.asked: dict[str, int] = {}  # statements so far, since the file changed

    def get(self, uri: str, version: str, statements: int = 1) -> Sandbox:
        """The sandbox for a file. ``statements``: about how many are to come. Raises sqlite3.Error."""
        sandbox = self.open.pop(uri, None)
        if sandbox is not None and sandbox.version != version:
            sandbox.close()
            self.asked.pop(uri, None)
            sandbox = None
        if sandbox is None or not sandbox.in_memory:
            asked = self.asked[uri] = self.asked.pop(uri, 0) + 1
            if (asked + statements) > 2 and (
                image := small_file(uri, (asked + statements) * MEMORY_BYTES_PER_STATEMENT)
            ):
                sandbox = self._in_memory(image, version) or sandbox
            if len(self.asked) > 1000:
                del self.asked[next(iter(self.asked))]
        if sandbox is None:
            sandbox = Sandbox(uri, version)
        self.open[uri] = sandbox
        if len(self.open) > MAX_CONNECTIONS:
            self.open.pop(next(iter(self.open))).close()
        return sandbox

    def _in_memory(self, image: bytes, version: str) -> Sandbox | None:
        resident = [uri for uri, sandbox in self.open.items() if sandbox.in_memory]
        for uri in resident[: max(0, len(resident) - MEMORY_CONNECTIONS + 1)]:
            self.open.pop(uri).close()
        sandbox = Sandbox(":memory:", "")
        if sandbox.load(image, version):
            return sandbox
        sandbox.close()
        return None

    def clear(self) -> None:
        for sandbox in self.open.values():
            sandbox.close()
        self.open.clear()


def small_file(uri: str, limit: int) -> bytes | None:
    """The bytes of a database file of at most ``limit`` bytes; None where it is larger, has changed just now, has a
    journal beside it (somebody writes) or is in WAL mode: then SQLite has to read it, under its own locks."""
    path, _, options = uri.removeprefix("file://").partition("?")
    if not uri.startswith("file:///") or options != "mode=ro":
        return None
    path = unquote(path, errors="surrogateescape")
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            before = os.fstat(handle)
            if not 512 <= before.st_size <= min(limit, MEMORY_BYTES) or time.time() - before.st_mtime < SETTLED_SECONDS:
                return None
            image = os.read(handle, before.st_size)
            after = os.fstat(handle)
        finally:
            os.close(handle)
        if any(os.access(path + suffix, os.F_OK) for suffix in ("-journal", "-wal")):
            return None
    except OSError:
        return None
    changed = (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size)
    whole = len(image) == before.st_size and image.startswith(b"SQLite format 3\0") and image[18:20] == b"\1\1"
    return image if whole and not changed else None


def answer_statement(request: list, databases: OpenDatabases) -> bytes:
    """Execute one request; every failure becomes an "error" reply."""
    mode, uri, version, sql, timeout_s, max_rows = request
    deadline = time.monotonic() + timeout_s
    try:
        statement = single_statement(sql)
        if mode == "explain":
            statement = "EXPLAIN QUERY PLAN " + statement
        sandbox = databases.get(uri, version)
        if mode == "steps":
            return json.dumps(["ok", ["steps"], [[sandbox.steps(statement, deadline, max_rows)]], False]).encode()
        return sandbox.run(statement, deadline, max_rows)
    except FAILURES as error:
        return reply_error(*error_parts(error))
    except MemoryError:
        databases.clear()
        return reply_error("memory", "out of memory")


FAILURES = (Rejected, sqlite3.Error, sqlite3.Warning, ValueError)  # ValueError: NUL bytes, lone surrogates


def error_parts(error: BaseException) -> tuple[str, str]:
    kind = error.kind if isinstance(error, Rejected) else type(error).__name__
    return kind, str(error)[:2000]


class Alarm:
    """SIGALRM ends this process where a statement outlives its deadline by far: the parent, who kills sooner, has gone.

    Set anew once a second at most: a system call per statement costs as much as a short statement.
    """

    def __init__(self, timeout_s: float) -> None:
        self.seconds = timeout_s + LAST_RESORT_SECONDS
        self.since: float | None = None

    def on(self, now: float) -> None:
        if self.since is None or now - self.since > 1.0:
            signal.setitimer(signal.ITIMER_REAL, self.seconds)
            self.since = now

    def off(self) -> None:
        if self.since is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.since = None


def answer_batch(request: dict, databases: OpenDatabases, place: mmap.mmap | None = None) -> None:
    """Execute a batch; its messages are sent as it goes. ``place``: memory that the parent reads if this ends badly."""
    statements: dict[str, str] = {}
    timeout_s, max_rows = request["timeout"], request["max_rows"]
    alarm = Alarm(timeout_s)

    def on_file(uri: str, version: str, count: int) -> Callable[[str, float], tuple]:
        sandbox: Sandbox | None = None

        def fetch(sql: str, now: float) -> tuple:
            nonlocal sandbox
            alarm.on(now)
            try:
                if sql not in statements:
                    statements[sql] = single_statement(sql)
                if sandbox is None:
                    sandbox = databases.get(uri, version, count)
                return sandbox.rows(statements[sql], now + timeout_s, max_rows)
            except FAILURES as error:
                return error_parts(error)

        return fetch

    def mark(file: int, index: int) -> None:
        if place is not None:
            PLACE.pack_into(place, 0, file, index)

    def tell(text: str) -> None:
        alarm.off()  # what follows is the parent's time
        send(text.encode("utf-8", "replace"))

    try:
        batches.Batch(request, on_file, mark, tell, ENCODER.encode).work()
    finally:
        alarm.off()


def reply_error(kind: str, message: str) -> bytes:
    return json.dumps(["error", kind, message]).encode()


def main() -> None:
    restrict_process()
    gc.freeze()
    gc.set_threshold(GARBAGE)
    databases = OpenDatabases()
    place = mmap.mmap(int(sys.argv[1]), PLACE.size) if len(sys.argv) > 1 else None
    send(b"[]")  # ready: start-up is not part of anybody's deadline
    while len(header := receive(8)) == 8:
        size = int.from_bytes(header, "big")
        body = receive(size)
        if len(body) < size:
            break
        request = json.loads(body)
        if isinstance(request, dict):
            answer_batch(request, databases, place)
            continue
        signal.setitimer(signal.ITIMER_REAL, request[4] + LAST_RESORT_SECONDS)
        reply = answer_statement(request, databases)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(reply)


if __name__ == "__main__":
    main()
