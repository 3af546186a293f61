"""The candidate-driven agent: what is written, executed once, scored, chosen, repaired; on real databases."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fixture_lines import read_cases

from nl2sql.agents.candidates import ReactSqlAgent, Search, candidates
from nl2sql.agents.controllers import answer, get_controller, with_preset
from nl2sql.agents.ranking import PARTS, Candidate, rank
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import fitted
from nl2sql.agents.setup import open_task
from nl2sql.agents.task import State
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import CandidatesConfig, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import DatabaseError, ModelError
from nl2sql.interfaces import Completion, Message, Question, Resources, RunResult
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.ablation import ablate, expand
from nl2sql.runs.folder import read_jsonl
from nl2sql.sql.same import query_key

QUESTION = "Which customers live in Bern?"
RIGHT = "SELECT name FROM customers WHERE city = 'Bern';"
ALSO_RIGHT = "SELECT c.name FROM customers AS c WHERE c.city = 'Bern';"
WRONG = "SELECT name FROM customers WHERE city = 'Basel';"
FAILS = "SELECT nam FROM customers;"
ALONE = {"vote_weight": 0, "suspicion_weight": 0}  # the query's own probability decides
CHOICES = ("first_executable", "vote", "logprob")
KEYS = read_cases("query_keys.txt")


class Told(ScriptedModel):
    """A scripted model that tells how likely each of its answers is, in their order."""

    def __init__(self, replies: Sequence[str], logprobs: Sequence[float]) -> None:
        super().__init__(replies)
        self.logprobs = iter(logprobs)

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        return [replace(done, logprob=next(self.logprobs)) for done in super().generate(messages, **options)]


class Sampler(ScriptedModel):
    """Greedy answers from the script, sampled ones drawn from it by the call's seed; no grammar is taken."""

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        if options.get("grammar"):
            raise ModelError("this server takes no grammar")
        if not options.get("sampling"):
            return super().generate(messages, **options)
        drawn = random.Random(options["seed"])
        return [Completion(drawn.choice([RIGHT, WRONG, FAILS]), "stop") for _ in range(options["n"])]


class Counted(SqliteDatabase):
    """A database that counts what it is asked to execute."""

    executed = 0

    def run(self, sql: str, **limits: Any) -> Any:
        self.executed += 1
        return super().run(sql, **limits)


def ask(
    shop: Path,
    model: ScriptedModel | Sequence[str],
    *,
    nlq: str = QUESTION,
    seed: int = 0,
    values: int = 0,
    **more: Any,
) -> Episode:
    """An episode without the candidate under a grammar, unless it is asked for."""
    model = model if isinstance(model, ScriptedModel) else ScriptedModel(model)
    given = {"candidates": {"constrained": False, **more}, "schema_text": {"values": values}, "seed": seed}
    config = build_config(given)
    with SqliteDatabase(shop) as database:
        return candidates(Question(nlq), Resources(model, database), config)


