"""A SQLite file as a ``Database``: statements executed in a bounded pool of killable worker processes.

``SqliteDatabase("shop.sqlite").run("SELECT 1")`` gives a RunResult with columns and rows.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nl2sql.databases.schema import Descriptions, Schema, described, first_rows, introspect
from nl2sql.databases.sqlite.disk import OPEN_S
from nl2sql.databases.sqlite.files import (
    WalCopies,
    check_is_file,
    fingerprint_sqlite,
    read_only,
    reason,
    shown_path,
    unusable,
)
from nl2sql.databases.sqlite.process import (
    GRACE_S,
    MAX_SQL_CHARS,
    SEND_S,
    Worker,
    WorkerGone,
    check_bounds,
    failed_run,
    forgets_after_fork,
    run_result,
)
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.interfaces import RunResult, content_key

__all__ = ["QueryPool", "SqliteDatabase", "default_pool", "fingerprint_sqlite"]


# ----------------------------------------------------------------------------------------- the pool
# ``QueryPool`` keeps the workers (``worker.py``: the sandbox and its layers are described there);
# the parent enforces every deadline from outside as well, so no statement can hang or crash the
# caller. Needs a POSIX system.


class QueryPool:
    """Executes SQL on SQLite files in ``workers`` killable processes; thread-safe; start-up is lazy.

    A worker keeps its connections open between statements and reopens a file whose size, time or inode changed.
    Calls beyond ``workers`` wait for a free one; waiting does not count against their ``timeout_s``.
    A stuck worker is killed and replaced, and only the statement that it was executing is lost.
    """

    def __init__(self, workers: int = 2) -> None:
        if workers < 1:
            raise UsageError(f"a query pool needs at least 1 worker, got {workers}")
        self.workers = workers
        self._closed = False
        self._reset()
        forgets_after_fork(self)

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._starting = 0
        self._copies = WalCopies()

    def __enter__(self) -> QueryPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, path: str | Path, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult:
        """Execute one SELECT on the file ``path``. Never raises for what the statement does: failure is data.

        timeout_s: seconds of execution; after 0.25 s more the worker is killed.
        max_rows: rows returned at most; when there are more, ``truncated`` is True and ``success`` stays True: the
        caller decides what a cut result is worth.
        """
        return self._request("run", os.fspath(path), sql, timeout_s, max_rows)

    def explain(self, path: str | Path, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        """Compile one SELECT without running it; rows of ``EXPLAIN QUERY PLAN``. Errors as from ``run``."""
        return self._request("explain", os.fspath(path), sql, timeout_s, 1000)

    def steps(self, path: str | Path, sql: str, *, timeout_s: float = 300.0, max_rows: int = 100_000) -> RunResult:
        """Execute one SELECT; the one row is the number of steps of SQLite's virtual machine.

        It is the same whenever that SQLite executes it on that file. Counting is several times
        slower than ``run``. Errors as from ``run``.
        """
        return self._request("steps", os.fspath(path), sql, timeout_s, max_rows)

    def readable(self, path: str) -> tuple[str, str]:
        """(URI, version) of the file to open for ``path``. Raises OSError, sqlite3.Error."""
        return self._copies.readable(path)

    def converse(
        self,
        request: dict[str, Any],
        silence: Callable[[list[Any] | None], float],
        stop: threading.Event | None = None,
    ) -> Iterator[list[Any]]:
        """Send ``request`` to a worker and yield its messages up to the one that starts with "end".

        ``silence(last message)``: seconds to wait for the next. Raises TimeoutError past that, WorkerGone when the
        process ends, both with ``place``, and Interrupted once ``stop`` is set; the worker is then replaced.
        """
        worker = self._take(request["files"][0][0])
        healthy = False
        message: list[Any] | None = None
        try:
            worker.tell(request, time.monotonic() + SEND_S)
            while message is None or message[0] != "end":
                message = worker.hear(time.monotonic() + silence(message), stop)
                healthy = message[0] == "end"
                yield message
        except (TimeoutError, WorkerGone) as error:
            error.place = worker.place()  # type: ignore[union-attr]
            raise
        finally:
            self._give_back(worker, healthy)

    def close(self) -> None:
        """End all workers; a statement still running gets ``worker_died``. Idempotent."""
        with self._condition:
            self._closed = True
            idle, busy = self._idle, self._all.difference(self._idle)
            self._idle, self._all = [], set()
            self._condition.notify_all()
        for worker in idle:
            worker.kill()
        for worker in busy:  # the thread that waits for it sees it end, and cleans up
            worker.process.kill()
        self._copies.close()

    def _request(self, mode: str, path: str, sql: str, timeout_s: float, max_rows: int) -> RunResult:
        check_bounds(timeout_s, max_rows)
        if len(sql) > MAX_SQL_CHARS:
            return failed_run("too_large", f"the SQL has {len(sql)} characters; at most {MAX_SQL_CHARS} are allowed")
        try:
            uri, version = self._copies.readable(path)
        except (OSError, sqlite3.Error) as error:
            return failed_run("other", f"database {shown_path(path)} cannot be read: {reason(error)}")
        worker = self._take(uri)
        started = time.monotonic()
        healthy = False
        try:
            reply = worker.ask([mode, uri, version, sql, timeout_s, max_rows], started + timeout_s + GRACE_S)
            healthy = True
        except TimeoutError:
            return failed_run("timeout", f"no result within {timeout_s:g} s", time.monotonic() - started)
        except WorkerGone as error:
            message = f"the process that executed the statement died ({error}); other statements are not affected"
            return failed_run("worker_died", message, time.monotonic() - started)
        finally:
            self._give_back(worker, healthy)
        return run_result(reply, timeout_s, time.monotonic() - started)

    def _take(self, uri: str) -> Worker:
        """A living idle worker, by preference one that has ``uri`` open; a new one while there are too few."""
        with self._condition:
            while True:
                if self._closed:
                    raise UsageError("this query pool is closed; make a new QueryPool")
                while self._idle:
                    index = next((i for i, w in enumerate(self._idle) if uri in w.uris), len(self._idle) - 1)
                    worker = self._idle.pop(index)
                    if worker.alive():
                        worker.uris.add(uri)
                        return worker
                    self._all.discard(worker)
                    worker.kill()
                if len(self._all) + self._starting < self.workers:
                    self._starting += 1
                    break
                self._condition.wait()
        try:
            worker = Worker()
            worker.uris.add(uri)
            with self._condition:
                self._all.add(worker)
            return worker
        except (OSError, WorkerGone) as error:
            raise DatabaseError(f"cannot start a query worker with {sys.executable}: {reason(error)}") from None
        finally:
            with self._condition:
                self._starting -= 1
                self._condition.notify()

    def _give_back(self, worker: Worker, healthy: bool) -> None:
        with self._condition:
            keep = healthy and not self._closed
            if keep:
                self._idle.append(worker)
            else:
                self._all.discard(worker)
            self._condition.notify()
        if not keep:
            worker.kill()

    def forget_after_fork(self) -> None:
        """In a forked child: the workers are the parent's."""
        for worker in self._all:
            worker.forget()
        self._reset()


