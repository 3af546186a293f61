"""``nl2sql corpus``: the fixes and queries that repair guidance draws on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.cli.group import Group
from nl2sql.errors import Nl2SqlError, UsageError

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus

app = typer.Typer(cls=Group, rich_markup_mode=None)

CorpusOption = Annotated[Path, typer.Option("--corpus", envvar="NL2SQL_CORPUS", help="The corpus file.")]
Dialect = Literal["sqlite", "clickhouse", "duckdb", "postgres", "mysql"]
DialectOption = Annotated[Dialect, typer.Option(help="Whose SQL it is.")]
DEFAULT = Path("corpus.db")


@contextmanager
def _made(path: Path) -> Iterator[Corpus]:
    """The corpus, made if it is not there; one in which nothing was then stored does not stay after an error."""
    from nl2sql.repair.corpus import Corpus

    before, empty = path.exists(), False
    with Corpus(path, create=True) as opened:
        try:
            yield opened
        except Nl2SqlError:
            empty = not before and next(opened.rows(), None) is None
            raise
        finally:
            opened.close()
            if empty:
                path.unlink(missing_ok=True)


@app.command()
def add(
    sql: Annotated[str, typer.Argument(help="The query that works.")],
    description: Annotated[str, typer.Option(help="What it answers or shows.")] = "",
    failed: Annotated[str | None, typer.Option(help="The query that failed before: stores a fix.")] = None,
    error: Annotated[str | None, typer.Option(help="The error of the query that failed.")] = None,
    category: Annotated[str | None, typer.Option(help="A category; of a fix: found from its error.")] = None,
    dialect: DialectOption = "sqlite",
    source: Annotated[str, typer.Option(help="Where it comes from.")] = "cli",
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Store a query that works, or with --failed and --error a fix. Makes the corpus if it is not there.

    \b
    Examples:
      nl2sql corpus add "SELECT COUNT(*) FROM orders" --description "Number of orders"
      nl2sql corpus add "SELECT name FROM t" --failed "SELECT nam FROM t" --error "no such column: nam"
    """
    if (failed is None) != (error is None):
        raise UsageError("--failed and --error go together: the query that failed, and what the engine said")
    from nl2sql.repair.analyzer import ErrorAnalyzer

    with _made(corpus) as opened:
        if failed is None or error is None:
            id = uuid.uuid4()
            stored = opened.store_query(id, sql, description, category, dialect=dialect, source=source)
            print(f"stored query {id}" if stored else "this query is in the corpus already")
            return
        kind = category or ErrorAnalyzer(dialect).analyze_error(error, failed).category
        made = opened.store_fix(error, failed, sql, description, category=kind, dialect=dialect, source=source)
        print(f"stored fix {made} ({kind})" if made else "this fix is in the corpus already")


@app.command()
def search(
    error: Annotated[str, typer.Argument(help="An error message.")],
    failed: Annotated[str, typer.Option(help="The query that failed.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100, help="Fixes to show.")] = 3,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Cosine that a fix must have.")] = 0.0,
    dialect: DialectOption = "sqlite",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Fixes of similar failures, and similar queries that worked, closest first."""
    from nl2sql.repair.corpus import Corpus

    with Corpus(corpus) as opened:
        fixes = opened.search(error, failed, dialect=dialect, limit=limit, threshold=threshold)
    if as_json:
        print(json.dumps([fix.model_dump(mode="json") for fix in fixes], ensure_ascii=False, indent=2))
        return
    for fix in fixes:
        print(f"{fix.similarity_score:.3f}  {fix.query_id}  {' '.join(fix.description.split())}")
        print(f"       {' '.join(fix.sql.split())}")
    if not fixes:
        print("no fix is as close as that")


@app.command()
def prune(
    days: Annotated[float | None, typer.Option(min=0, help="Delete what is older.")] = None,
    per_category: Annotated[
        int | None, typer.Option(min=1, help="Keep so many of each dialect and category: the youngest.")
    ] = None,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Delete old rows, and all but the youngest of each category."""
    if days is None and per_category is None:
        raise UsageError("what is to be pruned? give --days N, --per-category N, or both")
    from nl2sql.repair.corpus import Corpus

    with Corpus(corpus) as opened:
        print(f"deleted {opened.prune(days=days, per_category=per_category)} rows")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A run folder: the repairs of its traces.")],
    any_split: Annotated[
        bool, typer.Option("--any-split", help="Also a run over test questions: never use this corpus on them.")
    ] = False,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Take in the repairs of a run over a training or development split."""
    from nl2sql.runs.export import import_run

    with _made(corpus) as opened:
        read, new = import_run(opened, source, any_split=any_split)
    print(f"{read} found, {new} new")


@app.command()
def stats(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, corpus: CorpusOption = DEFAULT
) -> None:
    """How much the corpus holds."""
    from nl2sql.repair.corpus import Corpus

    with Corpus(corpus) as opened:
        counts = opened.stats()
    if as_json:
        print(json.dumps(counts, indent=2))
        return
    print(f"{counts['fixes']} fixes of {counts['error_types']} types of error, {counts['queries']} queries")
    for name, count in counts["by_dialect_and_category"].items():
        print(f"  {name}: {count}")
    print(f"vectors: {counts['embedding']}; {counts['bytes']:,} bytes")
