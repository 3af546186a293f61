"""The options of where work is carried out, for the commands that have them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.errors import UsageError

if TYPE_CHECKING:
    from nl2sql.runs.job import Executor

ExecutorOption = Annotated[
    Literal["local", "ray"],
    typer.Option(help="ray: the work is cut up by database and done by the workers of a Ray cluster."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="With ray: HOST:PORT of a running cluster, or auto; left out: one of this machine's cores."),
]


def open_executor(executor: str, address: str | None) -> AbstractContextManager[Executor]:
    """The executor of ``--executor`` and ``--address``, as a block. Raises UsageError where there is none."""
    if executor == "local":
        if address is not None:
            raise UsageError(f"--address {address} goes with --executor ray")
        from nl2sql.runs.job import LOCAL

        return nullcontext(LOCAL)
    from nl2sql.runs.distributed import Ray

    return Ray(address)
