"""Right SQL through guardrails and gates, and the same SQL with one asked-for structure removed.

    python scripts/gold_through_gates.py                             # packaged (+ spider, classicmodels where found)
    python scripts/gold_through_gates.py --benchmark geoquery --json

Two sides of the same gates. *Right SQL*: every gold that runs is sent through the guardrails, ``validate_sql``,
``validate_constraints`` and ``intent_constraints`` as if a model had written it. *Bite*: of each gold one structure
of the outermost query is removed (aggregate, GROUP BY, ORDER BY/LIMIT, DISTINCT); where what is left still executes and
returns other rows it should be rejected. Two denominators: ``all`` such queries, and ``asked``, those whose question
has one of the words of ``ASKED_FOR``: a crude and generous rule, kept apart from the gates' own cues.
Validation is that with ``explain``, as ``reflect`` and ``candidates`` have it; ``--letter`` takes the specification's,
and strips an order that no cue asks for. Exit code 1 when a bound of ``BOUNDS`` is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from tqdm.auto import tqdm

from nl2sql.agents.checks.constraints import extract_constraints, intent_constraints, validate_constraints
from nl2sql.agents.checks.constraints.shape import is_aggregate_call
from nl2sql.agents.checks.guardrails import apply_guardrails
from nl2sql.benchmarks import draw_sample, load_benchmark, scorable
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.eval import results_match
from nl2sql.eval.rules import order_matters
from nl2sql.interfaces import Database, Question, RunResult
from nl2sql.sql.canonical import branches
from nl2sql.sql.parse import parse_bounded

BOUNDS = {"ex_unchanged": 0.999, "validate_sql": 0.005, "gates": 0.03, "bite": 0.60}
FEWEST = 10  # a bite measured on fewer queries is shown, not held to its bound
TIMEOUT_S, SCORED_ROWS = 10.0, 100_000  # as the evaluation bounds golds
COMPARED_ROWS = 5_000  # of a query less one structure: its first rows are enough to see a difference
SUPERLATIVE = (
    r"most|least|fewest|best|worst|top|highest|lowest|(?!interest|request|guest|forest|test|west|rest)\w{3,}est"
)
ASKED_FOR = {
    "aggregate": r"how many|how much|number|count|average|avg|mean|total|sum|amount|maximum|minimum|max|min"
    rf"|{SUPERLATIVE}",
    "group_by": r"each|every|per|by|for all|number of .* (?:of|for|in)|most|least|fewest"
    r"|(?:more|less|fewer) than|at (?:least|most)|exactly|only",
    "order_limit": rf"sort(?:ed|ing)?|order(?:ed)? (?:by|of)|in .* order|ordered|rank(?:ed|ing)?|alphabetical(?:ly)?"
    rf"|(?:as|des)cending|maximum|minimum|first|last|recent|{SUPERLATIVE}",
    "distinct": r"distinct|different|unique|various|all the (?:kinds|types)|without (?:repetition|duplicates?)",
}


@dataclass
class Removal:
    """One gold with one structure removed, and who rejected it ("" when nobody did)."""

    structure: str
    sql: str
    asked: bool
    effect: str  # changed | same | fails
    rejected_by: str = ""
    reason: str = ""


@dataclass
class Item:
    """What happened to one gold."""

    question: Question
    excluded: str = ""
    guarded: str = ""
    ex: bool | None = None  # of the guarded SQL; None where the item is not scored
    rejected_by: str = ""
    reason: str = ""
    removals: list[Removal] = field(default_factory=list)


STRUCTURES = ("aggregate", "group_by", "order_limit", "distinct")


def remove_structure(sql: str, structure: str) -> str | None:
    """The query without one structure in its outermost SELECTs; None where it is not there. It need not execute."""
    try:
        tree = parse_bounded(sql)
    except SqlglotError:
        return None
    legs = list(branches(tree))
    remove = {
        "aggregate": _remove_aggregates,
        "group_by": _remove_groups,
        "order_limit": _remove_order,
        "distinct": _remove_distinct,
    }[structure]
    return tree.sql(dialect="sqlite") if remove(tree, legs) else None


def _own(leg: exp.Select) -> Iterator[exp.Expr]:
    """Nodes of the SELECT list that belong to no subquery."""
    for projection in list(leg.expressions):
        yield from [node for node in projection.walk() if node.find_ancestor(exp.Select) is leg]


def _remove_aggregates(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    changed = False
    for leg in legs:
        for node in [n for n in _own(leg) if is_aggregate_call(n) and not isinstance(n.parent, exp.Window)]:
            changed = True
            inner = node.expressions[0] if isinstance(node, exp.Anonymous) else node.this
            if isinstance(inner, exp.Distinct):
                inner = inner.expressions[0]
            bare = inner.copy() if isinstance(inner, exp.Expr) else exp.Star()
            holder = node.parent
            if isinstance(holder, exp.Alias) and isinstance(bare, exp.Star):  # a star takes no alias
                holder.replace(bare)
            else:
                node.replace(bare)
    return changed


def _remove_groups(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    grouped = [leg for leg in legs if leg.args.get("group")]
    for leg in grouped:
        leg.set("group", None)
        leg.set("having", None)
    return bool(grouped)


def _remove_order(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    changed = False
    for node in [tree, *legs]:
        for part in ("order", "limit", "offset"):
            changed = changed or bool(node.args.get(part))
            node.set(part, None)
    return changed


def _remove_distinct(tree: exp.Expr, legs: list[exp.Select]) -> bool:
    changed = False
    for leg in legs:
        changed = changed or bool(leg.args.get("distinct"))
        leg.set("distinct", None)
        for node in [n for n in _own(leg) if isinstance(n, exp.Distinct)]:
            node.replace(node.expressions[0])
            changed = True
    return changed


def judge(sql: str, question: Question, database: Database, letter: bool) -> tuple[str, str, str]:
    """(who rejected, reason, guarded SQL) of a query on its way through the loop's gates, in their order."""
    schema = database.schema()
    guarded, reject = apply_guardrails(sql, question.text, schema, strip_unasked=letter)
    if reject is not None:
        return "guardrails", reject, guarded
    checked = validate_sql(guarded, schema, None if letter else database)
    if not checked["valid"]:
        return "validate_sql", checked["reason"], guarded
    checked = validate_constraints(guarded, extract_constraints(question.text), schema)
    if not checked["valid"]:
        return "validate_constraints", checked["reason"], guarded
    ok, reason = intent_constraints(question.text, guarded, schema)
    return ("", "", guarded) if ok else ("intent_constraints", reason, guarded)


