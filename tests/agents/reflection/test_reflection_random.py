"""Whatever a database says or returns, reflection judges it, and the machine stops at max_iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import make_database

from nl2sql.agents.reflection import (
    EMPTY_ATTEMPT,
    ending,
    initial_state,
    reflect,
    reflect_node,
    should_refine,
    workspace,
)
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State, Task
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Question, Resources, RunResult
from nl2sql.models.scripted import ScriptedModel

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
REAL = (FIXTURES / "reflection" / "errors.tsv").read_text(encoding="utf-8")
MESSAGES = [line.split("\t")[3] for line in REAL.splitlines() if line and not line.startswith("#")]
KINDS = ["syntax", "unknown_table", "unknown_column", "denied", "timeout", "worker_died", "other", "", "?", None]
SQL = ["SELECT name FROM customers", "SELECT nam FROM customers", "select NAME from customers;", "SELECT '", "", "((("]

errors = st.one_of(st.sampled_from(MESSAGES), st.text(max_size=80), st.none()).flatmap(
    lambda text: st.tuples(st.just(text), st.text(max_size=20)).map(
        lambda pair: pair[0] if pair[0] is None else pair[0] + pair[1]
    )
)
failures = st.builds(
    lambda error, kind: {"success": False, "error": error, "error_kind": kind}, errors, st.sampled_from(KINDS)
)
successes = st.builds(
    lambda rows, columns, cut, seconds: {
        "success": True,
        "row_count": rows,
        "columns": columns,
        "truncated": cut,
        "seconds": seconds,
    },
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.lists(st.text(max_size=5), max_size=4),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
executions = st.one_of(failures, successes, st.just({}))
validations = st.builds(
    lambda valid, rows, reason: {"is_valid": valid, "has_results": rows, "reason": reason},
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.text(max_size=30)),
)
attempts = st.tuples(executions, validations, st.sampled_from(SQL))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabase:
    schema = (FIXTURES / "repair" / "schema.sqlite.sql").read_text(encoding="utf-8")
    return SqliteDatabase(make_database(tmp_path_factory.mktemp("random") / "shop.sqlite", schema))


def test_errors_and_results_are_judged_and_end(database: SqliteDatabase) -> None:
    judged = 0

    @settings(max_examples=400, deadline=None)
    @given(drawn=st.lists(attempts, min_size=2, max_size=6), most=st.integers(1, 5))
    def judge(drawn: list[Any], most: int) -> None:
        nonlocal judged
        config = build_config({"reflect": {"max_iterations": most}})
        question = Question("Show the name and city of all customers.")
        task = open_task(question, Resources(ScriptedModel([]), database), config)
        for first in range(len(drawn)):
            judged += judged_until_the_end(task, drawn[first:] + drawn[:first], most)

    judge()
    assert judged >= 1_000


def judged_until_the_end(task: Task, drawn: list[Any], most: int) -> int:
    """How many of the attempts in ``drawn``, over and over, were judged before the machine stopped."""
    state: Any = initial_state(task.nlq, most)
    for visit in range(most + 1):
        execution, validation, sql = drawn[visit % len(drawn)]
        state |= {"sql_query": sql, "raw_sql": sql, "execution_result": execution, "validation_result": validation}
        state["iteration"] += 1
        work: State = workspace(state, task)
        update = reflect_node(state, work)
        state = {**state, **update, "attempts": state["attempts"] + update["attempts"], "trace": work.trace}
        result = state["reflection_result"]
        assert set(result) == {"is_acceptable", "should_refine", "issues", "reasoning"}
        assert not (result["is_acceptable"] and (result["should_refine"] or not execution.get("success")))
        assert 0 <= state["quality_score"] <= 100
        if should_refine(state) == "complete":
            break
        assert [state[name] for name in EMPTY_ATTEMPT] == [None] * 3
    assert state["iteration"] <= most
    assert ending(state)[0] in ("finish", "last_sql", "empty")
    return int(state["iteration"])


class Moody:
    """A database whose every statement ends in what was drawn for it."""

    def __init__(self, real: SqliteDatabase, outcomes: list[dict[str, Any]]) -> None:
        self.dialect, self.name, self.schema, self.sample = real.dialect, real.name, real.schema, real.sample
        self._outcomes, self._asked = outcomes, 0

    def run(self, sql: str, **_: Any) -> RunResult:
        self._asked += 1
        drawn = self._outcomes[self._asked % len(self._outcomes)]
        if not drawn.get("success"):
            return RunResult(False, error=drawn.get("error"), error_kind=drawn.get("error_kind"))
        return RunResult(True, tuple(drawn["columns"]), (tuple(drawn["columns"]),) * ((drawn["row_count"] or 0) % 5))

    explain = run


@settings(max_examples=60, deadline=None)
@given(
    outcomes=st.lists(executions, min_size=1, max_size=4),
    replies=st.lists(st.sampled_from(SQL), min_size=1, max_size=4),
    most=st.integers(1, 5),
)
def test_the_graph_ends_within_max_iterations(
    outcomes: list[Any], replies: list[str], most: int, database: SqliteDatabase
) -> None:
    config = build_config({"reflect": {"max_iterations": most}})
    model = ScriptedModel(replies, on_exhausted="repeat")
    moody: Any = Moody(database, outcomes)
    episode = reflect(Question("Show the name and city of all customers."), Resources(model, moody), config)
    assert 1 <= episode.flags["iterations"] <= most
    assert episode.finish in ("finish", "last_sql", "empty")
