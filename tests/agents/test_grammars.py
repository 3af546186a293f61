"""What the grammars accept, and what a model can write under them."""

from __future__ import annotations

import itertools
import json
import re
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("llguidance")
from fixture_lines import read_cases
from models.tiny import tiny_model, tiny_tokenizer

from nl2sql.agents.agent_tools import TOOLS
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.forms import action_space
from nl2sql.agents.grammars.plain_select import plain_grammar
from nl2sql.agents.grammars.select import action_grammar, select_grammar
from nl2sql.agents.react import react_sql
from nl2sql.agents.turns import parse_action
from nl2sql.benchmarks import load_benchmark
from nl2sql.config import load_config
from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import UsageError
from nl2sql.interfaces import Grammar, Question, Resources
from nl2sql.models.local import LocalModel
from nl2sql.models.rows import Constrainer
from nl2sql.models.scripted import ScriptedModel

STUDENTS = Table("students", tuple(map(Column, ("id", "name", "dept_id", "birth date"))))
DEPTS = Table("depts", tuple(map(Column, ("id", "title", "budget"))))
SCHEMA = Schema((STUDENTS, DEPTS))
CASES = read_cases("select_grammar.txt")
STOPS = (0, 2)


def accepts(constrainer: Constrainer, grammar: Grammar, text: str) -> bool:
    state = constrainer.start(grammar)
    for token in tiny_tokenizer()(text)["input_ids"]:
        logits = torch.zeros(259)
        state.mask(logits)
        if logits[token] != 0:
            return False
        state.consume(token)
    return state.accepting


def written(constrainer: Constrainer, grammar: Grammar, seed: int, limit: int = 3000) -> str:
    """What a model of random logits writes that opens few brackets and closes them soon."""
    bias = torch.zeros(259)
    bias[tiny_tokenizer()("(,")["input_ids"]], bias[[*tiny_tokenizer()(")")["input_ids"], *STOPS]] = -3.0, 2.0
    generator = torch.Generator().manual_seed(seed)
    state, ids = constrainer.start(grammar), []
    while not state.stopped and len(ids) < limit:
        logits = torch.randn(259, generator=generator) + bias
        state.mask(logits)
        token = int(logits.argmax())
        if token in STOPS:
            break
        state.consume(token)
        ids.append(token)
    assert len(ids) < limit, "it never ends"
    return str(tiny_tokenizer().decode(ids))


# ------------------------------------------------------------------------------------------------- one turn


def turn(parameters: Mapping[str, Any] | None = None, thought: int = 60) -> Grammar:
    def look_up(state: Any, args: Any) -> int:
        return 1

    if parameters is not None:
        look_up.parameters = parameters  # type: ignore[attr-defined]
    space = action_space(Resources(ScriptedModel([]), None, tools={"look_up": look_up}))  # type: ignore[arg-type]
    tables = ["students", 'odd "name"']
    return action_grammar(tuple((name, tool.grammar(tables)) for name, tool in space.items()), thought)


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("Thought: I need the schema.\nAction: get_schema[{}]", True),
        ('Thought: rows?\nAction: get_table_samples[{"table": "students", "n": 3}]', True),
        ('Thought: rows: some\nAction: get_table_samples[{"table": "odd \\"name\\""}]', True),
        ('Thought: x\nAction: look_up[{"word": "a", "n": -1.5, "deep": null}]', True),
        ("Thought: x\nAction: look_up[{}]", True),
        ("Thought: x\nAction: get_schema[{}] ", False),
        ("Thought: x\nAction: drop_table[{}]", False),
        ('Thought: x\nAction: run_sql[{"sql": "SELECT 1"}]', False),
        ('Thought: x\nAction: get_table_samples[{"table": "teachers"}]', False),
        ("Thought: Observation: 3\nAction: get_schema[{}]", False),
        ("Thought: Action: finish\nAction: get_schema[{}]", False),
        ("Thought: " + 61 * "x" + "\nAction: get_schema[{}]", False),
        ("Thought: \nAction: get_schema[{}]", False),
        ("\nThought: x\nAction: get_schema[{}]", False),
        ("Action: get_schema[{}]", False),
    ],
)
def test_a_turn_is_one_thought_and_one_action_that_exists(constrainer: Constrainer, text: str, ok: bool) -> None:
    assert accepts(constrainer, turn(), text) is ok


