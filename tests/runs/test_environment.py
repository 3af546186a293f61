"""The training environment: what may be learned from, what a model is shown, what earns a reward, who ends a thread."""

from __future__ import annotations

import gc
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from people import make_database

from nl2sql.agents.controllers import get_controller
from nl2sql.benchmarks import FolderBenchmark
from nl2sql.config import Config, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.environment import Environment, load_environment
from nl2sql.errors import UsageError
from nl2sql.interfaces import Completion, Question, Resources
from nl2sql.runs.rollouts.driven import DrivenEpisode

ID = "campus_registry-001"
GOLD = "SELECT COUNT(*) FROM students WHERE status = 'on leave'"
RIGHT, RUNS, LUCKY = GOLD.removeprefix("SELECT"), " COUNT(*) FROM students", " MIN(22) FROM students"
POLICY = ("generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish")


@pytest.fixture(scope="module")
def campus() -> Environment:
    return load_environment("packaged", limit=3)


def episodes_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("episode-")]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 5
    while episodes_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert episodes_alive() == []


def play(episode: DrivenEpisode, sql: str) -> list[str]:
    """Follow the loop's policy to its end; all that the model was shown."""
    shown = []
    while request := episode.request:
        shown.append("\n".join([*(message["content"] for message in request.messages), request.prefill]))
        action = next(step for step in POLICY if f"Action: {step}[" not in request.prefill or step == "finish")
        episode.answer(sql if request.prefill == "SELECT" else f"Thought: next.\nAction: {action}[{{}}]")
    return shown


# --------------------------------------------------------------------------------------- what may be learned from


def benchmark_of(folder: Path, questions: list[Question], splits: dict[str, list[str]]) -> FolderBenchmark:
    path = make_database(folder / "shop.sqlite", SHOP)
    return FolderBenchmark("mine", questions, splits, {"shop": path})


SHOP = """
CREATE TABLE orders (order_id INTEGER PRIMARY KEY, status TEXT, total REAL, note TEXT);
INSERT INTO orders VALUES (1, 'open', 2.5, NULL), (2, 'shipped', 4.0, NULL), (3, 'shipped', 9.5, NULL);
"""


def asked(number: int, gold: str, split: str = "train") -> Question:
    return Question(f"Question {number}?", "shop", str(number), gold=(gold,), split=split)


def test_the_development_split_is_taken_where_there_is_none_for_training(campus: Environment) -> None:
    assert campus.split == "dev" and {question.split for question in campus.questions.values()} == {"dev"}


def test_a_test_split_is_taken_only_by_name(tmp_path: Path) -> None:
    only_test = benchmark_of(tmp_path, [asked(1, "SELECT count(*) FROM orders", "test")], {"test": ["1"]})
    with pytest.raises(UsageError, match=r"no split for training; it has: test.*split='test'"):
        load_environment(only_test)
    assert load_environment(only_test, split="test").split == "test"


def test_all_splits_together_are_refused_where_one_is_for_testing() -> None:
    with pytest.raises(UsageError, match="split 'all' of packaged holds"):
        load_environment("packaged", split="all")


def test_an_unknown_split_names_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="has no split 'trian'; it has: dev"):
        load_environment("packaged", split="trian")


def test_a_benchmark_without_splits_is_taken_whole_and_says_how(tmp_path: Path) -> None:
    whole = benchmark_of(tmp_path, [asked(1, "SELECT sum(total) FROM orders", "")], {})
    for split in (None, "test"):
        with pytest.raises(UsageError, match="benchmark 'mine' has no splits: split='all' takes every question"):
            load_environment(whole, split=split)
    assert list(load_environment(whole, split="all").questions) == ["1"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": -1}, "limit is -1; give a number of questions"),
        ({"limit": "3"}, "limit is '3'; give"),
        ({"config": {"eval": {"replicas": 0}}}, "config is a dict; pass nl2sql.Config"),
    ],
)
def test_a_wrong_argument_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_environment("packaged", **given)


