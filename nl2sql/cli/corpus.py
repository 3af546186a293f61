"""``nl2sql corpus``: the fixes that repair guidance draws on, and what each level of guidance repairs."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.cli import options as opt
from nl2sql.cli.options import Group
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import DEFAULT_MODEL

if TYPE_CHECKING:
    from nl2sql.repair.corpus import Corpus

app = typer.Typer(cls=Group, rich_markup_mode=None)

CorpusOption = Annotated[Path, typer.Option("--corpus", envvar="NL2SQL_CORPUS", help="The corpus file.")]
DialectOption = Annotated[
    Literal["sqlite", "clickhouse", "duckdb", "postgres", "mysql"], typer.Option(help="Whose SQL it is.")
]
DEFAULT = Path("corpus.db")
ARMS = "deterministic,error,patterns"


def _opened(path: Path, create: bool = False) -> Corpus:
    from nl2sql.repair.corpus import Corpus

    return Corpus(path, create=create)


@contextmanager
def _made(path: Path) -> Iterator[Corpus]:
    """The corpus, made if it is not there; one in which nothing was then stored does not stay after an error."""
    before, empty = path.exists(), False
    with _opened(path, create=True) as opened:
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
    as_json: opt.Json = False,
    corpus: CorpusOption = DEFAULT,
) -> None:
    """Fixes of similar failures, and similar queries that worked, closest first."""
    with _opened(corpus) as opened:
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
    with _opened(corpus) as opened:
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
def stats(as_json: opt.Json = False, corpus: CorpusOption = DEFAULT) -> None:
    """How much the corpus holds."""
    with _opened(corpus) as opened:
        counts = opened.stats()
    if as_json:
        print(json.dumps(counts, indent=2))
        return
    print(f"{counts['fixes']} fixes of {counts['error_types']} types of error, {counts['queries']} queries")
    for name, count in counts["by_dialect_and_category"].items():
        print(f"  {name}: {count}")
    print(f"vectors: {counts['embedding']}; {counts['bytes']:,} bytes")


@app.command("bench")
def bench_repair(
    context: typer.Context,
    arms: Annotated[
        str,
        typer.Option(
            help="Comma-separated: error, patterns, patterns+corpus, deterministic (no model), deterministic+LEVEL, "
            "LEVEL+samples, LEVEL+grammar."
        ),
    ] = ARMS,
    dialect: Annotated[
        Literal["sqlite", "clickhouse"], typer.Option(help="The engine; clickhouse: databases are loaded into chdb.")
    ] = "sqlite",
    benchmark: Annotated[
        str, typer.Option(help="Whose golds are made wrong: packaged, a name found in NL2SQL_BENCHMARKS, a folder.")
    ] = "packaged",
    split: Annotated[str, typer.Option(help="A split of it, or all.")] = "test",
    cases: Annotated[int, typer.Option(min=0, help="Failing statements to make; 0: only those of --run.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the cases.")] = 0,
    run: Annotated[
        list[Path] | None, typer.Option(help="Also what the model of this run wrote and the engine refused.")
    ] = None,
    learn_from: Annotated[
        str | None, typer.Option(help="BENCHMARK:SPLIT (train or dev) whose golds give the fixes of patterns+corpus.")
    ] = None,
    learn_cases: Annotated[int, typer.Option(min=1, help="Fixes to make from --learn-from.")] = 1000,
    corpus: Annotated[Path | None, typer.Option(help="A corpus for patterns+corpus in place of --learn-from.")] = None,
    attempts: Annotated[int, typer.Option(min=1, max=20, help="Repairs tried of each failure.")] = 3,
    model: opt.Model = DEFAULT_MODEL,
    device: opt.Device = "auto",
    dtype: opt.Dtype = None,
    adapter: opt.Adapter = "auto",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Repairs at once.")] = 32,
    engine: Annotated[
        Literal["auto", "llamacpp", "slots"], typer.Option(help="What runs a local model, as for nl2sql eval.")
    ] = "auto",
    server: opt.Server = None,
    no_cache: opt.Cache = False,
    config: opt.Config = None,
    set_: opt.Set = None,
    trust: opt.Trust = False,
    out: Annotated[Path, typer.Option(help="Folder; the same command goes on, others add arms and models.")] = Path(
        "runs/bench-repair"
    ),
    as_json: opt.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Repair failing statements at each level of guidance, and compare the levels.

    Cases are golds made wrong until a real engine refuses them (and, on ClickHouse, mistakes written by hand). A
    repair succeeds when it gives the gold's rows. Only --arms deterministic needs no model.

    \b
    Examples:
      nl2sql corpus bench --arms deterministic
      nl2sql corpus bench --arms error,patterns,patterns+corpus --learn-from packaged:dev --dtype bfloat16
      nl2sql corpus bench --dialect clickhouse --cases 100 --out runs/bench-repair-clickhouse
      nl2sql corpus bench --cases 0 --run runs/spider-train --out runs/bench-repair-model
    """
    from nl2sql.agents.record import json_text
    from nl2sql.config import load_config
    from nl2sql.runs.plan import READ, Trust, check_named, open_model, read_plan
    from nl2sql.runs.repair_bench import Bench, arm, check_fixes, repairs_text, run_arms, summarise_repairs
    from nl2sql.runs.repair_bench.cases import LEARNED, CasePlan, open_cases

    chosen = [arm(name) for name in dict.fromkeys(name.strip() for name in arms.split(",") if name.strip())]
    if not chosen:
        raise UsageError(f"--arms {arms!r} names none; example: --arms {ARMS}")
    if corpus is not None and learn_from is not None:
        raise UsageError("--corpus and --learn-from both give the fixes of patterns+corpus; leave one out")
    check_fixes(chosen, corpus is not None or learn_from is not None)
    for folder in run or ():  # before the cases are made, which takes a while
        check_named(folder, *read_plan(folder), Trust(trust), READ)
    settings = load_config(config or (), set_ or ())
    home = str(Path(benchmark).absolute()) if os.sep in benchmark else benchmark
    runs = tuple(str(folder.absolute()) for folder in run or ())
    which = CasePlan(home, split, dialect, cases, seed, runs, learn_from or "", learn_cases)
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        fixes = stack.enter_context(opt.open_corpus(corpus))
        made, sources = stack.enter_context(open_cases(out, which, progress=not quiet, trust=Trust(trust)))
        if learn_from:
            fixes = stack.enter_context(opt.open_corpus(out / LEARNED))
        bench = Bench(cases=made, database=sources.database, config=settings, attempts=attempts, corpus=fixes)
        asked = None
        if any(arm_of.level is not None for arm_of in chosen):
            asked = stack.enter_context(closing(open_model(opt.plan_of(context.params))))
        results = run_arms(bench, chosen, asked, out, progress=not quiet)
        summary = summarise_repairs(made, results)
    summary |= {"folder": str(out), "arms_run": [arm_of.name for arm_of in chosen]}
    print(json_text(summary, indent=2) if as_json else f"{repairs_text(summary)}\n\nfolder: {out}")
