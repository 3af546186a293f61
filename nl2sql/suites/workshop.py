"""Processes that build and check suites, several tasks at once; a task that hangs or dies loses only itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from nl2sql.errors import DatabaseError

TASK_S = 120.0  # a task that takes longer is given up and its process killed
ROOT = str(Path(__file__).resolve().parents[2])
PROGRAM = "import sys; sys.path.insert(0, {root!r}); from nl2sql.suites.child import main; main()"


class _Worker:
    """One child process and the socket to it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-c", PROGRAM.format(root=ROOT)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent
            )
        self.source = ""  # the database that it has read

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply. Raises TimeoutError and ConnectionError."""
        deadline = time.monotonic() + TASK_S
        payload = json.dumps(request, default=lambda value: {"b": value.hex()}).encode("utf-8", "replace")
        self.socket.settimeout(TASK_S)
        self.socket.sendall(len(payload).to_bytes(8, "big") + payload)
        size = int.from_bytes(self._receive(8, deadline), "big")
        reply = json.loads(self._receive(size, deadline), object_hook=_bytes)
        assert isinstance(reply, dict), reply
        return reply

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
        return f"the building process died{': ' + lines[-1] if lines else ''}"

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        if self.process.stderr:
            self.process.stderr.close()
        self.process.wait()


class Task:
    """One request. ``source``: what names the database; ``read``: reads it when a process has not seen it yet."""

    def __init__(self, source: str, read: Callable[[], dict[str, Any]], request: dict[str, Any]) -> None:
        self.source, self.read, self.request = source, read, request


def run_tasks(tasks: Sequence[Task], workers: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, reply) of every task as they finish; ``{"error": ...}`` for one that failed."""
    groups: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        groups.setdefault(task.source, []).append(index)
    # database by database; a large group is cut, so that no process is left with it at the end
    queue = [group[at : at + 12] for group in groups.values() for at in range(0, len(group), 12)]
    local = threading.local()
    made: list[_Worker] = []

    done: SimpleQueue[tuple[int, dict[str, Any] | BaseException]] = SimpleQueue()
    stopped = threading.Event()

    def one_group(group: list[int]) -> None:
        for index in group:
            if stopped.is_set():
                return
            try:
                done.put((index, one(tasks[index])))
            except BaseException as error:
                done.put((index, error))
                raise

    def one(task: Task) -> dict[str, Any]:
        worker: _Worker | None = getattr(local, "worker", None)
        if worker is None:
            worker = local.worker = _Worker()
            made.append(worker)
        try:
            data = None if worker.source == task.source else task.read()
            reply = worker.ask({"source": task.source, "data": data, **task.request})
            worker.source = task.source
            return reply
        except (TimeoutError, ConnectionError) as error:
            local.worker = None
            worker.close()
            slow = isinstance(error, TimeoutError)
            return {"error": f"given up after {TASK_S:g} s" if slow else str(error)}
        except DatabaseError as error:  # of ``task.read``
            return {"error": str(error)}

    pool = ThreadPoolExecutor(max(1, min(workers, len(queue) or 1)))
    try:
        for group in queue:
            pool.submit(one_group, group)
        for _ in tasks:  # one by one, so that whoever is stopped has kept what was ready
            index, reply = done.get()
            if isinstance(reply, BaseException):
                raise reply
            yield index, reply
    finally:
        stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in made:
            worker.close()


def _bytes(tagged: dict[str, Any]) -> Any:
    return bytes.fromhex(tagged["b"]) if len(tagged) == 1 and "b" in tagged else tagged
