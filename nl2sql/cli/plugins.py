"""``nl2sql new plugins``: the parts that installed packages add to this harness."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def plugins_command(
    check: Annotated[
        bool, typer.Option("--check", help="Import each one, and say which cannot be; exit code 1 if any.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List controllers, tools, gates, rules, benchmarks, models and engines that installed packages add.

    \b
    Examples:
      nl2sql new plugins
      nl2sql new plugins --check --json
    """
    from nl2sql.config.plugins import KINDS, plugin, plugins
    from nl2sql.errors import UsageError

    listed = []
    for kind in KINDS:
        for name, entry in plugins(kind).items():
            package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""
            row = {"kind": kind, "name": name, "package": package, "object": entry.value}
            if check:
                try:
                    plugin(kind, name)
                except UsageError as error:
                    row["error"] = str(error)
            listed.append(row)
    if as_json:
        print(json.dumps(listed, indent=2, ensure_ascii=False))
    elif not listed:
        print("no installed package adds anything; docs/adding/plugin.md says how one does")
    else:
        columns = ("kind", "name", "package", "object", *(["error"] if check else []))
        table = [columns, *(tuple(row.get(column, "") for column in columns) for row in listed)]
        widths = [max(len(texts[at]) for texts in table) for at in range(len(columns))]
        for texts in table:
            print("  ".join(f"{text:{width}}" for text, width in zip(texts, widths, strict=True)).rstrip())
    if any("error" in row for row in listed):
        raise typer.Exit(1)
