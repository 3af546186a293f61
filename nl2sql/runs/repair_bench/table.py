"""The benchmark's results as a table: by origin of the cases and by arm, with intervals and paired tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, TypeAlias

from nl2sql.eval import tables
from nl2sql.eval.stats import adjusted, clustered_interval, paired_test
from nl2sql.runs.repair_bench.bench import ALONE
from nl2sql.runs.repair_bench.cases import RULE, RepairCase

BASELINE = "error"
Row: TypeAlias = Mapping[str, Any]
COLUMNS = ("arm", "model", "n", "repaired", "attempts", "right", "tokens", "s")
TESTED = ("points", "won", "lost", "p", "by db")


def summarise_repairs(cases: Sequence[RepairCase], results: Sequence[Row], baseline: str = BASELINE) -> dict[str, Any]:
    """Per dialect and origin: the arms with their numbers and tests, and success by category and by kind of mistake.

    ``repaired``: the engine takes the statement, as in the specification's loop. ``attempts``: mean over what was
    repaired. ``right``: it also gives the gold's rows. Tokens and seconds: mean over all cases. Intervals are clustered
    by database. Each arm's ``right`` is tested against that of ``baseline`` under the same model (the stage without a
    model against each).
    """
    groups: dict[tuple[str, str], list[RepairCase]] = defaultdict(list)
    for case in cases:
        groups[case.dialect, case.origin].append(case)
    tables = []
    for (dialect, origin), members in sorted(groups.items()):
        by_id = {case.id: case for case in members}
        arms: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
        for row in results:
            if row["case"] in by_id:
                arms[row["model"], row["arm"]][row["case"]] = row
        about = {"dialect": dialect, "origin": origin, "n": len(members), "databases": len({c.db_id for c in members})}
        tables.append(
            about
            | {
                "arms": _with_tests(
                    [_arm(by_id, *name, rows) for name, rows in arms.items()],
                    arms,
                    baseline,
                    {case.id: case.db_id for case in members},
                ),
                "by_category": _shares(by_id, arms, "category"),
                "by_kind": _shares(by_id, arms, "kind"),
            }
        )
    return {"metric": f"EX[{RULE}]", "baseline": baseline, "cases": len(cases), "groups": tables}


def _arm(cases: Mapping[str, RepairCase], model: str, name: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    taken = list(rows.values())
    good = [row for row in taken if row["executes"]]
    databases = [cases[row["case"]].db_id for row in taken]
    return {
        "arm": name,
        "model": model,
        "n": len(taken),
        "repaired": clustered_interval([row["executes"] for row in taken], databases).to_dict(),
        "right": clustered_interval([row["success"] for row in taken], databases).to_dict(),
        "attempts": fmean(row["attempts"] for row in good) if good else None,
        "prompt_tokens": fmean(row["prompt_tokens"] for row in taken),
        "completion_tokens": fmean(row["completion_tokens"] for row in taken),
        "seconds": fmean(row["seconds"] for row in taken),
        "mended": sum(row["mended"] > 0 for row in taken),
        "fixes_shown": sum(row["fixes_shown"] > 0 for row in taken),
        "model_failures": sum(row["ended"].startswith("model:") for row in taken),
    }


def _with_tests(
    shown: list[dict[str, Any]],
    arms: Mapping[tuple[str, str], Mapping[str, Row]],
    baseline: str,
    databases: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The arms with ``test``: against the baseline, adjusted (Holm) over all tests of the group."""
    verdicts = {name: {id: bool(row["success"]) for id, row in rows.items()} for name, rows in arms.items()}
    models = [model for model, name in arms if name == baseline]
    tests, owners = [], []
    for entry in shown:
        against = entry["model"] if entry["arm"] != ALONE else (models[0] if models else "")
        if entry["arm"] != baseline and (against, baseline) in verdicts:
            mine = verdicts[entry["model"], entry["arm"]]
            tests.append(paired_test(baseline, mine, verdicts[against, baseline], databases.__getitem__))
            owners.append(entry)
    for entry, test in zip(owners, adjusted(tests), strict=True):
        entry["test"] = asdict(test)
    return shown


def _shares(
    cases: Mapping[str, RepairCase], arms: Mapping[tuple[str, str], Mapping[str, Row]], field: str
) -> list[dict[str, Any]]:
    one_model = len({model for model, _ in arms if model}) < 2
    members: dict[str, list[str]] = defaultdict(list)
    for id, case in cases.items():
        members[getattr(case, field)].append(id)
    return [
        {
            field: name,
            "n": len(ids),
            "right": {
                arm if one_model else f"{arm} {model}".strip(): fmean(
                    bool(rows[id]["success"]) for id in ids if id in rows
                )
                for (model, arm), rows in arms.items()
                if any(id in rows for id in ids)
            },
        }
        for name, ids in sorted(members.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def repairs_text(summary: Mapping[str, Any]) -> str:
    """The summary as plain text: one table for each group, and success by category below it."""
    parts = []
    for group in summary["groups"]:
        head = f"{group['dialect']}, {group['origin']}: {group['n']} failing statements, {group['databases']} databases"
        parts.append("\n".join([head, "", *tables.table_text([[*COLUMNS, *TESTED], *map(_cells, group["arms"])])]))
        names = list(dict.fromkeys(name for entry in group["by_category"] for name in entry["right"]))
        rows = [
            [entry["category"], str(entry["n"]), *(_share(entry["right"].get(name)) for name in names)]
            for entry in group["by_category"]
        ]
        parts.append("\n".join(["right by category, %", "", *tables.table_text([["category", "n", *names], *rows])]))
    notes = [
        f"repaired: the engine takes it, right: with the gold's rows ({summary['metric']}); %, with 95% intervals",
        "attempts: mean over what was repaired; tokens (prompt and completion) and s (seconds): mean over all cases",
        f"points, won, lost: right, against {summary['baseline']}; p: exact McNemar; by db: the test by database, "
        "which says whether one is better; both adjusted over a table (Holm)",
    ]
    broken = sum(entry["model_failures"] for group in summary["groups"] for entry in group["arms"])
    if broken:
        notes.insert(0, f"ALARM: in {broken} repairs the model failed; they count as not repaired")
    return "\n\n".join([*parts, "\n".join(notes)])


def _cells(entry: Mapping[str, Any]) -> list[str]:
    test = entry.get("test")
    repaired, right = (
        f"{_share(share['value'])} [{_share(share['low'])}, {_share(share['high'])}]"
        for share in (entry["repaired"], entry["right"])
    )
    tokens = entry["prompt_tokens"] + entry["completion_tokens"]
    attempts = "-" if entry["attempts"] is None else f"{entry['attempts']:.2f}"
    tested = [""] * len(TESTED)
    if test is not None:
        ps = [f"{test[name]:.2g}" for name in ("p_holm", "p_databases_holm")]
        tested = [f"{100 * test['difference']:+.1f}", str(test["wins"]), str(test["losses"]), *ps]
    costs = [f"{tokens:.0f}", f"{entry['seconds']:.2f}"]
    return [entry["arm"], entry["model"] or "-", str(entry["n"]), repaired, attempts, right, *costs, *tested]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
