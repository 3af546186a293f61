"""What a run reports: the JSON contract of ``nl2sql eval``, the printed table, and the notebook's view of it.

Every number of a loop stands beside the single-shot control, tokens, seconds and a paired test.

>>> stages = ["validation", "answered"], ["answered"]
>>> scored = vizql_scores({"flags": {"vizql": {"stages": seen}}} for seen in stages)
>>> scored["valid"]["1"]["value"], scored["valid"]["2"]["value"], scored["versions"]
(0.5, 1.0, 1.5)
>>> vizql_notes(scored)[0].partition(", after")[0]
'valid at the first attempt 50.0 [9.5, 90.5]'
>>> vizql_scores([{"flags": {"vizql": {"stages": ["answered"]}}}, *[{"flags": {}}] * 3])["valid"]["1"]["value"]
0.25
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nl2sql.eval import Scores, score_many
from nl2sql.eval.scoring import sample_metrics
from nl2sql.eval.settings import Settings
from nl2sql.eval.stats import Interval, minimum_detectable_effect, percent, wilson_interval
from nl2sql.eval.tables import table_html, table_text
from nl2sql.interfaces import Benchmark, Question
from nl2sql.runs.dialogues import RESOLVED_FIELDS, dialogue_notes, dialogue_rows, dialogue_scores, history_of
from nl2sql.runs.folder import RunFolder
from nl2sql.runs.plan import CONTROLS, Control, excluded_of, systems_of

SUSPECT_EX = 0.05  # below this, something other than the loop is likely to be wrong
SUSPECT_SHARE = 0.9  # of the wrong items, with one and the same cause
SUSPECT_ITEMS = 10  # fewer say nothing
COARSE = 0.05  # a paired test that is likely to miss differences of so much says so
PRINCIPAL = ("VA", "EX", "TS")  # metrics of the table that is shown unasked
TOKENS = (  # a row's label -> the parts of usage that it adds up; the first is shown unasked
    ("tokens", ("prompt_tokens", "completion_tokens")),
    ("prompt tokens", ("prompt_tokens",)),
    ("prompt tokens computed", ("prefill_tokens",)),
    ("completion tokens", ("completion_tokens",)),
    ("model calls", ("model_calls",)),
)
REPAIRS = ("overrides", "repairs_forced", "repairs_asked", "repairs_accepted", "deterministic_repairs")
GATES = ("guardrails", "validate_sql", "validate_constraints", "intent_constraints")


def summarise(
    manifest: Mapping[str, Any],
    benchmark: Benchmark,
    questions: Sequence[Question],
    main: RunFolder,
    controls: Mapping[str, RunFolder],
    settings: Settings,
) -> dict[str, Any]:
    """Score a run and its controls; returns the report (the contract is in ``docs/cli.md``)."""

    asked = {question.id for question in questions}

    def of_asked(listed: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in listed if row["id"] in asked]

    rows, traces = of_asked(main.predictions()), of_asked(main.traces(("flags", "compliance")))
    predicted = {name: of_asked(store.predictions()) for name, store in controls.items()}
    present = [control for control in CONTROLS if control.store in controls]
    refused, layers = _refused(traces)
    files = {"run": _texts(rows), "run, raw": _texts(rows, "raw_sql")} | layers
    files |= {control.label: _texts(predicted[control.store], control.text) for control in present}
    scored = score_many(benchmark, questions, files, settings)  # together: what they share is executed once
    scores = scored["run"]
    report: dict[str, Any] = {
        "run": str(main.folder),
        "controller": manifest["controller"]["name"],
        "benchmark": benchmark.name,
        "model": manifest["model"].get("name"),
        "environment": dict(manifest.get("environment", {})),
        **_numbers(scores, main),
        "control": {},
        "paired": {},
    }
    for control in present:
        report["control"][control.name] = _numbers(scored[control.label], controls[control.store])
        report[control.paired] = scores.paired(scored[control.label])
    right = _right(scores)
    verdicts: dict[tuple[str, str], bool] = {}
    for name, layer in layers.items():
        was = _right(scored[name])
        verdicts.update({(id_, sql): was[id_] for id_, sql in layer.items()})
    # of what a model wrote: a repair without a model has no such text, a structured query no SQL
    wrote = {row["id"] for row in rows if row["raw_sql"]} - {t["id"] for t in traces if t["flags"].get("vizql")}
    raw = _right(scored["run, raw"])
    by_guardrails = _flips((verdict, right[id_]) for id_, verdict in raw.items() if id_ in wrote)
    report["flips"] = {"guardrails_final": by_guardrails} | _gate_flips(refused, verdicts, right)
    report["counts"] = counts_of(rows, traces)
    report["suspicions"] = suspicions_of(traces, right)
    report["failures"] = scores.failures()
    report["left_out"] = excluded_of(benchmark, manifest["plan"].get("history", ""))
    report["eval"] = settings.chosen.model_dump()
    report["warnings"] = [*_warnings(rows, scores), *scores.all_warnings()]
    report["alarms"] = alarms(scores)
    ex = {control.item: _right(scored[control.label]) for control in present}
    report["items"] = [item | {name: ex[name][item["id"]] for name in ex} for item in scores.to_dict()["items"]]
    if history := history_of(manifest["plan"].get("history", ""), benchmark.name, questions):
        understood = of_asked(main.traces(RESOLVED_FIELDS))
        report["dialogues"] = dialogue_scores(history, questions, report["items"], understood)
    if structured := vizql_scores(traces):
        report["vizql"] = structured
    drew = {"run": main} | {c.label: controls[c.store] for c in present if c.text == "sql"}
    for label, store in drew.items():
        flags = {trace["id"]: trace["flags"] for trace in of_asked(store.traces(("flags",)))}
        drawn = {id_: of["samples"] for id_, of in flags.items() if of.get("samples")}
        if sampled := sample_metrics(benchmark, questions, drawn, settings):
            report.setdefault("samples", {})[label] = sampled
    return report


def suspicions_of(traces: Iterable[Mapping[str, Any]], right: Mapping[str, bool]) -> dict[str, dict[str, int]]:
    """Check -> answers that it was suspicious of, and how many of them are wrong; ``any`` counts each answer once."""
    table: dict[str, dict[str, int]] = {}
    for trace in traces:
        checks = dict.fromkeys(item["check"] for item in trace["flags"].get("suspicions", ()))
        for name in [*checks, *(["any"] if checks else [])]:
            counts = table.setdefault(name, {"answers": 0, "wrong": 0})
            counts["answers"] += 1
            counts["wrong"] += not right[trace["id"]]
    return table


def alarms(scores: Scores) -> list[str]:
    """Signs that a pipeline is broken rather than weak: look at a few traces before believing any number."""
    n, right = len(scores.items), sum(item.ex for item in scores.items)
    if n < SUSPECT_ITEMS:
        return []
    texts = [f"pipeline suspect: {right} of {n} items are right"] if right / n < SUSPECT_EX else []
    wrong = n - right
    cause, count = next(iter(scores.failures().items()), ("", 0))
    if wrong >= SUSPECT_ITEMS and count / wrong > SUSPECT_SHARE:
        texts.append(f"pipeline suspect: {count} of {wrong} wrong items have the same cause, {cause}")
    return texts


def _warnings(rows: Sequence[Mapping[str, Any]], scores: Scores) -> Iterator[str]:
    """What a reader has to know about episodes that did not come to their end, and about golds."""
    if failed := [row["error"] for row in rows if row["finish"] == "error"]:
        yield f"{len(failed)} of {len(rows)} episodes failed; the first: {failed[0]} (all: traces.jsonl)"
    if broken := [item.id for item in scores.items if item.gold_error]:
        more = ", ..." if len(broken) > 5 else ""
        yield f"{len(broken)} golds do not run, counted as wrong: {', '.join(broken[:5])}{more}"


def usage_of(store: RunFolder) -> dict[str, float | int]:
    """Token and call sums over the episodes; ``seconds`` is the wall clock of the whole phase, resumes included."""
    counts = ("prompt_tokens", "prefill_tokens", "reused_tokens", "completion_tokens", "model_calls", "cached_calls")
    rows = store.predictions()
    sums: dict[str, float | int] = {key: sum(row["usage"].get(key, 0) for row in rows) for key in counts}
    for key in ("queue_seconds", "compute_seconds", "cost"):
        sums[key] = round(sum(row["usage"].get(key, 0.0) for row in rows), 6)
    return sums | {"seconds": store.seconds()}


def _tally(names: Iterable[str]) -> dict[str, int]:
    """Name -> how often, the most frequent first."""
    return dict(Counter(sorted(names)).most_common())


def counts_of(rows: Sequence[Mapping[str, Any]], traces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How episodes ended and what went wrong in them."""
    flags = [trace["flags"] for trace in traces]
    return {
        "finish": _tally(row["finish"] for row in rows),
        "errors": _tally(row["error"].split(":")[0] for row in rows if row["error"]),
        "steps": sum(row["steps"] for row in rows),
        "exhausted_after_success": sum(bool(f.get("exhausted_after_success")) for f in flags),
        "order_violations": _tally(name for t in traces for name, on in t["compliance"].items() if on),
        **{
            name: sum(f.get(name, 0) for f in flags)
            for name in ("format_errors", "truncated", "blocked", "elided_observations", *REPAIRS)
        },
    }


