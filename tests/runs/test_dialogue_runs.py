"""Runs over dialogues: which history a turn has, what the control is given, what is resumed, what is reported."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents.controllers import get_controller
from nl2sql.agents.record import Episode
from nl2sql.benchmarks.core import FolderBenchmark, with_gold_histories
from nl2sql.config import Config, build_config
from nl2sql.errors import Cancelled, UsageError
from nl2sql.interfaces import Question, Resources, Usage
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs import distributed
from nl2sql.runs.dialogues import RESOLVED, OwnHistories, as_resolved, history_of
from nl2sql.runs.distributed import Assignment, Ray, cut, fingerprints_of, run_shard
from nl2sql.runs.evaluate import evaluate, resume
from nl2sql.runs.folder import read_jsonl, read_manifest
from nl2sql.runs.job import Job
from nl2sql.runs.plan import RunSpec, open_model
from nl2sql.runs.run import Run

TOLD = {  # dialogue -> (what the user says, its gold, the same as one question), turn by turn
    "ships": [
        ("How many orders are there?", "SELECT count(*) FROM orders", None),
        ("Only those shipped?", "SELECT count(*) FROM orders WHERE status = 'shipped'", "How many orders are shipped?"),
        (
            "And of the open ones?",
            "SELECT total FROM orders WHERE status = 'open'",
            "What is the total of open orders?",
        ),
        ("List the cities of customers.", "SELECT city FROM customers", None),
    ],
    "names": [
        ("List the names of customers.", "SELECT name FROM customers", None),
        ("And their cities?", "SELECT name, city FROM customers", "List the names and cities of customers."),
    ],
}
WRONG = "SELECT nothing FROM nowhere"
OTHER = "SELECT count(*) FROM customers"


def questions_of(told: dict[str, list[Any]] = TOLD) -> list[Question]:
    turns = [
        Question(
            text,
            "shop",
            f"{name}.{number}",
            gold=(gold,),
            meta={
                "interaction_id": name,
                "turn": number,
                "standalone": whole or text,
                "kind": "first" if number == 1 else "pronoun" if whole else "topic_change",
            },
        )
        for name, dialogue in told.items()
        for number, (text, gold, whole) in enumerate(dialogue, 1)
    ]
    return with_gold_histories(turns)


@pytest.fixture
def benchmark(shop: Path) -> FolderBenchmark:
    return FolderBenchmark("talk", questions_of(), {}, {"shop": shop})


def settings(resolve: str = "concat", **more: Any) -> Config:
    return build_config({"eval": {"replicas": 0}, "session": {"resolve": resolve}, **more})


class Heard:
    """A controller that keeps what it was asked and answers with the model's text; it breaks off before ``at``."""

    def __init__(self, at: str = "") -> None:
        self.asked: dict[str, list[Question]] = {}
        self.order: list[str] = []
        self.at = at
        self._lock = threading.Lock()

    def __call__(self, question: Question, resources: Resources, config: Config) -> Episode:
        if question.id == self.at:
            raise KeyboardInterrupt
        with self._lock:
            self.asked.setdefault(question.id, []).append(question)
            self.order.append(question.id)
        episode = get_controller("single_shot").run(question, resources, config)
        return replace(episode, controller="heard")


def controller(heard: Heard) -> Any:
    def listens(question: Question, resources: Resources, config: Config) -> Episode:
        return heard(question, resources, config)

    return listens


def calls_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    return {row["id"]: row["calls"] for row in read_jsonl(folder / "traces.jsonl")}


def sessions_of(folder: Path) -> dict[str, Any]:
    return {row["id"]: row["flags"].get("session") for row in read_jsonl(folder / "traces.jsonl")}


# ------------------------------------------------------------------------------------------- which history


def run(benchmark: FolderBenchmark, out: Path, heard: Heard | None = None, **options: Any) -> tuple[Run, Heard]:
    heard = heard or Heard()
    model = options.pop("model", None) or ScriptedModel({"*": {"*": ["SELECT 1"]}, **_by_listener(options)})
    done = evaluate(
        benchmark,
        model,
        controller(heard),
        config=options.pop("config", settings()),
        out=out,
        progress=False,
        control=options.pop("control", False),
        **options,
    )
    return done, heard


def _by_listener(options: dict[str, Any]) -> dict[str, Any]:
    answers = options.pop("answers", {})
    return {q.text: {"*": [answers.get(q.id, q.gold[0])]} for q in questions_of()}


