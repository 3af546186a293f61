"""``nl2sql score`` and ``nl2sql runs compare``: prediction files scored, and two of them item by item.

Neither loads a model library.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nl2sql.cli import options as opt
from nl2sql.errors import UsageError, interruptible, one_line

if TYPE_CHECKING:
    from nl2sql.eval import Scores
    from nl2sql.eval.comparison import Comparison
    from nl2sql.interfaces import Question
    from nl2sql.runs.plan import Trust


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
    benchmark: opt.Benchmark = "packaged",
    questions: opt.Questions = None,
    databases: opt.Databases = None,
    split: Annotated[str | None, typer.Option(help="Score the questions of one split.")] = None,
    engine_url: opt.EngineUrl = "",
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
    timeout: opt.Timeout = 30.0,
    max_rows: opt.MaxRows = 100_000,
    rves: Annotated[
        Literal["steps", "time"] | None,
        typer.Option(help="Add BIRD's R-VES, from the steps of SQLite's virtual machine or from measured times."),
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="Golds in place of the benchmark's: Spider's gold.sql.")] = None,
    corrections: opt.Corrections = None,
    only_answered: Annotated[
        bool,
        typer.Option("--only-answered", help="Leave out questions that a file has no prediction for, and count them."),
    ] = False,
    cases: Annotated[Path | None, typer.Option(help="Judge a file of pairs by every rule, and nothing else.")] = None,
    executor: opt.Executor = "local",
    address: opt.Address = None,
    as_json: opt.Json = False,
) -> None:
    """Score predictions: VA, EM, EX and TS with 95% intervals, overall and by hardness; why wrong items are wrong.

    Missing and blank predictions count as wrong. Items that the benchmark flags as unfit (an empty database, a gold
    that does not run or returns nothing) are left out and counted. With two files the paired tests are added.

    \b
    Examples:
      nl2sql score --benchmark packaged --split quick --predictions runs/a/predictions.jsonl
      nl2sql score -b spider --split holdout -p a.jsonl b.jsonl --replicas 0 --json
    """
    from nl2sql.benchmarks import load_benchmark
    from nl2sql.benchmarks.check import read_corrections, score_corrected
    from nl2sql.benchmarks.load import named
    from nl2sql.eval import score_many
    from nl2sql.eval.comparison import before_after, overlay_record, overlay_text, overlays
    from nl2sql.eval.efficiency import add_efficiency
    from nl2sql.eval.predictions import read_predictions, with_golds
    from nl2sql.eval.scores import reliability
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
    kept, excluded = opt.to_score(benchmark, loaded, asked)
    tables = any(question.meta.get("gold_tables") for question in kept)
    set_aside = {question.id for question in asked} - {question.id for question in kept}
    read = {str(file): read_predictions(file, asked) for file in files}
    answers = {name: given for name, (given, _) in read.items()}
    if only_answered:
        open_ = {question.id for question in kept if any(question.id not in given for given in answers.values())}
        kept = [question for question in kept if question.id not in open_]
        excluded |= {"unanswered": len(open_)} if open_ else {}
        set_aside |= open_
        if not kept:
            raise UsageError("--only-answered leaves no question: no one is answered in every file")
    told = read_corrections(corrections) if corrections else {}
    options: dict[str, Any] = {"rule": rule, "method": method, "timeout_s": timeout, "max_rows": max_rows}
    with interruptible("interrupted; nothing was scored"), opt.open_executor(executor, address) as worker:
        options |= {"progress": sys.stderr.isatty(), "executor": worker}
        usable = {name: {i: sql for i, sql in given.items() if i not in set_aside} for name, given in answers.items()}
        usual = 0 if engine_url or tables else 5
        scored = score_many(loaded, kept, usable, replicas=usual if replicas is None else replicas, **options)
        found = overlays(scored, score_corrected(loaded, asked, told, answers, scored, **options)) if told else []
        if rves:
            add_efficiency(loaded, kept, scored, rves, timeout_s=timeout, max_rows=max_rows)
    runs = [(file, scored[str(file)]) for file in files]
    perturbed = {file: pairs for file, s in runs if (pairs := before_after(kept, s.items))}
    reliable = {file: rs for file, s in runs if (rs := reliability(s.items, answers[str(file)], asked))}
    for file, result in runs:
        result.warnings[:0] = read[str(file)][1]
    if as_json:
        record = {"benchmark": loaded.name, "split": split, "left_out": excluded, **_as_dict(runs, kept)}
        overlay = {"corrections": overlay_record(len(told), found)} if found else {}
        overlay |= {"before_after": {str(file): pairs for file, pairs in perturbed.items()}} if perturbed else {}
        overlay |= {"reliability": {str(file): by_cost for file, by_cost in reliable.items()}} if reliable else {}
        print(json.dumps({**record, **overlay}, ensure_ascii=False))
        return
    _print(excluded, runs, kept)
    for file, pairs in perturbed.items():
        test = pairs["paired"]
        both = f"EX before {percent(pairs['before'])}, after {percent(pairs['after'])}"
        print(f"{file}, {pairs['n']} pairs: {both}; {_test_text(test, 'lost', 'won')}")
    for file, by_cost in reliable.items():
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in by_cost.items())
        print(f"reliability of {file}, with the questions that have no answer: {shown}")
    if found:
        print(f"\n{overlay_text(rule, len(told), found)}")


def _judge_cases(file: Path, timeout: float, as_json: bool) -> None:
    from nl2sql.eval.cases import run_cases

    outcome = run_cases(file, timeout_s=timeout)
    if as_json:
        print(json.dumps(outcome, ensure_ascii=False))
        return
    for case in outcome["cases"]:
        verdicts = ", ".join(f"{rule} {value}" for rule, value in case["verdicts"].items())
        print(f"{case['id']}: {verdicts}" + (f" ({case['error']})" if case["error"] else ""))
    print(f"agreement: {json.dumps(outcome['agreement'])}")


def _as_dict(runs: list[tuple[Path, Scores]], questions: list[Question]) -> dict[str, Any]:
    """The first file's scores at the top; ``runs`` and ``paired`` (first against each other file) for several."""
    entries = [{"predictions": str(file), **s.to_dict(), **_by_dialogue(s, questions)} for file, s in runs]
    if len(runs) == 1:
        return entries[0]
    first = runs[0][1]
    against = {str(file): first.paired(scores) for file, scores in runs[1:]}
    return {**entries[0], "paired": against[str(runs[1][0])] if len(runs) == 2 else against, "runs": entries}


