"""``nl2sql data``: are golds fit to score with, is a statement valid, and the databases that TS is scored on."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli import options as opt
from nl2sql.cli.options import Group
from nl2sql.errors import BenchmarkError, UsageError

if TYPE_CHECKING:
    from nl2sql.interfaces import Benchmark, Question


def check_data(
    benchmark: Annotated[
        str,
        typer.Option(
            "--benchmark",
            "-b",
            help="packaged, packaged-dialogues, vizql, a name in NL2SQL_BENCHMARKS, a folder, or hf:...",
        ),
    ] = "packaged",
    questions: opt.Questions = None,
    databases: opt.Databases = None,
    split: Annotated[str | None, typer.Option(help="Check the questions of one split.")] = None,
    timeout: opt.Timeout = 30.0,
    draft: Annotated[
        Path | None, typer.Option(help="Write what fails into a new file: a first draft for --corrections.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Check every gold: it runs, returns rows, answers the same whatever the order of rows, and is as hard as declared.

    Golds are run on the database and on copies with the same rows reversed and shuffled: a LIMIT that cuts through
    ties shows there. One line per failing item; exit code 1 if any fails. Items that the benchmark itself flags are
    passed over and counted.

    \b
    Examples:
      nl2sql data check
      nl2sql data check --benchmark packaged-dialogues
      nl2sql data check --benchmark spider --split holdout --json
      nl2sql data check --questions dev.json --databases database --draft corrections.yaml
    """
    from nl2sql.benchmarks import excluded_counts, load_benchmark
    from nl2sql.benchmarks.check import FOUND_HERE, check_questions
    from nl2sql.benchmarks.core import has_dialogues, interactions
    from nl2sql.benchmarks.load import check_databases, named

    if draft is not None and draft.exists():
        raise UsageError(f"--draft {draft} exists; name a new file")
    benchmark = named(benchmark, questions, databases)
    loaded = load_benchmark(benchmark, split=split)
    if not loaded.questions:
        raise BenchmarkError(f"benchmark {benchmark!r} has no questions to check")
    check_databases(loaded)
    faults = check_questions(loaded, loaded.questions, timeout_s=timeout, progress=sys.stderr.isatty())
    if draft is not None:
        from nl2sql.benchmarks.check import draft as drafted

        draft.write_text(drafted(faults, loaded.questions), encoding="utf-8")
    excluded = {k: n for k, n in excluded_counts(loaded.questions).items() if k not in FOUND_HERE}
    checked = len(loaded.questions) - sum(excluded.values())
    failing = len({fault.id for fault in faults})
    dialogues = len(interactions(loaded.questions)) if has_dialogues(loaded.questions) else 0
    if as_json:
        failed = [asdict(fault) for fault in faults]
        report = {"benchmark": loaded.name, "split": split, "n": checked, "failing": failing, "failed": failed}
        counted = {"dialogues": dialogues} if dialogues else {}
        print(json.dumps({**report, **counted, "left_out": excluded}, ensure_ascii=False))
    else:
        for fault in faults:
            print(f"{fault.id} ({fault.db_id}): {fault.reason}")
        passed_over = ", ".join(f"{count} {reason}" for reason, count in excluded.items())
        where = f", in {dialogues} dialogues" if dialogues else ""
        passed = f"; passed over: {passed_over}" if excluded else ""
        print(f"{checked - failing} of {checked} items are sound{where}{passed}")
    if faults:
        raise typer.Exit(1)