def _numbers(scores: Scores, store: RunFolder) -> dict[str, Any]:
    def shown(metrics: Mapping[str, Interval]) -> dict[str, Any]:
        return {name: interval.to_dict() for name, interval in metrics.items()}

    return {
        "n": len(scores.items),
        "metrics": shown(scores.metrics()),
        "usage": usage_of(store),
        "by_hardness": {level: shown(metrics) for level, metrics in scores.by_hardness().items()},
    }


def _right(scores: Scores) -> dict[str, bool]:
    return {item.id: item.ex for item in scores.items}


def _flips(pairs: Iterable[tuple[bool, bool]]) -> dict[str, int]:
    """How often something right before is wrong after, and the other way round."""
    changed = Counter(was for was, now in pairs if was != now)
    return {"right_to_wrong": changed[True], "wrong_to_right": changed[False]}


def _texts(rows: Iterable[Mapping[str, Any]], field: str = "sql") -> dict[str, str]:
    """Question id -> the statement that is scored: ``raw_sql`` behind the turn that it continues."""
    return {row["id"]: row.get("prefill", "") + row[field] if field == "raw_sql" else row[field] for row in rows}


def _refused(
    traces: Iterable[Mapping[str, Any]],
) -> tuple[dict[tuple[str, str], set[str]], dict[str, dict[str, str]]]:
    """(question id, candidate) -> the gates that refused it; and the candidates as prediction files."""
    refused: dict[tuple[str, str], set[str]] = {}
    for trace in traces:
        for item in trace["flags"].get("rejected", []):
            refused.setdefault((trace["id"], item["sql"]), set()).add(item["by"])
    layers: dict[str, dict[str, str]] = {}
    before: Counter[str] = Counter()  # candidates of a question
    for key, sql in refused:
        before[key] += 1
        layers.setdefault(f"refused, {before[key]}", {})[key] = sql
    return refused, layers