def _by_dialogue(scores: Scores, questions: list[Question]) -> dict[str, Any]:
    """EX by turn and of whole dialogues, as ``dialogues``; nothing for single questions."""
    from nl2sql.benchmarks.core import has_dialogues
    from nl2sql.runs.dialogues import matches

    if not has_dialogues(questions):
        return {}
    return {"dialogues": matches(questions, {item.id: item.ex for item in scores.items})}


def _print(excluded: dict[str, int], runs: list[tuple[Path, Scores]], questions: list[Question]) -> None:
    for file, scores in runs:
        names = list(scores.columns())
        print(f"{file}: {len(scores.items)} items")
        print(f"  {'':8} {'n':>5}  " + "  ".join(f"{name:>20}" for name in names))
        for label, metrics in {"all": scores.metrics(), **scores.by_hardness()}.items():
            shown = "  ".join(f"{metrics[name]!s:>20}" for name in names)
            print(f"  {label:8} {metrics[names[0]].n:>5}  {shown}")
        if told := _by_dialogue(scores, questions).get("dialogues"):
            from nl2sql.runs.dialogues import dialogue_rows

            for label, value in dialogue_rows({"dialogues": {**told, "control": {}}}):
                print(f"  {label}: {value}")
        for what, ids in (("without a prediction", scores.missing), ("surplus, ignored", scores.surplus)):
            if ids:
                print(f"  {what}: {len(ids)} ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''})")
        if failures := scores.failures():
            print("  wrong: " + ", ".join(f"{count} {cause}" for cause, count in failures.items()))
        broken = [item for item in scores.items if item.gold_error]
        if broken:
            print(f"  gold does not run, counted as wrong: {len(broken)} ({broken[0].id}: {broken[0].gold_error})")
        for warning in scores.all_warnings():
            print(f"  note: {warning}")
    print(opt.excluded_line(excluded), end="")
    first = runs[0][1]
    for file, scores in runs[1:]:
        for name, test in first.paired(scores).items():
            print(f"{name}: {runs[0][0]} against {file}: {_test_text(test, 'wins', 'losses')}")


