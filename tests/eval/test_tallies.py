"""What is counted over items, golds and portions: small tables with the right sums beside them."""

from __future__ import annotations

from typing import Any

import pytest

from nl2sql.config import EvalConfig
from nl2sql.errors import UsageError
from nl2sql.eval.comparison import Group, Move, compare_scores
from nl2sql.eval.scores import ItemScore, Scores, item_field, one_metric, replicas_name
from nl2sql.eval.scoring import _portions, metric_names
from nl2sql.eval.suites import Strength
from nl2sql.interfaces import Question

GOLDS = {
    "q0": "SELECT name FROM t",
    "q1": "SELECT t.name FROM t JOIN u ON t.id = u.t WHERE u.n > 3",
    "q2": "SELECT count(*) FROM t GROUP BY city",
    "q3": "SELECT name FROM t ORDER BY age LIMIT 1",
    "q4": "not a query (",
}


def scored(outcomes: str, **options: Any) -> Scores:
    """A letter per question: right, wrong (of filter, or join), or no SQL at all; in capitals right on replicas too.

    Each cause is a text of its own, as those that come from files are."""
    causes = {"f": "filter_value", "j": "join_path", "x": "invalid:syntax", "b": "blank"}
    levels = ["easy", "medium", "medium", None, "of their own"]
    items = [
        ItemScore(
            f"q{n}", "ab"[n % 2], "", va=o not in "xb", em=o == "R", ex=o in "rR", ts=o == "R",
            hardness=levels[n], cause="".join(causes.get(o, "")) or None, ts_replicas=0 if o == "R" and n == 4 else 5,
            gold_error="no" if o == "b" else None,
        )
        for n, o in enumerate(outcomes) if o != " "
    ]  # fmt: skip
    return Scores(items, gold_sql=GOLDS, **options)


def test_two_sets_of_predictions_are_compared_item_by_item() -> None:
    found = compare_scores(scored("RrfRx"), scored("fRfjR", replicas=3), metric="EX")
    paired = found.metrics["EX[bag]"]
    assert list(found.metrics) == ["VA", "EM", "EX[bag]"] and found.metric == "EX[bag]"
    assert (paired.a, paired.b, paired.n, paired.wins, paired.losses) == (0.6, 0.4, 5, ["q0", "q3"], ["q4"])
    assert (paired.p, paired.p_databases) == (1.0, 1.0)
    assert (found.metrics["VA"].a, found.metrics["VA"].b) == (0.8, 1.0)
    assert found.groups["hardness"] == {
        "easy": Group(1, 1.0, 0.0, 1, 0),
        "medium": Group(2, 0.5, 0.5, 0, 0),
        "unknown": Group(1, 1.0, 0.0, 1, 0),
        "of their own": Group(1, 0.0, 1.0, 0, 1),
    }
    assert list(found.groups["hardness"]) == ["easy", "medium", "unknown", "of their own"]
    assert {name: group.n for name, group in found.groups["joins"].items()} == {"0": 3, "1": 1, "unknown": 1}
    assert (found.failures_a, found.failures_b) == (
        {"filter_value": 1, "invalid:syntax": 1},
        {"filter_value": 2, "join_path": 1},
    )
    assert found.moved == [
        Move("invalid:syntax", "right", ["q4"]),
        Move("right", "filter_value", ["q0"]),
        Move("right", "join_path", ["q3"]),
    ]
    assert found.to_dict()["moved"][0] == {"a": "invalid:syntax", "b": "right", "ids": ["q4"]}


def test_only_shared_items_and_shared_metrics_are_compared() -> None:
    one, other = scored("Rf  r", replicas=2), scored(" rrrr", replicas=2)
    found = compare_scores(one, other)
    assert found.metrics["TS[bag,perturb,N=2]"].n == 2 and found.metrics["EX[bag]"].losses == ["q1"]
    assert [move.ids for move in compare_scores(scored("ffj"), scored("rrr")).moved] == [["q0", "q1"], ["q2"]]
    unknown = compare_scores(scored("uf"), scored("ru"))
    assert (unknown.failures_a, unknown.failures_b) == ({"unknown": 1, "filter_value": 1}, {"unknown": 1})
    with pytest.raises(UsageError, match="share no item"):
        compare_scores(scored("rr"), scored("   rr"))
    with pytest.raises(UsageError, match="no metric 'TS'; one of VA, EM, EX"):
        compare_scores(one, scored("rrrrr"), metric="TS")
    both = one.paired(other)
    assert (both["EX[bag]"]["wins"], both["EX[bag]"]["losses"], both["EX[bag]"]["n"]) == (0, 1, 2)


