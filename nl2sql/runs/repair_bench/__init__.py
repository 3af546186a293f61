"""The benchmark of repairs: every case under every arm, up to three attempts, and the results as a table.

An arm is a guidance level (``error``, ``patterns``, ``patterns+corpus``), the stage without a model
(``deterministic``), that stage before a level (``deterministic+patterns``), or a level with a switch of the repair
behind it (``patterns+samples``; without a level: ``error``).
An attempt is the loop's own ``repair_sql`` (prompt, guidance, guardrails); it ends when the engine takes the statement,
since nothing tells the loop more than that. Success is that the statement then gives the gold's rows.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

from tqdm.auto import tqdm

from nl2sql.agents import prompts, repairing
from nl2sql.agents.agent_tools import repair_sql
from nl2sql.agents.controllers import episode_model
from nl2sql.agents.record import EpisodeError
from nl2sql.agents.setup import link, open_task
from nl2sql.agents.task import State
from nl2sql.agents.writing import guard
from nl2sql.config import Config, RepairConfig
from nl2sql.errors import Cancelled, UsageError
from nl2sql.eval import tables
from nl2sql.eval.rules import RULES
from nl2sql.eval.stats import adjusted, clustered_interval, paired_test, percent
from nl2sql.interfaces import Database, Model, Question, Resources, RunResult, content_key
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.registry import catalogue_print
from nl2sql.runs.folder import count_lines, iter_jsonl
from nl2sql.runs.plan import weights_of
from nl2sql.runs.repair_bench.cases import RepairCase, refusal_of
from nl2sql.runs.repair_bench.sources import BOUNDS

LEVELS = ("error", "patterns", "patterns+corpus")
ALONE = "deterministic"  # the stage without a model
BEFORE = f"{ALONE}+"
SWITCHES = ("samples", "grammar")  # of RepairConfig, behind a level (alone: error)
SAMPLES = 4
SEARCH_S = 60.0  # a busy machine must not decide which fixes are shown
RESULTS = "results.jsonl"
RULE = RULES["bag"]
FENCED = re.compile(r"```(?:\w+\n)?(.*?)(?:```|$)", re.DOTALL)


@dataclass(frozen=True)
class Arm:
    """What is done about a failure. ``level`` None: no model is asked."""

    name: str
    level: str | None
    deterministic: bool = False
    switches: tuple[str, ...] = ()  # of RepairConfig

    @property
    def needs_corpus(self) -> bool:
        return self.level == "patterns+corpus"

    def config(self, base: Config, dialect: str) -> Config:
        """``base`` as this arm repairs on ``dialect``."""
        repair = RepairConfig(
            **base.repair.model_dump()
            | {"guidance": self.level or "error", "deterministic": self.deterministic, "search_s": SEARCH_S}
            | {name: SAMPLES if name == "samples" else True for name in self.switches}
        )
        return base.model_copy(update={"repair": repair, "prompts": prompts.for_engine(base.prompts, dialect)})


def arm(name: str) -> Arm:
    """The arm of that name. Raises UsageError with the names there are."""
    if name == ALONE:
        return Arm(name, None, deterministic=True)
    parts = name.removeprefix(BEFORE).split("+")
    switches = tuple(part for part in parts if part in SWITCHES)
    level = "+".join(part for part in parts if part not in SWITCHES) or "error"
    if level not in LEVELS:
        known = ", ".join([*LEVELS, ALONE, *SWITCHES])
        raise UsageError(f"no arm {name!r}; known: {known}, {BEFORE} before one of them, +{'/+'.join(SWITCHES)} behind")
    return Arm(name, level, name.startswith(BEFORE), switches)


@dataclass(frozen=True)
class Bench:
    """Cases and what they are repaired with. ``database`` opens a case's database."""

    cases: Sequence[RepairCase]
    database: Callable[[RepairCase], Database]
    config: Config
    attempts: int = 3
    corpus: Corpus | None = None
    golds: dict[tuple[str, str, str], RunResult] = field(default_factory=dict, repr=False)  # each executed once

    def right(self, case: RepairCase, sql: str, result: RunResult) -> bool:
        """Whether a statement's result has the rows of one of the case's golds."""
        for gold in case.gold:
            key = (case.dialect, case.db_id, gold)
            if key not in self.golds:
                self.golds[key] = self.database(case).run(gold, **BOUNDS)
            if RULE.judge([self.golds[key]], [result], gold_sql=case.ordered_by, predicted_sql=sql):
                return True
        return False

    def key(self, case: RepairCase, arm: Arm, model: Mapping[str, Any]) -> str:
        """What decides a result, as a content key."""
        config = arm.config(self.config, case.dialect)
        parts = [case.to_dict(), arm.name, self.attempts, config.model_dump(exclude={"eval", "reward"})]
        parts += [prompts.prompt_hashes(config.prompts), catalogue_print()]
        if arm.level is not None:
            parts.append(weights_of(model))
        if arm.needs_corpus and self.corpus is not None:
            parts.append(self.corpus.content_hash())
        return content_key(*parts)