def _test_text(test: dict[str, Any], wins: str, losses: str) -> str:
    counts = f"{test['wins']} {wins}, {test['losses']} {losses}"
    return f"{counts}, p={test['p']:.3g}, by database p={test['p_databases']:.3g}"


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
    timeout: opt.Timeout = 30.0,
    max_rows: opt.MaxRows = 100_000,
    corrections: opt.Corrections = None,
    trust: opt.Trust = False,
    engine_url: opt.TypedUrl = "",
    show: Annotated[int, typer.Option(help="Ids to list per line; 0 lists none, -1 all. --json always has all.")] = 10,
    as_json: opt.Json = False,
    format_: opt.Format = None,
) -> None:
    """Compare two prediction files item by item: wins are items that only A gets right, losses only B.

    Per metric two exact paired tests: McNemar's of the questions, and one by database, which says whether A is better
    on other databases, too; then wins and losses by hardness and by feature of the gold, the ids,
    and which causes of failure moved from A to B. Missing and blank predictions count as wrong. Two run folders are
    compared on the questions that both were asked, of files on those of the whole split.

    \b
    Examples:
      nl2sql runs compare runs/react runs/single_shot
      nl2sql runs compare a.sql b.sql -b spider --split holdout --replicas 5 --json
    """
    from nl2sql.benchmarks import load_benchmark, scorable
    from nl2sql.benchmarks.check import corrected, read_corrections, score_corrected
    from nl2sql.eval.comparison import Overlay, compare_scores, overlay_record, overlay_text, overlays
    from nl2sql.eval.predictions import read_predictions
    from nl2sql.eval.scoring import score_many
    from nl2sql.eval.tables import FORMATS

    folders = all((file / "predictions.jsonl").is_file() for file in (a, b))
    plans = _plans(a, b, benchmark, opt.trust_of(trust, engine_url))
    plan = _common(plans, a, b) if plans and benchmark is None and folders else {}
    if "benchmark" in plan.get("objects", ()):
        named = plan["benchmark"]
        raise UsageError(f"the run was given the benchmark {named} as an object; name one: --benchmark FOLDER")
    benchmark, split = benchmark or plan.get("benchmark") or "packaged", split or plan.get("split")
    loaded = load_benchmark(benchmark, split=split, engine_url=_engine_url(plans))
    read = {label: read_predictions(file, loaded.questions) for label, file in (("A", a), ("B", b))}
    answers = {label: given for label, (given, _) in read.items()}
    shared = answers["A"].keys() & answers["B"].keys() if folders else None
    if shared is not None and not shared:
        raise UsageError(f"{a} and {b} share no question; compare runs over the same split")
    questions = [question for question in loaded.questions if shared is None or question.id in shared]
    kept, excluded = opt.to_score(benchmark, loaded, questions)
    set_aside = {question.id for question in loaded.questions} - {question.id for question in kept}
    usable = {
        label: {id_: sql for id_, sql in given.items() if id_ not in set_aside and (not shared or id_ in shared)}
        for label, given in answers.items()
    }
    told = read_corrections(corrections) if corrections else {}
    found: list[Overlay] = []
    options: dict[str, Any] = {"rule": rule, "timeout_s": timeout, "max_rows": max_rows}
    options["progress"] = sys.stderr.isatty()
    with interruptible("interrupted; nothing was compared"):
        scores = score_many(loaded, kept, usable, replicas=replicas, **options)
        if told:
            published, scores = scores, score_corrected(loaded, questions, told, answers, scores, **options)
            found = overlays(published, scores)
            kept = [question for question in corrected(questions, told) if scorable(question)]
    compared = compare_scores(scores["A"], scores["B"], metric=metric)
    sides: dict[str, dict[str, Any]] = {}
    for label, file in (("A", a), ("B", b)):
        side, warnings = scores[label], [*read[label][1], *scores[label].all_warnings()]
        if shared and (alone := len(answers[label].keys() - shared)):
            warnings.append(f"{alone} question(s) of {label} that the other was not asked are left out")
        about: dict[str, Any] = {"predictions": str(file), "missing": side.missing, "surplus": side.surplus}
        sides[label] = about | {"warnings": warnings}
    if as_json:
        about = {"benchmark": loaded.name, "split": split, "rule": rule, "n": len(kept), "left_out": excluded}
        overlay = {"corrections": overlay_record(len(told), found)} if found else {}
        print(json.dumps({**about, "files": sides, **compared.to_dict(), **overlay}, ensure_ascii=False))
        return
    if format_:
        print(FORMATS[format_](_metric_rows(compared)))
        return
    _print_compared(sides, excluded, compared, show)
    if found:
        print(f"\nall of it as corrected; beside it as published:\n{overlay_text(rule, len(told), found)}")


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
    urls = sorted({plan.get("engine_url") or "" for plan in plans})
    if len(urls) > 1:
        raise UsageError(
            f"the runs asked different engines ({' and '.join(url or 'SQLite' for url in urls)}), and one scores both; "
            "compare runs of one, or name their predictions.jsonl in: nl2sql score --engine-url URL"
        )
    return urls[0] if urls else ""