def _gate_flips(
    refused: Mapping[tuple[str, str], set[str]], was: Mapping[tuple[str, str], bool], right: Mapping[str, bool]
) -> dict[str, Any]:
    """For each gate, of the candidates that it refused: their number, and flips to the episode's answer."""
    of_gates = {name: [pair for pair, gates in refused.items() if name in gates] for name in GATES}
    return {
        name: {"refused": len(pairs), **_flips((was[pair], right[pair[0]]) for pair in pairs)}
        for name, pairs in of_gates.items()
    }


# --------------------------------------------------------------------------------------------------- showing


def summary_rows(report: Mapping[str, Any], *, verbose: bool = False) -> list[list[str]]:
    """The table as text cells; the first row is the header.

    ``won, lost`` and ``p`` of a control's column are the run's under EX against it; p is the paired test by database.
    verbose: every metric, tokens by kind, and calls.
    """
    columns = systems_of(report)
    n = max(1, report["n"])
    table = [["", *columns]]
    for metric in report["metrics"]:
        if verbose or metric[:2] in PRINCIPAL:
            table.append([metric, *(percent(column["metrics"][metric]) for column in columns.values())])
    table += sample_rows(report, ["run", *list(columns)[1:]])
    if "dialogues" in report:
        table += dialogue_rows(report)
    if tests := [_ex_test(report, control) or {} for control in CONTROLS if control.name in report["control"]]:
        against = [f"{test['wins']}, {test['losses']}" if test else "" for test in tests]
        table.append(["won, lost against it", "", *against])
        table.append(["p (clustered)", "", *(f"{test['p_databases']:.2g}" if test else "" for test in tests)])
    for label, keys in TOKENS if verbose else TOKENS[:1]:
        sums = [sum(column["usage"].get(key, 0) for key in keys) for column in columns.values()]
        table.append([f"{label} / question", *(f"{total / n:,.1f}" for total in sums)])
    if any(column["usage"].get("cost") for column in columns.values()):
        table.append(["cost, whole set", *(f"{column['usage'].get('cost', 0):,.4f}" for column in columns.values())])
    table.append(["seconds, whole set", *(seconds_text(column["usage"]) for column in columns.values())])
    return table