def asked_for(structure: str, nlq: str) -> bool:
    """Whether the crude rule says that the question asks for the structure."""
    text = re.sub(r"\bat (?:most|least)\b", "", nlq.lower()) if structure == "order_limit" else nlq.lower()
    return re.search(rf"\b(?:{ASKED_FOR[structure]})\b", text) is not None


def effect_of(structure: str, gold: RunResult, left: RunResult) -> str:
    if not left.success and left.error_kind != "too_many_rows":
        return "fails"
    rows = gold.rows[:COMPARED_ROWS] if left.truncated else gold.rows
    if structure == "order_limit":
        return "same" if rows == left.rows else "changed"
    return "same" if Counter(map(repr, rows)) == Counter(map(repr, left.rows)) else "changed"


def examine(question: Question, database: Database, letter: bool = False) -> Item:
    """Send one gold, and the gold less each structure, through the gates."""
    item = Item(question)
    gold_sql = question.gold[0]
    gold = database.run(gold_sql, timeout_s=TIMEOUT_S, max_rows=SCORED_ROWS)
    if not gold.success:
        item.excluded = f"gold does not run: {gold.error_kind}"
        return item
    item.rejected_by, item.reason, item.guarded = judge(gold_sql, question, database, letter)
    if scorable(question) and not gold.truncated:
        result = database.run(item.guarded, timeout_s=TIMEOUT_S, max_rows=SCORED_ROWS) if item.guarded else None
        item.ex = result is not None and results_match(gold, result, ordered=order_matters(gold_sql))
    for structure in STRUCTURES:
        sql = remove_structure(gold_sql, structure)
        if sql is None:
            continue
        effect = effect_of(structure, gold, database.run(sql, timeout_s=TIMEOUT_S, max_rows=COMPARED_ROWS))
        removal = Removal(structure, sql, asked_for(structure, question.text), effect)
        if effect == "changed":
            removal.rejected_by, removal.reason, _ = judge(sql, question, database, letter)
        item.removals.append(removal)
    return item


def run_benchmark(name: str, limit: int | None, seed: int, letter: bool = False) -> list[Item]:
    """All items of one benchmark, in the order of its questions."""
    benchmark = load_benchmark(name, split="all")
    questions = draw_sample(benchmark.questions, limit, seed)
    items: dict[int, Item] = {}

    def work(index: int) -> None:
        question = questions[index]
        if not question.gold or question.meta.get("db_missing"):
            items[index] = Item(question, excluded="no gold" if not question.gold else "database missing")
        else:
            items[index] = examine(question, benchmark.database(question.db_id), letter)  # type: ignore[arg-type]

    with ThreadPoolExecutor(3) as pool:
        for _ in tqdm(pool.map(work, range(len(questions))), total=len(questions), desc=name, unit="gold"):
            pass
    return [items[i] for i in range(len(questions))]


# ------------------------------------------------------------------------------------------------- the report


