"""The packaged dialogues: sizes and balance, golds that fit their turn, complete standalone texts."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlglot
from sqlglot import exp

from nl2sql.agents.context.linking import question_stems, stem
from nl2sql.benchmarks.check import check_questions
from nl2sql.benchmarks.packaged import load_packaged
from nl2sql.databases import packaged
from nl2sql.databases.schema import Schema
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.databases.validation import validate_sql
from nl2sql.interfaces import Question
from nl2sql.sql.text import words

DATA = Path(__file__).resolve().parents[2] / "data"
DIALOGUES = json.loads((DATA / "dialogues.json").read_text(encoding="utf-8"))
QUESTIONS = json.loads((DATA / "questions.json").read_text(encoding="utf-8"))
DATABASES = packaged.database_ids()
ALONE = ("first", "topic_change", "stand_alone_with_cue")
FOLLOW_UPS = (
    "refinement", "value_change", "new_grouping", "drill_down", "pronoun", "return_to_earlier",
)  # fmt: skip
HALVES = ("dev", "test")
BATCHES = {"extra": 12, "fresh": 4}  # dialogues per database
CUES = re.compile(
    r"\b(what about|how about|show me|also|that|those|this|these|same|only|instead|them|they|their|there)\b", re.I
)
DAY = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NL2SQL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def turns(db_id: str | None = None) -> Iterator[tuple[str, dict]]:
    """Every turn with its name ``ID.N``, of one database or of all."""
    for dialogue in DIALOGUES:
        if db_id in (None, dialogue["db_id"]):
            for number, turn in enumerate(dialogue["turns"], 1):
                yield f"{dialogue['id']}.{number}", turn


def plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def schema_of(db_id: str) -> Schema:
    with SqliteDatabase(packaged.database_path(db_id)) as database:
        return database.schema()


def is_ordered(sql: str) -> bool:
    return sqlglot.parse_one(sql, read="sqlite").args.get("order") is not None


# ------------------------------------------------------------------------------- sizes and balance


def test_every_dialogue_and_turn_has_exactly_its_fields() -> None:
    for dialogue in DIALOGUES:
        assert set(dialogue) == {"id", "db_id", "split", "turns"}, dialogue["id"]
        assert dialogue["split"] in (*HALVES, *BATCHES), dialogue["id"]
    for name, turn in turns():
        assert set(turn) == {"question", "gold", "kind", "standalone"}, name
        assert turn["gold"] and isinstance(turn["gold"], list), name
        for field in ("question", "standalone"):
            assert turn[field] and turn[field] == turn[field].strip(), name


def test_the_halves_have_64_dialogues_of_three_turns_or_more_and_250_turns() -> None:
    sizes = [len(dialogue["turns"]) for dialogue in DIALOGUES if dialogue["split"] in HALVES]
    assert len(sizes) >= 64 and min(sizes) >= 3 and sum(sizes) >= 250


@pytest.mark.parametrize("split", BATCHES)
def test_a_batch_has_dialogues_of_four_or_five_turns_and_100_turns_in_24_of_them(split: str) -> None:
    sizes = [len(dialogue["turns"]) for dialogue in DIALOGUES if dialogue["split"] == split]
    assert len(sizes) == BATCHES[split] * len(DATABASES)
    assert set(sizes) == {4, 5} and sum(sizes) / len(sizes) >= 100 / 24


def test_every_split_has_as_many_dialogues_of_each_database() -> None:
    counts = Counter((dialogue["db_id"], dialogue["split"]) for dialogue in DIALOGUES)
    wanted = {(db_id, split): 6 for db_id in DATABASES for split in HALVES}
    assert counts == {**wanted, **{(db_id, split): each for db_id in DATABASES for split, each in BATCHES.items()}}


def test_only_the_first_turn_is_first_and_later_kinds_are_even_over_halves_and_databases() -> None:
    for dialogue in DIALOGUES:
        kinds = [turn["kind"] for turn in dialogue["turns"]]
        assert kinds[0] == "first" and "first" not in kinds[1:], dialogue["id"]
        assert "return_to_earlier" not in kinds[:2], f"{dialogue['id']}: nothing earlier"
    by_half: Counter[tuple[str, str, str]] = Counter()
    for dialogue in DIALOGUES:
        half = dialogue["db_id"], dialogue["split"]
        by_half.update((*half, turn["kind"]) for turn in dialogue["turns"][1:] if dialogue["split"] in HALVES)
    assert by_half == {
        (db_id, half, kind): 2 for db_id in DATABASES for half in HALVES for kind in (*FOLLOW_UPS, *ALONE[1:])
    }


@pytest.mark.parametrize("split", BATCHES)
def test_a_batch_has_every_kind_for_every_database_and_a_third_of_its_later_turns_alone(split: str) -> None:
    batch = [dialogue for dialogue in DIALOGUES if dialogue["split"] == split]
    later = [(dialogue["db_id"], turn["kind"]) for dialogue in batch for turn in dialogue["turns"][1:]]
    assert set(later) == {(db_id, kind) for db_id in DATABASES for kind in (*FOLLOW_UPS, *ALONE[1:])}
    assert 0.35 <= sum(kind in ALONE for _, kind in later) / len(later) <= 0.4


def test_the_dataset_card_shows_the_counted_numbers() -> None:
    count = Counter((d["split"], turn["kind"]) for d in DIALOGUES for turn in d["turns"])
    card = (DATA / "README.md").read_text(encoding="utf-8")
    for kind in (*ALONE, *FOLLOW_UPS):
        numbers = [count[split, kind] for split in (*HALVES, *BATCHES)]
        shown = " | ".join(map(str, (*numbers, sum(numbers))))
        assert re.search(rf"^\| {kind} \|.*\| {re.escape(shown)} \|$", card, re.MULTILINE), kind
    alone = sum(number for (_, kind), number in count.items() if kind in ALONE)
    assert f"{len(DIALOGUES)} dialogues" in card and f"({alone} turns)" in card
    sizes = [sum(number for (split, _), number in count.items() if split == name) for name in (*HALVES, *BATCHES)]
    assert f"| all | | {' | '.join(map(str, (*sizes, sum(sizes))))} |" in card


@pytest.mark.parametrize("field", ["question", "standalone", "gold"])
def test_nothing_is_there_twice(field: str) -> None:
    texts = Counter(plain(text) for _, turn in turns() for text in _texts(turn[field]))
    assert [text for text, count in texts.items() if count > 1] == []


def test_nothing_is_repeated_from_the_packaged_questions() -> None:
    theirs: set[str] = set()
    for item in QUESTIONS:
        theirs.update(map(plain, (item["question"], item["query"], *item.get("alt_queries", ()))))
    for name, turn in turns():
        for text in (turn["question"], turn["standalone"], *turn["gold"]):
            assert plain(text) not in theirs, f"{name}: {text}"


def _texts(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


# ------------------------------------------------------------------------------------------- golds


@pytest.mark.parametrize("db_id", DATABASES)
def test_every_gold_is_one_select_that_fits_the_schema(db_id: str) -> None:
    schema = schema_of(db_id)
    for name, turn in turns(db_id):
        for sql in turn["gold"]:
            assert validate_sql(sql, schema)["reason"] == "ok", f"{name}: {sql}"


def test_golds_run_return_rows_and_do_not_depend_on_row_order() -> None:
    questions = [
        Question(turn["standalone"], d["db_id"], f"{d['id']}.{number}", gold=tuple(turn["gold"]))
        for d in DIALOGUES
        for number, turn in enumerate(d["turns"], 1)
    ]
    assert check_questions(load_packaged(), questions) == []


@pytest.mark.parametrize("db_id", DATABASES)
def test_every_turn_answers_otherwise_than_the_turn_before(db_id: str) -> None:
    """In other rows, or in another order where it asks for one; never with only nulls or a zero."""
    before: list[tuple] = []
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        for name, turn in turns(db_id):
            rows = connection.execute(turn["gold"][0]).fetchall()
            assert rows != [(0,)], f"{name}: counts nothing"
            assert not any(set(column) == {None} for column in zip(*rows, strict=True)), name
            if turn["kind"] != "first":
                reordered = turn["kind"] == "refinement" and is_ordered(turn["gold"][0])
                assert rows != before, name
                assert reordered or sorted(map(repr, rows)) != sorted(map(repr, before)), name
            before = rows


@pytest.mark.parametrize("db_id", DATABASES)
def test_every_text_in_a_gold_is_a_value_of_its_database(db_id: str) -> None:
    """Days and times are bounds and need not occur."""
    with closing(sqlite3.connect(packaged.database_path(db_id))) as connection:
        values: set[object] = set()
        for table in schema_of(db_id).tables:
            for row in connection.execute(f'SELECT * FROM "{table.name}"'):
                values.update(row)
    for name, turn in turns(db_id):
        for sql in turn["gold"]:
            for literal in sqlglot.parse_one(sql, read="sqlite").find_all(exp.Literal):
                if literal.is_string and not DAY.fullmatch(literal.this):
                    assert literal.this in values, f"{name}: {literal.this}"


# -------------------------------------------------------------------------------- standalone texts


def test_a_question_that_stands_alone_is_its_own_standalone_text() -> None:
    for name, turn in turns():
        assert (turn["standalone"] == turn["question"]) == (turn["kind"] in ALONE), name


def test_a_stand_alone_question_with_cue_has_one_and_a_change_of_topic_has_none() -> None:
    for name, turn in turns():
        if turn["kind"] in ("stand_alone_with_cue", "topic_change"):
            meant = turn["kind"] == "stand_alone_with_cue"
            assert bool(CUES.search(turn["question"])) == meant, name


def test_a_standalone_text_keeps_every_number_quoted_value_and_name() -> None:
    """A name: a word with a capital that does not begin a sentence."""
    for name, turn in turns():
        question, standalone = turn["question"], turn["standalone"]
        kept = re.findall(r"\d[\w:/.-]*\w|\d", question) + re.findall(r"'[^']+'", question)
        kept += re.findall(r"(?<=[a-z,] )[A-Z][\w-]*", question.replace(" I ", " "))
        assert [part for part in kept if part not in standalone] == [], name


@pytest.mark.parametrize("db_id", DATABASES)
def test_a_standalone_text_keeps_every_table_and_column_word(db_id: str) -> None:
    named = {
        stem(word)
        for table in schema_of(db_id).tables
        for identifier in (table.name, *(column.name for column in table.columns))
        for word in words(identifier)
    }
    for name, turn in turns(db_id):
        kept = set(question_stems(turn["standalone"]))
        dropped = named & set(question_stems(turn["question"])) - kept
        assert not dropped, f"{name}: {dropped}"