def ranking(episode: Episode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = episode.trace[-1]["observation"]["ranking"]
    return found


# ------------------------------------------------------------------------------------------- the rows they must give


@pytest.mark.parametrize("choose", CHOICES)
def test_a_model_that_always_fails_gives_its_best_rest_after_one_repair(choose: str, shop: Path) -> None:
    episode = ask(shop, [FAILS, "no idea", "SELECT x FROM nowhere", FAILS], n=3, choose=choose)
    assert (episode.sql, episode.rows, episode.finish) == (FAILS, (), "answered")
    assert episode.error == "database: no such column: nam"
    assert len(episode.calls) == 3 + 1 and episode.flags["repairs"] == 1
    repair = episode.calls[-1]["messages"][1]["content"]
    assert f"This query failed:\n{FAILS}" in repair and "unknown_column:nam" in repair


@pytest.mark.parametrize("choose", CHOICES)
def test_one_right_candidate_of_n_is_found_without_a_repair(choose: str, shop: Path) -> None:
    episode = ask(shop, [FAILS, "no idea", "SELECT x FROM nowhere", RIGHT], n=4, choose=choose)
    assert (episode.sql, episode.rows, episode.error) == (RIGHT, (("Ada",), ("Cleo",)), None)
    assert "repairs" not in episode.flags


@pytest.mark.parametrize("choose", CHOICES)
def test_a_repair_that_runs_is_the_answer(choose: str, shop: Path) -> None:
    episode = ask(shop, [FAILS, FAILS, RIGHT], n=2, choose=choose)
    assert (episode.sql, episode.error, episode.steps) == (RIGHT, None, 3)
    assert [one["origin"] for one in ranking(episode)] == ["repaired", "greedy"]


def test_the_vote_beats_the_greedy_answer_and_the_first_that_runs_does_not(shop: Path) -> None:
    replies = [WRONG, RIGHT, ALSO_RIGHT]
    assert ask(shop, replies, n=3, choose="first_executable").sql == WRONG
    for choose in ("vote", "logprob"):
        assert ask(shop, replies, n=3, choose=choose).sql == RIGHT
    assert ask(shop, replies, n=3, **ALONE).sql == WRONG


def test_a_likelier_query_that_gives_nothing_comes_after_one_that_gives_rows(shop: Path) -> None:
    nothing = "SELECT name FROM customers WHERE 1 = 0;"
    assert ask(shop, Told([nothing, RIGHT], [-0.1, -9.0]), n=2, choose="logprob").sql == RIGHT
    assert ask(shop, Told([nothing, FAILS], [-0.1, -0.1]), n=2, choose="logprob").sql == nothing


def test_the_likelier_query_is_chosen_by_logprob_per_token(shop: Path) -> None:
    logprobs = [-9.0, -9.5, -0.1]  # the second has more tokens; the last does not run
    episode = ask(shop, Told([WRONG, ALSO_RIGHT, FAILS], logprobs), n=3, length_penalty=1.0, **ALONE)
    assert episode.sql == ALSO_RIGHT
    shares = {one["sql"]: one["parts"]["probability"] for one in ranking(episode)}
    assert 0 < shares[WRONG] < shares[ALSO_RIGHT] < shares[FAILS] < 1
    assert all(one["parts"]["probability"] is None for one in ranking(ask(shop, [WRONG, RIGHT], n=2)))


@pytest.mark.parametrize(("length_penalty", "chosen"), [(1.0, ALSO_RIGHT), (0.0, WRONG)])
def test_without_a_length_penalty_the_whole_query_s_probability_decides(
    length_penalty: float, chosen: str, shop: Path
) -> None:
    told = Told([WRONG, ALSO_RIGHT], [-9.0, -9.5])  # the second has more tokens
    assert ask(shop, told, n=2, length_penalty=length_penalty, **ALONE).sql == chosen


class Prompted(ScriptedModel):
    """Keeps what it was asked: the schema's tables in the order of each prompt, and how many answers."""

    def __init__(self, replies: Sequence[str]) -> None:
        super().__init__(replies)
        self.asked: list[tuple[tuple[str, ...], int]] = []

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        text = "\n".join(str(message["content"]) for message in messages)
        self.asked.append((tuple(re.findall(r"^(\w+)\(", text, flags=re.MULTILINE)), options.get("n", 1)))
        return super().generate(messages, **options)


def test_views_share_the_candidates_and_each_shows_the_tables_in_another_order(shop: Path) -> None:
    model = Prompted([RIGHT] * 7)
    ask(shop, model, n=7, schema_orders=2)
    assert [n for _, n in model.asked] == [1, 3, 1, 2]  # greedy and sampled ones of each view
    orders = [order for order, _ in model.asked[::2]]
    assert len(set(orders)) == 2 and len({frozenset(order) for order in orders}) == 1
    again, one = Prompted([RIGHT] * 7), Prompted([RIGHT] * 7)
    ask(shop, again, n=7, schema_orders=2)
    ask(shop, one, n=7)
    assert again.asked == model.asked and one.asked == [(orders[0], 1), (orders[0], 6)]


def test_there_are_no_more_views_than_orders_of_the_tables_and_candidates(tmp_path: Path, shop: Path) -> None:
    lone = tmp_path / "lone.sqlite"
    with contextlib.closing(sqlite3.connect(lone)) as connection:
        connection.execute("CREATE TABLE customers (name TEXT, city TEXT)")
    model = Prompted([RIGHT] * 4)
    assert ask(lone, model, n=4, schema_orders=9).steps == 4 and [n for _, n in model.asked] == [1, 3]
    few = Prompted([RIGHT])
    assert ask(shop, few, n=1, schema_orders=2).steps == 1 and [n for _, n in few.asked] == [1]


def test_a_query_is_as_likely_as_the_view_that_likes_it_most_says(shop: Path) -> None:
    told = Told([WRONG, RIGHT, RIGHT], [-5.0, -9.0, -0.5])
    assert ask(shop, told, n=3, schema_orders=2, choose="logprob").sql == RIGHT
    assert (
        ask(shop, Told([FAILS, "DROP TABLE customers", "DROP TABLE customers"], [-5.0] * 3), n=3, retry=0).sql == FAILS
    )


def test_a_result_that_says_nothing_comes_behind_one_that_does(shop: Path) -> None:
    nothing = "SELECT name FROM customers WHERE city = 'bern';"
    episode = ask(shop, [nothing, RIGHT], n=2)
    assert episode.sql == RIGHT
    assert [one["parts"]["rows"] for one in ranking(episode)] == [1.0, 0.0]


# ----------------------------------------------------------------------------------------------------- executions


@pytest.mark.parametrize(("same", "pair"), KEYS, ids=lambda part: part)
def test_only_writings_of_one_query_are_one_candidate(same: str, pair: str) -> None:
    one, other = pair.replace("\\n", "\n").split(" | ")
    assert (query_key(one) == query_key(other)) is (same == "=")


def test_duplicates_are_executed_once_and_vote_as_often_as_they_were_written(shop: Path) -> None:
    replies = [WRONG, RIGHT, RIGHT.lower().replace("'bern'", "'Bern'"), "SELECT name\nFROM customers WHERE city='Bern'"]
    config = build_config({"candidates": {"n": 4, "constrained": False, "suspicion_weight": 0}})
    with Counted(shop) as database:
        episode = ReactSqlAgent(database, ScriptedModel(replies), config).answer(QUESTION)
        assert database.executed == 2 and episode.flags["distinct"] == 2
    assert episode.sql == RIGHT
    assert [(one["steps"], one["parts"]["vote"]) for one in ranking(episode)] == [([1, 2, 3], 0.75), ([0], 0.25)]


def test_the_trace_has_the_three_record_shapes_and_all_scores(shop: Path) -> None:
    episode = ask(shop, [FAILS, "no idea", RIGHT], n=3)
    assert {tuple(record) for record in episode.trace} == {("step", "llm"), ("step", "action", "args", "observation")}
    assert [record["llm"] for record in episode.trace if "llm" in record] == [FAILS, "no idea", RIGHT]
    assert all(set(one["parts"]) == set(PARTS) for one in ranking(episode))
    assert [one["sql"] for one in ranking(episode)] == [RIGHT, FAILS, ""]
    json.dumps(episode.to_dict())


# -------------------------------------------------------------------------------------------- models and sampling


def test_the_candidate_under_a_grammar_is_left_out_where_the_model_takes_none(shop: Path) -> None:
    model = Sampler([FAILS, RIGHT])
    episode = ask(shop, model, n=2, constrained=True, retry=1)
    assert "takes no grammar" in episode.flags["unconstrained"] and episode.error is None
    assert [one["origin"] for one in ranking(episode)] == ["repaired", "greedy"]
    told = ask(shop, [WRONG, RIGHT], n=2, constrained=True)
    assert {one["origin"] for one in ranking(told)} == {"greedy", "constrained"}


def test_a_model_that_breaks_down_ends_the_episode_with_what_was_there(shop: Path) -> None:
    episode = ask(shop, ScriptedModel([RIGHT]), n=3)
    assert episode.sql == RIGHT and episode.finish == "error" and str(episode.error).startswith("model: ")
    assert ask(shop, ScriptedModel([]), n=3).sql == ""


def test_the_same_seed_gives_the_same_candidates_and_another_seed_others(shop: Path) -> None:
    def written(seed: int) -> list[str]:
        return [record["llm"] for record in ask(shop, Sampler([WRONG]), n=9, seed=seed).trace if "llm" in record]

    assert written(0) == written(0) != written(1)


def test_the_page_has_a_grid_that_can_be_carried_out() -> None:
    page = (Path(__file__).parents[2] / "docs" / "candidates.md").read_text(encoding="utf-8")
    grid = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    assert len(expand(grid)) == 1 + 2 + 3 + 1 + 1 + 1 + 1


# ------------------------------------------------------------------------------------------------------------ runs


def script(path: Path) -> str:
    """The greedy answer is wrong and runs; the sampled ones agree on the gold."""
    wrong = "SELECT 987654 AS wrong FROM (SELECT 1 AS one)"
    replies = {
        question.text: {"candidates": [wrong, question.gold[0], question.gold[0]], "single_shot": [wrong]}
        for question in load_benchmark("packaged", split="quick").questions
    }
    path.write_text(json.dumps({"replies": replies}), encoding="utf-8")
    return f"scripted:{path}"


SETTINGS = {"n": 3, "constrained": False, "choose": "vote"}


def test_an_interrupted_run_does_what_is_owed_and_nothing_twice(tmp_path: Path) -> None:
    def nl2sql(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "nl2sql.cli", "eval", "-q", "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    out, model = tmp_path / "run", script(tmp_path / "script.json")
    overrides = [part for key, value in SETTINGS.items() for part in ("-c", f"candidates.{key}={json.dumps(value)}")]
    chosen = ["--controller", "candidates", "--model", model, "--limit", "6", "--replicas", "0", "--out", str(out)]
    whole = nl2sql(*chosen, *overrides)
    assert whole["metrics"]["EX[bag]"]["value"] == 1 and whole["paired"]["EX[bag]"]["wins"] == 6
    predictions = out / "predictions.jsonl"
    predictions.write_text("".join(predictions.read_text(encoding="utf-8").splitlines(True)[:3]), encoding="utf-8")
    (out / "report.json").unlink()
    assert nl2sql("--resume", str(out), "--trust")["metrics"] == whole["metrics"]
    assert len({row["id"] for row in read_jsonl(predictions)}) == len(read_jsonl(predictions)) == 6


def test_the_choice_is_an_axis_whose_effect_shows(tmp_path: Path) -> None:
    base = {"model": script(tmp_path / "script.json"), "controller": "candidates", "limit": 6, "control": False}
    config = {"candidates": SETTINGS, "eval": {"replicas": 0}}
    grid = {"base": {**base, "config": config}, "axes": {"candidates.choose": ["first_executable"]}}
    done = ablate(expand(grid), tmp_path / "out", progress=False)
    assert [round(run.report["metrics"]["EX[bag]"]["value"], 2) for run in done.runs.values()] == [1.0, 0.0]
    assert done.tests()["choose=first_executable"].losses == 6


@pytest.mark.parametrize(
    ("first", "logprob", "more", "written"),
    [
        (RIGHT, -0.1, {}, 1),
        (RIGHT, -0.1, {"confident_at": 0.0}, 3),
        (RIGHT, -0.1, {"choose": "vote"}, 3),
        (RIGHT, -0.5, {}, 3),  # not likely enough
        (RIGHT, -0.5, {"seconds": 1e-9}, 1),
        (FAILS, -0.1, {"seconds": 1e-9}, 3),  # others are asked for however late it is
        ("SELECT name FROM customers WHERE 1 = 0;", -0.1, {}, 3),  # no rows
        ("SELECT name, name FROM customers WHERE city = 'Bern';", -0.1, {"suspicion_weight": 2.0}, 3),  # suspicious
    ],
)
def test_a_sure_greedy_answer_stands_alone(
    first: str, logprob: float, more: dict[str, Any], written: int, shop: Path
) -> None:
    settings = {"n": 3, "choose": "logprob", "length_penalty": 0.0, "confident_at": 0.8, **more}
    episode = ask(shop, Told([first, RIGHT, RIGHT], [logprob, -9.0, -9.0]), **settings)
    assert sum("llm" in record for record in episode.trace) == written


VIEWS = {"candidates": {"n": 8, "schema_orders": 2, "choose": "logprob", "constrained": False, "agree": 0.8}}


@pytest.mark.parametrize(("differ", "written", "why"), [(False, 4, "candidates agree"), (True, 8, None)])
def test_further_views_are_asked_only_where_candidates_differ(
    differ: bool, written: int, why: str | None, shop: Path
) -> None:
    other = "SELECT name FROM customers" if differ else "SELECT city, city FROM customers LIMIT 0"
    database = SqliteDatabase(shop)
    texts = [RIGHT, other, other, RIGHT] if differ else [RIGHT] * 4
    model = ScriptedModel([*texts, *texts])
    episode = answer(QUESTION, database, model, "candidates", build_config(VIEWS))
    assert sum("llm" in record for record in episode.trace) == written
    assert episode.flags.get("views") == why


def test_no_further_view_is_asked_when_the_time_is_over(shop: Path) -> None:
    config = build_config({"candidates": {**VIEWS["candidates"], "agree": 0.0, "seconds": 1e-9}})
    episode = answer(QUESTION, SqliteDatabase(shop), ScriptedModel([RIGHT] * 8), "candidates", config)
    assert sum("llm" in record for record in episode.trace) == 4 and episode.flags["views"] == "time is over"


@pytest.mark.parametrize(("slowest", "over"), [(0.0, False), (601.0, True)])
def test_no_view_is_begun_that_would_end_after_the_time(slowest: float, over: bool, shop: Path) -> None:
    config = build_config({"candidates": {**VIEWS["candidates"], "agree": 0.0, "seconds": 600.0}})
    task = open_task(Question(QUESTION), Resources(ScriptedModel([]), SqliteDatabase(shop), {}), config)
    assert Search(State(task), config.candidates).enough(slowest) is over


def test_a_failure_of_the_samples_is_the_episodes_and_what_was_written_before_stays(shop: Path) -> None:
    class Failing(ScriptedModel):
        def for_episode(self, *_: str) -> Failing:
            return self

        def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
            answers = super().generate(messages, **options)
            if options["n"] > 1:
                raise ModelError("no memory")
            return answers

    config = build_config({"candidates": {**VIEWS["candidates"], "seconds": 5.0}})
    episode = answer(QUESTION, SqliteDatabase(shop), Failing([RIGHT] * 8), "candidates", config)
    assert episode.error == "model: no memory" and episode.sql == RIGHT


def test_best_takes_a_grammar_where_there_is_one_and_runs_without(shop: Path) -> None:
    class Plain(ScriptedModel):
        def check(self, *, grammar: bool = False, tools: bool = False) -> None:
            raise ModelError("this model takes no grammar")

    best = with_preset(get_controller("best"), None)
    assert best.constrain == "auto" and best.candidates.schema_orders == 4
    assert (best.candidates.choose, best.candidates.vote_weight) == ("logprob", 1.0)
    for model, level in ((ScriptedModel([]), "plain"), (Plain([]), "none")):
        assert fitted(best, Resources(model, SqliteDatabase(shop))).constrain == level


def test_likelihoods_choose_with_votes_and_without_what_is_suspicious() -> None:
    def made(sql: str, probability: float, times: int, suspected: tuple[str, ...] = ()) -> Candidate:
        parts: dict[str, float | None] = {"executes": 1.0, "rows": 1.0, "probability": probability}
        return Candidate(sql, "", "sampled", sql, list(range(times)), parts=parts, suspected=suspected)

    likely, often = made("SELECT 1", 0.5, 1), made("SELECT 2", 0.3, 3)
    odd = made("SELECT 3", 0.6, 1, ("unused_value",))
    entries = [often, likely, odd]
    results = [RunResult(True, rows=((entry.sql,),)) for entry in entries]

    def order(**settings: float) -> list[Candidate]:
        return rank(entries, results, CandidatesConfig(**{**ALONE, **settings}))

    assert order() == [odd, likely, often]
    assert order(suspicion_weight=2.0) == [likely, often, odd]
    assert order(vote_weight=1.0, suspicion_weight=2.0) == [often, likely, odd], "0.3 * 3 is more than 0.5"
    assert rank(entries, results, CandidatesConfig()) == [often, likely, odd]


class NoPlans(SqliteDatabase):
    def explain(self, sql: str, *, timeout_s: float = 5.0) -> Any:
        raise DatabaseError("the database is gone")


def test_a_check_that_fails_does_not_lose_the_query_that_it_was_about(shop: Path) -> None:
    with NoPlans(shop) as database:
        episode = candidates(
            Question(QUESTION), Resources(ScriptedModel([RIGHT]), database), build_config({"react": {"explain": True}})
        )
    assert (episode.sql, episode.error, episode.finish) == (RIGHT, "database: the database is gone", "error")


def test_a_repair_may_be_one_of_more_samples(shop: Path) -> None:
    config = build_config({"react": {"repair_samples": 2}, "candidates": {"n": 1}})
    with SqliteDatabase(shop) as database:
        resources = Resources(ScriptedModel([FAILS, FAILS, RIGHT]), database)
        episode = candidates(Question(QUESTION), resources, config)
    assert (episode.sql, episode.error, episode.flags["repairs"]) == (RIGHT, None, 1)