def run_arms(
    bench: Bench, arms: Sequence[Arm], model: Model | None, folder: Path, *, progress: bool = True
) -> list[dict[str, Any]]:
    """Do what ``folder`` still owes of these arms and return the results that it holds of these cases.

    Of other arms and models those are the latest. Raises UsageError where an arm asks a model or a corpus that is not
    given, Cancelled when interrupted.
    """
    if model is None and (asking := [chosen.name for chosen in arms if chosen.level is not None]):
        raise UsageError(f"{asking[0]} asks a model, and none is given; --arms {ALONE} needs none")
    check_fixes(arms, bench.corpus is not None)
    described = model.describe() if model is not None else {}
    label = str(described.get("name") or getattr(model, "name", "")) if model is not None else ""
    wanted = [(case, chosen, bench.key(case, chosen, described)) for chosen in arms for case in bench.cases]
    path = folder / RESULTS
    done = {row["key"] for row in iter_jsonl(path)}
    pending = [item for item in wanted if item[-1] not in done]
    cancel, writing = threading.Event(), threading.Lock()

    def repair_one(case: RepairCase, chosen: Arm, key: str) -> None:
        outcome = repaired(bench, case, chosen, model, cancel)
        row = {"key": key, "case": case.id, "arm": chosen.name, "model": label if chosen.level else ""} | outcome
        with writing, path.open("a", encoding="utf-8") as file:
            if not cancel.is_set():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

    workers = max(1, int(getattr(model, "batch_size", 4)))
    bar = tqdm(total=len(wanted), initial=len(wanted) - len(pending), desc="repairs", disable=not progress)
    with bar, ThreadPoolExecutor(workers, thread_name_prefix="repair") as pool:
        try:
            futures = [pool.submit(repair_one, *item) for item in pending]
            for future in as_completed(futures):
                future.result()
                bar.update()
        except BaseException as error:
            cancel.set()
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, KeyboardInterrupt):
                kept = f"{count_lines(path)} results are kept in {folder}"
                raise Cancelled(f"interrupted; {kept}; the same command goes on") from None
            raise
    ids, keys = {case.id for case in bench.cases}, {key for *_, key in wanted}
    asked = {(chosen.name, label if chosen.level else "") for chosen in arms}
    held = {
        (row["case"], row["arm"], row["model"]): row
        for row in iter_jsonl(path)
        if row["case"] in ids and (row["key"] in keys or (row["arm"], row["model"]) not in asked)
    }
    return list(held.values())


def check_fixes(arms: Sequence[Arm], given: bool) -> None:
    """Raises UsageError where an arm searches fixes and none are ``given``."""
    if not given and (searching := [chosen.name for chosen in arms if chosen.needs_corpus]):
        raise UsageError(f"{searching[0]} needs fixes; give --corpus FILE, or --learn-from BENCHMARK:SPLIT")


def repaired(
    bench: Bench, case: RepairCase, chosen: Arm, model: Model | None, cancel: threading.Event | None = None
) -> dict[str, Any]:
    """One case under one arm: whether it succeeded, whether it executes, attempts, cost, and each attempt."""
    began = time.perf_counter()
    database = bench.database(case)
    question = Question(case.question, case.db_id, case.question_id, evidence=case.evidence)
    asked: Model = ScriptedModel([], name="none", context_window=10**6)  # counts words where nobody is asked
    if model is not None and chosen.level:
        asked = episode_model(model, question, chosen.name)
    config = chosen.config(bench.config, case.dialect)
    state = State(open_task(question, Resources(asked, database, corpus=bench.corpus, cancel=cancel), config))
    link(state.task)
    sql, error, ended, success = case.sql, case.error, "no attempt is left", False
    tried: list[dict[str, str]] = []
    while len(tried) < bench.attempts:
        try:
            candidate = _attempt(state, chosen, sql, error)
        except EpisodeError as failed:
            ended = str(failed)
            break
        if candidate is None:
            ended = "no repair was found" if chosen.level is None else "what came is no query"
            break
        why = refusal_of(candidate, database)
        result = RunResult(False, error=why) if why else database.run(candidate, **BOUNDS)
        why = "" if result.success else result.error or "refused"
        tried.append({"sql": candidate, "error": why})
        if result.success:
            success, ended = bench.right(case, candidate, result), "executes"
            break
        if candidate == sql:
            ended = "repeats itself"  # the next prompt would be the same
            break
        sql, error = candidate, why
    usage = state.task.usage
    return {
        "success": success,
        "executes": ended == "executes",
        "attempts": len(tried),
        "ended": ended,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "seconds": round(time.perf_counter() - began, 4),
        "tried": tried,
    }