def test_with_golds_every_turn_is_asked_behind_the_golds_before_it(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    _, heard = run(benchmark, tmp_path / "run", answers=dict.fromkeys(["ships.1", "ships.2"], WRONG))
    (third,) = heard.asked["ships.3"]
    assert third.history == benchmark.questions[2].history and len(third.history) == 2
    earlier = "How many orders are there? Only those shipped?"
    assert third.text == f"{earlier} And of the open ones?"
    assert heard.asked["ships.1"] == [benchmark.questions[0]]
    assert heard.asked["ships.4"][0].text == "List the cities of customers."
    assert "history" not in read_manifest(tmp_path / "run")["plan"]


def test_own_answers_that_ran_make_the_history(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    answers = {"ships.1": OTHER, "ships.2": WRONG}
    done, heard = run(benchmark, tmp_path / "run", answers=answers, history="own")
    (third,), (fourth,) = heard.asked["ships.3"], heard.asked["ships.4"]
    assert [(turn.user_query, turn.sql) for turn in third.history] == [("How many orders are there?", f"{OTHER};")]
    assert third.text == "How many orders are there? And of the open ones?"
    assert [turn.sql for turn in fourth.history] == [f"{OTHER};", "SELECT total FROM orders WHERE status = 'open';"]
    assert fourth.history[1].resolved_query == third.text
    told = [id_ for id_ in heard.order if id_.startswith("ships")]
    assert told == ["ships.1", "ships.2", "ships.3", "ships.4"]
    assert read_manifest(tmp_path / "run")["plan"]["history"] == "own"
    assert done.report["dialogues"]["history"] == "own"


def test_own_answers_end_before_a_turn_that_is_left_out(shop: Path, tmp_path: Path) -> None:
    turns = [replace(q, meta=q.meta | {"gold_rows": 0}) if q.id == "ships.2" else q for q in questions_of()]
    benchmark = FolderBenchmark("talk", turns, {}, {"shop": shop})
    done, heard = run(benchmark, tmp_path / "own", history="own")
    assert set(heard.asked) == {"ships.1", "names.1", "names.2"}
    assert done.report["left_out"] == done.manifest["left_out"] == {"gold_rows=0": 1, "behind_left_out": 2}
    done, heard = run(benchmark, tmp_path / "gold")
    assert len(heard.asked) == 5 and done.report["left_out"] == {"gold_rows=0": 1}


def test_dialogues_run_beside_each_other(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    """Each waits for the other in its first turn."""
    both = threading.Barrier(2, timeout=60)

    def waits(question: Question, resources: Resources, config: Config) -> Episode:
        if question.meta["turn"] == 1:
            both.wait()
        return Episode(question, "waits", sql="SELECT 1")

    done = evaluate(
        benchmark, ScriptedModel([]), waits, config=settings(), history="own", out=tmp_path / "run", control=False
    )
    assert done.report["counts"]["finish"] == {"answered": 6}


def test_the_last_ten_turns_that_ran_are_kept() -> None:
    turns = questions_of({"long": [(f"Question {n}?", "SELECT 1", None) for n in range(1, 13)]})
    histories = OwnHistories(turns)
    for turn in turns[:-1]:
        histories.add(Episode(turn, "react", sql="SELECT 1"))
    assert [turn.user_query for turn in histories.asked(turns[-1]).history] == [f"Question {n}?" for n in range(2, 12)]


def test_runs_by_golds_and_by_own_answers_have_different_keys(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    keys = {
        history: run(benchmark, tmp_path / (history or "none"), history=history)[0].manifest["key"]
        for history in ("", "gold", "own")
    }
    assert keys[""] == keys["gold"] != keys["own"]


def test_limit_counts_dialogues(shop: Path, tmp_path: Path) -> None:
    files = dict.fromkeys(("a", "b", "c"), shop)
    told = [replace(q, db_id="a" if q.id.startswith("ships") else "b") for q in questions_of()]
    done, _ = run(FolderBenchmark("talk", told, {}, files), tmp_path / "run", limit=1)
    assert done.manifest["questions"] in (["ships.1", "ships.2", "ships.3", "ships.4"], ["names.1", "names.2"])


def test_other_benchmarks_have_no_history_to_ask_for(shop: Path, tmp_path: Path) -> None:
    plain = FolderBenchmark("plain", [Question("a?", "shop", "a", gold=("SELECT 1",))], {}, {"shop": shop})
    with pytest.raises(UsageError, match="--history own: benchmark 'plain' holds no dialogues; expected packaged-dia"):
        run(plain, tmp_path / "run", history="own")
    with pytest.raises(UsageError, match="--history 'mine'; expected gold or own"):
        run(plain, tmp_path / "run", history="mine")
    assert not (tmp_path / "run").exists()
    done, heard = run(plain, tmp_path / "run")
    assert "dialogues" not in done.report and heard.asked["a"] == list(plain.questions)
    assert sessions_of(tmp_path / "run") == {"a": None}


def test_own_answers_need_to_know_the_turns_before(shop: Path) -> None:
    loose = [replace(questions_of()[1], meta={})]
    assert history_of("", "talk", loose) == history_of("gold", "talk", loose) == "gold"
    with pytest.raises(UsageError, match=r"--history own: question ships\.2 has a history and no interaction_id"):
        history_of("own", "talk", loose)


# -------------------------------------------------------------------------------------------- interrupted


@pytest.mark.parametrize("at", ["ships.1", "ships.3", "names.2"])
def test_a_run_goes_on_in_the_middle_of_a_dialogue(benchmark: FolderBenchmark, tmp_path: Path, at: str) -> None:
    answers = {"ships.1": OTHER, "ships.2": WRONG}
    whole, _ = run(benchmark, tmp_path / "whole", answers=answers, history="own")
    model = ScriptedModel(_by_listener({"answers": answers}))
    heard = Heard(at)
    listens = controller(heard)
    with pytest.raises(Cancelled, match="continue with"):
        evaluate(
            benchmark,
            model,
            listens,
            config=settings(),
            history="own",
            out=tmp_path / "run",
            control=False,
            batch_size=1,
        )
    done = {row["id"] for row in read_jsonl(tmp_path / "run" / "predictions.jsonl")}
    heard.at = ""
    heard.order.clear()
    again = resume(tmp_path / "run", benchmark=benchmark, model=model, controller=listens)
    assert sorted([*done, *heard.order]) == sorted(question.id for question in benchmark.questions)
    assert sessions_of(tmp_path / "run") == sessions_of(tmp_path / "whole")
    assert again.report["dialogues"] == whole.report["dialogues"]


def test_turns_behind_one_that_is_owed_are_owed(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    model, heard = ScriptedModel(_by_listener({})), Heard()
    listens = controller(heard)
    evaluate(benchmark, model, listens, config=settings(), history="own", out=tmp_path / "run", control=False)
    for name in ("predictions.jsonl", "traces.jsonl"):
        path = tmp_path / "run" / name
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["id"] != "ships.2"), encoding="utf-8")
    heard.order.clear()
    resume(tmp_path / "run", benchmark=benchmark, model=model, controller=listens)
    assert heard.order == ["ships.2", "ships.3", "ships.4"]


# ------------------------------------------------------------------------------------------------ control


REWRITTEN = "How many orders are shipped, of those?"


def test_the_control_gets_the_question_that_the_loop_understood(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    """It asks no resolution of its own: its script has the SQL alone. It pays what the loop's resolution cost."""
    replies: dict[str, Any] = _by_listener({})
    resolved = {"ships.2": REWRITTEN, "ships.3": "What is it of the open ones?", "names.2": "List their cities."}
    resolved |= {turn.id: turn.text for turn in questions_of() if turn.meta["kind"] == "topic_change"}
    for question in questions_of():
        if question.id in resolved:
            replies[question.text] = {
                "single_shot": [question.gold[0]],
                "*": [resolved[question.id], question.gold[0]],
            }
    done, heard = run(
        benchmark, tmp_path / "run", config=settings("rewrite"), model=ScriptedModel(replies), control=True
    )
    main, control = sessions_of(tmp_path / "run"), sessions_of(tmp_path / "run" / "control")
    assert main == control and main["ships.2"]["resolved_query"] == REWRITTEN
    assert heard.asked["ships.2"][0].text == REWRITTEN
    kinds = {id_: [call["kind"] for call in calls] for id_, calls in calls_of(tmp_path / "run").items()}
    assert kinds["ships.2"] == ["resolve", "sql"] and kinds["ships.1"] == ["sql"]
    (asked,) = calls_of(tmp_path / "run" / "control")["ships.2"]
    assert REWRITTEN in asked["messages"][-1]["content"]
    usage, shot = done.report["usage"], done.report["control"]["with_guardrails"]["usage"]
    assert usage["prompt_tokens"] == shot["prompt_tokens"] and usage["model_calls"] == shot["model_calls"] == 10
    spent = done.report["dialogues"]["resolve_usage"]
    assert spent["model_calls"] == 4 and spent["prompt_tokens"] > 0


def test_the_control_of_own_answers_has_the_loops_history(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    """Resolved by falling back, a question stands beside the SQL that the loop gave before."""
    replies: dict[str, Any] = _by_listener({"answers": {"ships.1": OTHER, "ships.2": WRONG}})
    for question in questions_of():
        if question.id == "ships.3":
            replies[question.text] = {"single_shot": ["SELECT 1"], "*": ["", "SELECT 1"]}
        if question.id in ("ships.2", "names.2"):
            replies[question.text] = {"single_shot": ["SELECT 1"], "*": ["", WRONG]}
    model = ScriptedModel(replies)
    run(benchmark, tmp_path / "run", config=settings("rewrite"), model=model, control=True, history="own")
    control = sessions_of(tmp_path / "run" / "control")
    assert control == sessions_of(tmp_path / "run") and control["ships.3"]["fallback"]
    (asked,) = calls_of(tmp_path / "run" / "control")["ships.3"]
    assert OTHER in asked["messages"][-1]["content"]


def test_a_turn_whose_episode_broke_off_is_resolved_anew_for_the_control() -> None:
    turns = questions_of()[:2]
    session = {"resolved_query": "x", "fallback": ""}
    call = {"kind": "resolve", "usage": {"prompt_tokens": 3, "reused_tokens": 3, "model_calls": 1}}
    traces = [
        {"id": turns[0].id, "flags": {}, "calls": []},
        {"id": turns[1].id, "flags": {"session": session}, "calls": [call, {"kind": "act", "usage": {}}]},
    ]
    first, second = as_resolved(turns, traces)
    assert first == turns[0] and RESOLVED not in turns[1].meta
    assert second.meta[RESOLVED] == {"session": session, "usage": Usage(prompt_tokens=3, model_calls=1)}


def test_the_control_resolves_a_broken_turn_behind_the_loops_own_answers(
    benchmark: FolderBenchmark, tmp_path: Path
) -> None:
    answers = {"ships.1": OTHER, "ships.2": WRONG}

    def breaks(question: Question, resources: Resources, config: Config) -> Episode:
        if question.id == "ships.3":
            raise ValueError("broken")
        return get_controller("single_shot").run(question, resources, config)

    model = ScriptedModel(_by_listener({"answers": answers}))
    evaluate(benchmark, model, breaks, config=settings(), history="own", out=tmp_path / "run", progress=False)
    assert sessions_of(tmp_path / "run")["ships.3"] is None
    understood = sessions_of(tmp_path / "run" / "control")["ships.3"]["resolved_query"]
    assert understood == "How many orders are there? And of the open ones?"


def test_both_controls_are_given_the_resolved_question(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    script = {question.text: {"*": [question.gold[0]] * 9} for question in questions_of()}
    done, _ = run(
        benchmark, tmp_path / "run", model=ScriptedModel(script), control=True, equal_tokens=True, history="own"
    )
    for place in ("control", "control_equal_tokens"):
        assert sessions_of(tmp_path / "run" / place) == sessions_of(tmp_path / "run")
    assert set(done.report["dialogues"]["control"]) == {"with_guardrails", "without_guardrails", "equal_tokens"}


def test_a_resolution_is_paid_once_whatever_the_number_of_samples(benchmark: FolderBenchmark, tmp_path: Path) -> None:
    def thrice(question: Question, resources: Resources, config: Config) -> Episode:
        return [get_controller("single_shot").run(question, resources, config) for _ in range(3)][-1]

    golds = [(q, [q.gold[0]] * 9) for q in questions_of()]
    script = {q.text: {"single_shot": gold, "*": [q.text] * bool(q.history) + gold} for q, gold in golds}
    told = {"config": settings("rewrite"), "out": tmp_path / "run", "equal_tokens": True, "progress": False}
    evaluate(benchmark, ScriptedModel(script), thrice, **told)
    assert {len(calls) for calls in calls_of(tmp_path / "run" / "control_equal_tokens").values()} == {3}


# ------------------------------------------------------------------------------------------------- workers


def test_workers_are_handed_golds_and_refuse_own_answers(
    benchmark: FolderBenchmark, shop: Path, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": _by_listener({})}), encoding="utf-8")
    plan, named, config = RunSpec(model=f"scripted:{script}", cache=False), get_controller("single_shot"), settings()
    told = as_resolved(
        benchmark.questions,
        [{"id": "ships.2", "flags": {"session": {"resolved_query": "Told?", "fallback": ""}}, "calls": []}],
    )
    (shard,) = cut(benchmark, told)
    job = Job(plan, named, config, told, benchmark, open_model(plan), {}, {})
    order = Assignment(plan, "single_shot", config, fingerprints_of(job), {}, {})
    distributed._KEPT.clear()  # as in another process
    episodes = {episode.question.id: episode for episode in run_shard(order, shard)}
    assert episodes["ships.2"].flags["session"]["resolved_query"] == "Told?"
    joined = "How many orders are there? Only those shipped? And of the open ones?"
    assert episodes["ships.3"].flags["session"]["resolved_query"] == joined
    with pytest.raises(UsageError, match="--history own asks the turns of a dialogue one after the other"):
        Ray.check(Ray.__new__(Ray), RunSpec(history="own"), config)
