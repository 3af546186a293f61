"""``nl2sql score``: VA, EM, EX and TS of prediction files, all in one run. Loads no model library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli.executor import AddressOption, ExecutorOption, open_executor
from nl2sql.cli.options import CorrectionsOption, DatabasesOption, EngineUrlOption, QuestionsOption

if TYPE_CHECKING:
    from nl2sql.eval import Scores
    from nl2sql.interfaces import Question


def score_command(
    predictions: Annotated[
        list[Path] | None,
        typer.Option(
            "--predictions",
            "-p",
            help="Prediction file: JSON lines (id, sql), Spider's text, BIRD's JSON or CSV.",
        ),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="Further prediction files.", metavar="[P]...")] = None,
    benchmark: Annotated[
        str, typer.Option("--benchmark", "-b", help="packaged, a name in NL2SQL_BENCHMARKS, a folder, or hf:ORG/NAME.")
    ] = "packaged",
    questions: QuestionsOption = None,
    databases: DatabasesOption = None,
    split: Annotated[str | None, typer.Option(help="Score the questions of one split.")] = None,
    engine_url: EngineUrlOption = "",
    rule: Annotated[
        str, typer.Option(help="What counts as the same answer: bag, bag~REL, spider, bird-set, bird-soft-f1, ...")
    ] = "bag",
    replicas: Annotated[
        str | None,
        typer.Option(
            help="Replicas per database for TS, or a folder with FOLDER/<database>/*.sqlite; 0: no TS. Default: 5, "
            "or 0 with --engine-url and where golds are tables of results."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help="How replicas are made: perturb or suite.")] = "perturb",
    timeout: Annotated[float, typer.Option(help="Seconds that one statement may take.")] = 30.0,
    max_rows: Annotated[int, typer.Option(help="Rows that one statement may return.")] = 100_000,
    gold: Annotated[Path | None, typer.Option(help="Golds in place of the benchmark's: Spider's gold.sql.")] = None,
    corrections: CorrectionsOption = None,
    only_answered: Annotated[
        bool,
        typer.Option("--only-answered", help="Leave out questions that a file has no prediction for, and count them."),
    ] = False,
    cases: Annotated[Path | None, typer.Option(help="Judge a file of pairs by every rule, and nothing else.")] = None,
    executor: ExecutorOption = "local",
    address: AddressOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Score predictions: VA, EM, EX and TS with 95% intervals, overall and by hardness; why wrong items are wrong.

    Missing and blank predictions count as wrong. Items that the benchmark flags as unfit (an empty database, a gold
    that does not run or returns nothing) are left out and counted. With two files the paired tests are added.

    Examples:

        nl2sql score --benchmark packaged --split quick --predictions runs/a/predictions.jsonl

        nl2sql score -b spider --split holdout -p a.jsonl b.jsonl --replicas 0 --json
    """
    import json
    import sys

    from nl2sql.benchmarks import left_out_counts, load_benchmark, scorable
    from nl2sql.benchmarks.corrections import read_corrections, score_corrected
    from nl2sql.benchmarks.load import check_databases, named
    from nl2sql.errors import BenchmarkError, UsageError, interruptible
    from nl2sql.eval import score_many
    from nl2sql.eval.comparison import overlay_record, overlay_text, overlays
    from nl2sql.eval.perturbed import before_after
    from nl2sql.eval.predictions import read_predictions, with_golds
    from nl2sql.eval.reliability import points, reliability
    from nl2sql.eval.stats import percent

    if cases is not None:
        _judge_cases(cases, timeout, as_json)
        return
    files = [*(predictions or []), *(more or [])]
    if not files:
        raise UsageError("no predictions given; add --predictions FILE (or --cases FILE)")
    if twice := [file for number, file in enumerate(files) if file in files[:number]]:
        raise UsageError(f"predictions file {twice[0]} is given twice")
    benchmark = named(benchmark, questions, databases)
    loaded = load_benchmark(benchmark, split=split, engine_url=engine_url)
    asked = list(loaded.questions) if gold is None else with_golds(loaded.questions, gold)
    kept = [question for question in asked if scorable(question)]
    left_out = left_out_counts(asked)
    tables = any(question.meta.get("gold_tables") for question in kept)
    if not kept:
        check_databases(loaded)
        raise BenchmarkError(f"benchmark {benchmark!r} has no question to score; left out: {left_out or 'none'}")
    set_aside = {question.id for question in asked} - {question.id for question in kept}
    read = {str(file): read_predictions(file, asked) for file in files}
    if only_answered:
        open_ = {question.id for question in kept if any(question.id not in answers for answers, _ in read.values())}
        kept = [question for question in kept if question.id not in open_]
        left_out |= {"unanswered": len(open_)} if open_ else {}
        set_aside |= open_
        if not kept:
            raise UsageError("--only-answered leaves no question: no one is answered in every file")
    told = read_corrections(corrections) if corrections else {}
    options: dict[str, Any] = {"rule": rule, "method": method, "timeout_s": timeout, "max_rows": max_rows}
    with interruptible("interrupted; nothing was scored"), open_executor(executor, address) as worker:
        options |= {"progress": sys.stderr.isatty(), "executor": worker}
        answers = {name: answers for name, (answers, _) in read.items()}
        scored = score_many(
            loaded,
            kept,
            {name: {i: sql for i, sql in given.items() if i not in set_aside} for name, given in answers.items()},
            replicas=(0 if engine_url or tables else 5) if replicas is None else replicas,
            **options,
        )
        found = overlays(scored, score_corrected(loaded, asked, told, answers, scored, **options)) if told else []
    runs = [(file, scored[str(file)]) for file in files]
    perturbed = {file: pairs for file, s in runs if (pairs := before_after(kept, s.items))}
    reliable = {file: reliability(p) for file, s in runs if (p := points(s.items, answers[str(file)], asked))}
    for file, result in runs:
        result.warnings[:0] = read[str(file)][1]
    if as_json:
        record = _as_dict(loaded.name, split, left_out, runs, kept)
        overlay = {"corrections": overlay_record(len(told), found)} if found else {}
        overlay |= {"before_after": {str(file): pairs for file, pairs in perturbed.items()}} if perturbed else {}
        overlay |= {"reliability": {str(file): by_cost for file, by_cost in reliable.items()}} if reliable else {}
        typer.echo(json.dumps({**record, **overlay}, ensure_ascii=False))
        return
    _print(left_out, runs, kept)
    for file, pairs in perturbed.items():
        test = pairs["paired"]
        typer.echo(
            f"{file}, {pairs['n']} pairs: EX before {percent(pairs['before'])}, after {percent(pairs['after'])}; "
            f"{test['wins']} lost, {test['losses']} won, p={test['p']:.3g}, by database p={test['p_databases']:.3g}"
        )
    for file, by_cost in reliable.items():
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in by_cost.items())
        typer.echo(f"reliability of {file}, with the questions that have no answer: {shown}")
    if found:
        typer.echo(f"\n{overlay_text(rule, len(told), found)}")