def test_a_registered_tool_takes_the_arguments_it_declares(constrainer: Constrainer) -> None:
    word = {"type": "object", "properties": {"word": {"enum": ["a", "b"]}}, "required": ["word"]}
    grammar = turn({**word, "additionalProperties": False})
    assert accepts(constrainer, grammar, 'Thought: x\nAction: look_up[{"word": "b"}]')
    assert not accepts(constrainer, grammar, 'Thought: x\nAction: look_up[{"word": "c"}]')
    assert not accepts(constrainer, grammar, "Thought: x\nAction: look_up[{}]")


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_written_parses_to_a_known_tool(constrainer: Constrainer, seed: int) -> None:
    text = written(constrainer, turn(), seed)
    action, args, found = parse_action(text)
    assert action in [*TOOLS, "look_up"] and not found, text
    assert text.endswith(f"Action: {action}[{json.dumps(args, ensure_ascii=False)}]") or action == "look_up"
    assert text.count("\n") == 1


# --------------------------------------------------------------------------------------------------- select


@pytest.mark.parametrize(("verdict", "text"), CASES)
def test_the_select_grammar(constrainer: Constrainer, verdict: str, text: str) -> None:
    assert accepts(constrainer, select_grammar(SCHEMA), text) is (verdict == "yes")


def test_packaged_golds_are_accepted(constrainer: Constrainer) -> None:
    benchmark = load_benchmark("packaged", split="quick")
    for question in benchmark.questions[::4]:
        grammar = select_grammar(benchmark.database(question.db_id).schema(), "")
        assert accepts(constrainer, grammar, " ".join(question.gold[0].split())), question.gold[0]


@pytest.mark.parametrize(
    ("prefill", "text", "ok"),
    [
        ("", "SELECT name FROM students", True),
        (
            "",
            "WITH rich AS (SELECT id FROM depts WHERE budget > 9) SELECT count(*) FROM rich JOIN students ON x = y",
            True,
        ),
        ("", "with recursive n(x) as (select 1 from depts) select x from n", True),
        ("", "DELETE FROM students", False),
        ("", " name FROM students", False),
        ("```sql\nselect ", "name FROM students", True),
        ("```sql\nselect ", " name FROM students", False),
    ],
)
def test_the_grammar_begins_where_the_prefill_ends(constrainer: Constrainer, prefill: str, text: str, ok: bool) -> None:
    assert accepts(constrainer, select_grammar(SCHEMA, prefill), text) is ok


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_written_is_sql_to_sqlite(constrainer: Constrainer, seed: int, tmp_path: Path) -> None:
    """Random SQL is mostly wrong about types and groups, but SQLite must always be able to parse it."""
    import sqlite3

    connection = sqlite3.connect(":memory:")
    for table in SCHEMA.tables:
        connection.execute(f"CREATE TABLE {table.name} ({', '.join(json.dumps(c.name) for c in table.columns)})")
    sql = "SELECT" + written(constrainer, select_grammar(SCHEMA), seed)
    try:
        connection.execute(sql).fetchmany(1)
    except sqlite3.Error as error:
        assert "syntax error" not in str(error), sql


def test_names_that_need_quotes_get_them(constrainer: Constrainer) -> None:
    odd = Schema((Table("order", (Column("a/b"), Column("ü x"), Column('say "hi"'), Column("group"))),))
    grammar = select_grammar(odd)
    for text in ('"a/b"', "`ü x`", '"say ""hi"""', "[group]", '"order"."a/b"', "'a/b'"):
        assert accepts(constrainer, grammar, f' {text} FROM "order"'), text
    assert not accepts(constrainer, grammar, ' group FROM "order"')
    assert not accepts(constrainer, grammar, ' "a/b" FROM order')


def test_a_name_has_no_other_case_of_letters_that_sqlite_tells_apart(constrainer: Constrainer) -> None:
    grammar = select_grammar(Schema((Table("élèves", (Column("prénom"), Column("age"))),)))
    for text, ok in ((" Prénom FROM élèves", True), (" PRÉNOM FROM élèves", False), (" AGE FROM ÉLÈVES", False)):
        assert accepts(constrainer, grammar, text) is ok, text


