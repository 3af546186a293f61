"""Candidates read back as questions: log-probabilities as transformers has them one by one, and what they choose."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from models.tiny import saved_tiny, tiny_model, tiny_tokenizer

from nl2sql.agents import prompts
from nl2sql.agents.candidates.agent import candidates
from nl2sql.agents.controllers import get_controller, run_episode
from nl2sql.agents.question_model import ROWS, QuestionModel, question_model_print
from nl2sql.agents.ranking import Candidate, rank
from nl2sql.agents.resources import members
from nl2sql.config import Config, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Question, Resources, RunResult
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.plan import check_config, run_key

ASKED = "Which customers live in Bern?"
QUERIES = ["SELECT name FROM customers WHERE city = 'Bern';", "SELECT 1;", "SELECT count(*) FROM orders;"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model of its own on disk."""
    return saved_tiny(tmp_path / "tiny")


def settings(folder: Path, **values: object) -> Config:
    given = {"choose": "question", "question_model": str(folder), "question_adapter": "none", "constrained": False}
    return build_config({"candidates": {**given, **values}})


@torch.inference_mode()
def alone(model, tokenizer, query: str) -> float:
    """The question's log-probability after one query, without padding or batch."""
    prompt = tokenizer.apply_chat_template(prompts.question_messages(query), tokenize=False, add_generation_prompt=True)
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    asked = tokenizer(ASKED, add_special_tokens=False)["input_ids"]
    likely = model(torch.tensor([before + asked])).logits[0].float().log_softmax(-1)
    return sum(float(likely[len(before) - 1 + at, token]) for at, token in enumerate(asked))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral-sliding", "gemma3-mixed", "gpt2"])
def test_each_question_is_as_likely_as_it_is_alone(kind):
    model, tokenizer = tiny_model(kind), tiny_tokenizer()
    many = [QUERIES[n % 3].replace("1", str(n)) for n in range(ROWS + 3)]  # more than a pass takes
    found, usage = QuestionModel(model, tokenizer, name="tiny").logprobs(ASKED, many)
    assert found == pytest.approx([alone(model, tokenizer, query) for query in many], abs=1e-3)
    assert (usage.model_calls, usage.completion_tokens) == (len(many), 0)
    assert usage.prefill_tokens == usage.prompt_tokens > 0


def test_nothing_to_ask_and_more_than_fits():
    model = QuestionModel(tiny_model(), tiny_tokenizer(), name="tiny")
    assert model.logprobs(ASKED, [])[0] == []
    assert model.logprobs("", QUERIES)[0] == [0.0] * 3
    with pytest.raises(ModelError, match=r"tokens; tiny takes 1,024"):
        model.logprobs(ASKED, ["SELECT " + "x, " * 400])


def test_both_directions_decide_among_those_that_run_and_give_rows():
    def made(probability: float | None, question: float, *, runs: bool = True, rows: float = 1.0) -> Candidate:
        parts = {"executes": float(runs), "rows": rows, "probability": probability}
        return Candidate(f"SELECT {question}", "", "sampled", str(question), [0], parts=parts, question=question)

    likelier, better, unknown = made(0.9, -30.0), made(0.5, -20.0), made(None, -19.0)
    fails, empty = made(1.0, 0.0, runs=False), made(1.0, -0.1, rows=0.0)
    found = [fails, empty, unknown, likelier, better]
    results = [RunResult(one.runs) for one in found]

    def order(weight: float) -> list[Candidate]:
        config = build_config({"candidates": {"choose": "question", "question_weight": weight}})
        return rank(found, results, config.candidates)

    assert order(1.0) == [better, likelier, unknown, empty, fails]
    assert order(0.0) == [likelier, better, unknown, empty, fails]
    assert [order(weight)[0] for weight in (0.05, 0.06)] == [likelier, better]  # they meet at log(0.9 / 0.5) / 10


def test_rows_that_many_agree_on_and_suspicions_weigh_beside_both_directions():
    def made(sql: str, times: int, *suspected: str) -> Candidate:
        parts = {"executes": 1.0, "rows": 1.0, "probability": 0.5}
        steps = list(range(times))
        return Candidate(sql, "", "sampled", sql, steps, parts=parts, question=-9.0, suspected=suspected)

    often, suspicious = made("SELECT 1", 3, "unused_value", "fan_out"), made("SELECT 2", 6, "unknown_literal")
    rare = made("SELECT 3", 1)
    written = [suspicious, often, rare]
    results = [RunResult(True, rows=((entry.sql,),)) for entry in written]

    def order(**weights: float) -> list[Candidate]:
        config = build_config({"candidates": {"choose": "question", **weights}})
        return rank(written, results, config.candidates)

    assert order() == written, "as likely: in the order of writing"
    assert order(vote_weight=1.0) == [suspicious, often, rare]
    assert order(suspicion_weight=1.0) == [rare, suspicious, often], "two suspicions weigh as one"
    assert order(vote_weight=1.0, suspicion_weight=1.0)[0] is suspicious, "log 6 - 1 is more than log 1"
    assert order(vote_weight=1.0, suspicion_weight=1.8) == [rare, suspicious, often], "log 6 is 1.79"


