"""Processes that build and check suites, several tasks at once; a task that hangs or dies loses only itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from nl2sql.databases.sqlite.framed_child import FramedChild
from nl2sql.errors import DatabaseError

TASK_S = 120.0  # a task that takes longer is given up and its process killed


class SuiteTask:
    """One request. ``source``: what names the database; ``read``: reads it when a process has not seen it yet."""

    def __init__(self, source: str, read: Callable[[], dict[str, Any]], request: dict[str, Any]) -> None:
        self.source, self.read, self.request = source, read, request


def run_tasks(tasks: Sequence[SuiteTask], workers: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
    """(index, reply) of every task as they finish; ``{"error": ...}`` for one that failed."""
    groups: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        groups.setdefault(task.source, []).append(index)
    # database by database; a large group is cut, so that no process is left with it at the end
    queue = [group[at : at + 12] for group in groups.values() for at in range(0, len(group), 12)]
    local = threading.local()
    made: list[FramedChild] = []

    done: SimpleQueue[tuple[int, dict[str, Any] | BaseException]] = SimpleQueue()
    stopped = threading.Event()

    def run_group(group: list[int]) -> None:
        for index in group:
            if stopped.is_set():
                return
            try:
                done.put((index, run_task(tasks[index])))
            except BaseException as error:
                done.put((index, error))
                raise

    def run_task(task: SuiteTask) -> dict[str, Any]:
        worker: FramedChild | None = getattr(local, "worker", None)
        if worker is None:
            worker = local.worker = FramedChild("nl2sql.eval.suites.child", last_words=True)
            local.source = ""  # the database that it has read
            made.append(worker)
            if stopped.is_set():  # whoever stops closes what is in ``made`` already
                worker.close()
        try:
            data = None if local.source == task.source else task.read()
            reply = worker.ask({"source": task.source, "data": data, **task.request}, TASK_S)
            local.source = task.source
            return reply
        except (TimeoutError, ConnectionError) as error:
            local.worker = None
            worker.close()
            died = f"the building process died: {error}".removesuffix(": ")
            return {"error": f"given up after {TASK_S:g} s" if isinstance(error, TimeoutError) else died}
        except DatabaseError as error:  # of ``task.read``
            return {"error": str(error)}

    pool = ThreadPoolExecutor(max(1, min(workers, len(queue) or 1)))
    try:
        for group in queue:
            pool.submit(run_group, group)
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
