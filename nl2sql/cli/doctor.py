"""``nl2sql models doctor``: does everything work on this machine, and does the model compute what it should?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from nl2sql.cli.colour import coloured
from nl2sql.cli.options import DeviceOption, DtypeOption
from nl2sql.interfaces import DEFAULT_MODEL

if TYPE_CHECKING:
    from nl2sql.models.doctor import Check

MARKS = {"ok": ("ok  ", "green"), "warn": ("note", "yellow"), "fail": ("FAIL", "red")}


def doctor(
    model: Annotated[str, typer.Option("--model", "-m", help="What to check: as for nl2sql eval.")] = DEFAULT_MODEL,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check this machine and a local model: cache folder, sandbox, reused caches, batches, grammars, speed.

    Exit code 1 when a check fails; notes do not fail it.

    Examples:

      nl2sql models doctor

      nl2sql models doctor --model ./my-model --dtype bfloat16 --json
    """
    from nl2sql.cli.checks import machine_checks
    from nl2sql.models.doctor import check_model
    from nl2sql.models.spec import resolve_spec

    source = resolve_spec(model)
    results: list[Check] = []

    def show(checks: Iterator[Check]) -> None:
        for check in checks:
            results.append(check)
            if not as_json:
                print(f"{coloured(*MARKS[check.status], sys.stdout)}  {check.name:<24} {check.detail}", flush=True)

    show(machine_checks())
    if source.kind in ("scripted", "http", "plugin"):
        if not as_json:
            print(f"note  {'model':<24} {model} is no model of ours on this machine: not checked")
    else:
        show(check_model(source, device=device, dtype=dtype))
    failed = sum(check.status == "fail" for check in results)
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [check.to_dict() for check in results]}, indent=1))
    raise typer.Exit(1 if failed else 0)