def test_a_suspicious_candidate_gives_way_to_one_that_is_not(shop, folder):
    script = ["SELECT name FROM customers WHERE city = 'oslo' OR 1 = 1;", QUERIES[0]]
    seen = {}
    with SqliteDatabase(shop) as database:
        for weight in (0.0, 1000.0):
            config = settings(folder, n=2, suspicion_weight=weight)
            seen[weight] = candidates(Question(ASKED), Resources(ScriptedModel(script), database), config)
    kinds = {entry["sql"]: entry.get("suspected", []) for entry in seen[1000.0].trace[-1]["observation"]["ranking"]}
    assert "unknown_literal" in kinds[script[0]] and not kinds[script[1]]
    assert seen[1000.0].sql == script[1]
    assert not any("suspected" in entry for entry in seen[0.0].trace[-1]["observation"]["ranking"])


def test_the_candidate_after_which_the_question_is_likelier_is_the_answer(shop, folder):
    script = ["SELECT name FROM customers;", "SELECT city FROM customers;"]
    episodes = {}
    with SqliteDatabase(shop) as database:
        for reversed_ in (False, True):
            model = ScriptedModel(script[::-1] if reversed_ else script)
            config = settings(folder, n=2)
            episodes[reversed_] = candidates(Question(ASKED), Resources(model, database), config)
    ranking = episodes[False].trace[-1]["observation"]["ranking"]
    likely = {one["sql"]: one["question"] for one in ranking}
    expected = {sql: alone(tiny_model(), tiny_tokenizer(), sql) for sql in script}
    assert likely == pytest.approx(expected, abs=0.02)
    assert {episode.sql for episode in episodes.values()} == {max(expected, key=expected.__getitem__)}
    assert episodes[False].usage.model_calls == 4  # two written, two read back
    assert [call["kind"] for call in episodes[False].calls] == ["sql", "sql"]


def test_what_reading_back_costs_is_counted_in_a_run(shop, folder):
    with SqliteDatabase(shop) as database:
        resources = Resources(ScriptedModel([QUERIES[0]]), database)
        named, config = get_controller("candidates"), settings(folder, n=1)
        episode = run_episode(named, Question(ASKED), lambda: resources, config)
    assert episode.error is None
    assert episode.usage.model_calls == 2


def test_without_choose_question_nothing_is_read_back(shop):
    config = build_config({"candidates": {"n": 1, "question_model": "nowhere/there", "constrained": False}})
    with SqliteDatabase(shop) as database:
        episode = candidates(Question(ASKED), Resources(ScriptedModel([QUERIES[0]]), database), config)
    assert episode.error is None
    assert "question" not in episode.trace[-1]["observation"]["ranking"][0]
    assert "question_model" not in members(config)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"question_adapter": "nobody"}, "adapter folder 'nobody' does not exist"),
        ({"question_model": "scripted:replies.txt"}, "give a local model"),
        ({"question_model": "smollm"}, "did you mean 'smollm2-135m'"),
    ],
)
def test_a_question_model_that_names_nothing_is_said_before_the_run(folder, values, said):
    with pytest.raises(UsageError, match=said):
        check_config(ScriptedModel(["SELECT 1"]), settings(folder, **values))


def test_a_failing_question_model_is_a_failed_episode_and_the_rest_is_kept(shop, folder):
    with SqliteDatabase(shop) as database:
        model = ScriptedModel(["SELECT name FROM customers WHERE name IN ('" + "a" * 2000 + "');"])
        episode = candidates(Question(ASKED), Resources(model, database), settings(folder, n=1))
    assert episode.error is not None
    assert episode.error.startswith("model: a query and its question are")
    assert episode.sql.startswith("SELECT name")


def test_another_adapter_of_the_same_name_is_another_run(tmp_path, folder):
    keys = []
    for size in (2, 4):
        adapted = peft.LoraConfig(r=size, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False)
        peft.get_peft_model(tiny_model(), adapted).save_pretrained(tmp_path / "adapter")
        config = settings(folder, question_adapter=str(tmp_path / "adapter"))
        keys.append(run_key(get_controller("candidates"), config, {}, {}, members(config)))
    assert keys[0] != keys[1]
    assert question_model_print(settings(folder).candidates) == f"{folder}+none"