def explain(
    sql: Annotated[str, typer.Argument(help="One SELECT; '-': read from stdin.")],
    db: opt.Database,
    corpus: Annotated[Path | None, typer.Option(help="A corpus to take similar fixes from.")] = None,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Cosine that a similar fix must have.")] = 0.7,
    autofix: Annotated[bool, typer.Option("--mend", help="Also try a repair that needs no model.")] = False,
    as_json: opt.Json = False,
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
    with closing(open_database(db)) as database, opt.open_corpus(corpus) as opened:
        known = explanation(text, database, corpus=opened, threshold=threshold, fix=autofix)
    if as_json:
        fixed = {"mended": known.fixed or None} if autofix else {}
        print(json_text(known.response.model_dump(mode="json") | fixed, indent=2))
    else:
        print("\n".join(known.lines()))
        if autofix and not known.response.valid:
            print(f"mended: {known.fixed or 'no repair without a model'}")
    if not known.response.valid:
        raise typer.Exit(1)


replicas = typer.Typer(cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)

Split = Annotated[str | None, typer.Option(help="Only the questions of one split.")]
Limit = Annotated[int | None, typer.Option(help="A seeded sample of so many questions, over all databases.")]
Method = Annotated[str, typer.Option(help="suite (distilled, per question) or perturb (per database).")]
Count = Annotated[int, typer.Option("-n", "--databases", help="Databases per question at most.")]
Seed = Annotated[int, typer.Option(help="Seed of the sample and of everything generated.")]


@replicas.command("build")
def build_command(
    benchmark: opt.Benchmark = "packaged",
    split: Split = None,
    limit: Limit = None,
    method: Method = "suite",
    n: Count = 10,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Copy the databases into this folder, for score --replicas OUT.")
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Build the databases that TS is scored on, ahead of scoring; they stay in the cache.

    \b
    Examples:
      nl2sql data replicas build --benchmark packaged
      nl2sql data replicas build -b spider --split holdout -n 10 --out suites/spider-holdout
    """
    from nl2sql.eval.suites import Strength, build_replicas, suite_fingerprint

    loaded, questions = _drawn(benchmark, split, limit, method, n, seed)
    record = Strength(method, n)
    started = time.perf_counter()
    files = build_replicas(loaded, questions, record, seed=seed, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    index = {id_: [str(file) for file in databases] for id_, (_, databases) in files.items()}
    everything = sorted({file for databases in index.values() for file in databases})
    fingerprint = suite_fingerprint(everything)
    if out is not None:
        index = _copy(files, out)
    report: dict[str, Any] = {"benchmark": loaded.name, "split": split, "method": method, "n": len(index)}
    report |= {"databases": len(everything), "built": record.built, "seconds": round(seconds, 3)}
    report |= {"left_out": record.excluded, "fingerprint": fingerprint}
    if as_json:
        print(json.dumps({**report, "files": index}, ensure_ascii=False))
        return
    what = "suites" if method == "suite" else "databases with replicas"
    print(f"{len(everything)} databases for {len(index)} questions; {record.built} {what} in {seconds:.1f} s")
    print(opt.excluded_line(record.excluded), end="")
    print(f"fingerprint {fingerprint[:16]}")


@replicas.command("check")
def check_command(
    benchmark: opt.Benchmark = "packaged",
    split: Split = None,
    limit: Limit = None,
    method: Method = "suite",
    n: Count = 10,
    seed: Seed = 0,
    survivors: Annotated[int, typer.Option(help="How many surviving neighbours to list.")] = 20,
    as_json: opt.Json = False,
) -> None:
    """Measure the databases: which share of the neighbours of each gold do they tell from it?

    A neighbour is the gold with one thing wrong: an operator, a column, a constant, DISTINCT, a join's type, NULLs, a
    forgotten clause... The few that are equivalent survive and count as such.

    \b
    Examples:
      nl2sql data replicas check --benchmark packaged
      nl2sql data replicas check -b spider --split train --limit 200 -n 10
      nl2sql data replicas check -b spider --split train --limit 200 --method perturb --json
    """
    from nl2sql.eval.suites import check_strength

    loaded, questions = _drawn(benchmark, split, limit, method, n, seed)
    strength = check_strength(loaded, questions, method=method, n=n, seed=seed, progress=sys.stderr.isatty())
    report = {"benchmark": loaded.name, "split": split, **strength.to_dict()}
    if as_json:
        print(json.dumps(report, ensure_ascii=False))
    else:
        _print(report, survivors)


def _drawn(
    benchmark: str, split: str | None, limit: int | None, method: str, n: int, seed: int
) -> tuple[Benchmark, list[Question]]:
    """The benchmark, and a sample of its questions. Raises UsageError for arguments that cannot be."""
    from nl2sql.benchmarks import draw_sample, load_benchmark
    from nl2sql.eval.suites import METHODS

    if method not in METHODS:
        raise UsageError(f"method {method!r} is not known; expected one of {', '.join(METHODS)}")
    if n < 1:
        raise UsageError(f"{n} databases per question; expected 1 or more")
    loaded = load_benchmark(benchmark, split=split)
    return loaded, draw_sample(opt.to_score(benchmark, loaded, loaded.questions)[0], limit, seed)


def _copy(files: dict[str, tuple[Path, list[Path]]], out: Path) -> dict[str, list[str]]:
    """Copy every question's databases into a folder of its own; an index says which is whose."""
    from nl2sql.eval.suites import write_index

    copied: dict[str, list[Path]] = {}
    used: set[str] = set()
    done: dict[tuple[Path, ...], list[Path]] = {}  # perturbed replicas are shared by the questions of a database
    for id_, (_, databases) in files.items():
        if tuple(databases) in done and databases:
            copied[id_] = done[tuple(databases)]
            continue
        name = plain = re.sub(r"[^\w-]", "_", id_) or "_"
        number = 1
        while name.lower() in used:
            number += 1
            name = f"{plain}-{number}"
        used.add(name.lower())
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.sqlite"):  # of an earlier build with more databases
            old.unlink()
        copied[id_] = [Path(shutil.copyfile(file, folder / f"{k:03d}.sqlite")) for k, file in enumerate(databases)]
        done[tuple(databases)] = copied[id_]
    out.mkdir(parents=True, exist_ok=True)
    write_index(out, copied)
    return {id_: [str(file) for file in databases] for id_, databases in copied.items()}


def _print(report: dict[str, Any], survivors: int) -> None:
    least = report["neighbours_per_gold_least"]
    print(f"{report['method']}: {report['n']} golds, {report['neighbours']} neighbours (at least {least} per gold)")
    if not report["neighbours"]:
        print(opt.excluded_line(report["left_out"]), end="")
        return
    print(
        f"killed {report['micro']:.2%} of neighbours (mean over golds {report['macro']:.2%}; "
        f"without added conditions {_percent(report['micro_without_added_conditions'])}); "
        f"golds fully killed {report['fully_killed']:.1%}"
    )
    mean, most = report["databases_per_gold"], report["databases_per_gold_most"]
    print(f"databases per gold: {mean:.1f} on average, at most {most}")
    print(f"  {'kind':16} {'n':>6} {'killed':>9}")
    for kind, row in report["by_kind"].items():
        print(f"  {kind:16} {row['n']:>6} {_percent(row['rate']):>9}")
    print(f"built {report['built']} in {report['build_seconds']:.1f} s, checked in {report['check_seconds']:.1f} s")
    print(opt.excluded_line(report["left_out"]), end="")
    alive = report["survivors"]
    if alive:
        print(f"survivors: {len(alive)}{f', the first {survivors}' if len(alive) > survivors else ''}")
    for entry in alive[:survivors]:
        print(f"  {entry['id']} ({entry['db_id']}) {entry['kind']}")
        print(f"    gold      {' '.join(entry['gold'].split())}")
        print(f"    neighbour {entry['sql']}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