def _attempt(state: State, chosen: Arm, sql: str, error: str) -> str | None:
    """The next candidate; None where nothing came that is a query."""
    state.last_sql, state.pending_repair_error = sql, error
    state.trace += [
        {"action": "generate_sql", "observation": {"sql": sql}},
        {"action": "run_sql", "observation": {"success": False, "error": error}},
    ]
    if chosen.level is None:
        return repairing.fixed(state, error)
    raw = repair_sql(state, {})
    task = state.task
    if task.resources.database.dialect == "sqlite":
        return guard(task, raw, enabled=task.config.react.guardrails)[0].strip().rstrip(";") or None
    return _first_statement(raw) or None


def _first_statement(raw: str) -> str:
    """The statement in a model's text. The guardrails read SQLite's dialect only."""
    fenced = FENCED.search(raw)
    return (fenced[1] if fenced else raw).partition(";")[0].strip()


# ---------------------------------------------------------------------------------------- the table

BASELINE = "error"
Row: TypeAlias = Mapping[str, Any]
COLUMNS = ("arm", "model", "n", "repaired", "attempts", "right", "tokens", "s")
TESTED = ("points", "won", "lost", "p", "by db")


def summarise_repairs(cases: Sequence[RepairCase], results: Sequence[Row]) -> dict[str, Any]:
    """Per dialect and origin: the arms with their numbers and tests, and success by category.

    ``repaired``: the engine takes the statement, as in the specification's loop. ``attempts``: mean over what was
    repaired. ``right``: it also gives the gold's rows. Tokens and seconds: mean over all cases. Intervals are clustered
    by database. Each arm's ``right`` is tested against that of ``error`` under the same model (the stage without a
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
        shown = _with_tests([_arm(by_id, *name, rows) for name, rows in arms.items()], arms, by_id)
        tables.append(about | {"arms": shown, "by_category": _by_category(by_id, arms)})
    return {"metric": f"EX[{RULE.name}]", "baseline": BASELINE, "cases": len(cases), "groups": tables}


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
        "model_failures": sum(row["ended"].startswith("model:") for row in taken),
    }


def _with_tests(
    shown: list[dict[str, Any]],
    arms: Mapping[tuple[str, str], Mapping[str, Row]],
    cases: Mapping[str, RepairCase],
) -> list[dict[str, Any]]:
    """The arms with ``test``: against the baseline, adjusted (Holm) over all tests of the group."""
    verdicts = {name: {id: bool(row["success"]) for id, row in rows.items()} for name, rows in arms.items()}
    models = [model for model, name in arms if name == BASELINE]
    tests, owners = [], []
    for entry in shown:
        against = entry["model"] if entry["arm"] != ALONE else (models[0] if models else "")
        if entry["arm"] != BASELINE and (against, BASELINE) in verdicts:
            mine = verdicts[entry["model"], entry["arm"]]
            tests.append(paired_test(BASELINE, mine, verdicts[against, BASELINE], lambda id_: cases[id_].db_id))
            owners.append(entry)
    for entry, test in zip(owners, adjusted(tests), strict=True):
        entry["test"] = asdict(test)
    return shown


def _by_category(
    cases: Mapping[str, RepairCase], arms: Mapping[tuple[str, str], Mapping[str, Row]]
) -> list[dict[str, Any]]:
    one_model = len({model for model, _ in arms if model}) < 2
    members: dict[str, list[str]] = defaultdict(list)
    for id, case in cases.items():
        members[case.category].append(id)
    return [
        {
            "category": name,
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
    repaired, right = percent(entry["repaired"]), percent(entry["right"])
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
