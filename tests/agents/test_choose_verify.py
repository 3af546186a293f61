"""candidates.choose: verify: the verifier's probabilities decide."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models.tiny import saved_tiny

from nl2sql.agents.checks.verifier import probability_right, signals
from nl2sql.agents.context.linking import uncovered_share
from nl2sql.agents.controllers import get_controller, run_episode
from nl2sql.agents.opening import open_task
from nl2sql.agents.ranking import Candidate, rank
from nl2sql.agents.record import Episode
from nl2sql.agents.resources import members
from nl2sql.config import CandidatesConfig, Config, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Completion, Message, Question, Resources, RunResult, Usage
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.plan import check_config

ASKED = "Which customers live in Bern?"
NAMES = "SELECT name FROM customers;"
BERN = "SELECT name FROM customers WHERE city = 'Bern';"
TYPO = "SELECT name FROM customers WHERE city = 'bern';"  # a suspicious value, and no rows
CITIES = "SELECT city FROM customers;"
FAILS = "SELECT nam FROM customers;"


# ------------------------------------------------------------------------------------------------------- the order


def made(sql: str, sure: float | None, writings: int = 1, logprob: float | None = None, **parts: float) -> Candidate:
    known = {"executes": 1.0, "rows": 1.0, "probability": None, **parts}
    return Candidate(sql, "", "sampled", sql, [0] * writings, parts=known, sure=sure, logprob=logprob)


def order(written: Sequence[tuple[Candidate, str]], **more: Any) -> list[str]:
    """The queries, best first; each is given with the name of its rows, "" where it fails."""
    settings = CandidatesConfig.model_validate({"choose": "verify", **more})
    results = [RunResult(bool(rows), rows=((rows,),)) for _, rows in written]
    return [entry.sql for entry in rank([entry for entry, _ in written], results, settings)]


def test_the_surest_is_the_answer_however_often_or_likely_another_is_written() -> None:
    written = [(made("often", 0.5, 9), "a"), (made("likely", 0.3, probability=0.9), "b"), (made("sure", 0.55), "c")]
    assert order(written) == ["sure", "often", "likely"]


def test_what_fails_and_what_gives_nothing_come_last() -> None:
    unlikely, empty = made("few", 0.1, logprob=-9.0), made("none", 0.9, logprob=-0.1, rows=0.0)
    fails, better = (made(name, None, 9, -0.1, executes=0.0, rows=0.0) for name in ("fails", "better"))
    better.question = fails.question = -9.0
    better.parts["probability"], fails.parts["probability"] = 0.9, 0.1
    written = [(fails, ""), (better, ""), (empty, "nothing"), (unlikely, "x")]
    assert order(written) == ["few", "none", "better", "fails"], "those that fail by both directions"


def test_the_weights_of_choose_question_do_not_count() -> None:
    sure = replace(made("sure", 0.6), question=-50.0, suspected=("fan_out",))
    likely = replace(made("likely", 0.5, 9), question=-1.0)
    weights = {"vote_weight": 9.0, "suspicion_weight": 9.0, "question_weight": 9.0}
    assert order([(likely, "x"), (sure, "y")], **weights) == ["sure", "likely"]


# ------------------------------------------------------------------------------------------------------- an episode


class Told(ScriptedModel):
    """Says how likely each of its answers is, in their order; None where a server would not."""

    def __init__(self, replies: Sequence[str], logprobs: Sequence[float | None]) -> None:
        super().__init__(replies)
        self.logprobs = iter(logprobs)

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        return [replace(done, logprob=next(self.logprobs)) for done in super().generate(messages, **options)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny question model on disk."""
    return saved_tiny(tmp_path / "tiny")


def settings(folder: Path, **values: Any) -> Config:
    given = {"choose": "verify", "question_model": str(folder), "question_adapter": "none", "constrained": False}
    return build_config({"candidates": {**given, **values}, "schema_text": {"values": 0}})


class Reader:
    """A question model that holds the question for as likely after each query as it is told, else for unlikely."""

    def __init__(self, likely: Mapping[str, float]) -> None:
        self.likely = likely

    def logprobs(self, question: str, queries: Sequence[str], overrides: Any = None) -> tuple[list[float], Usage]:
        return [self.likely.get(sql, -50.0) for sql in queries], Usage(10 * len(queries), model_calls=len(queries))


def ask(
    shop: Path, model: ScriptedModel | Sequence[str], config: Config, reader: Mapping[str, float] | None = None
) -> Episode:
    """An episode with the question model of ``config``, or with a ``Reader``."""
    model = model if isinstance(model, ScriptedModel) else ScriptedModel(model)
    more = {} if reader is None else {"question_model": lambda: Reader(reader)}
    with SqliteDatabase(shop) as database:
        resources = Resources(model, database, **more)
        return run_episode(get_controller("candidates"), Question(ASKED, id="q"), lambda: resources, config)


def ranking(episode: Episode) -> dict[str, dict[str, Any]]:
    return {entry["sql"]: entry for entry in episode.trace[-1]["observation"]["ranking"]}


