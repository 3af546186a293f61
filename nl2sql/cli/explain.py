"""``nl2sql data explain``: is a statement valid on a database, and if not, what to do about it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

DATABASE = (
    "FILE.sqlite, packaged:NAME, duckdb:FILE, clickhouse:FOLDER, postgresql://USER@HOST/NAME or mysql://USER@HOST/NAME."
)
DatabaseOption = Annotated[str, typer.Option("--db", help=DATABASE)]


def explain(
    sql: Annotated[str, typer.Argument(help="One SELECT; '-': read from stdin.")],
    db: DatabaseOption,
    corpus: Annotated[Path | None, typer.Option(help="A corpus to take similar fixes from.")] = None,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Cosine that a similar fix must have.")] = 0.7,
    mend: Annotated[bool, typer.Option("--mend", help="Also try a repair that needs no model.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the response as JSON.")] = False,
) -> None:
    """Compile a statement without running it. An invalid one: its error, the violated constraint, an alternative,
    similar fixes. Exit code 1 when it is not valid.

    \b
    Examples:
      nl2sql data explain "SELECT nam FROM customers" --db packaged:scale_models
      nl2sql data explain "SELECT LAG(x) FROM t" --db duckdb:shop.duckdb --json
    """
    from nl2sql.agents.record import json_text
    from nl2sql.databases.engines import open_database
    from nl2sql.repair.analyzer import explanation

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if sql == "-" else sql
    with ExitStack() as stack:
        database = open_database(db)
        stack.callback(database.close)
        opened = None
        if corpus is not None:  # likeness needs numpy, which is no required package
            from nl2sql.repair.corpus import Corpus

            opened = stack.enter_context(Corpus(corpus))
        known = explanation(text, database, corpus=opened, threshold=threshold, mending=mend)
    if as_json:
        mended = {"mended": known.mended or None} if mend else {}
        print(json_text(known.response.model_dump(mode="json") | mended, indent=2))
    else:
        print("\n".join(known.lines()))
        if mend and not known.response.valid:
            print(f"mended: {known.mended or 'no repair without a model'}")
    if not known.response.valid:
        raise typer.Exit(1)
