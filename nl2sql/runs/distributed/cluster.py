"""A Ray cluster as one operation: a function over pieces of work, results as they come.

Ray does a task again whose worker or node died. An error that a task raised is the user's to see, and is not tried
again. Every task first compares its own code with the caller's: results of two versions never mix.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
from collections.abc import Callable, Generator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from nl2sql.errors import Nl2SqlError, UsageError, one_line
from nl2sql.machine import cores, install_command

T = TypeVar("T")

INSTALL = f"the ray executor needs Ray: {install_command('ray')} (or --executor local)"
RETRIES = 5  # of a shard whose worker or node died
STORE_BYTES = 100 * 2**20  # object store of a cluster started here; what travels is small
REACH_S = 5.0  # for an address to answer


def _check_reachable(address: str) -> None:
    """Ray itself waits a minute before it says that nobody is there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UsageError(f"--address {address!r}; expected HOST:PORT of a Ray cluster, e.g. 10.0.0.1:6379, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, error) from None


def _unreachable(address: str, error: Exception) -> UsageError:
    return UsageError(
        f"no Ray cluster answers at --address {address} ({one_line(error, 200)}); start one with: ray start --head "
        "--port 6379, and on each other machine: ray start --address HOST:6379"
    )


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
        else:
            size = {"num_cpus": workers or cores(), "object_store_memory": STORE_BYTES}
            ray.init(address="local", include_dashboard=False, **size, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        if address is not None:
            raise _unreachable(address, error) from None
        raise Nl2SqlError(f"Ray cannot be started here: {one_line(error, 300)}; use --executor local") from None


class RayCluster:
    """The cluster that this process is connected to; a task takes one CPU. The arguments are those of ``Ray``."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        if address is not None and address != "auto":
            _check_reachable(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read on import: Ray reports usage over the network
        try:
            import ray
        except ImportError:
            raise UsageError(INSTALL) from None
        self._ray: Any = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            _connect(ray, address, workers)

    def close(self) -> None:
        """Give the connection up, where this object made it. Idempotent."""
        if self._mine:
            self._ray.shutdown()
            self._mine = False

    def map(self, function: Callable[..., T], work: Sequence[tuple[Any, ...]]) -> Generator[tuple[int, T], None, None]:
        """(number, ``function(*work[number])``) of each piece as it is done; in no order, each exactly once.

        Raises what a piece raised where that is an Nl2SqlError, and an Nl2SqlError for what else went wrong. Closing
        the iterator, Ctrl-C too, cancels what is not done.
        """
        task = self._ray.remote(num_cpus=1, max_retries=RETRIES)(_in_worker)
        waiting: dict[Any, int] = {}
        try:
            for number, piece in enumerate(work):
                waiting[task.remote(code_of_package(), function, piece)] = number
            while waiting:
                done, _ = self._ray.wait(list(waiting), num_returns=1)
                for reference in done:
                    number = waiting.pop(reference)
                    yield number, self._result(reference)
        finally:
            # Python may drop an iterator that nobody closed after the connection is gone: its tasks ended then.
            for reference in waiting if self._ray.is_initialized() else ():
                self._ray.cancel(reference, force=True)

    def _result(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Nl2SqlError):
                raise error.cause from None
            raise Nl2SqlError(f"a Ray worker failed: {one_line(repr(error.cause), 300)}") from error
        except self._ray.exceptions.RayError as error:
            raise Nl2SqlError(
                f"a shard's worker died {RETRIES + 1} times: {one_line(error, 300)}; what is finished is kept"
            ) from error


def _in_worker(code: str, function: Callable[..., T], piece: tuple[Any, ...]) -> T:
    """In a worker process."""
    if code_of_package() != code:
        raise UsageError(
            f"the worker on {platform.node()} runs other code of nl2sql than this process; install the same version "
            "on all nodes and start Ray there anew"
        )
    return function(*piece)


@cache
def code_of_package() -> str:
    """Hash of the package's code and data files."""
    package = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for file in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".yaml", ".lark")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
