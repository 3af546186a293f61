"""``nl2sql runs compare``: two prediction files on the same questions, item by item. Loads no model library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nl2sql.cli.options import CorrectionsOption, FormatOption, TrustOption, TypedUrlOption, trust_of
from nl2sql.errors import one_line

if TYPE_CHECKING:
    from nl2sql.eval.comparison import Comparison, Group
    from nl2sql.runs.plan import Trust


def compare_command(
    a: Annotated[Path, typer.Argument(help="Predictions A: any format that score reads, or a run folder.")],
    b: Annotated[Path, typer.Argument(help="Predictions B.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            "-b",
            help="packaged, a name in NL2SQL_BENCHMARKS, a folder, or hf:ORG/NAME. Default: that of the run folders, "
            "else packaged.",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Compare on the questions of one split. Default: that of the run folders.")
    ] = None,
    rule: Annotated[str, typer.Option(help="What counts as the same answer: bag, spider, bird-set, ...")] = "bag",
    metric: Annotated[
        str | None, typer.Option(help="The metric of the groups and listed ids; default EX under the rule.")
    ] = None,
    replicas: Annotated[int, typer.Option(help="Perturbed replicas per database for TS; 0 leaves TS out.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds that one statement may take.")] = 30.0,
    max_rows: Annotated[int, typer.Option(help="Rows that one statement may return.")] = 100_000,
    corrections: CorrectionsOption = None,
    trust: TrustOption = False,
    engine_url: TypedUrlOption = "",
    show: Annotated[int, typer.Option(help="Ids to list per line; 0 lists none, -1 all. --json always has all.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    format_: FormatOption = None,
) -> None:
    """Compare two prediction files item by item: wins are items that only A gets right, losses only B.

    Per metric two exact paired tests: McNemar's of the questions, and one by database, which says whether A is better
    on other databases, too; then wins and losses by hardness and by feature of the gold, the ids,
    and which causes of failure moved from A to B. Missing and blank predictions count as wrong. Two run folders are
    compared on the questions that both were asked, of files on those of the whole split.

    Examples:

        nl2sql runs compare runs/react runs/single_shot

        nl2sql runs compare a.sql b.sql -b spider --split holdout --replicas 5 --json
    """
    import json
    import sys

    from nl2sql.benchmarks import left_out_counts, load_benchmark, scorable
    from nl2sql.benchmarks.corrections import corrected, read_corrections, score_corrected
    from nl2sql.errors import BenchmarkError, UsageError, interruptible
    from nl2sql.eval import comparison
    from nl2sql.eval.comparison import Overlay, overlay_record, overlay_text, overlays
    from nl2sql.eval.predictions import read_predictions
    from nl2sql.eval.scoring import score_many
    from nl2sql.eval.tables import FORMATS

    asked = _asked(a, b)
    shared = None if asked is None else asked[0] & asked[1]
    plans = _plans(a, b, benchmark, trust_of(trust, engine_url))
    plan = _common(plans, a, b) if plans and benchmark is None and asked is not None else {}
    if "benchmark" in plan.get("objects", ()):
        raise UsageError(
            f"the run was given the benchmark {plan['benchmark']} as an object; name one: --benchmark FOLDER"
        )
    benchmark, split = benchmark or plan.get("benchmark") or "packaged", split or plan.get("split")
    loaded = load_benchmark(benchmark, split=split, engine_url=_engine_url(plans))
    if shared is not None and not shared:
        raise UsageError(f"{a} and {b} share no question; compare runs over the same split")
    questions = [question for question in loaded.questions if shared is None or question.id in shared]
    kept = [question for question in questions if scorable(question)]
    left_out = left_out_counts(questions)
    if not kept:
        raise BenchmarkError(f"benchmark {benchmark!r} has no question to score; left out: {left_out or 'none'}")
    set_aside = {question.id for question in loaded.questions} - {question.id for question in kept}
    read = {label: read_predictions(file, loaded.questions) for label, file in (("A", a), ("B", b))}
    usable = {
        label: {id_: sql for id_, sql in answers.items() if id_ not in set_aside and (not shared or id_ in shared)}
        for label, (answers, _) in read.items()
    }
    told = read_corrections(corrections) if corrections else {}
    found: list[Overlay] = []
    options: dict[str, Any] = {
        "rule": rule,
        "timeout_s": timeout,
        "max_rows": max_rows,
        "progress": sys.stderr.isatty(),
    }
    with interruptible("interrupted; nothing was compared"):
        scores = score_many(loaded, kept, usable, replicas=replicas, **options)
        if told:
            answers = {label: answers for label, (answers, _) in read.items()}
            published, scores = scores, score_corrected(loaded, questions, told, answers, scores, **options)
            found = overlays(published, scores)
            kept = [question for question in corrected(questions, told) if scorable(question)]
    compared = comparison.compare_scores(scores["A"], scores["B"], metric=metric)
    alone = {
        label: [f"{len(own - shared)} question(s) of {label} that the other was not asked are left out"]
        for label, own in zip(("A", "B"), asked or (), strict=False)
        if shared is not None and own - shared
    }
    sides = {
        label: {
            "predictions": str(file),
            "missing": scores[label].missing,
            "surplus": scores[label].surplus,
            "warnings": [*read[label][1], *scores[label].all_warnings(), *alone.get(label, ())],
        }
        for label, file in (("A", a), ("B", b))
    }
    if as_json:
        about = {"benchmark": loaded.name, "split": split, "rule": rule, "n": len(kept), "left_out": left_out}
        overlay = {"corrections": overlay_record(len(told), found)} if found else {}
        typer.echo(json.dumps({**about, "files": sides, **compared.to_dict(), **overlay}, ensure_ascii=False))
        return
    if format_:
        typer.echo(FORMATS[format_](_metric_rows(compared)))
        return
    _print(sides, left_out, compared, show)
    if found:
        typer.echo(f"\nall of it as corrected; beside it as published:\n{overlay_text(rule, len(told), found)}")


def _plans(a: Path, b: Path, benchmark: str | None, trust: Trust | bool) -> list[dict[str, Any]]:
    """What the runs among the two were runs of; a control has the manifest of the run around it. Raises UsageError
    where one names what the folder alone may not, unless a benchmark is named here."""
    from nl2sql.runs.folder import read_manifest
    from nl2sql.runs.plan import READ, check_named, read_plan

    homes = [[folder for folder in (file, file.parent) if (folder / "manifest.json").is_file()] for file in (a, b)]
    for near in homes:
        if near:
            check_named(near[0], *read_plan(near[0]), trust, READ if benchmark is None else ("engine_url",))
    return [dict(read_manifest(near[0])["plan"]) for near in homes if near]


def _engine_url(plans: list[dict[str, Any]]) -> str:
    """The engine that the runs asked; "": SQLite. Raises UsageError where it is not one."""
    from nl2sql.errors import UsageError

    urls = sorted({plan.get("engine_url") or "" for plan in plans})
    if len(urls) > 1:
        raise UsageError(
            f"the runs asked different engines ({' and '.join(url or 'SQLite' for url in urls)}), and one scores both; "
            "compare runs of one, or name their predictions.jsonl in: nl2sql score --engine-url URL"
        )
    return urls[0] if urls else ""


def _common(plans: list[dict[str, Any]], a: Path, b: Path) -> dict[str, Any]:
    """What the plans say of the benchmark: no split where they differ in it. Raises UsageError for two benchmarks."""
    from nl2sql.errors import UsageError

    first, other = plans[0], plans[-1]
    if first.get("benchmark") != other.get("benchmark"):
        raise UsageError(
            f"{a} was run on {first.get('benchmark')} and {b} on {other.get('benchmark')}; compare runs over the same "
            "questions, or name the benchmark that has both: --benchmark NAME"
        )
    return first if first.get("split") == other.get("split") else {**first, "split": None}


def _asked(a: Path, b: Path) -> tuple[set[str], set[str]] | None:
    """The ids of the questions that each of two run folders holds; None where one of them is a file."""
    from nl2sql.runs.folder import as_a_run_leaves, iter_jsonl

    files = [folder / "predictions.jsonl" for folder in (a, b)]
    if not all(file.is_file() for file in files):
        return None
    with as_a_run_leaves(a):
        first, other = ({str(line["id"]) for line in iter_jsonl(file)} for file in files)
    return first, other


def _print(sides: dict[str, Any], left_out: dict[str, int], compared: Comparison, show: int) -> None:
    for label, side in sides.items():
        typer.echo(f"{label} = {side['predictions']}")
        for what in ("missing", "surplus"):
            if side[what]:
                typer.echo(f"  {what}: {len(side[what])} ({_listed(side[what], max(show, 1))})")
    for warning in dict.fromkeys(warning for side in sides.values() for warning in side["warnings"]):
        typer.echo(f"note: {one_line(warning)}")
    if left_out:
        typer.echo("left out: " + ", ".join(f"{count} {reason}" for reason, count in left_out.items()))
    width = max(len(name) for name in compared.metrics)
    counted = f"{'n':>6} {'A':>7} {'B':>7} {'A - B':>7} {'wins':>6} {'losses':>6}"
    typer.echo(f"\n{'':{width}} {counted}  p (McNemar)  p by database")
    for name, test in compared.metrics.items():
        counts = f"{len(test.wins):>6} {len(test.losses):>6}  {test.p:>11.3g}  {test.p_databases:.3g}"
        typer.echo(f"{name:{width}} {test.n:>6} {_rates(test.a, test.b)} {counts}")
    typer.echo(f"\n{compared.metric} by{'':17} {counted}")
    for grouping, groups in compared.groups.items():
        for value, group in groups.items():
            typer.echo(_group_line(f"{grouping} {value}", group, len(compared.metric) + 20))
    chosen = compared.metrics[compared.metric]
    for what, ids in (("wins (only A is right)", chosen.wins), ("losses (only B is right)", chosen.losses)):
        typer.echo(f"\n{what}: {len(ids)}" + (f"\n  {_listed(ids, show)}" if ids and show else ""))
    causes = dict.fromkeys([*compared.failures_a, *compared.failures_b])
    if causes:
        typer.echo(f"\n{'cause of failure':24} {'A':>6} {'B':>6} {'B - A':>6}")
    for cause in causes:
        ours, theirs = compared.failures_a.get(cause, 0), compared.failures_b.get(cause, 0)
        typer.echo(f"{cause:24} {ours:>6} {theirs:>6} {theirs - ours:>+6}")
    if compared.moved:
        typer.echo("\nmoved from A to B")
    for move in compared.moved:
        typer.echo(f"  {move.a} -> {move.b}: {len(move.ids)}" + (f" ({_listed(move.ids, show)})" if show else ""))


def _metric_rows(compared: Comparison) -> list[list[str]]:
    rows = [["metric", "n", "A", "B", "A - B", "won", "lost", "p", "p by database"]]
    for name, test in compared.metrics.items():
        counts = [str(len(test.wins)), str(len(test.losses)), f"{test.p:.2g}", f"{test.p_databases:.2g}"]
        rows.append([name, str(test.n), *_rates(test.a, test.b).split(), *counts])
    return rows


def _rates(a: float, b: float) -> str:
    return f"{100 * a:>7.1f} {100 * b:>7.1f} {100 * (a - b):>+7.1f}"


def _group_line(label: str, group: Group, width: int) -> str:
    return f"{label:{width}} {group.n:>6} {_rates(group.a, group.b)} {group.wins:>6} {group.losses:>6}"


def _listed(ids: list[str], show: int) -> str:
    shown = ids if show < 0 else ids[:show]
    return one_line(", ".join(shown)) + (f", ... {len(ids) - len(shown)} more" if len(shown) < len(ids) else "")
