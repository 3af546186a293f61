"""Dialogues as benchmarks: the packaged ones, the official layout of SParC and CoSQL, and the uniform one."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nl2sql.benchmarks import load_benchmark, scorable
from nl2sql.benchmarks.core import draw_dialogues, has_dialogues, interactions, with_gold_histories
from nl2sql.cli import app
from nl2sql.errors import BenchmarkError, UsageError
from nl2sql.interfaces import Question, Turn, question_key

SHIPPED = "SELECT count(*) FROM orders WHERE status = 'shipped'"
TOLD: list[dict[str, Any]] = [
    {
        "database_id": "shop",
        "interaction": [
            {
                "utterance": "How many orders are there?",
                "query": "SELECT count(*) FROM orders",
                "utterance_toks": ["How", "many"],
                "query_toks": ["SELECT"],
                "query_toks_no_value": ["select"],
                "sql": {"select": [False, []]},
            },
            {"utterance": "Only the shipped ones.", "query": SHIPPED, "sql": {}},
            {"utterance": "By customer?", "query": "SELECT customer_id, count(*) FROM orders GROUP BY customer_id"},
        ],
        "final": {"utterance": "How many orders has each customer?", "query": "SELECT 1"},
    },
    {
        "database_id": "shop",
        "interaction": [{"utterance": "List the cities.", "query": "SELECT city FROM customers"}],
        "final": {"utterance": "List the cities.", "query": "SELECT city FROM customers"},
    },
]


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")


def with_database(root: Path, shop: Path) -> Path:
    folder = root / "database" / "shop"
    folder.mkdir(parents=True)
    shutil.copy(shop, folder / "shop.sqlite")
    return root


@pytest.fixture
def sparc(tmp_path: Path, shop: Path) -> Path:
    """SParC's release: question files, ``tables.json`` and ``database/`` beside each other."""
    root = tmp_path / "sparc"
    write(root / "tables.json", [])
    write(root / "train.json", TOLD[1:])
    write(root / "dev.json", TOLD)
    return with_database(root, shop)


@pytest.fixture
def cosql(tmp_path: Path, shop: Path) -> Path:
    """CoSQL's release: the question files in a folder of their own."""
    root = tmp_path / "cosql_dataset"
    write(root / "tables.json", [])
    write(root / "sql_state_tracking" / "cosql_train.json", TOLD[1:])
    write(root / "sql_state_tracking" / "cosql_dev.json", TOLD)
    return with_database(root, shop)


# ------------------------------------------------------------------------------------------------- packaged


def test_each_packaged_turn_is_a_question_behind_the_golds_before_it() -> None:
    benchmark = load_benchmark("packaged-dialogues", split="dev")
    third = next(question for question in benchmark.questions if question.id == "campus_registry-d01.3")
    assert third.text == "How many of them have withdrawn?" and third.split == "dev"
    assert third.meta == {
        "interaction_id": "campus_registry-d01",
        "turn": 3,
        "kind": "pronoun",
        "standalone": "How many students from Ireland have withdrawn?",
    }
    ireland = "SELECT COUNT(*) FROM students WHERE country = 'Ireland'"
    assert third.history[1] == Turn("from Ireland?", "How many students come from Ireland?", ireland)
    assert third.gold[0].startswith(ireland) and third.difficulty == "medium"
    assert len(interactions(benchmark.questions)) == 36


def test_splits_of_the_packaged_dialogues_share_no_dialogue() -> None:
    names = ("dev", "test", "extra", "fresh")
    splits = [load_benchmark("packaged-dialogues", split=name).questions for name in names]
    assert [len(questions) for questions in splits] == [132, 132, 306, 102]
    ids = [{question.meta["interaction_id"] for question in questions} for questions in splits]
    assert [len(dialogues) for dialogues in ids] == [36, 36, 72, 24] and len(set.union(*ids)) == 168
    assert len(load_benchmark("packaged-dialogues").questions) == 672


def test_check_data_counts_the_dialogues() -> None:
    done = CliRunner().invoke(app, ["data", "check", "--benchmark", "packaged-dialogues", "--split", "dev"])
    assert done.exit_code == 0 and "132 of 132 items are sound, in 36 dialogues" in done.output
    done = CliRunner().invoke(app, ["data", "check", "-b", "packaged-dialogues", "--split", "dev", "--json"])
    assert json.loads(done.output)["dialogues"] == 36


