"""Resampling in react_plus: a query that its model held for unlikely is written again, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents import react_plus
from nl2sql.agents.controllers import get_controller, run_episode, with_preset
from nl2sql.agents.record import Episode
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State
from nl2sql.agents.writing import complete_sql
from nl2sql.config import build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Completion, Question, Resources
from nl2sql.models.scripted import ScriptedModel

ASKED = "How many orders were shipped?"
RIGHT = "SELECT COUNT(*) FROM orders WHERE status = 'shipped';"
WRONG = "SELECT COUNT(*) FROM orders;"
OTHER = "SELECT COUNT(*) FROM orders WHERE status <> 'shipped';"
FAILS = "SELECT COUNT(*) FROM orders WHERE colour = 1;"
LOOP = ["Action: generate_sql[{}]"]  # extract_constraints is forced


@pytest.fixture
def database(shop: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(shop) as opened:
        yield opened


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


def ask(database: SqliteDatabase, replies: Sequence[str], likely: Mapping[int, float | None], **react: Any) -> Episode:
    """``react_plus`` over a model that tells how likely its texts are, by their place in ``replies``."""
    named = get_controller("react_plus")
    own = {"max_steps": 12, "repair_samples": 2, **react}
    config = with_preset(named, build_config({"constrain": "none", "react": own, "schema_text": {"values": 0}}))
    resources = Resources(Likely(replies, likely), database)
    return run_episode(named, Question(ASKED, id="q"), lambda: resources, config)


def refusals(episode: Episode) -> list[tuple[str, str]]:
    return [(entry["by"], entry["sql"]) for entry in episode.flags["rejected"]]


def test_a_query_that_the_model_held_for_unlikely_is_voted_on_once(database: SqliteDatabase) -> None:
    replies = [*LOOP, WRONG, RIGHT, RIGHT]  # a view's greedy answer and a sampled one
    episode = ask(database, replies, {1: -1.0, 2: -1.0, 3: -1.0})
    assert (episode.sql, episode.finish, refusals(episode)) == (RIGHT, "finish", [("resampling", WRONG)])
    assert episode.flags["resampled"] == 1, "the repair is unlikely as well, and stands"
    forced = [entry["reason"] for entry in episode.trace if "forced_action" in entry]
    assert "pending_repair:unlikely:P(query)=0.37 is below 0.8" in forced


def test_a_query_that_the_model_is_sure_of_stands(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, RIGHT], {1: -0.1})
    assert (episode.sql, refusals(episode)) == (RIGHT, [])
    unknown = ask(database, [*LOOP, RIGHT], {})
    assert (unknown.sql, refusals(unknown)) == (RIGHT, []), "a server that tells no probabilities"
    off = ask(database, [*LOOP, WRONG], {1: -9.0}, confident_at=0.0)
    assert (off.sql, refusals(off)) == (WRONG, []), "without the switch nothing is doubted"


def test_a_doubted_query_that_is_still_the_likeliest_is_kept(database: SqliteDatabase) -> None:
    replies = [*LOOP, RIGHT, WRONG, OTHER]
    episode = ask(database, replies, {1: -1.0, 2: -4.0, 3: -5.0})
    assert (episode.sql, episode.finish) == (RIGHT, "finish")


def test_a_suspicious_query_is_doubted_however_sure_the_model_is(database: SqliteDatabase) -> None:
    nowhere = "SELECT COUNT(*) FROM orders WHERE status = 'zzz';"  # no cell holds it
    replies = [*LOOP, nowhere, RIGHT, RIGHT]
    episode = ask(database, replies, {1: 0.0, 2: -0.5, 3: -0.5})
    assert episode.sql == RIGHT and refusals(episode)[0][0] == "resampling"


def test_a_query_that_fails_is_written_again_in_the_same_way(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, FAILS, RIGHT, RIGHT], {}, explain=True)
    assert (episode.sql, episode.finish, episode.flags["resampled"]) == (RIGHT, "finish", 1)
    assert [call["kind"] for call in episode.calls].count("sql") == 3


def test_where_none_runs_one_that_was_not_tried_is_next_and_then_the_specified_repair(
    database: SqliteDatabase,
) -> None:
    worse = FAILS.replace("colour", "color")
    episode = ask(database, [*LOOP, FAILS, worse, FAILS, RIGHT], {})
    assert (episode.sql, episode.finish) == (RIGHT, "finish")
    assert [sql for _, sql in refusals(episode)] == [FAILS, worse]


def test_without_samples_a_doubted_query_is_repaired_as_specified_once(database: SqliteDatabase) -> None:
    episode = ask(database, [*LOOP, WRONG, RIGHT], {1: -1.0, 2: -1.0}, repair_samples=0)
    assert (episode.sql, refusals(episode)) == (RIGHT, [("resampling", WRONG)])
    assert "P(query)=0.37 is below 0.8" in episode.calls[-1]["messages"][-1]["content"]


def test_steps_used_up_give_the_likeliest_of_all(database: SqliteDatabase) -> None:
    replies = [*LOOP, RIGHT, WRONG, OTHER]
    episode = ask(database, replies, {1: -1.0, 2: -4.0, 3: -5.0}, max_steps=5)
    assert (episode.sql, episode.finish) == (RIGHT, "best_so_far")


@pytest.mark.parametrize(
    ("first", "again", "kept"),
    [(-2.0, None, -2.0), (None, -2.0, -2.0), (-2.0, -1.0, -1.0), (-2.0, -3.0, -2.0)],
)
def test_a_query_counts_as_likely_as_its_likeliest_writing(
    database: SqliteDatabase, first: float | None, again: float | None, kept: float
) -> None:
    model = Likely([RIGHT, RIGHT], {0: first, 1: again})
    task = open_task(Question(ASKED), Resources(model, database), build_config({"constrain": "none"}))
    for draft in complete_sql(task, [], 64, n=2):
        react_plus._note(State(task), draft)
    assert [(known.sql, known.logprob, len(known.steps)) for known in task.candidates.values()] == [(RIGHT, kept, 2)]


def test_checks_behind_a_query_ask_no_model_until_one_refuses(database: SqliteDatabase) -> None:
    sure = ask(database, [*LOOP, RIGHT], {1: 0.0})
    assert [call["kind"] for call in sure.calls] == ["act", "sql"]
    done = [record["action"] for record in sure.trace if "action" in record]
    assert done == [
        "extract_constraints", "generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"
    ]  # fmt: skip
    unrepaired = ask(database, [*LOOP, FAILS, *LOOP, RIGHT], {3: 0.0}, repair=False)
    assert unrepaired.sql == RIGHT
    assert [call["kind"] for call in unrepaired.calls] == ["act", "sql", "act", "sql"]