def test_a_gold_that_any_empty_query_would_match_is_left_out(tmp_path: Path) -> None:
    golds = {
        "kept": "SELECT sum(total) FROM orders WHERE status = 'shipped'",
        "gold_rows=0": "SELECT total FROM orders WHERE status = 'lost'",
        "gold_null": "SELECT max(note) FROM orders",
        "gold_error": "SELECT nope FROM orders",
    }
    questions = [asked(n, gold) for n, gold in enumerate(golds.values())]
    shop = benchmark_of(tmp_path, questions, {"train": [question.id for question in questions]})
    environment = load_environment(shop)
    assert list(environment.questions) == ["0"]
    assert environment.excluded == {"gold_error": 1, "gold_null": 1, "gold_rows=0": 1}
    with pytest.raises(UsageError, match=r"no question of mine, split 'train', can be learned from \(gold_rows=0: 1\)"):
        load_environment(benchmark_of(tmp_path / "b", [questions[1]], {"train": ["1"]}))


def test_a_gold_that_no_replica_can_hold_up_is_left_out(tmp_path: Path) -> None:
    shop = benchmark_of(tmp_path, [asked(1, "SELECT count(*) FROM orders")], {"train": ["1"]})
    (tmp_path / "replicas").mkdir()
    with pytest.raises(UsageError, match=r"\(gold_fails_ts: 1\)"):
        load_environment(shop, config=build_config({"eval": {"replicas": str(tmp_path / "replicas")}}))


def test_a_question_whose_answer_earns_ts_when_it_is_written_down_is_left_out(tmp_path: Path) -> None:
    """Two vehicle classes are the fastest ones in turn on the original and the copies alone: a constant earns TS."""
    environment = load_environment("packaged")
    assert environment.excluded == {"constant": 1} and "rail_operator-034" not in environment.questions
    text = asked(1, "SELECT 'it''s', 0.5, NULL, x'00ff', 9e999")  # every type of value
    with pytest.raises(UsageError, match=r"\(constant: 1\)"):
        load_environment(benchmark_of(tmp_path, [text], {"train": ["1"]}))


# ------------------------------------------------------------------------------------------ what a model is shown


def test_a_row_holds_the_prompt_of_single_shot_and_no_gold(campus: Environment) -> None:
    rows = campus.rows()
    assert [sorted(row) for row in rows] == [["db_id", "prompt", "question_id"]] * 3
    assert "How many students are on leave?" in rows[0]["prompt"][1]["content"]
    assert not any(
        question.gold[0].removeprefix("SELECT ") in json.dumps(rows) for question in campus.questions.values()
    )


def test_a_dataset_has_the_open_turn_where_there_is_a_tokenizer(campus: Environment) -> None:
    from models.tiny import tiny_tokenizer

    dataset = campus.dataset(tiny_tokenizer())
    assert dataset[0]["prompt"].endswith("<|im_start|>assistant\nSELECT") and dataset[0]["question_id"] == ID


def test_neither_the_loop_nor_its_model_knows_the_gold(campus: Environment) -> None:
    golds_seen = []

    def peeking(question: Question, resources: Resources, config: Config) -> object:
        golds_seen.append(question.gold)
        return get_controller("react_plus").run(question, resources, config)

    with campus.episode(ID, peeking) as episode:
        shown = play(episode, RUNS)
    assert golds_seen == [()] and len(shown) > 2
    assert not any(GOLD.removeprefix("SELECT ") in text for text in shown)


# ---------------------------------------------------------------------------------------------- what earns a reward


def test_each_part_of_the_reward_is_shown(campus: Environment) -> None:
    right, runs = campus.rewards([ID, ID], [RIGHT, RUNS])
    assert {**right.parts(), "cost": 0} == {"ex": 1, "ts": 1, "format": 1, "cost": 0}
    assert {**runs.parts(), "cost": 0} == {"ex": 0, "ts": 0, "format": 1, "cost": 0}
    assert 0 < runs.total < 0.1 < 0.9 < right.total < 1
    assert right.to_dict().keys() >= {"sql", "error", "steps", "tokens", "ex", "ts", "format", "cost", "total"}


