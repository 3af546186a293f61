"""Work begun in a thread of its own, to be waited for later."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begun(work: Callable[[], T]) -> Callable[[], T]:
    """Start ``work``; the function given back waits for it, and returns or raises what it did.

    The thread is a daemon: an interrupted program does not wait for it.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised again by whoever waits
            future.set_exception(error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()
    return future.result
