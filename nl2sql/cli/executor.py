"""The options of where work is carried out, for the commands that have them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.errors import UsageError

if TYPE_CHECKING:
    from nl2sql.runs.distributed import Cluster

ExecutorOption = Annotated[
    Literal["local", "ray"],
    typer.Option(help="ray: the work is cut up by database and done by the workers of a Ray cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="With ray: HOST:PORT of a running cluster, or auto; left out: one of this machine's cores."),
]


def opened(executor: str, address: str | None) -> AbstractContextManager[Cluster | None]:
    """The cluster of ``--executor`` and ``--address``, as a block; None for local."""
    if executor == "local":
        if address is not None:
            raise UsageError(f"--address {address} goes with --executor ray")
        return nullcontext(None)
    from nl2sql.runs.distributed import ray_cluster

    return ray_cluster(address)
