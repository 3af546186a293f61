"""``nl2sql data replicas``: build test suites or perturbed replicas of a benchmark, and measure their strength."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli.group import Group

if TYPE_CHECKING:
    from nl2sql.interfaces import Benchmark, Question

app = typer.Typer(cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False)

BenchmarkOption = Annotated[
    str, typer.Option("--benchmark", "-b", help="packaged, a name in NL2SQL_BENCHMARKS, a folder, or hf:ORG/NAME.")
]
SplitOption = Annotated[str | None, typer.Option(help="Only the questions of one split.")]
LimitOption = Annotated[int | None, typer.Option(help="A seeded sample of so many questions, over all databases.")]
MethodOption = Annotated[str, typer.Option(help="suite (distilled, per question) or perturb (per database).")]
CountOption = Annotated[int, typer.Option("-n", "--databases", help="Databases per question at most.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the sample and of everything generated.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("build")
def build_command(
    benchmark: BenchmarkOption = "packaged",
    split: SplitOption = None,
    limit: LimitOption = None,
    method: MethodOption = "suite",
    n: CountOption = 10,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None, typer.Option(help="Copy the databases into this folder, for score --replicas OUT.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build the databases that TS is scored on, ahead of scoring; they stay in the cache.

    Examples:

        nl2sql data replicas build --benchmark packaged

        nl2sql data replicas build -b spider --split holdout -n 10 --out suites/spider-holdout
    """
    import json
    import sys
    import time

    from nl2sql.eval.suites import suite_fingerprint
    from nl2sql.eval.suites.check import Strength, build_replicas

    _check_arguments(method, n)
    loaded, questions = _questions(benchmark, split, limit, seed)
    record = Strength(method, n)
    started = time.perf_counter()
    files = build_replicas(loaded, questions, record, seed=seed, progress=sys.stderr.isatty())
    seconds = time.perf_counter() - started
    index = {id_: [str(file) for file in databases] for id_, (_, databases) in files.items()}
    everything = sorted({file for databases in index.values() for file in databases})
    fingerprint = suite_fingerprint(everything)
    if out is not None:
        index = _copy(files, out)
    report = {
        "benchmark": loaded.name,
        "split": split,
        "method": method,
        "n": len(index),
        "databases": len(everything),
        "built": record.built,
        "seconds": round(seconds, 3),
        "left_out": record.left_out,
        "fingerprint": fingerprint,
    }
    if as_json:
        typer.echo(json.dumps({**report, "files": index}, ensure_ascii=False))
        return
    what = "suites" if method == "suite" else "databases with replicas"
    typer.echo(f"{len(everything)} databases for {len(index)} questions; {record.built} {what} in {seconds:.1f} s")
    _print_left_out(record.left_out)
    typer.echo(f"fingerprint {fingerprint[:16]}")


@app.command("check")
def check_command(
    benchmark: BenchmarkOption = "packaged",
    split: SplitOption = None,
    limit: LimitOption = None,
    method: MethodOption = "suite",
    n: CountOption = 10,
    seed: SeedOption = 0,
    survivors: Annotated[int, typer.Option(help="How many surviving neighbours to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Measure the databases: which share of the neighbours of each gold do they tell from it?

    A neighbour is the gold with one thing wrong: an operator, a column, a constant, DISTINCT, a join's type, NULLs, a
    forgotten clause... The few that are equivalent survive and count as such.

    Examples:

        nl2sql data replicas check --benchmark packaged

        nl2sql data replicas check -b spider --split train --limit 200 -n 10

        nl2sql data replicas check -b spider --split train --limit 200 --method perturb --json
    """
    import json
    import sys

    from nl2sql.eval.suites.check import check_strength

    _check_arguments(method, n)
    loaded, questions = _questions(benchmark, split, limit, seed)
    strength = check_strength(loaded, questions, method=method, n=n, seed=seed, progress=sys.stderr.isatty())
    report = {"benchmark": loaded.name, "split": split, **strength.to_dict()}
    if as_json:
        typer.echo(json.dumps(report, ensure_ascii=False))
    else:
        _print(report, survivors)


def _check_arguments(method: str, n: int) -> None:
    from nl2sql.errors import UsageError
    from nl2sql.eval.suites.check import METHODS

    if method not in METHODS:
        raise UsageError(f"method {method!r} is not known; expected one of {', '.join(METHODS)}")
    if n < 1:
        raise UsageError(f"{n} databases per question; expected 1 or more")


def _questions(benchmark: str, split: str | None, limit: int | None, seed: int) -> tuple[Benchmark, list[Question]]:
    from nl2sql.benchmarks import draw_sample, left_out_counts, load_benchmark, scorable
    from nl2sql.errors import BenchmarkError

    loaded = load_benchmark(benchmark, split=split)
    kept = [question for question in loaded.questions if scorable(question)]
    if not kept:
        left_out = left_out_counts(loaded.questions)
        raise BenchmarkError(f"benchmark {benchmark!r} has no question to score; left out: {left_out or 'none'}")
    return loaded, draw_sample(kept, limit, seed)


def _copy(files: dict[str, tuple[Path, list[Path]]], out: Path) -> dict[str, list[str]]:
    """Copy every question's databases into a folder of its own; an index says which is whose."""
    import re
    import shutil

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


def _print_left_out(left_out: dict[str, int]) -> None:
    if left_out:
        typer.echo("left out: " + ", ".join(f"{count} {reason}" for reason, count in left_out.items()))


def _print(report: dict[str, Any], survivors: int) -> None:
    typer.echo(
        f"{report['method']}: {report['n']} golds, {report['neighbours']} neighbours "
        f"(at least {report['neighbours_per_gold_least']} per gold)"
    )
    if not report["neighbours"]:
        _print_left_out(report["left_out"])
        return
    typer.echo(
        f"killed {report['micro']:.2%} of neighbours (mean over golds {report['macro']:.2%}; "
        f"without added conditions {_percent(report['micro_without_added_conditions'])}); "
        f"golds fully killed {report['fully_killed']:.1%}"
    )
    typer.echo(
        f"databases per gold: {report['databases_per_gold']:.1f} on average, "
        f"at most {report['databases_per_gold_most']}"
    )
    typer.echo(f"  {'kind':16} {'n':>6} {'killed':>9}")
    for kind, row in report["by_kind"].items():
        typer.echo(f"  {kind:16} {row['n']:>6} {_percent(row['rate']):>9}")
    typer.echo(
        f"built {report['built']} in {report['build_seconds']:.1f} s, checked in {report['check_seconds']:.1f} s"
    )
    _print_left_out(report["left_out"])
    alive = report["survivors"]
    if alive:
        typer.echo(f"survivors: {len(alive)}{f', the first {survivors}' if len(alive) > survivors else ''}")
    for entry in alive[:survivors]:
        typer.echo(f"  {entry['id']} ({entry['db_id']}) {entry['kind']}")
        typer.echo(f"    gold      {' '.join(entry['gold'].split())}")
        typer.echo(f"    neighbour {entry['sql']}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