def test_a_query_that_is_right_by_luck_earns_little(campus: Environment) -> None:
    lucky = campus.reward(ID, LUCKY)
    assert (lucky.ex, lucky.ts, lucky.lucky) == (1, 0, True) and lucky.total < 0.3


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT COUNT(*) FROM t"
HOSTILE = {
    " nope FROM students": "no such column: nope",
    "DROP TABLE students": "model: clean_reject",
    "": "model: clean_reject",
    " COUNT(*) FROM students; DELETE FROM students": None,
    " load_extension('/tmp/x.so') FROM students": "database:",
    f" ({ENDLESS}) FROM students": "within 1 s",
    " zeroblob(900000000) FROM students": "database:",
}


def test_what_does_not_run_earns_nothing_and_says_why() -> None:
    bounds = {"execution": {"timeout_s": 1.0}, "eval": {"timeout_s": 1.0}}
    environment = load_environment("packaged", limit=1, config=build_config(bounds))
    before = environment.benchmark.database("campus_registry").fingerprint
    for completion, reward in zip(HOSTILE, environment.rewards([ID] * len(HOSTILE), list(HOSTILE)), strict=True):
        error = HOSTILE[completion]
        assert reward.ex == 0, completion
        if error is not None:
            assert (reward.total, reward.format, reward.cost) == (0, 0, 0), completion
            assert error in (reward.error or ""), (completion, reward.error)
    database = environment.benchmark.database("campus_registry")
    assert SqliteDatabase(database.path).fingerprint == before  # type: ignore[attr-defined]


def test_tokens_cost_and_unreadable_turns_earn_less(campus: Environment) -> None:
    def reward(waste: Callable[[DrivenEpisode], object], sql: str = RIGHT) -> object:
        with campus.episode(ID, "react_plus") as episode:
            waste(episode)
            play(episode, sql)
        return campus.rewards_of([episode.result])[0]  # type: ignore[list-item]

    straight = reward(lambda _: None)
    unreadable = reward(lambda episode: episode.answer("I think about it, and write no action."))
    brief, long = (
        reward(lambda episode, n=tokens: episode.answer(Completion("Action: get_schema[{}]", "stop", usage_of(n))))
        for tokens in (9, 900)
    )
    assert straight.ts == unreadable.ts == long.ts == 1 and straight.format == long.format == 1
    assert unreadable.format < 1 and long.cost < brief.cost < straight.cost
    assert straight.total > long.total and straight.total > unreadable.total


def test_an_answer_that_runs_earns_as_much_as_none_however_long_it_took(campus: Environment) -> None:
    with campus.episode(ID, "react") as episode:
        while request := episode.request:
            episode.answer(RUNS if request.prefill == "SELECT" else "I do not know.")
    (reward,) = campus.rewards_of([episode.result])
    assert reward.error is None and reward.format < 0.1 and reward.total >= 0


def usage_of(tokens: int) -> object:
    from nl2sql.interfaces import Usage

    return Usage(0, 0, tokens, 1)


def test_a_weight_of_cost_above_that_of_format_is_refused() -> None:
    with pytest.raises(UsageError, match=r"reward.cost=0.2 is above reward.format=0.1"):
        build_config({"reward": {"cost": 0.2}})


def test_weights_of_the_reward_do_not_make_another_run() -> None:
    from nl2sql.runs.plan import run_key

    keys = [run_key(get_controller("react"), config, {}, {}, {}) for config in (Config(), weighed(ts=0.1))]
    assert keys[0] == keys[1]


def weighed(**weights: float) -> Config:
    return build_config({"reward": weights})


def test_without_replicas_there_is_no_ts() -> None:
    environment = load_environment("packaged", limit=1, config=build_config({"eval": {"replicas": 0}}))
    assert environment.reward(ID, RIGHT).ts is None and environment.reward(ID, LUCKY).total > 0.2


