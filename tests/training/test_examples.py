"""Examples are what the product will see: its own prompts, answers in one style, errors of its own gates."""

from __future__ import annotations

import importlib.util
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from training import examples
from training.act import Teacher, act_example, next_action
from training.mixture import Shares, mixture
from training.sql_style import in_style, tables_of
from training.swaps import SMALL_MODEL_KINDS, corrupted, error_of

from nl2sql.agents.agent_tools import repair_sql
from nl2sql.agents.setup import link, open_task
from nl2sql.agents.single_shot import single_shot
from nl2sql.agents.task import State
from nl2sql.benchmarks import load_benchmark
from nl2sql.benchmarks.core import FolderBenchmark
from nl2sql.config import PRESETS, Config, build_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.interfaces import Completion, Question, Resources, Usage

STYLES = yaml.safe_load((Path(__file__).parents[1] / "fixtures" / "sql_style.yaml").read_text(encoding="utf-8"))
JOIN = "SELECT customers.name FROM customers JOIN orders ON customers.customer_id = orders.customer_id"
ASKED = Question("Which customers have orders?", id="q", db_id="shop", gold=(JOIN,))


@pytest.fixture
def database(shop):
    with SqliteDatabase(shop) as database:
        yield database


@pytest.mark.parametrize(("gold", "taught"), STYLES)
def test_golds_are_written_in_one_style_and_give_the_same_rows(database, gold, taught):
    found = in_style(gold, database.schema())
    assert found == taught
    if found:
        rows = [sorted(database.run(sql, timeout_s=5, max_rows=99).rows) for sql in (gold, found)]
        assert rows[0] == rows[1]


def test_the_tables_of_a_query_are_spelled_as_in_the_schema(database):
    assert tables_of("select 1 from ORDERS join Customers", database.schema()) == {"orders", "customers"}
    assert tables_of("no sql (", database.schema()) == set()


class Noting:
    """A model that writes nothing of use and remembers what it was asked."""

    name, revision, context_window = "noting", "1", 8192

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str]] = []

    def generate(self, messages: Any, *, prefill: str = "", **options: Any) -> list[Completion]:
        self.asked.append((list(messages), prefill))
        return [Completion(" 1", "stop", Usage())]

    def count_tokens(self, messages: Any, prefill: str = "", tools: Any = ()) -> int:
        return 10


@pytest.mark.parametrize("evidence", ["", "An order belongs to a customer."])
def test_a_write_example_is_what_single_shot_asks(database, evidence):
    model, question = Noting(), replace(ASKED, evidence=evidence)
    single_shot(question, Resources(model, database), Config())
    item = examples.asked(question, database)
    assert item is not None
    example = examples.write_example(item, examples.schema_text(database.schema()))
    assert model.asked == [(list(example.messages), example.pieces[0][0])]
    assert "".join(text for text, _ in example.pieces) == JOIN + ";"
    assert examples.Example.from_dict(example.to_dict()) == example


@pytest.mark.parametrize("level", ["error", "patterns"])
def test_a_repair_example_is_what_repair_sql_asks(database, level):
    bad, model = JOIN.replace("customers.name", "customers.nam"), Noting()
    state = State(open_task(ASKED, Resources(model, database), build_config({"repair": {"guidance": level}})))
    link(state.task)
    state.last_sql, state.pending_repair_error = bad, "no such column: customers.nam"
    repair_sql(state, {})
    item = examples.asked(ASKED, database)
    assert item is not None
    text = examples.schema_text(database.schema())
    guided_by = database if level == "patterns" else None
    example = examples.repair_example(item, text, bad, "no such column: customers.nam", guided_by)
    assert model.asked == [(list(example.messages), example.pieces[0][0])]
    assert ("Did you mean customers.name?" in example.messages[-1]["content"]) == (level == "patterns")


def test_a_model_s_own_failures_are_repaired_in_place_of_made_up_ones():
    benchmark = load_benchmark("packaged", split="dev")
    right, wrong = benchmark.questions[0], benchmark.questions[1]
    failures = {right.id: right.gold[0], wrong.id: "SELECT x FROM nowhere"}
    shares = Shares(rounds=1, repair=0, act=0, held_out=0, guided=1.0)
    groups = mixture(benchmark, benchmark.questions, shares, failures=failures)
    (example,) = [e for group in groups for e in group.examples if e.task == "repair"]
    asked = example.messages[-1]["content"]
    assert example.id == wrong.id and failures[wrong.id] in asked
    assert "no such table: nowhere" in asked and "VIOLATED CONSTRAINT" in asked