# ------------------------------------------------------------------------------------------ official layouts


@pytest.mark.parametrize("layout", ["sparc", "cosql"])
def test_official_interactions_are_read_turn_by_turn(layout: str, request: pytest.FixtureRequest) -> None:
    benchmark = load_benchmark(request.getfixturevalue(layout), split="dev")
    first, second, third, other = benchmark.questions
    name = f"{benchmark.name}-dev"
    assert [question.id for question in benchmark.questions] == [
        f"{name}-{end}" for end in ("0.1", "0.2", "0.3", "1.1")
    ]
    assert first.history == other.history == ()
    assert second.history == (Turn("How many orders are there?", "", "SELECT count(*) FROM orders"),)
    assert third.history == (*second.history, Turn("Only the shipped ones.", "", SHIPPED))
    assert second.meta == {"id": f"{name}-0.2", "interaction_id": f"{name}-0", "turn": 2}
    assert all(scorable(question) and question.db_id == "shop" for question in benchmark.questions)
    assert benchmark.database("shop").run(third.gold[0]).success
    assert len(load_benchmark(request.getfixturevalue(layout), split="train").questions) == 1


@pytest.mark.parametrize("layout", ["sparc", "cosql"])
def test_official_predictions_are_scored_by_turn_and_by_dialogue(layout: str, request: pytest.FixtureRequest) -> None:
    """Their text: a statement per line, an empty line between dialogues; their golds too, each with its database."""
    root: Path = request.getfixturevalue(layout)
    told = [[turn["query"] for turn in dialogue["interaction"]] for dialogue in TOLD]
    golds = root / "dev_gold.txt"
    golds.write_text("\n\n".join("\n".join(f"{sql}\tshop" for sql in turns) for turns in told) + "\n")
    answers = root / "answers.txt"
    answers.write_text("\n\n".join("\n".join(turns) for turns in told).replace("GROUP BY", "ORDER BY") + "\n\n")
    asked = ["score", "-b", str(root), "--split", "dev", "-p", str(answers), "--gold", str(golds), "--replicas", "0"]
    scored = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["dialogues"]
    assert (scored["question_match"]["value"], scored["interaction_match"]["value"]) == (0.75, 0.5)
    by_turn = {name: (share["value"], share["n"]) for name, share in scored["by_turn"].items()}
    assert by_turn == {"1": (1.0, 2), "2": (1.0, 1), "3": (0.0, 1), "later": (0.5, 2)}
    shown = CliRunner().invoke(app, asked).output
    assert "interaction match: 50.0" in shown and "EX, turn 3: 0.0" in shown


def test_an_empty_line_inside_a_dialogue_is_an_answer_that_is_missing(sparc: Path) -> None:
    answers = sparc / "answers.txt"
    answers.write_text("SELECT count(*) FROM orders\n\nSELECT 1\n\nSELECT city FROM customers\n")
    asked = ["score", "-b", str(sparc), "--split", "dev", "-p", str(answers), "--replicas", "0", "--json"]
    scored = json.loads(CliRunner().invoke(app, asked).stdout)["dialogues"]
    assert {name: share["value"] for name, share in scored["by_turn"].items()} == {"1": 1, "2": 0, "3": 0, "later": 0}


def test_cosqls_inner_folder_finds_the_databases_beside_it(cosql: Path) -> None:
    benchmark = load_benchmark(cosql / "sql_state_tracking", split="dev")
    assert [len(group) for group in interactions(benchmark.questions)] == [3, 1]
    assert benchmark.database("shop").run(SHIPPED).success


def test_an_interaction_without_turns_is_named(sparc: Path) -> None:
    write(sparc / "dev.json", [TOLD[1], {"database_id": "shop", "interaction": "How many?"}])
    with pytest.raises(
        BenchmarkError, match="interaction sparc-dev-1 has 'How many\\?' in place of its turns; expected"
    ):
        load_benchmark(sparc)


# -------------------------------------------------------------------------------------------------- uniform


def uniform(root: Path, shop: Path, records: list[dict[str, Any]]) -> Path:
    write(root / "questions.json", records)
    shutil.copy(shop, root / "shop.sqlite")
    return root


