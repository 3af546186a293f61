"""``nl2sql explain``: is a statement valid on a database, and if not, what to do about it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--db",
        help="FILE.sqlite, packaged:NAME, duckdb:FILE, clickhouse:FOLDER, postgresql://USER@HOST/NAME or "
        "mysql://USER@HOST/NAME.",
    ),
]


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
      nl2sql explain "SELECT nam FROM customers" --db packaged:scale_models
      nl2sql explain "SELECT LAG(x) FROM t" --db duckdb:shop.duckdb --json
    """
    from nl2sql.databases.engines import open_database
    from nl2sql.repair.analyzer import ErrorAnalyzer
    from nl2sql.repair.corpus import Corpus
    from nl2sql.repair.deterministic import mend as repaired
    from nl2sql.repair.dry_run import engine_version, explain_analyze

    text = sys.stdin.read() if sql == "-" else sql
    with ExitStack() as stack:
        database = open_database(db)
        stack.callback(database.close)
        opened = stack.enter_context(Corpus(corpus)) if corpus is not None else None
        version = engine_version(database)
        analyzer = ErrorAnalyzer(database.dialect, opened, threshold=threshold, version=version)
        stack.callback(analyzer.close)
        response = explain_analyze(text, database, analyzer=analyzer)
        better = (
            repaired(text, response.error or "", database, database.schema()) if mend and not response.valid else None
        )
    if as_json:
        print(response.model_dump_json(indent=2))
    elif response.valid:
        print("valid")
    else:
        guidance = response.repair_guidance
        print(f"error: {response.error}")
        if guidance is not None:
            print(f"category: {guidance.category}")
            print(f"violated constraint: {guidance.violated_constraint or 'N/A'}")
            print(f"alternative approach: {guidance.alternative_approach or 'N/A'}")
            for fix in guidance.similar_fixes:
                print(f"similar fix ({fix.similarity_score:.3f}): {' '.join(fix.sql.split())}")
    if mend and not response.valid and not as_json:
        print(f"mended: {better or 'no repair without a model'}")
    if not response.valid:
        raise typer.Exit(1)
