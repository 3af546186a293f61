"""``nl2sql corpus bench``: what each level of repair guidance repairs."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nl2sql.cli.options import (
    AdapterOption,
    CacheOption,
    ConfigOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    ServerOption,
    SetOption,
    TrustOption,
)
from nl2sql.errors import UsageError
from nl2sql.interfaces import DEFAULT_MODEL

if TYPE_CHECKING:
    from nl2sql.interfaces import Model
    from nl2sql.repair.corpus import Corpus
    from nl2sql.runs.plan import RunSpec

ARMS = "deterministic,error,patterns"


def bench_repair(
    arms: Annotated[
        str,
        typer.Option(
            help="Comma-separated: error, patterns, patterns+corpus, deterministic (no model), deterministic+LEVEL, "
            "LEVEL+samples, LEVEL+grammar."
        ),
    ] = ARMS,
    dialect: Annotated[
        Literal["sqlite", "clickhouse"],
        typer.Option(help="The engine; clickhouse: databases are loaded into chdb."),
    ] = "sqlite",
    benchmark: Annotated[
        str, typer.Option(help="Whose golds are made wrong: packaged, a name found in NL2SQL_BENCHMARKS, a folder.")
    ] = "packaged",
    split: Annotated[str, typer.Option(help="A split of it, or all.")] = "test",
    cases: Annotated[int, typer.Option(min=0, help="Failing statements to make; 0: only those of --run.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the cases.")] = 0,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Also what the model of this run wrote and the engine refused."),
    ] = None,
    learn_from: Annotated[
        str | None,
        typer.Option(help="BENCHMARK:SPLIT (train or dev) whose golds give the fixes of patterns+corpus."),
    ] = None,
    learn_cases: Annotated[int, typer.Option(min=1, help="Fixes to make from --learn-from.")] = 1000,
    corpus: Annotated[Path | None, typer.Option(help="A corpus for patterns+corpus in place of --learn-from.")] = None,
    attempts: Annotated[int, typer.Option(min=1, max=20, help="Repairs tried of each failure.")] = 3,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = "auto",
    dtype: DtypeOption = None,
    adapter: AdapterOption = "auto",
    batch_size: Annotated[int, typer.Option("--batch-size", help="Repairs at once.")] = 32,
    engine: Annotated[
        Literal["auto", "llamacpp", "slots"], typer.Option(help="What runs a local model, as for nl2sql eval.")
    ] = "auto",
    server: ServerOption = None,
    no_cache: CacheOption = False,
    config: ConfigOption = None,
    set_: SetOption = None,
    trust: TrustOption = False,
    out: Annotated[Path, typer.Option(help="Folder; the same command goes on, others add arms and models.")] = Path(
        "runs/bench-repair"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
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
    from nl2sql.runs.plan import READ, RunSpec, Trust, check_named, read_plan
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
    which = CasePlan(
        benchmark=str(Path(benchmark).absolute()) if os.sep in benchmark else benchmark,
        split=split,
        dialect=dialect,
        count=cases,
        seed=seed,
        runs=tuple(str(folder.absolute()) for folder in run or ()),
        learn_from=learn_from or "",
        learn_count=learn_cases,
    )
    plan = RunSpec(
        model=model,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        engine=engine,
        adapter=adapter,
        server=tuple(server or ()),
        cache=not no_cache,
    )
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        given = _corpus(stack, corpus)
        made, sources = stack.enter_context(open_cases(out, which, progress=not quiet, trust=Trust(trust)))
        bench = Bench(
            cases=made,
            database=sources.database,
            config=settings,
            attempts=attempts,
            corpus=_corpus(stack, out / LEARNED) if learn_from else given,
        )
        asked = any(arm_of.level is not None for arm_of in chosen)
        results = run_arms(bench, chosen, _model(stack, plan) if asked else None, out, progress=not quiet)
        summary = summarise_repairs(made, results) | {
            "folder": str(out),
            "arms_run": [arm_of.name for arm_of in chosen],
        }
    print(json_text(summary, indent=2) if as_json else f"{repairs_text(summary)}\n\nfolder: {out}")


def _corpus(stack: ExitStack, path: Path | None) -> Corpus | None:
    from nl2sql.repair.corpus import Corpus

    return stack.enter_context(Corpus(path)) if path is not None else None


def _model(stack: ExitStack, plan: RunSpec) -> Model:
    from nl2sql.runs.plan import open_model

    model = open_model(plan)
    stack.callback(model.close)
    return model
