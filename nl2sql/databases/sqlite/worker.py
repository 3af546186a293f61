"""The process that executes hostile SQL: a stand-alone program, started as ``python -I -S worker.py``.

It imports nothing of nl2sql, talks over one socket (file descriptor 0) and ends when that closes. Messages both
ways are 8 bytes of big-endian length and UTF-8 JSON; a blob travels as ``{"b": hex}`` (no other SQLite value is an
object, so the tag cannot be forged). JSON rather than pickle or marshal: whatever the statement does to this
process, the parent only ever parses text.

Request: ``[mode, uri, version, sql, timeout_s, max_rows]`` with mode "run", "explain" (EXPLAIN QUERY PLAN) or
"steps" (the one row is the number of the virtual machine's steps).
Reply: ``["ok", columns, rows, truncated]``, or ``["error", exception, message]``.
Many statements at once: a JSON object, and several messages back (see ``worker_batch.py``).

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
    """The open databases of this process, the youngest last."""

    def __init__(self) -> None:
        self.open: dict[str, Sandbox] = {}

    def get(self, uri: str, version: str) -> Sandbox:
        """The sandbox for a file. Raises sqlite3.Error."""
        sandbox = self.open.pop(uri, None)
        if sandbox is not None and sandbox.version != version:
            sandbox.close()
            sandbox = None
        self.open[uri] = sandbox or Sandbox(uri, version)
        if len(self.open) > MAX_CONNECTIONS:
            self.open.pop(next(iter(self.open))).close()
        return self.open[uri]

    def clear(self) -> None:
        for sandbox in self.open.values():
            sandbox.close()
        self.open.clear()


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

    def on_file(uri: str, version: str) -> Callable[[str, float], tuple]:
        sandbox: Sandbox | None = None

        def fetch(sql: str, now: float) -> tuple:
            nonlocal sandbox
            alarm.on(now)
            try:
                if sql not in statements:
                    statements[sql] = single_statement(sql)
                if sandbox is None:
                    sandbox = databases.get(uri, version)
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