def test_groups_show_every_table_that_their_answers_read():
    benchmark = load_benchmark("packaged", split="dev")
    db_id = benchmark.questions[0].db_id
    database = benchmark.database(db_id)
    found = (examples.asked(q, database) for q in benchmark.questions if q.db_id == db_id)
    items = [item for item in found if item is not None]
    groups = list(examples.groups(items, random.Random(0), size=5))
    assert sorted(item.question.id for _, group in groups for item in group) == sorted(i.question.id for i in items)
    assert max(len(group) for _, group in groups) <= 5
    for shown, group in groups:
        assert {name for item in group for name in item.tables} <= {table.name for table in shown.tables}


@pytest.mark.parametrize("kind", dict.fromkeys(SMALL_MODEL_KINDS), ids=lambda kind: kind.__name__)
def test_every_kind_of_corruption_changes_a_query(database, kind):
    grouped = f"{JOIN} WHERE orders.total > 1 GROUP BY customers.name ORDER BY COUNT(*) DESC LIMIT 1"
    found = {kind(grouped, database.schema(), random.Random(seed)) for seed in range(20)} - {None, grouped}
    assert found


def test_a_corruption_comes_with_the_error_that_the_gates_give(database):
    for seed in range(10):
        bad, error = corrupted(JOIN, ASKED.text, database.schema(), database, random.Random(seed))
        assert error_of(bad.rstrip(";"), ASKED.text, database.schema(), database) == error
    assert error_of(JOIN, ASKED.text, database.schema(), database) is None


def test_the_loop_is_learned_from_a_real_episode(database):
    example = act_example(ASKED, JOIN, database)
    said = [text for text, learned in example.pieces if learned]
    actions = [text.split("Action: ")[1].split("[")[0] for text in said]
    assert actions[:2] == ["extract_constraints", "generate_sql"]
    assert actions[-2:] == ["run_sql", "finish"]
    assert all(text.endswith("\nObservation:") for text in said)
    assert "Observation:" in example.pieces[0][0]
    assert not example.closed


def test_after_a_wrong_query_the_loop_repairs(database):
    example = act_example(ASKED, JOIN, database, wrong=JOIN.replace("name", "nom") + ";")
    said = "".join(text for text, learned in example.pieces if learned)
    assert "unknown_column" in "".join(text for text, learned in example.pieces if not learned)
    assert said.index("validate_sql") < said.index("repair_sql") < said.index("finish")


def test_an_episode_that_ends_wrong_teaches_nothing(database):
    assert act_example(ASKED, "SELECT nothing FROM nowhere", database) is None


@pytest.mark.parametrize(
    ("tail", "action"),
    [
        ("link_schema[{}]\nObservation: orders(id)", "extract_constraints"),
        ('generate_sql[{}]\nObservation: {"error": "clean_reject:no_select"}', "generate_sql"),
        ('validate_sql[{}]\nObservation: {"valid": false, "reason": "unknown_column:x"}', "repair_sql"),
        ("repair_sql[{}]\nObservation: SELECT 1;", "validate_sql"),
        ('run_sql[{}]\nObservation: {"success": false, "error": "no"}', "repair_sql"),
        ('run_sql[{}]\nObservation: {"success": true}', "finish"),
    ],
)
def test_the_teacher_follows_the_policy(tail, action):
    assert next_action(f"Action: {tail}") == action
    (turn,) = Teacher(["SELECT 1;"]).generate([], prefill=f"Action: {tail}\n")
    assert f"Action: {action}[" in turn.text


def test_held_out_databases_teach_nothing():
    benchmark = load_benchmark("packaged", split="dev")
    shares = Shares(rounds=2, repair=0.5, act=2, held_out=0.4)
    groups = list(mixture(benchmark, benchmark.questions, shares, seed=1))
    assert groups == list(mixture(benchmark, benchmark.questions, shares, seed=1))
    databases = {
        part: {e.db_id for g in groups if g.part == part for e in g.examples} for part in ("train", "held_out")
    }
    assert databases["held_out"]
    assert not databases["train"] & databases["held_out"]
    assert {e.task for g in groups for e in g.examples} == {"write", "repair", "act"}
    assert sum(e.task == "act" for g in groups for e in g.examples) == 2