def turn(text: str, number: Any = None, **more: Any) -> dict[str, Any]:
    place = {} if number is None else {"turn": number}
    return {"question": text, "query": f"SELECT '{text}'", "db_id": "shop", "interaction_id": "i", **place, **more}


def test_a_uniform_folder_orders_turns_and_gives_them_the_golds_before(tmp_path: Path, shop: Path) -> None:
    records = [
        turn("c", 3),
        turn("a", 1, standalone="all of a"),
        {"question": "alone", "query": "SELECT 1", "db_id": "shop"},
        turn("b", 2),
    ]
    questions = load_benchmark(uniform(tmp_path / "told", shop, records)).questions
    a, b = Turn("a", "all of a", "SELECT 'a'"), Turn("b", "", "SELECT 'b'")
    assert [question.history for question in questions] == [(a, b), (), (), (a,)]
    assert [[question.text for question in group] for group in interactions(questions)] == [["a", "b", "c"], ["alone"]]


def test_a_declared_history_is_kept_and_completed_by_the_turns_it_names(tmp_path: Path, shop: Path) -> None:
    texts = turn("c", 3, history=["a", "never asked here"])
    whole = turn("d", 4, history=[{"question": "x", "query": "SELECT 2", "standalone": "all of x"}])
    questions = load_benchmark(uniform(tmp_path / "told", shop, [turn("a", 1), turn("b", 2), texts, whole])).questions
    assert questions[2].history == (Turn("a", "", "SELECT 'a'"), Turn("never asked here"))
    assert questions[3].history == (Turn("x", "all of x", "SELECT 2"),)


def test_turns_without_a_number_stand_in_their_order(tmp_path: Path, shop: Path) -> None:
    questions = load_benchmark(uniform(tmp_path / "told", shop, [turn("a"), turn("b"), turn("c")])).questions
    assert [question.meta["turn"] for question in questions] == [1, 2, 3]
    assert [turn.user_query for turn in questions[2].history] == ["a", "b"]


def test_a_turn_without_a_gold_is_in_no_history(tmp_path: Path, shop: Path) -> None:
    records = [turn("a", 1), turn("b", 2) | {"query": ""}, turn("c", 3)]
    questions = load_benchmark(uniform(tmp_path / "told", shop, records)).questions
    assert [turn.user_query for turn in questions[2].history] == ["a"]


@pytest.mark.parametrize("number, why", [("two", "is no whole number"), (1, "is there twice")])
def test_a_turn_that_cannot_be_placed_is_named(tmp_path: Path, shop: Path, number: Any, why: str) -> None:
    folder = uniform(tmp_path / "told", shop, [turn("a", 1), turn("b", number, id="second")])
    with pytest.raises(BenchmarkError, match=f"question second: turn .* of interaction 'i' {why}; expected 1, 2, 3"):
        load_benchmark(folder)


# ------------------------------------------------------------------------------------------------- sampling


def test_a_sample_is_of_whole_dialogues() -> None:
    questions = load_benchmark("packaged-dialogues", split="dev").questions
    drawn = draw_dialogues(questions, 6)
    assert [question for question in questions if question in drawn] == drawn
    groups = {group[0].meta["interaction_id"]: group for group in interactions(questions)}
    assert [groups[group[0].meta["interaction_id"]] for group in interactions(drawn)] == interactions(drawn)
    assert len({question.db_id for question in drawn}) == 6 == len(interactions(drawn))
    assert draw_dialogues(questions, None) == list(questions)
    with pytest.raises(UsageError, match="limit 0"):
        draw_dialogues(questions, 0)


def test_the_history_is_part_of_a_questions_key() -> None:
    turns = [Question(text, "shop", text, gold=("SELECT 1",), meta={"interaction_id": "i"}) for text in ("a", "b")]
    told = with_gold_histories(turns)
    assert has_dialogues(told) and not has_dialogues([Question("a")])
    keys = {question_key(told[1])}
    for changed in ({"sql": "SELECT 2"}, {"resolved_query": "all"}, {"user_query": "other"}):
        keys.add(question_key(replace(told[1], history=(replace(told[1].history[0], **changed),))))
    assert len(keys) == 4 and question_key(turns[1]) not in keys