def test_each_query_that_ran_has_the_probability_of_its_own_signals(shop: Path, folder: Path) -> None:
    """Whatever ``length_penalty`` is, of several writings the likeliest counts, and as a whole."""
    likely: dict[str, float | None] = {BERN: -2.0, TYPO: -3.0, CITIES: None}
    read_back = {BERN: -9.0, TYPO: -12.0, CITIES: -8.0, FAILS: -1.0}
    model = Told([BERN, TYPO, FAILS, BERN, BERN, CITIES], [-8.0, -3.0, -0.1, -2.0, -5.0, None])
    episode = ask(shop, model, settings(folder, n=6), read_back)
    found = ranking(episode)
    with SqliteDatabase(shop) as database:
        expected = {
            sql: probability_right(
                signals(
                    ASKED,
                    sql,
                    database.run(sql),
                    likely=logprob,
                    read_back=read_back[sql],
                    suspected=sql != BERN,
                    uncovered=uncovered_share(ASKED, sql, database.schema()),
                )
            )
            for sql, logprob in likely.items()
        }
    assert {sql: found[sql]["sure"] for sql in expected} == pytest.approx(expected, rel=1e-3)
    assert "sure" not in found[FAILS] and found[TYPO]["suspected"] and "suspected" not in found[BERN]
    assert episode.sql == BERN and episode.flags["confidence"] == round(expected[BERN], 3)
    assert episode.usage.model_calls == 6 + 4, "six writings, and four distinct queries read back"


def test_the_confidence_is_the_answer_s_and_below_the_least_there_is_none(shop: Path, folder: Path) -> None:
    same = "SELECT customers.name FROM customers;"
    read_back = {NAMES: -9.0, same: -8.0}

    def answer(least: float) -> Episode:
        return ask(shop, [NAMES, same], settings(folder, n=2, min_confidence=least), read_back)

    episode = answer(0.0)
    first, sure = episode.trace[-1]["observation"]["ranking"][0], episode.flags["confidence"]
    assert episode.sql == same and sure == round(first["sure"], 3)
    kept, refused = answer(sure), answer(sure + 0.001)
    assert (kept.sql, kept.finish) == (same, "answered")
    assert (refused.sql, refused.finish, refused.flags["abstained"]) == ("", "abstained", True)
    assert refused.error == f"abstained: confidence {sure} is below {sure + 0.001:g}; best: {same}"


def test_a_query_that_fails_is_not_right(shop: Path, folder: Path) -> None:
    assert ask(shop, [FAILS], settings(folder, n=1, retry=0)).flags["confidence"] == 0.0
    none = ask(shop, ["no SQL at all"], settings(folder, n=1, retry=0, min_confidence=0.5))
    assert none.finish == "empty" and "confidence" not in none.flags


def test_candidates_that_agree_are_read_back_as_well(shop: Path, folder: Path) -> None:
    """The confidence rests on it, and is the same whether or not a further view was spared."""
    seen = {}
    for choose in ("question", "verify"):
        config = settings(folder, n=4, views=2, agree=0.5, choose=choose)
        seen[choose] = ask(shop, [NAMES] * 4, config)
        assert seen[choose].flags["views"] == "candidates agree"
        assert "question" in ranking(seen[choose])[NAMES]
        every_view = ask(shop, [NAMES] * 4, settings(folder, n=4, views=2, agree=0.0, choose=choose))
        assert every_view.flags.get("confidence") == seen[choose].flags.get("confidence")


@pytest.mark.parametrize("gates", [True, False])
def test_what_the_gates_say_counts_whether_or_not_they_are_on(shop: Path, folder: Path, gates: bool) -> None:
    config = settings(folder, n=2)
    react = config.react.model_copy(update={"constraints_gate": gates, "intent_gate": gates})
    with SqliteDatabase(shop) as database:
        task = open_task(Question("How many customers are there?"), Resources(ScriptedModel([]), database), config)
        task = replace(task, config=config.model_copy(update={"react": react}))
        result, seen = database.run(NAMES), {"likely": -2.0, "read_back": -9.0, "refused": True}
        seen |= {"suspected": bool(task.suspected_by(NAMES))}
        expected = probability_right(signals(task.question.text, NAMES, result, **seen))
        assert task.probability_right(NAMES, -2.0, -9.0) == expected


def test_a_repair_is_verified_like_the_others(shop: Path, folder: Path) -> None:
    episode = ask(shop, [FAILS, NAMES], settings(folder, n=1))
    assert episode.sql == NAMES and ranking(episode)[NAMES]["sure"] > 0
    assert episode.usage.model_calls == 4, "one written, one repaired, each read back"


def test_a_failing_question_model_is_a_failed_episode_and_the_rest_is_kept(shop: Path, folder: Path) -> None:
    longest = "SELECT name FROM customers WHERE name IN ('" + "a" * 2000 + "');"
    episode = ask(shop, [longest], settings(folder, n=1, min_confidence=0.5))
    assert episode.error is not None and episode.error.startswith("model: a query and its question are")
    assert episode.sql.startswith("SELECT name") and "confidence" not in episode.flags


# ------------------------------------------------------------------------------------------------------- around it


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"question_adapter": "nobody"}, "adapter folder 'nobody' does not exist"),
        ({"question_model": "scripted:replies.txt"}, "give a local model"),
        ({"question_model": "smollm"}, "did you mean 'smollm2-135m'"),
    ],
)
def test_a_question_model_that_names_nothing_is_said_before_the_run(
    folder: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        check_config(ScriptedModel(["SELECT 1"]), settings(folder, **values))


def test_the_question_model_is_part_of_a_run_s_key(folder: Path) -> None:
    assert members(settings(folder))["question_model"] == f"{folder}+none"


def test_ask_takes_a_least_confidence(shop: Path, folder: Path) -> None:
    (folder / "replies.json").write_text(json.dumps({"replies": {"*": [NAMES]}}), encoding="utf-8")
    command = [sys.executable, "-m", "nl2sql.cli", "ask", ASKED, "--db", str(shop), "--json", "--min-confidence", "1"]
    command += ["--model", f"scripted:{folder / 'replies.json'}", "--controller", "candidates"]
    for value in ("choose=verify", f"question_model={folder}", "question_adapter=none", "n=1", "constrained=false"):
        command += ["-c", f"candidates.{value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and json.loads(done.stdout)["finish"] == "abstained", done.stderr