def test_a_question_beside_an_earlier_query_is_asked_as_a_follow_up_is():
    benchmark = load_benchmark("packaged", split="dev")
    plain = {"rounds": 1, "repair": 0, "act": 0, "held_out": 0, "values": 0}
    groups = list(mixture(benchmark, benchmark.questions, Shares(**plain, draft=1.0)))
    drafts = [example for group in groups for example in group.examples if example.task == "draft"]
    written = {example.id: example for group in groups for example in group.examples if example.task == "write"}
    assert sorted(example.id for example in drafts) == sorted(written)
    shown = {e.id: e.messages[-1]["content"].partition("Previous query:\n")[2].partition("\n")[0] for e in drafts}
    answers = {id_: "".join(text for text, _ in example.pieces).rstrip(";") for id_, example in written.items()}
    same = [id_ for id_ in shown if shown[id_] == answers[id_]]
    assert all(shown.values()) and 0.4 < len(same) / len(shown) < 0.95
    assert set(shown.values()) <= set(answers.values())  # another's is a neighbour's


def test_transcripts_of_the_plus_loop_are_learned_as_well(database):
    config = build_config(PRESETS["react_plus"])
    example = act_example(ASKED, JOIN, database, config=config)
    assert example is not None
    said = [text for text, learn in example.pieces if learn]
    assert len(said) == 1 and "generate_sql[" in said[0]  # all else is forced without a call


def test_answers_are_read_back_as_the_questions_in_groups_of_their_own():
    benchmark = load_benchmark("packaged", split="dev")
    plain = {"rounds": 1, "repair": 0, "act": 0, "held_out": 0, "paraphrase": 0}
    written = list(mixture(benchmark, benchmark.questions, Shares(**plain)))
    both = list(mixture(benchmark, benchmark.questions, Shares(**plain, question=1.0)))
    assert [g for g in both if g.examples[0].task == "write"][:1] == written[:1]
    assert all(len({e.task for e in g.examples}) == 1 for g in both)
    only = list(mixture(benchmark, benchmark.questions, Shares(**plain, write=0.0, question=1.0)))
    asked = {question.id: question.text for question in benchmark.questions}
    made = [example for group in only for example in group.examples]
    assert {e.task for e in made} == {"question"}
    assert {e.id for e in made} == {e.id for group in written for e in group.examples}
    for example in made:
        assert example.pieces == ((asked[example.id], True),)
        assert example.messages[0]["content"].startswith("SQL query:\nSELECT ")
    half = sum(len(g.examples) for g in mixture(benchmark, benchmark.questions, Shares(**plain, write=0.5)))
    assert 0 < half < len(made)


def test_a_database_that_cannot_be_opened_is_left_out_and_the_others_are_learned(tmp_path, shop, caplog):
    empty = tmp_path / "empty.sqlite"
    empty.write_bytes(b"not a database at all" * 50)
    questions = [ASKED, replace(ASKED, id="other", db_id="empty")]
    benchmark = FolderBenchmark("two", questions, {}, {"shop": shop, "empty": empty})
    made = list(mixture(benchmark, questions, Shares(rounds=1, repair=0, act=1, held_out=0)))
    assert {example.db_id for group in made for example in group.examples} == {"shop"}
    assert "nothing is learned from database empty" in caplog.text


def test_an_interrupted_build_leaves_the_data_that_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("build", Path(__file__).parents[2] / "scripts/build_training_data.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    (tmp_path / "groups.jsonl").write_text("before\n", encoding="utf-8")

    def interrupted(*given: Any, **options: Any) -> Any:
        yield next(mixture(*given, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "mixture", interrupted)
    options = ["--benchmark", "packaged", "--split", "dev", "--limit", "6", "--act", "0", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["build_training_data.py", *options])
    assert build.main() == 130
    assert (tmp_path / "groups.jsonl").read_text(encoding="utf-8") == "before\n"