def test_the_report_counts_every_group_and_every_failure() -> None:
    report = scored("RrfbR", replicas=5, missing=["q3"], warnings=["w"]).to_dict()
    values = {name: metric["value"] for name, metric in report["metrics"].items()}
    assert values == {"VA": 0.8, "EM": 0.4, "EX[bag]": 0.6, "TS[bag,perturb,N=5]": 0.4}
    assert [(name, level["VA"]["n"]) for name, level in report["by_hardness"].items()] == [
        ("easy", 1), ("medium", 2), ("unknown", 1), ("of their own", 1),
    ]  # fmt: skip
    assert {name: group["EX[bag]"]["value"] for name, group in report["by_database"].items()} == {"a": 2 / 3, "b": 0.5}
    assert (report["n"], report["failures"]) == (5, {"filter_value": 1, "blank": 1})
    assert (report["gold_errors"], report["missing"], report["surplus"]) == (["q3"], ["q3"], [])
    assert report["warnings"][0] == "w" and "only 2 database(s)" in report["warnings"][-1]
    assert report["warnings"][1] == (
        "1 item(s) count as TS[bag,perturb,N=5] though no replica could say anything about them"
    )
    assert [item["id"] for item in report["items"]] == list(GOLDS) and "items" not in scored("r").to_dict(items=False)
    assert scored("").to_dict()["metrics"]["VA"] == {"value": None, "low": None, "high": None, "n": 0}


def test_a_metric_goes_by_its_name_with_or_without_its_rule() -> None:
    known = ["VA", "EX[bag]", "TS[bag,suite,N=5]"]
    assert [one_metric(name, known) for name in ("VA", "EX", "TS", "EX[bag]")] == [*known[:1], *known[1:], known[1]]
    assert [item_field(name) for name in known] == ["va", "ex", "ts"] and item_field("EM") == "em"
    assert replicas_name(7, "suite") == "suite,N=7" and replicas_name("/some/folder", "perturb") == "folder"
    assert metric_names(EvalConfig(replicas=0)) == ["VA", "EM", "EX[bag]"]
    assert metric_names(EvalConfig(replicas=4, method="suite"))[3:] == ["TS[bag,suite,N=4]"]


def item(killed: int, survivors: int, **known: Any) -> dict[str, Any]:
    kinds = ["added condition", "join"]
    neighbours = [[kinds[n % 2], f"SELECT {n}"] for n in range(killed + survivors)]
    entry = {"id": f"i{killed}", "db_id": "d", "sql": "SELECT 0", "databases": ["a", "b"], "usable": 1}
    return {**entry, "killed": neighbours[:killed], "survivors": neighbours[killed:], **known}


def test_the_strength_of_suites_is_counted_over_neighbours_and_over_golds() -> None:
    strength = Strength("suite", 5, [item(50, 0), item(47, 3, databases=["a"] * 4, usable=2), item(0, 0)])
    strength.excluded, strength.built, strength.build_seconds, strength.check_seconds = {"x": 2}, 3, 1.23456, 0.98765
    told = strength.to_dict()
    assert told.pop("survivors") == [
        {"id": "i47", "db_id": "d", "gold": "SELECT 0", "kind": kind, "sql": f"SELECT {n}"}
        for n, kind in ((47, "join"), (48, "added condition"), (49, "join"))
    ]
    assert told == {
        "method": "suite", "n_databases": 5, "n": 3, "left_out": {"x": 2}, "neighbours": 100,
        "neighbours_per_gold_least": 0, "golds_with_few_neighbours": 1, "killed": 97, "micro": 0.97,
        "macro": (1 + 47 / 50) / 2, "fully_killed": 2 / 3, "micro_without_added_conditions": 48 / 50,
        "by_kind": {
            "added condition": {"n": 50, "killed": 49, "rate": 0.98}, "join": {"n": 50, "killed": 48, "rate": 0.96},
        },
        "databases_per_gold": 8 / 3, "databases_per_gold_most": 4, "usable_databases_per_gold": 4 / 3,
        "build_seconds": 1.235, "built": 3, "check_seconds": 0.988,
    }  # fmt: skip
    empty = Strength("perturb", 0).to_dict()
    assert [empty[name] for name in ("micro", "macro", "fully_killed", "databases_per_gold")] == [None] * 4
    assert (empty["databases_per_gold_most"], empty["neighbours_per_gold_least"], empty["neighbours"]) == (0, 0, 0)


def asked(db_id: str, count: int, gold: str = "SELECT {}") -> list[Question]:
    return [Question("?", id=f"{db_id}{n}", db_id=db_id, gold=(gold.format(n),)) for n in range(count)]


@pytest.mark.parametrize(
    ("questions", "workers", "alone", "portions"),
    [
        ([*asked("a", 5), *asked("b", 12)], 1, False, [("b", 12), ("a", 5)]),
        (asked("a", 13), 4, False, [("a", 12), ("a", 1)]),
        ([*asked("b", 1), *asked("a", 2)], 1, True, [("a", 1), ("a", 1), ("b", 1)]),
        (asked("a", 90), 2, False, [("a", 15)] * 6),  # three for each of two workers
    ],
)
def test_items_are_judged_in_portions(
    questions: list[Question], workers: int, alone: bool, portions: list[tuple[str, int]]
) -> None:
    found = _portions(questions, workers, alone)
    assert [(db_id, len(members)) for db_id, members in found] == portions


def test_questions_of_one_gold_stay_together() -> None:
    golds = [f"SELECT {n % 2}" for n in range(24)]
    questions = [Question("?", id=f"a{n}", db_id="a", gold=(gold,)) for n, gold in enumerate(golds)]
    assert [{q.gold for q in members} for _, members in _portions(questions, 4, alone=False)] == [
        {("SELECT 0",)},
        {("SELECT 1",)},
    ]