def _common(plans: list[dict[str, Any]], a: Path, b: Path) -> dict[str, Any]:
    """What the plans say of the benchmark: no split where they differ in it. Raises UsageError for two benchmarks."""
    first, other = plans[0], plans[-1]
    if first.get("benchmark") != other.get("benchmark"):
        raise UsageError(
            f"{a} was run on {first.get('benchmark')} and {b} on {other.get('benchmark')}; compare runs over the same "
            "questions, or name the benchmark that has both: --benchmark NAME"
        )
    return first if first.get("split") == other.get("split") else {**first, "split": None}


def _print_compared(sides: dict[str, Any], excluded: dict[str, int], compared: Comparison, show: int) -> None:
    from nl2sql.eval.tables import FORMATS

    for label, side in sides.items():
        print(f"{label} = {side['predictions']}")
        for what in ("missing", "surplus"):
            if side[what]:
                print(f"  {what}: {len(side[what])} ({_listed(side[what], max(show, 1))})")
    for warning in dict.fromkeys(warning for side in sides.values() for warning in side["warnings"]):
        print(f"note: {one_line(warning)}")
    print(opt.excluded_line(excluded), end="")
    counted = ["n", "A", "B", "A - B", "won", "lost"]
    groups = [
        [f"{grouping} {value}", str(group.n), *_rates(group.a, group.b), str(group.wins), str(group.losses)]
        for grouping, values in compared.groups.items()
        for value, group in values.items()
    ]
    for rows in (_metric_rows(compared), [[f"{compared.metric} by", *counted], *groups]):
        print("\n" + FORMATS["text"](rows))
    chosen = compared.metrics[compared.metric]
    for what, ids in (("wins (only A is right)", chosen.wins), ("losses (only B is right)", chosen.losses)):
        print(f"\n{what}: {len(ids)}" + (f"\n  {_listed(ids, show)}" if ids and show else ""))
    before, after = compared.failures_a, compared.failures_b
    if causes := dict.fromkeys([*before, *after]):
        counts = {cause: (before.get(cause, 0), after.get(cause, 0)) for cause in causes}
        rows = [[cause, str(a), str(b), f"{b - a:+}"] for cause, (a, b) in counts.items()]
        print("\n" + FORMATS["text"]([["cause of failure", "A", "B", "B - A"], *rows]))
    if compared.moved:
        print("\nmoved from A to B")
    for move in compared.moved:
        print(f"  {move.a} -> {move.b}: {len(move.ids)}" + (f" ({_listed(move.ids, show)})" if show else ""))


def _metric_rows(compared: Comparison) -> list[list[str]]:
    rows = [["metric", "n", "A", "B", "A - B", "won", "lost", "p", "p by database"]]
    for name, test in compared.metrics.items():
        counts = [str(len(test.wins)), str(len(test.losses)), f"{test.p:.2g}", f"{test.p_databases:.2g}"]
        rows.append([name, str(test.n), *_rates(test.a, test.b), *counts])
    return rows


def _rates(a: float, b: float) -> list[str]:
    return [f"{100 * a:.1f}", f"{100 * b:.1f}", f"{100 * (a - b):+.1f}"]


def _listed(ids: list[str], show: int) -> str:
    shown = ids if show < 0 else ids[:show]
    return one_line(", ".join(shown)) + (f", ... {len(ids) - len(shown)} more" if len(shown) < len(ids) else "")
