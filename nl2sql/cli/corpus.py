"""``nl2sql corpus``: the fixes and queries that repair guidance draws on."""

from __future__ import annotations

import json
import sys
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
EmbeddingOption = Annotated[
    Literal["hashed-ngrams-3-5-128", "all-MiniLM-L6-v2"] | None,
    typer.Option(
        help="Embedding of a corpus that is made; hashed n-grams by default. One that is there keeps its own."
    ),
]
DEFAULT = Path("corpus.db")


@contextmanager
def _made(path: Path, embedding: str | None) -> Iterator[Corpus]:
    """The corpus, made if it is not there; one in which nothing was then stored does not stay after an error."""
    from nl2sql.repair.corpus import Corpus
    from nl2sql.repair.embeddings import embedder_named

    before, empty = path.exists(), False
    with Corpus(path, create=True, embedder=embedder_named(embedding) if embedding else None) as opened:
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
    embedding: EmbeddingOption = None,
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

    with _made(corpus, embedding) as opened:
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
        int | None, typer.Option(min=1, help="Keep so many of each dialect and category: the best by feedback.")
    ] = None,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Delete old rows, and all but the best of each category."""
    if days is None and per_category is None:
        raise UsageError("what is to be pruned? give --days N, --per-category N, or both")
    from nl2sql.repair.corpus import Corpus

    with Corpus(corpus) as opened:
        print(f"deleted {opened.prune(days=days, per_category=per_category)} rows")


@app.command("export")
def export_command(
    out: Annotated[Path | None, typer.Argument(help="A new file; left out: standard output.")] = None,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Write the corpus as JSON lines, without its vectors."""
    from nl2sql.machine import write_whole
    from nl2sql.repair.corpus import Corpus
    from nl2sql.repair.transfer import export_lines

    with Corpus(corpus) as opened:
        if out is None:
            sys.stdout.writelines(f"{line}\n" for line in export_lines(opened))
            return
        if out.exists():
            raise UsageError(f"{out} exists; name a new file")
        try:
            write_whole(out, (f"{line}\n" for line in export_lines(opened)), new=True)
        except OSError as error:
            raise UsageError(f"{out} cannot be written: {error.strerror}; name another file") from None


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A run folder (the repairs of its traces), or an exported file.")],
    any_split: Annotated[
        bool, typer.Option("--any-split", help="Also a run over test questions: never use this corpus on them.")
    ] = False,
    embedding: EmbeddingOption = None,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Take in the repairs of a run over a training or development split, or an exported corpus."""
    from nl2sql.repair.transfer import import_lines
    from nl2sql.runs.learning import import_run

    if not source.exists():
        raise UsageError(f"{source} does not exist; expected a run folder or a file that 'nl2sql corpus export' wrote")
    with _made(corpus, embedding) as opened:
        read, new = import_run(opened, source, any_split=any_split) if source.is_dir() else import_lines(opened, source)
    print(f"{read} found, {new} new")


@app.command("discover")
def discover_command(
    run: Annotated[list[Path] | None, typer.Argument(help="Run folders, whose failures are looked at.")] = None,
    least: Annotated[int, typer.Option(min=1, help="How often an error must have been met.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", envvar="NL2SQL_CORPUS", help="A corpus, whose fixes are looked at.")
    ] = None,
) -> None:
    """Errors that no pattern knows, the most frequent first, as stubs for a pattern file (docs/repair.md).

    \b
    Examples:
      nl2sql corpus discover --corpus fixes.db
      nl2sql corpus discover runs/spider-train --least 5 > stubs.yaml
    """
    if not run and corpus is None:
        raise UsageError("where are the failures? give run folders, --corpus FILE, or both")
    from nl2sql.repair import discover as discovery
    from nl2sql.repair.corpus import Corpus
    from nl2sql.runs.learning import failed_statements

    failures = [failed for folder in run or () for failed in failed_statements(folder)]
    if corpus is not None:
        with Corpus(corpus) as opened:
            failures += discovery.failures_of_corpus(opened)
    clusters = discovery.discover(failures, least)
    if as_json:
        stubs = [{"dialect": c.dialect, "count": len(c.failures), "stub": c.stub()} for c in clusters]
        print(json.dumps(stubs, ensure_ascii=False, indent=2))
        return
    known = f"{len(failures)} failures looked at; none that no pattern knows was met {least} times"
    print(discovery.stubs_text(clusters) or known)


@app.command()
def feedback(
    id: Annotated[str, typer.Argument(help="A fix or query, or the beginning of its id.")],
    verdict: Annotated[Literal["accept", "reject"], typer.Argument(help="accept or reject.")],
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Say whether a fix was of use. One rejected more often than accepted is shown no more."""
    from nl2sql.repair.corpus import Corpus

    with Corpus(corpus) as opened:
        opened.feedback(id, verdict == "accept")
    print(f"{verdict}ed")


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