def sample_rows(report: Mapping[str, Any], systems: Sequence[str]) -> list[list[str]]:
    """The lines of the table: a metric, and its interval for each system that drew samples."""
    drawn = report.get("samples", {})
    names = dict.fromkeys(name for metrics in drawn.values() for name in metrics)
    return [
        [name, *(percent(drawn[system][name]) if name in drawn.get(system, {}) else "" for system in systems)]
        for name in names
    ]


def seconds_text(usage: Mapping[str, Any]) -> str:
    """The seconds of a phase; marked where calls came from the response cache, which makes them no measurement."""
    return f"{usage['seconds']:,.1f}" + " (cached)" * bool(usage.get("cached_calls"))


def _ex_test(report: Mapping[str, Any], control: Control) -> Mapping[str, Any] | None:
    """The run's paired test under EX against a control; None where there is none."""
    tests = report.get(control.paired, {})
    return next((test for metric, test in tests.items() if metric.startswith("EX")), None)


def summary_notes(report: Mapping[str, Any], *, verbose: bool = False) -> list[str]:
    """The lines under the table: alarms, what the tests can find, how episodes ended, warnings.

    verbose: also the tests of the questions alone, and what the loop, its gates and its repairs did.
    """
    lines = [f"ALARM {alarm}; read some traces first" for alarm in report.get("alarms", ())]
    tests = {control.label: test for control in CONTROLS if (test := _ex_test(report, control))}
    metric = next((name for name in report["metrics"] if name.startswith("EX")), "EX")
    for label, test in tests.items() if verbose else ():
        won = f"{test['wins']} won, {test['losses']} lost, p = {test['p']:.3g} (exact McNemar)"
        lines.append(f"{metric} against {label}: {won}, by database p = {test['p_databases']:.3g}")
    lines += dict.fromkeys(text for test in tests.values() if (text := _detectable(test)))
    for name, column in systems_of(report).items():
        if column["usage"].get("cached_calls"):
            of = f"{column['usage']['cached_calls']:,.0f} of {column['usage']['model_calls']:,.0f}"
            lines.append(f"{name}: {of} model calls came from the response cache; its seconds are not a measurement")
    if "dialogues" in report:
        lines += dialogue_notes(report)
    if "vizql" in report:
        lines += vizql_notes(report["vizql"])
    lines.append("ended by: " + ", ".join(f"{name} {count}" for name, count in report["counts"]["finish"].items()))
    if verbose:
        lines += [*_loop_notes(report), *environment_lines(report.get("environment", {}))]
    if report["left_out"]:
        left = ", ".join(f"{count} {reason}" for reason, count in report["left_out"].items())
        lines.append(f"left out of the benchmark: {left}")
    return lines + [f"note: {warning}" for warning in report["warnings"]]


def environment_lines(of: Mapping[str, Any]) -> list[str]:
    """The command that began a run, and where it ran; nothing of runs that did not note it."""
    packages = ", ".join(f"{name} {version}" for name, version in of.get("packages", {}).items())
    place = f"nl2sql {of.get('nl2sql')} {of.get('commit') or ''}, Python {of.get('python')}, {packages}"
    machine = f"{of.get('platform')}, {of.get('cpus')} processors"
    return [f"command: {of['command']}", f"environment: {place}; {machine}"] if "command" in of else []


