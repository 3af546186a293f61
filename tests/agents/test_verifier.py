"""The verifier: its signals, and what it makes the loop do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents import verifying
from nl2sql.agents.checks.logistic import LEAST
from nl2sql.agents.checks.verifier import LOWEST, packaged_weights, probability_right, signals, weights_for
from nl2sql.agents.controllers import get_controller, run_episode, with_preset
from nl2sql.agents.opening import open_task
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import members
from nl2sql.agents.task import State
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import ModelError
from nl2sql.interfaces import Completion, Question, Resources, RunResult, Usage
from nl2sql.models.scripted import ScriptedModel

ASKED = "How many orders were shipped?"
RIGHT = "SELECT COUNT(*) FROM orders WHERE status = 'shipped';"
WRONG = "SELECT COUNT(*) FROM orders;"
SAME_ROWS = "SELECT COUNT(1) FROM orders;"
OTHER = "SELECT COUNT(*) FROM orders WHERE status <> 'shipped';"
FAILS = "SELECT COUNT(*) FROM orders WHERE colour = 1;"
LOOP = ["Action: generate_sql[{}]"]  # extract_constraints is forced
CHECKS = ["Action: validate_sql[{}]", "Action: validate_constraints[{}]", "Action: run_sql[{}]"]


class Reader:
    """A question model that holds the question for as likely after each query as it is told, else for unlikely."""

    def __init__(self, likely: Mapping[str, float]) -> None:
        self.likely, self.read = likely, []  # type: ignore[var-annotated]

    def logprobs(self, question: str, queries: Sequence[str], overrides: Any = None) -> tuple[list[float], Usage]:
        self.read += list(queries)
        return [self.likely.get(sql, -60.0) for sql in queries], Usage(10 * len(queries))


class Failing:
    def logprobs(self, *_: Any) -> tuple[list[float], Usage]:
        raise ModelError("the question model is out of order")


@pytest.fixture
def database(shop: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(shop) as opened:
        yield opened


def ask(database: SqliteDatabase, replies: Sequence[str], reader: Any, **react: Any) -> Episode:
    own = {"max_steps": 30, "verify": 0.5, "repair_samples": 1, "max_new_tokens": 64, "skip_forced_calls": True}
    named = get_controller("react_verified")
    config = with_preset(named, build_config({"constrain": "none", "react": own | react, "schema_text": {"values": 0}}))
    resources = Resources(ScriptedModel([*replies]), database, question_model=lambda: reader)
    return run_episode(named, Question(ASKED, id="q"), lambda: resources, config)


def refusals(episode: Episode) -> list[tuple[str, str]]:
    return [(entry["by"], entry["sql"]) for entry in episode.flags["rejected"]]


def test_what_is_held_for_wrong_is_repaired_by_a_query_that_was_not_tried(database: SqliteDatabase) -> None:
    reader = Reader({RIGHT: -1.0})
    episode = ask(database, [*LOOP, WRONG, *CHECKS, RIGHT, *CHECKS], reader)
    assert (episode.sql, episode.finish, refusals(episode)) == (RIGHT, "finish", [("verifier", WRONG)])
    forced = [entry["reason"] for entry in episode.trace if "forced_action" in entry]
    assert len(forced) == 2 and forced[1].startswith("pending_repair:unlikely:P(right)=0."), forced
    assert episode.flags["confidence"] > 0.5 and sorted(set(reader.read)) == sorted(reader.read), "each is read once"


def test_what_is_held_for_right_is_left(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, RIGHT, *CHECKS], Reader({RIGHT: -1.0}))
    assert episode.sql == RIGHT and episode.flags["rejected"] == []
    off = ask(database, [*LOOP, WRONG, *CHECKS], Failing(), verify=0.0, repair_samples=0)
    assert off.sql == WRONG and "confidence" not in off.flags, "without the switch nothing is read"


def test_the_same_rows_are_no_other_query_and_the_best_of_all_is_taken_in_the_end(database: SqliteDatabase) -> None:
    reader = Reader({WRONG: -30.0, SAME_ROWS: -15.0, OTHER: -25.0})
    replies = [*LOOP, WRONG, *CHECKS, SAME_ROWS, OTHER, *CHECKS, WRONG, WRONG, *CHECKS]
    episode = ask(database, replies, reader, repair_views=2, repair_samples=2)
    assert (episode.sql, episode.finish) == (SAME_ROWS, "finish"), "likelier than the others, all unlikely"
    assert refusals(episode) == [("verifier", WRONG), ("verifier", OTHER)]


def test_a_query_that_fails_is_repaired_in_the_same_way(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, FAILS, CHECKS[0], RIGHT, *CHECKS], Reader({RIGHT: -1.0}))
    assert episode.sql == RIGHT and episode.finish == "finish"
    assert [call["kind"] for call in episode.calls].count("sql") == 2


def test_where_no_query_runs_the_specified_repair_is_asked_for(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, FAILS, CHECKS[0], FAILS, RIGHT, *CHECKS], Reader({RIGHT: -1.0}))
    assert episode.sql == RIGHT and episode.finish == "finish"


def test_steps_used_up_give_the_likeliest_of_all(database: SqliteDatabase) -> None:
    replies = [*LOOP, RIGHT, *CHECKS, WRONG]
    episode = ask(database, replies, Reader({RIGHT: -12.0}), verify=0.99, max_steps=6)
    assert (episode.sql, episode.finish) == (RIGHT, "best_so_far")


def test_a_question_model_that_fails_is_a_failed_episode(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, RIGHT, *CHECKS], Failing())
    assert episode.error == "model: the question model is out of order" and episode.finish == "error"


class Likely(ScriptedModel):
    """Says of each text how likely it is; None where a server would not."""

    def __init__(self, replies: Sequence[str], logprobs: Mapping[int, float | None]) -> None:
        super().__init__(replies)
        self.logprobs, self.asked = logprobs, 0

    def for_episode(self, question_text: str, controller: str) -> Likely:
        return self

    def generate(self, messages: Any, **options: Any) -> list[Completion]:
        made = super().generate(messages, **options)
        first, self.asked = self.asked, self.asked + len(made)
        return [replace(one, logprob=self.logprobs.get(at)) for at, one in enumerate(made, first)]


@pytest.mark.parametrize(
    ("first", "again", "kept"), [(-2.0, None, -2.0), (None, -2.0, -2.0), (-2.0, -1.0, -1.0), (-2.0, -3.0, -2.0)]
)
def test_a_query_counts_as_likely_as_its_likeliest_writing(
    database: SqliteDatabase, first: float | None, again: float | None, kept: float
) -> None:
    config = build_config({"constrain": "none"})
    task = open_task(Question(ASKED), Resources(Likely([RIGHT, RIGHT], {0: first, 1: again}), database), config)
    for draft in task.complete_sql([], 64, n=2):
        verifying._note(State(task), draft)
    assert [(known.sql, known.logprob, len(known.steps)) for known in task.candidates.values()] == [(RIGHT, kept, 2)]


def test_other_weights_are_another_run() -> None:
    asked = build_config({"react": {"verify": 0.5}})
    assert "question_model" in members(asked) and "question_model" not in members(build_config({}))
    assert "question_model" in members(build_config({"react": {"repair_samples": 2}}))


def seen(**changes: Any) -> dict[str, float]:
    known: dict[str, Any] = {"likely": -2.0, "read_back": -10.0} | changes
    result = known.pop("result", RunResult(True, ("n",), ((1,),)))
    return signals(ASKED, RIGHT, result, **known)


def test_each_signal_is_what_it_is_called() -> None:
    rows = RunResult(True, ("a", "b"), ((1, None), (2, 3)))
    assert seen(result=rows)["nulls"] == 1.0 and seen(result=rows)["one_row"] == 0.0 and seen()["one_row"] == 1.0
    assert seen(result=RunResult(True, ("a",), ((None,),)))["rows"] == 0.0
    assert seen(likely=-99.0, read_back=-999.0).items() >= LOWEST.items()
    assert seen()["per_word"] == -2.0, "five words"
    assert not {"likely", "question", "per_word"} & set(seen(likely=None, read_back=None))


@pytest.mark.parametrize(
    "worse",
    [{"likely": -9.0}, {"read_back": -40.0}, {"suspected": True}, {"refused": True}, {"uncovered": 0.5}],
)
def test_what_speaks_against_a_query_lowers_its_probability(worse: dict[str, Any]) -> None:
    assert probability_right(seen(**worse)) < probability_right(seen())


def test_what_is_not_known_has_weights_of_its_own() -> None:
    known, unread = packaged_weights(), seen(likely=None, read_back=None)
    assert "likely" not in known["question"] and not {"likely", "question", "per_word"} & set(known["seen"])
    assert [weights_for(each) for each in (seen(), seen(likely=None), unread)] == ["all", "question", "seen"]
    assert weights_for(seen(read_back=None)) == "seen", "how likely a query is says nothing alone"
    unknown = seen(likely=None)
    assert probability_right(unknown) == probability_right(unknown, known["question"])
    assert probability_right({"rows": 1.0}, {"constant": 1e6}) == 1 - LEAST


def test_verify_alone_takes_the_likeliest_after_its_repairs(database: SqliteDatabase) -> None:
    repaired = [*CHECKS, SAME_ROWS, *CHECKS]  # a repair is forced: no turn is asked for
    reader = Reader({WRONG: -40.0, SAME_ROWS: -15.0})
    episode = ask(database, [*LOOP, WRONG, *repaired, *CHECKS], reader, verify=0.99, repair_samples=0, repair_views=2)
    assert (episode.sql, episode.finish) == (SAME_ROWS, "finish")
    assert refusals(episode) == [("verifier", WRONG), ("verifier", SAME_ROWS)] and episode.flags["repair_views"] == 2


def doubting(database: SqliteDatabase, replies: Sequence[str], likely: Mapping[int, float], **react: Any) -> Episode:
    """``react_plus`` over a model that tells how likely its texts are, by their place in ``replies``."""
    named = get_controller("react_plus")
    own = {"max_steps": 12, "repair_samples": 2, **react}
    config = with_preset(named, build_config({"constrain": "none", "react": own, "schema_text": {"values": 0}}))
    return run_episode(named, Question(ASKED, id="q"), lambda: Resources(Likely(replies, likely), database), config)


def test_a_query_that_the_model_held_for_unlikely_is_voted_on_once(database: SqliteDatabase) -> None:
    replies = [*LOOP, WRONG, RIGHT, RIGHT]  # a view's greedy answer and a sampled one
    episode = doubting(database, replies, {1: -1.0, 2: -1.0, 3: -1.0})
    assert (episode.sql, episode.finish, refusals(episode)) == (RIGHT, "finish", [("verifier", WRONG)])
    assert episode.flags["repair_views"] == 1, "the repair is unlikely as well, and stands"


def test_a_query_that_the_model_is_sure_of_stands(database: SqliteDatabase) -> None:
    episode = doubting(database, [*LOOP, RIGHT], {1: -0.1})
    assert (episode.sql, refusals(episode)) == (RIGHT, [])
    unknown = doubting(database, [*LOOP, RIGHT], {})
    assert (unknown.sql, refusals(unknown)) == (RIGHT, []), "a server that tells no probabilities"


def test_a_doubted_query_that_is_still_the_likeliest_is_kept(database: SqliteDatabase) -> None:
    replies = [*LOOP, RIGHT, WRONG, OTHER]
    episode = doubting(database, replies, {1: -1.0, 2: -4.0, 3: -5.0})
    assert (episode.sql, episode.finish) == (RIGHT, "finish")


def test_a_suspicious_query_is_doubted_however_sure_the_model_is(database: SqliteDatabase) -> None:
    nowhere = "SELECT COUNT(*) FROM orders WHERE status = 'zzz';"  # no cell holds it
    replies = [*LOOP, nowhere, RIGHT, RIGHT]
    episode = doubting(database, replies, {1: 0.0, 2: -0.5, 3: -0.5})
    assert episode.sql == RIGHT and refusals(episode)[0][0] == "verifier"


def test_checks_behind_a_query_ask_no_model_until_one_refuses(database: SqliteDatabase) -> None:
    sure = doubting(database, [*LOOP, RIGHT], {1: 0.0})
    assert [call["kind"] for call in sure.calls] == ["act", "sql"]
    done = [record["action"] for record in sure.trace if "action" in record]
    assert done == ["extract_constraints", "generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"]
    unrepaired = doubting(database, [*LOOP, FAILS, *LOOP, RIGHT], {3: 0.0}, repair=False)
    assert unrepaired.sql == RIGHT and [call["kind"] for call in unrepaired.calls] == ["act", "sql", "act", "sql"]