# ------------------------------------------------------------------------------------------------- default pool

_default_lock = threading.Lock()
_default: QueryPool | None = None


def default_pool() -> QueryPool:
    """The pool shared by whoever names none: made at first use, closed at exit, made anew after a fork."""
    global _default
    with _default_lock:
        if _default is None or _default._closed:
            _default = QueryPool(workers=min(max(os.cpu_count() or 2, 2), 8))
            atexit.register(_default.close)
        return _default


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ------------------------------------------------------------------------------------- the database


class SqliteDatabase:
    """A SQLite file as a ``Database``. Model-written SQL runs in ``pool`` (default: the shared one).

    origin: the data file, or the folder of such, that the file is a copy of. descriptions: what is said of its columns.
    Raises UsageError for a path that is not there or not a file, DatabaseError for a file that is not a SQLite
    database, is broken, unreadable, or holds no tables.
    """

    dialect = "sqlite"

    def __init__(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        pool: QueryPool | None = None,
        origin: Path | None = None,
        descriptions: Descriptions | None = None,
    ) -> None:
        self.path, self.origin, self.descriptions = Path(path), origin, descriptions or {}
        self.name = name or self.path.stem
        self._pool = pool
        self._schema: Schema | None = None
        self._check()
        self.path = self.path.absolute()  # the program may go to another folder

    def _check(self) -> None:
        check_is_file(self.path)
        if not self.schema().tables:
            raise DatabaseError(f"database {shown_path(self.path)} has no tables")

    def __enter__(self) -> SqliteDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pool(self) -> QueryPool:
        return self._pool or default_pool()

    @property
    def fingerprint(self) -> str:
        """Of the file's content, and of what is said of its columns."""
        of_file = fingerprint_sqlite(self.path)
        return content_key(of_file, sorted(self.descriptions.items())) if self.descriptions else of_file

    def schema(self) -> Schema:
        """Tables and views of the file, read once: a schema changed later needs a new SqliteDatabase."""
        if self._schema is None:
            try:
                with read_only(self.path) as connection:
                    self._schema = described(introspect(connection), self.descriptions)
            except (OSError, sqlite3.Error) as error:
                raise unusable(self.path, error) from None
        return self._schema

    def sample(self, table: str, n: int = 3) -> list[dict[str, Any]]:
        """The first ``n`` rows of ``table`` as dicts. Raises UsageError for an unknown table or a negative ``n``."""
        return first_rows(self, table, n, OPEN_S)

    def explain(self, sql: str, *, timeout_s: float = 5.0) -> RunResult:
        return self.pool.explain(self.path, sql, timeout_s=timeout_s)

    def run(self, sql: str, *, timeout_s: float = 30.0, max_rows: int = 10_000) -> RunResult:
        return self.pool.run(self.path, sql, timeout_s=timeout_s, max_rows=max_rows)

    def close(self) -> None:
        """Nothing to release: connections belong to the pool, which whoever made it closes."""