def share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def summarise(items: Iterable[Item]) -> dict[str, Any]:
    """Both sides of one set of items as plain JSON."""
    every = list(items)
    run = [i for i in every if not i.excluded]
    scored = [i for i in run if i.ex is not None]
    by = Counter(i.rejected_by for i in run if i.rejected_by)
    gates = by["validate_constraints"] + by["intent_constraints"]
    return {
        "n": len(run),
        "left_out": dict(Counter(i.excluded for i in every if i.excluded)),
        "ex_unchanged": {"value": share(sum(bool(i.ex) for i in scored), len(scored)), "n": len(scored)},
        "guardrails": {"value": share(by["guardrails"], len(run)), "rejected": by["guardrails"]},
        "validate_sql": {"value": share(by["validate_sql"], len(run)), "rejected": by["validate_sql"]},
        "gates": {"value": share(gates, len(run)), "rejected": gates, "by": dict(by)},
        "causes": dict(Counter(f"{i.rejected_by}:{i.reason}" for i in run if i.rejected_by).most_common()),
        "bite": {s: _bite([r for i in run for r in i.removals if r.structure == s]) for s in STRUCTURES},
    }


def _bite(removals: Sequence[Removal]) -> dict[str, Any]:
    out: dict[str, Any] = {"effects": dict(Counter(r.effect for r in removals))}
    changed = [r for r in removals if r.effect == "changed"]
    for name, chosen in (("all", changed), ("asked", [r for r in changed if r.asked])):
        rejected = [r for r in chosen if r.rejected_by]
        by = dict(Counter(r.rejected_by for r in rejected).most_common())
        out[name] = {"value": share(len(rejected), len(chosen)), "n": len(chosen), "rejected": len(rejected), "by": by}
    return out


def misses(summary: dict[str, Any]) -> list[str]:
    """The bounds that a summary does not keep."""
    out = []
    for key in ("ex_unchanged", "validate_sql", "gates"):
        value = summary[key]["value"]
        too_low = key == "ex_unchanged"
        if value is not None and (value < BOUNDS[key] if too_low else value > BOUNDS[key]):
            out.append(f"{key} {value:.2%} (bound {BOUNDS[key]:.1%})")
    for structure, bite in summary["bite"].items():
        value = bite["asked"]["value"]
        if value is not None and value < BOUNDS["bite"] and bite["asked"]["n"] >= FEWEST:
            out.append(f"bite on asked-for {structure} {value:.0%} (bound {BOUNDS['bite']:.0%})")
    return out


def print_summary(name: str, summary: dict[str, Any]) -> None:
    ex, valid, gates = summary["ex_unchanged"], summary["validate_sql"], summary["gates"]
    print(f"\n{name}: {summary['n']} golds" + (f", left out {summary['left_out']}" if summary["left_out"] else ""))
    print(
        f"  right SQL  EX[bag] unchanged {_percent(ex['value'], 2)} of {ex['n']}; guardrails reject "
        f"{_percent(summary['guardrails']['value'], 2)}, validate_sql {_percent(valid['value'], 2)}, "
        f"both gates {_percent(gates['value'], 2)} ({gates['rejected']})"
    )
    for cause, n in summary["causes"].items():
        print(f"             {cause}: {n}")
    for structure, bite in summary["bite"].items():
        asked, every = bite["asked"], bite["all"]
        by = ", ".join(f"{who} {n}" for who, n in asked["by"].items())
        print(
            f"  without {structure:<12} asked {_percent(asked['value'])} of {asked['n']:<5} "
            f"all {_percent(every['value'])} of {every['n']:<5} {by}"
        )


def _percent(value: float | None, digits: int = 0) -> str:
    return "   -" if value is None else f"{value:.{digits}%}".rjust(4)


def default_benchmarks() -> list[str]:
    return ["packaged", "spider", "classicmodels"] if os.environ.get("NL2SQL_BENCHMARKS") else ["packaged"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--benchmark", action="append", nargs="+", metavar="NAME", help="name or folder; may be repeated"
    )
    parser.add_argument("--limit", type=int, help="a seeded sample of so many golds per benchmark")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--letter", action="store_true", help="the specification's letter: strip_unasked, no explain")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    args = parser.parse_args(argv)
    names = [name for group in args.benchmark for name in group] if args.benchmark else default_benchmarks()
    report: dict[str, Any] = {}
    try:
        if args.limit is not None and args.limit < 1:
            raise UsageError(f"--limit {args.limit}: expected a positive number of golds")
        for name in names:
            summary = summarise(run_benchmark(name, args.limit, args.seed, args.letter))
            report[name] = summary | {"misses": misses(summary)}
            if not args.json:
                print_summary(name, summary)
    except Nl2SqlError as error:
        print(f"gold_through_gates: {error}", file=sys.stderr)
        return error.exit_code
    missed = [f"{name}: {miss}" for name in names for miss in report[name]["misses"]]
    print(json.dumps(report, indent=2) if args.json else "\n".join(["", *(missed or ["all bounds kept"])]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