def test_large_schemas_compile(constrainer: Constrainer) -> None:
    names = ["".join(pair) for pair in itertools.product(string.ascii_lowercase, "bcdfghjklmnp")]
    for tables in (30, 60):
        columns = [Column(f"{a}{b}") for a in names[:10] for b in names[20:21]]
        wide = Schema(tuple(Table(f"{name}_list", (Column(f"{name}_id"), *columns)) for name in names[:tables]))
        text = f" {names[1]}_id, {columns[0].name} FROM {names[1]}_list WHERE {columns[2].name} = 3"
        assert accepts(constrainer, select_grammar(wide), text)


# ---------------------------------------------------------------------------------------- loop and controls


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabase:
    import sqlite3

    path = tmp_path_factory.mktemp("db") / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 'open'), (2, 'shipped')")
    return SqliteDatabase(path)


class Recorder(ScriptedModel):
    """Keeps the grammars that it was asked to follow."""

    def generate(self, messages: Any, **options: Any) -> Any:
        self.__dict__.setdefault("asked", []).append(options.get("grammar"))
        return super().generate(messages, **options)


@pytest.mark.parametrize(
    ("level", "turns", "queries"), [("none", 0, 0), ("action", 1, 0), ("sql", 1, 1), ("plain", 1, 1)]
)
def test_the_levels_are_cumulative(shop: SqliteDatabase, level: str, turns: int, queries: int) -> None:
    steps = ["generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"]
    replies = ["Thought: x\nAction: extract_constraints[{}]", "Thought: x\nAction: generate_sql[{}]"]
    replies += [" count(*) FROM orders", *(f"Thought: x\nAction: {step}[{{}}]" for step in steps[1:])]
    model = Recorder(replies)
    episode = react_sql("How many orders?", shop, model, load_config((), [f"constrain={level}"]))
    assert episode.finish == "finish" and episode.rows == ((2,),)
    texts = [grammar.text if grammar else "" for grammar in model.__dict__["asked"]]
    assert [bool(text) for text in texts] == [bool(turns)] * 2 + [bool(queries)] + [bool(turns)] * 4
    assert all(("Thought" in text) == (i != 2) for i, text in enumerate(texts) if text)


def test_single_shot_writes_under_the_select_grammar(shop: SqliteDatabase) -> None:
    asked = {}
    for level in ("sql", "plain"):
        model = Recorder([" count(*) FROM orders"])
        run = get_controller("single_shot").run
        run(Question("How many orders?"), Resources(model, shop), load_config((), [f"constrain={level}"]))
        asked[level] = model.__dict__["asked"]
    schema = shop.schema()
    assert asked == {"sql": [select_grammar(schema)], "plain": [plain_grammar(schema)]}


@pytest.mark.parametrize("level", ["sql", "plain"])
def test_another_dialect_is_refused(shop: SqliteDatabase, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setattr(shop, "dialect", "clickhouse", raising=False)
    with pytest.raises(UsageError, match=f"constrain {level} knows SQLite only"):
        react_sql("How many orders?", shop, ScriptedModel(["x"]), load_config((), [f"constrain={level}"]))


def test_a_random_model_makes_no_format_error(shop: SqliteDatabase) -> None:
    model = LocalModel(tiny_model(), tiny_tokenizer(), name="tiny", revision="test", batch_size=2)
    config = load_config((), ["constrain=action", "react.thought_characters=20", "react.max_steps=3"])
    short = {"react_system": "Act.", "generate_system": "SQL.", "generate_user": "{question}"}
    config = config.model_copy(update={"prompts": short})
    episode = react_sql("How many?", shop, model, config)
    model.close()
    assert episode.error is None or not episode.error.startswith("model")
    turns = [call for call in episode.calls if call["kind"] == "act"]
    assert turns and not episode.flags.get("format_errors"), episode.trace
    assert all(re.fullmatch(r"Thought: [^\n]{1,20}\nAction: \w+\[\{.*\}\]", call["text"]) for call in turns)
