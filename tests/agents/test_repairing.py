"""What the loop's repair shows the model at each level of ``repair.guidance``, with a scripted model."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql.agents import prompts
from nl2sql.agents.controllers import get_controller
from nl2sql.agents.react import react
from nl2sql.agents.record import Episode
from nl2sql.agents.repairing import check_corpus
from nl2sql.agents.resources import part_fingerprints
from nl2sql.config import Config, build_config
from nl2sql.databases.sqlite import disk
from nl2sql.errors import UsageError
from nl2sql.interfaces import USER, Database, Question, Resources
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair import corpus as corpus_of_fixes
from nl2sql.repair.corpus import Corpus
from nl2sql.repair.registry import RepairGuidance
from nl2sql.runs.plan import run_key

QUESTION = "What are the names of the customers?"
ORDER = ["extract_constraints", "generate_sql", "validate_sql", "repair_sql", "validate_sql", "validate_constraints"]
RIGHT = " name FROM customers"


def play(
    database: Database,
    config: dict[str, Any],
    sql: list[str],
    steps: list[str],
    split: str = "dev",
    text: str = QUESTION,
) -> Episode:
    """An episode whose SQL texts come from ``sql`` in turn, and whose actions are ``steps``."""
    replies, texts = [], iter(sql)
    for name in steps:
        replies.append(f"Action: {name}[{{}}]")
        if name in ("generate_sql", "repair_sql"):
            replies += [text for text in [next(texts, None)] if text is not None]
    model = ScriptedModel(replies)
    question = Question(text, db_id="shop", id="" if split == USER else "q1", split=split)
    return react(question, Resources(model, database), build_config(config))


def repair_prompts(episode: Episode) -> list[str]:
    """The user turns of the model calls for SQL behind the first."""
    return [call["messages"][1]["content"] for call in episode.calls if call["kind"] == "sql"][1:]


@pytest.fixture
def database(engine: Callable[[str], Database]) -> Database:
    return engine("sqlite")


STEPS = [*ORDER, "run_sql", "finish"]


def test_by_default_the_prompt_is_the_specifications(database: Database) -> None:
    episode = play(database, {}, [" nam FROM customers", RIGHT], STEPS)
    generating = next(call for call in episode.calls if call["kind"] == "sql")
    schema = generating["messages"][1]["content"].split("\n\nQuestion:")[0].removeprefix("Schema:\n")
    wanted = prompts.repair_messages(QUESTION, "SELECT nam FROM customers;", "unknown_column:nam", schema)
    assert repair_prompts(episode) == [wanted[1]["content"]]
    assert build_config({}) == Config() and Config().repair.guidance == "error"


LEVELS = {
    "error": (["Error: unknown_column:nam"], ["VIOLATED"]),
    "patterns": (
        [
            "Error: unknown_column:nam",
            "This part of it is valid: FROM customers",
            "VIOLATED CONSTRAINT:\nThere is no column nam in the tables",
            "ALTERNATIVE APPROACH:\n",
            "Did you mean customers.name?",
            "Please rewrite the SQL following these constraints.",
        ],
        ["SIMILAR SUCCESSFUL QUERIES"],
    ),
    "patterns+corpus": (
        ["VIOLATED CONSTRAINT:", "SIMILAR SUCCESSFUL QUERIES:\n\nAll names:\n```sql\nSELECT name FROM customers\n```"],
        ["SELECT 'my own'"],
    ),
}


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_shows_what_it_promises_and_no_more(level: str, database: Database, tmp_path: Path) -> None:
    there, absent = LEVELS[level]
    repair = {"guidance": level, "corpus": str(tmp_path / "corpus.db")}
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        error, failed = "no such column: nam", "SELECT nam FROM customers"
        corpus.store_fix(error, failed, "SELECT name FROM customers", "All names", source="shop/other")
        corpus.store_fix(error, failed, "SELECT 'my own'", "All names", source="shop/q1")
        episode = play(database, {"repair": repair}, [" nam FROM customers", RIGHT], STEPS)
    (prompt,) = repair_prompts(episode)
    assert [text for text in there if text not in prompt] == []
    assert [text for text in absent if text in prompt] == []
    assert episode.finish == "finish"


def test_errors_of_an_episode_accumulate(database: Database) -> None:
    steps = [*ORDER[:4], "validate_sql", "repair_sql", *ORDER[4:], "run_sql", "finish"]
    sql = [" nam FROM customers", " nme FROM customers", RIGHT]
    episode = play(database, {"react": {"max_steps": 12}, "repair": {"guidance": "patterns"}}, sql, steps)
    first, second = repair_prompts(episode)
    assert "This failed before" not in first
    assert "This failed before:\nSELECT nam FROM customers;\nError: unknown_column:nam" in second
    assert "This query failed:\nSELECT nme FROM customers" in second
    assert episode.finish == "finish"


def test_an_error_that_nothing_explains_is_shown_without_advice() -> None:
    (_, user) = prompts.guided_repair_messages("Who?", "SELECT 1", "odd", "t(a)", RepairGuidance(category="unknown"))
    assert "VIOLATED CONSTRAINT:\nN/A" in user["content"] and "ALTERNATIVE APPROACH:\nN/A" in user["content"]


def test_the_deterministic_stage_needs_no_model(database: Database) -> None:
    config = {"repair": {"deterministic": True}}
    episode = play(database, config, [" nam FROM customers"], STEPS)
    assert episode.sql == "SELECT name FROM customers;" and episode.finish == "finish"
    assert episode.flags["deterministic_repairs"] == 1 and repair_prompts(episode) == []


@pytest.mark.parametrize(("split", "stored"), [("dev", 1), ("train", 1), ("user", 1), ("test", 0), ("", 0)])
def test_a_repair_is_remembered_on_training_and_development_splits_only(
    split: str, stored: int, database: Database, tmp_path: Path
) -> None:
    config = {"repair": {"learn": True, "corpus": str(tmp_path / "corpus.db")}}
    episode = play(database, config, [" nam FROM customers", RIGHT], STEPS, split)
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        assert corpus.stats()["fixes"] == stored
        if stored:
            (row,) = corpus.rows()
            assert (row["failed_sql"], row["successful_sql"]) == (
                "SELECT nam FROM customers",
                "SELECT name FROM customers",
            )
            assert row["source"].startswith("user:shop/") if split == USER else row["source"] == "shop/q1"
            assert row["category"] == "unknown_column"
        else:
            assert episode.flags["not_learned"] == f"split {split!r}"
    json.dumps(episode.to_dict())


def test_a_users_question_is_not_shown_its_own_fix_and_another_is(database: Database, tmp_path: Path) -> None:
    config = {"repair": {"learn": True, "guidance": "patterns+corpus", "corpus": str(tmp_path / "corpus.db")}}
    asked = (QUESTION, f" {QUESTION.lower()}\n", "How are the customers called?")
    played = [play(database, config, [" nam FROM customers", RIGHT], STEPS, USER, text) for text in asked]
    shown = ["SIMILAR SUCCESSFUL QUERIES" in prompt for episode in played for prompt in repair_prompts(episode)]
    assert shown == [False, False, True]


def test_what_cannot_be_learned_leaves_the_episode_as_it_is(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.db"
    config = {"repair": {"learn": True, "corpus": str(path)}}
    monkeypatch.setattr(disk, "WAIT_S", 0.2)
    Corpus(path, create=True).close()
    check_corpus(build_config(config).repair)  # opens it for all episodes
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        locked = play(database, config, [" nam FROM customers", RIGHT], STEPS)
    monkeypatch.setattr(corpus_of_fixes, "MAX_TEXT", 100)
    long = play(database, config, [" nam FROM customers", RIGHT], STEPS, text=QUESTION + " why" * 100)
    for episode, said in ((locked, "written by another process"), (long, "at most 100")):
        assert (episode.finish, episode.error, episode.sql) == ("finish", None, "SELECT name FROM customers;")
        assert episode.rows and episode.trace and said in episode.flags["not_learned"]


def test_a_corpus_that_is_asked_for_must_be_named_and_be_there(tmp_path: Path) -> None:
    missing = {"guidance": "patterns+corpus", "corpus": str(tmp_path / "none.db")}
    refused = [({"guidance": "patterns+corpus"}, "repair.corpus=FILE"), (missing, "no corpus at")]
    for values, wanted in refused:
        with pytest.raises(UsageError, match=wanted):
            check_corpus(build_config({"repair": values}).repair)
    check_corpus(Config().repair)


def test_a_run_is_another_one_over_another_corpus(tmp_path: Path) -> None:
    path = tmp_path / "corpus.db"
    guided = build_config({"repair": {"guidance": "patterns+corpus", "corpus": str(path)}})
    named = get_controller("react")

    def key(config: Config) -> str:
        return run_key(named, config, {}, {}, part_fingerprints(config))

    with Corpus(path, create=True) as corpus:
        before, plain = key(guided), key(Config())
        assert key(guided) == before
        corpus.store_fix("no such column: nam", "SELECT nam FROM t", "SELECT name FROM t", "")
        assert key(guided) != before and key(Config()) == plain
        learning = guided.model_copy(update={"repair": guided.repair.model_copy(update={"learn": True})})
        unchanged = key(learning)
        corpus.store_fix("no such column: x", "SELECT x FROM t", "SELECT y FROM t", "")
        assert key(learning) == unchanged  # it is the run itself that writes


def test_a_run_is_another_one_over_another_data_source(tmp_path: Path) -> None:
    path = tmp_path / "source.yaml"
    config, named = build_config({"vizql": {"source": str(path)}}), get_controller("vizql")
    with pytest.raises(UsageError, match=r"source\.yaml"):
        part_fingerprints(config)
    keys = []
    for caption in ("Total", "Amount"):
        path.write_text(SOURCE.format(caption=caption))
        keys += [run_key(named, config, {}, {}, part_fingerprints(config)) for _ in range(2)]
    assert keys[0] == keys[1] != keys[2] == keys[3]


SOURCE = """
name: shop
fields:
- {{fieldCaption: {caption}, fieldName: total, dataType: REAL, fieldRole: MEASURE, logicalTableId: orders}}
"""


def test_the_episodes_on_a_corpus_share_what_was_searched(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[str] = []
    plain = Corpus.search

    def counted(self: Corpus, error: str, *args: Any, **options: Any) -> Any:
        searches.append(error)
        return plain(self, error, *args, **options)

    monkeypatch.setattr(Corpus, "search", counted)
    config = {"repair": {"guidance": "patterns+corpus", "corpus": str(tmp_path / "corpus.db")}}
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        corpus.store_fix("no such column: nam", "SELECT nam FROM customers", "SELECT name FROM customers", "All names")
        for _ in range(3):
            (prompt,) = repair_prompts(play(database, config, [" nam FROM customers", RIGHT], STEPS))
            assert "All names" in prompt
    assert searches == ["no such column: nam"]


SHOWN = [("abcde", "bcd"), ("abcdae", "cda"), ("ab", "a")]  # what failed in turn, and the earlier ones shown at last


@pytest.mark.parametrize(("failing", "shown"), SHOWN)
def test_the_three_youngest_earlier_failures_are_shown(failing: str, shown: str, database: Database) -> None:
    steps = [*ORDER[:2], *["validate_sql", "repair_sql"] * len(failing)]
    config = {"react": {"max_steps": 2 * len(failing) + 2}, "repair": {"guidance": "patterns"}}
    episode = play(database, config, [f" nam_{name} FROM customers" for name in failing] + [RIGHT], steps)
    last = repair_prompts(episode)[len(failing) - 1]
    assert re.findall(r"This failed before:\nSELECT nam_(\w)", last) == list(shown)
    assert f"This query failed:\nSELECT nam_{failing[-1]}" in last


LEARNED = [  # (queries in turn, the (failure, success) pairs that are learned)
    (["nam", "nme", "name"], [("nme", "name")]),  # the last failed attempt
    (["nam", "name", "city"], [("nam", "name")]),  # what runs after a success repairs nothing
    (["name"], []),
]


@pytest.mark.parametrize(("columns", "pairs"), LEARNED)
def test_the_last_failed_attempt_and_its_success_are_learned(
    columns: list[str], pairs: list[tuple[str, str]], database: Database, tmp_path: Path
) -> None:
    steps = [ORDER[0]]
    for column in columns:
        write = "generate_sql" if column == columns[0] or steps[-1] == "run_sql" else "repair_sql"
        ran = ["validate_constraints", "run_sql"] if column in ("name", "city") else []
        steps += [write, "validate_sql", *ran]
    config = {"react": {"max_steps": 20}, "repair": {"learn": True, "corpus": str(tmp_path / "corpus.db")}}
    play(database, config, [f" {column} FROM customers" for column in columns], [*steps, "finish"])
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        stored = [(row["failed_sql"], row["successful_sql"]) for row in corpus.rows()]
    assert stored == [tuple(f"SELECT {column} FROM customers" for column in pair) for pair in pairs]


NO_COUNT, OVERFLOWS = " city FROM customers", " COUNT(*) FROM customers WHERE abs(-9223372036854775808) > 0"
COUNT = "How many customers are there?"


def test_what_failed_in_any_check_or_its_run_is_an_earlier_failure(database: Database) -> None:
    checks = ["validate_sql", "validate_constraints"]
    steps = [*ORDER[:2], *checks, "repair_sql", *checks, "run_sql", "repair_sql", "validate_sql", "repair_sql"]
    config = {"react": {"max_steps": 12}, "repair": {"guidance": "patterns"}}
    episode = play(database, config, [NO_COUNT, OVERFLOWS, " nam FROM customers", RIGHT], steps, text=COUNT)
    last = repair_prompts(episode)[2]
    assert f"This failed before:\nSELECT{NO_COUNT};\nError: missing_agg:COUNT" in last
    assert f"This failed before:\nSELECT{OVERFLOWS};\nError: integer overflow" in last


def test_what_failed_in_its_run_is_learned_from(database: Database, tmp_path: Path) -> None:
    ran = [*ORDER[2:3], "validate_constraints", "run_sql"]
    config = {"react": {"max_steps": 12}, "repair": {"learn": True, "corpus": str(tmp_path / "corpus.db")}}
    texts = [OVERFLOWS, " COUNT(*) FROM customers"]
    play(database, config, texts, [*ORDER[:2], *ran, "repair_sql", *ran, "finish"], text=COUNT)
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        (row,) = corpus.rows()
    assert (row["failed_sql"], row["successful_sql"]) == tuple(f"SELECT{text}" for text in texts)
    assert row["error_msg"] == "integer overflow"


def test_a_search_may_take_as_long_as_the_configuration_says(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Corpus.search

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(1.0)
        return plain(*arguments, **options)

    monkeypatch.setattr(Corpus, "search", slow)
    config = {"repair": {"guidance": "patterns+corpus", "corpus": str(tmp_path / "corpus.db"), "search_s": 60}}
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        corpus.store_fix("no such column: nam", "SELECT nam FROM customers", "SELECT name FROM customers", "All names")
    (prompt,) = repair_prompts(play(database, config, [" nam FROM customers", RIGHT], STEPS))
    assert "All names" in prompt


def test_the_threshold_of_the_configuration_decides(database: Database, tmp_path: Path) -> None:
    shown = []
    with Corpus(tmp_path / "corpus.db", create=True) as corpus:
        corpus.store_fix("no such column: total", "SELECT total, city FROM customers", "SELECT city FROM customers", "")
    for threshold in (0.5, 0.99):
        repair = {"guidance": "patterns+corpus", "corpus": str(tmp_path / "corpus.db"), "threshold": threshold}
        (prompt,) = repair_prompts(play(database, {"repair": repair}, [" nam FROM customers", RIGHT], STEPS))
        shown.append("SIMILAR SUCCESSFUL QUERIES" in prompt)
    assert shown == [True, False]


@pytest.mark.parametrize(("samples", "sql"), [(0, "SELECT nam FROM customers;"), (2, "SELECT name FROM customers;")])
def test_a_repair_that_fails_again_gives_way_to_a_sample_that_compiles(
    samples: int, sql: str, database: Database
) -> None:
    again = " nam FROM customers"
    texts = {"generate_sql": [again], "repair_sql": [again, *[" nme FROM customers", RIGHT][:samples]]}
    steps = STEPS[:4] if not samples else STEPS
    replies = [reply for step in steps for reply in (f"Action: {step}[{{}}]", *texts.get(step, ()))]
    config = build_config({"repair": {"samples": samples}, "react": {"max_steps": len(steps), "vanilla": False}})
    question = Question(QUESTION, db_id="shop", id="q1", split="dev")
    assert react(question, Resources(ScriptedModel(replies), database), config).sql == sql


class Listening(ScriptedModel):
    """A scripted model that keeps whether each call came with a grammar."""

    constrained: list[bool]

    def generate(self, messages: Any, **options: Any) -> Any:
        self.constrained.append(options.get("grammar") is not None)
        return super().generate(messages, **options)


def test_only_a_repair_is_written_under_the_schemas_grammar(database: Database) -> None:
    texts = {"generate_sql": [" nam FROM customers"], "repair_sql": [RIGHT]}
    model = Listening([reply for step in STEPS for reply in (f"Action: {step}[{{}}]", *texts.get(step, ()))])
    model.constrained = []
    react(Question(QUESTION, db_id="shop"), Resources(model, database), build_config({"repair": {"grammar": True}}))
    assert model.constrained.count(True) == 1 and model.constrained.index(True) > STEPS.index("repair_sql")