def _judge_cases(file: Path, timeout: float, as_json: bool) -> None:
    import json

    from nl2sql.eval.cases import run_cases

    outcome = run_cases(file, timeout_s=timeout)
    if as_json:
        typer.echo(json.dumps(outcome, ensure_ascii=False))
        return
    for case in outcome["cases"]:
        verdicts = ", ".join(f"{rule} {value}" for rule, value in case["verdicts"].items())
        typer.echo(f"{case['id']}: {verdicts}" + (f" ({case['error']})" if case["error"] else ""))
    typer.echo(f"agreement: {json.dumps(outcome['agreement'])}")


def _as_dict(
    name: str,
    split: str | None,
    left_out: dict[str, int],
    runs: list[tuple[Path, Scores]],
    questions: list[Question],
) -> dict[str, Any]:
    """The first file's scores at the top; ``runs`` and ``paired`` (first against each other file) for several."""
    shared = {"benchmark": name, "split": split, "left_out": left_out}
    entries = [
        {"predictions": str(file), **scores.to_dict(), **_by_dialogue(scores, questions)} for file, scores in runs
    ]
    if len(runs) == 1:
        return {**shared, **entries[0]}
    first = runs[0][1]
    against = {str(file): first.paired(scores) for file, scores in runs[1:]}
    paired = next(iter(against.values())) if len(runs) == 2 else against
    return {**shared, **entries[0], "paired": paired, "runs": entries}


def _by_dialogue(scores: Scores, questions: list[Question]) -> dict[str, Any]:
    """EX by turn and of whole dialogues, as ``dialogues``; nothing for single questions."""
    from nl2sql.benchmarks.dialogues import has_dialogues
    from nl2sql.runs.dialogues import matches

    if not has_dialogues(questions):
        return {}
    return {"dialogues": matches(questions, {item.id: item.ex for item in scores.items})}


def _print(left_out: dict[str, int], runs: list[tuple[Path, Scores]], questions: list[Question]) -> None:
    for file, scores in runs:
        names = list(scores.columns())
        typer.echo(f"{file}: {len(scores.items)} items")
        typer.echo(f"  {'':8} {'n':>5}  " + "  ".join(f"{name:>20}" for name in names))
        for label, metrics in {"all": scores.metrics(), **scores.by_hardness()}.items():
            shown = "  ".join(f"{metrics[name]!s:>20}" for name in names)
            typer.echo(f"  {label:8} {metrics[names[0]].n:>5}  {shown}")
        if told := _by_dialogue(scores, questions).get("dialogues"):
            from nl2sql.runs.dialogues import dialogue_rows

            for label, value in dialogue_rows({"dialogues": {**told, "control": {}}}):
                typer.echo(f"  {label}: {value}")
        for what, ids in (("without a prediction", scores.missing), ("surplus, ignored", scores.surplus)):
            if ids:
                typer.echo(f"  {what}: {len(ids)} ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''})")
        if failures := scores.failures():
            typer.echo("  wrong: " + ", ".join(f"{count} {cause}" for cause, count in failures.items()))
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
                f"{name}: {runs[0][0]} against {file}: {test['wins']} wins, {test['losses']} losses, "
                f"p={test['p']:.3g}, by database p={test['p_databases']:.3g}"
            )