def test_many_batches_at_once_give_what_each_gives_alone(campus: Environment) -> None:
    batch = ([ID] * 3, [RIGHT, RUNS, LUCKY])
    alone = campus.rewards(*batch)
    with ThreadPoolExecutor(6) as crew:
        assert all(found == alone for found in crew.map(lambda _: campus.rewards(*batch), range(12)))


# --------------------------------------------------------------------------------------------- the loop, driven


def test_a_driven_episode_is_the_loop_itself(campus: Environment) -> None:
    from nl2sql import ScriptedModel, answer

    with campus.episode(ID, "react_plus") as episode:
        play(episode, RIGHT)
    replies = [call["text"] for call in episode.result.calls]  # type: ignore[union-attr]
    question = campus.questions[ID]
    scripted = answer(question, campus.benchmark.database(question.db_id), ScriptedModel(replies), "react_plus")
    mine = episode.result
    assert mine is not None and (mine.sql, mine.trace, mine.finish) == (scripted.sql, scripted.trace, scripted.finish)
    assert campus.rewards_of([mine])[0].ts == 1


def test_an_abandoned_episode_ends_its_thread(campus: Environment) -> None:
    episode = campus.episode(ID, "react")
    assert episode.running and episode.request
    episode.close()
    assert not episode.running and episode.request is None
    [reward] = campus.rewards_of([episode.result])  # type: ignore[list-item]
    assert (reward.total, reward.error) == (0, "model: the episode was abandoned")


def test_a_forgotten_episode_ends_its_thread(campus: Environment) -> None:
    episodes = [campus.episode(ID, "react") for _ in range(5)]
    assert len(episodes_alive()) == 5
    del episodes
    gc.collect()  # the fixture sees that no thread is left


def test_an_episode_that_nobody_answers_ends_by_itself() -> None:
    config = build_config({"reward": {"wait_s": 0.2}})
    episode = load_environment("packaged", limit=1, config=config).episode(ID, "react")
    time.sleep(0.6)
    assert not episode.running
    episode.answer("Action: finish[{}]")
    assert episode.result is not None and episode.result.error == "model: no completion came in 0.2 s (reward.wait_s)"


def test_an_exception_in_the_loop_is_an_outcome_without_reward(campus: Environment) -> None:
    def broken(question: Question, resources: Resources, config: Config) -> object:
        resources.model.generate([{"role": "user", "content": "Well?"}], max_new_tokens=5)
        raise ZeroDivisionError("in my loop")

    with campus.episode(ID, broken) as episode:
        episode.answer("yes")
    [reward] = campus.rewards_of([episode.result])  # type: ignore[list-item]
    assert (reward.total, reward.error) == (0, "controller: ZeroDivisionError: in my loop")


def test_a_model_that_fails_is_an_outcome_without_reward(campus: Environment) -> None:
    with campus.episode(ID, "react_plus") as episode:
        episode.fail("the server went away")
    assert episode.result is not None and episode.result.error == "model: the server went away"


def test_an_episode_takes_as_many_completions_as_it_asks_for(campus: Environment) -> None:
    with campus.episode(ID, "single_shot") as episode:
        with pytest.raises(UsageError, match="2 completions were given where 1 are asked for"):
            episode.answer("a", "b")
        episode.answer(RIGHT)
        with pytest.raises(UsageError, match="the episode has ended"):
            episode.answer(RIGHT)
    with pytest.raises(UsageError, match="2 counts of tokens for 1 completions"):
        campus.rewards([ID], [RIGHT], [1, 2])


def test_an_unknown_question_is_a_line(campus: Environment) -> None:
    with pytest.raises(UsageError, match="question 'nope' is not in this environment"):
        campus.reward("nope", RIGHT)


PAGE = (Path(__file__).parents[2] / "docs" / "environment.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("code", "printed"), re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", PAGE, re.DOTALL))
def test_the_examples_of_the_page_print_what_it_says(
    code: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(code, {})
    assert capsys.readouterr().out == printed
