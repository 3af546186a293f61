"""``nl2sql score``: VA, EM, EX and TS of prediction files. Loads no model library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nl2sql.eval import Scores


def score(
    predictions: Annotated[
        list[Path],
        typer.Option(
            "--predictions",
            "-p",
            help="Prediction file: predictions.jsonl (id, sql), or text with one SQL per question.",
        ),
    ],
    more: Annotated[list[Path] | None, typer.Argument(help="Further prediction files.", metavar="[P]...")] = None,
    benchmark: Annotated[
        str, typer.Option("--benchmark", "-b", help="packaged, a name in NL2SQL_BENCHMARKS, a folder, or hf:ORG/NAME.")
    ] = "packaged",
    split: Annotated[str | None, typer.Option(help="Score the questions of one split.")] = None,
    replicas: Annotated[int, typer.Option(help="Perturbed replicas per database for TS; 0 leaves TS out.")] = 5,
    timeout: Annotated[float, typer.Option(help="Seconds that one statement may take.")] = 30.0,
    max_rows: Annotated[int, typer.Option(help="Rows that one statement may return.")] = 100_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Score predictions: VA, EM, EX[bag] and TS with 95% intervals, overall and by hardness.

    Missing and blank predictions count as wrong. Items that the benchmark flags as unfit (an empty database, a gold
    that does not run or returns nothing) are left out and counted. With two files the paired test is added.

    Examples:

        nl2sql score --benchmark packaged --split quick --predictions runs/a/predictions.jsonl

        nl2sql score -b spider --split holdout -p a.jsonl b.jsonl --replicas 0 --json
    """
    import json
    import sys

    from nl2sql.benchmarks import left_out_counts, load_benchmark, scorable
    from nl2sql.errors import BenchmarkError
    from nl2sql.eval import score as score_predictions
    from nl2sql.eval.predictions import read_predictions

    loaded = load_benchmark(benchmark, split=split)
    kept = [question for question in loaded.questions if scorable(question)]
    left_out = left_out_counts(loaded.questions)
    if not kept:
        raise BenchmarkError(f"benchmark {benchmark!r} has no question to score; left out: {left_out or 'none'}")
    set_aside = {question.id for question in loaded.questions} - {question.id for question in kept}
    files = [*predictions, *(more or [])]
    runs: list[tuple[Path, Scores]] = []
    for file, (found, remarks) in [(file, read_predictions(file, loaded.questions)) for file in files]:
        result = score_predictions(
            loaded,
            kept,
            {id_: sql for id_, sql in found.items() if id_ not in set_aside},
            replicas=replicas,
            timeout_s=timeout,
            max_rows=max_rows,
            progress=sys.stderr.isatty(),
        )
        result.warnings[:0] = remarks
        runs.append((file, result))
    if as_json:
        typer.echo(json.dumps(_as_dict(loaded.name, split, left_out, runs), ensure_ascii=False))
    else:
        _print(left_out, runs)


def _as_dict(name: str, split: str | None, left_out: dict[str, int], runs: list[tuple[Path, Scores]]) -> dict[str, Any]:
    """The first file's scores at the top; ``runs`` and ``paired`` (first against each other file) for several."""
    shared = {"benchmark": name, "split": split, "left_out": left_out}
    entries = [{"predictions": str(file), **scores.to_dict()} for file, scores in runs]
    if len(runs) == 1:
        return {**shared, **entries[0]}
    first = runs[0][1]
    against = {str(file): first.paired(scores) for file, scores in runs[1:]}
    paired = next(iter(against.values())) if len(runs) == 2 else against
    return {**shared, **entries[0], "paired": paired, "runs": entries}


def _print(left_out: dict[str, int], runs: list[tuple[Path, Scores]]) -> None:
    for file, scores in runs:
        names = list(scores.columns())
        typer.echo(f"{file}: {len(scores.items)} items")
        typer.echo(f"  {'':8} {'n':>5}  " + "  ".join(f"{name:>20}" for name in names))
        for label, metrics in {"all": scores.metrics(), **scores.by_hardness()}.items():
            shown = "  ".join(f"{metrics[name]!s:>20}" for name in names)
            typer.echo(f"  {label:8} {metrics[names[0]].n:>5}  {shown}")
        for what, ids in (("without a prediction", scores.missing), ("surplus, ignored", scores.surplus)):
            if ids:
                typer.echo(f"  {what}: {len(ids)} ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''})")
        broken = [item for item in scores.items if item.gold_error]
        if broken:
            typer.echo(f"  gold does not run, counted as wrong: {len(broken)} ({broken[0].id}: {broken[0].gold_error})")
        for warning in scores.all_warnings():
            typer.echo(f"  note: {warning}")
    if left_out:
        typer.echo("left out: " + ", ".join(f"{count} {reason}" for reason, count in left_out.items()))
    first = runs[0][1]
    for file, scores in runs[1:]:
        for name, test in first.paired(scores).items():
            typer.echo(
                f"{name}: {runs[0][0]} against {file}: {test['wins']} wins, {test['losses']} losses, p={test['p']:.3g}"
            )