def _loop_notes(report: Mapping[str, Any]) -> list[str]:
    counts, lines = report["counts"], []
    if counts["steps"] and report["controller"] != "single_shot":
        lines.append(
            f"format errors {counts['format_errors']}, truncated {counts['truncated']}, blocked {counts['blocked']} in "
            f"{counts['steps']} steps; steps used up after a successful run: {counts['exhausted_after_success']}"
        )
    if any(counts.get(name) for name in REPAIRS):
        lines.append(repairs_line(counts))
    if suspected := report.get("suspicions"):
        shown = (f"{name} {c['answers']} ({c['wrong']} wrong)" for name, c in suspected.items())
        lines.append(f"suspicious answers: {', '.join(shown)}")
    for name, flips in report["flips"].items():
        if flips.get("refused") or flips["right_to_wrong"] or flips["wrong_to_right"]:
            of = f" of {flips['refused']} refused" if "refused" in flips else ""
            right = f"{flips['wrong_to_right']} wrong to right"
            lines.append(f"{name}: {flips['right_to_wrong']} right to wrong, {right}{of}")
    return lines


def repairs_line(counts: Mapping[str, Any]) -> str:
    """How often the loop overrode the model, and what became of repairs."""
    overrides, forced, asked, accepted, fixed = (counts.get(name, 0) for name in REPAIRS)
    return (
        f"overrides {overrides}; repairs {forced} forced and {asked} asked for, {accepted} accepted, "
        f"{fixed} mended without the model"
    )


def _detectable(test: Mapping[str, Any]) -> str:
    """What a paired test over few items is likely to miss; nothing where it finds differences of 5 points."""
    if not test["n"]:
        return ""
    effect = minimum_detectable_effect(test["n"], (test["wins"] + test["losses"]) / test["n"])
    if effect is None:
        return f"{test['n']} questions are too few to find any difference"
    missed = f"differences below {100 * effect:.0f} points are likely to be missed at n = {test['n']}"
    return missed if effect > COARSE else ""


def _title(report: Mapping[str, Any]) -> str:
    return f"{report['controller']} on {report['benchmark']}, {report['n']} questions, model {report['model']}"


def summary_text(report: Mapping[str, Any], *, verbose: bool = False) -> str:
    """The report as a plain-text table with its notes."""
    rows, notes = summary_rows(report, verbose=verbose), summary_notes(report, verbose=verbose)
    return "\n".join([_title(report), "", *table_text(rows), "", *notes])


def summary_html(report: Mapping[str, Any]) -> str:
    """The report for a notebook; all text is escaped."""
    return f"<div><b>{html.escape(_title(report))}</b>{table_html(summary_rows(report), summary_notes(report))}</div>"


# ------------------------------------------------------------------------------- structured queries
# A question counts as valid from the first version on that was; what came of its execution is in VA
# and EX.

VERSIONS = (1, 2, 3, 4)  # built, and three refinements


def vizql_scores(traces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The report's ``vizql``: shares of questions with a valid version so far, versions per question, last stages.

    An episode that broke off counts as one without a version. Empty for a run without structured queries.
    """
    told = [trace["flags"].get("vizql") for trace in traces]
    if not any(told):
        return {}
    stages = [said["stages"] if said else [] for said in told]
    first = [next((n for n, stage in enumerate(seen, 1) if stage != "validation"), None) for seen in stages]
    counts = {str(version): sum(n is not None and n <= version for n in first) for version in VERSIONS}
    valid = {version: wilson_interval(count / len(first), len(first)).to_dict() for version, count in counts.items()}
    return {
        "valid": valid,
        "versions": round(sum(map(len, stages)) / len(stages), 3),
        "ended": dict(Counter(seen[-1] if seen else "none" for seen in stages)),
    }


def vizql_notes(told: Mapping[str, Any], name: str = "") -> list[str]:
    """The lines under a table; ``name`` stands in front of them."""
    first, *later = (percent(told["valid"][str(version)]) for version in VERSIONS)
    after = ", ".join(f"{n} {share}" for n, share in enumerate(later, 1))
    before = f"{name}: " if name else ""
    line = f"{before}valid at the first attempt {first}, after refinement {after} of {told['valid']['1']['n']}"
    ended = ", ".join(f"{stage} {count}" for stage, count in sorted(told["ended"].items()))
    return [line, f"{before}{told['versions']:.2f} versions per question; ended at: {ended}"]
