"""Linking keeps the tables that a question is about, and those that connect them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl2sql.agents.context import linking
from nl2sql.agents.context.linking import link_schema, rank_tables
from nl2sql.databases.schema import Column, ForeignKey, Schema, Table
from nl2sql.sql.text import stem, words

CASES = Path(__file__).parents[1] / "fixtures" / "linking_cases.tsv"


def table(name: str, columns: str, **keys: str) -> Table:
    key, *others = columns.split()
    references = tuple(ForeignKey((c,), ref, (f"{ref.rstrip('s')}_id",)) for c, ref in keys.items())
    return Table(name, (Column(key, "INTEGER", primary_key=True), *map(Column, others)), references)


UNIVERSITY = Schema(
    (
        table("students", "student_id FirstName last_name home_city advisor_id", advisor_id="teachers"),
        table("teachers", "teacher_id name salary dept_id", dept_id="departments"),
        table("departments", "department_id title budget"),
        table("enrollments", "enrollment_id student_id course_id grade", student_id="students", course_id="courses"),
        table("courses", "course_id title credits teacher_id", teacher_id="teachers"),
        table("Buildings", "building_id address floors"),
        table("roomBookings", "booking_id building_id booked_on", building_id="Buildings"),
        table("libraryloans", "loan_id book_title due_date"),
        table("organisations", "organisation_id motto"),
        table("order", "order_id total"),
    )
)


def cases() -> list[list[str]]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(("size", "needed", "question"), cases())
def test_the_needed_tables_are_kept(size: str, needed: str, question: str) -> None:
    kept = [t.name for t in link_schema(question, UNIVERSITY, int(size)).tables]
    assert set(needed.split()) <= set(kept)
    assert len(kept) <= int(size)
    assert kept == [t.name for t in UNIVERSITY.tables if t.name in kept]


def test_the_work_of_a_ranking_grows_with_the_words_of_a_question_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = []
    monkeypatch.setattr(linking, "similarity", lambda one, other: compared.append((one, other)) or 0.0)

    def work(count: int) -> int:
        compared.clear()
        rank_tables(" ".join(f"x{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(count)), UNIVERSITY)
        return len(compared)

    assert work(80) < 2.5 * work(40)


def test_tables_between_two_that_are_asked_for_come_along() -> None:
    kept = link_schema("Which students take which courses?", UNIVERSITY, 3)
    assert [t.name for t in kept.tables] == ["students", "enrollments", "courses"]
    assert len(kept.tables[1].foreign_keys) == 2


def test_connecting_tables_are_found_without_declared_foreign_keys() -> None:
    bare = Schema(tuple(Table(t.name, t.columns) for t in UNIVERSITY.tables))
    kept = link_schema("Which students take which courses?", bare, 3)
    assert [t.name for t in kept.tables] == ["students", "enrollments", "courses"]


def test_zero_switches_linking_off_and_a_small_schema_stays_whole() -> None:
    assert link_schema("students", UNIVERSITY, 0) is UNIVERSITY
    assert link_schema("zebra", UNIVERSITY, 10) is UNIVERSITY


def test_without_a_matching_word_the_best_connected_tables_stay() -> None:
    assert rank_tables("zebra?", UNIVERSITY) == [(t.name, 0.0) for t in UNIVERSITY.tables]
    assert "teachers" in [t.name for t in link_schema("zebra?", UNIVERSITY, 3).tables]


def test_a_whole_name_beats_a_part_of_a_longer_one() -> None:
    schema = Schema(
        (table("customer_orders_archive", "a_id"), table("orders", "o_id"), table("customer_orders", "b_id"))
    )
    assert rank_tables("How many orders are there?", schema)[0][0] == "orders"
    assert rank_tables("How many customer orders are there?", schema)[0][0] == "customer_orders"


@given(st.text(), st.integers(-1, 12))
def test_linking_takes_any_text_and_is_deterministic(question: str, size: int) -> None:
    ranking = rank_tables(question, UNIVERSITY)
    assert sorted(name for name, _ in ranking) == sorted(t.name for t in UNIVERSITY.tables)
    assert all(score >= 0 for _, score in ranking)
    kept = link_schema(question, UNIVERSITY, size)
    assert kept == link_schema(question, UNIVERSITY, size)
    assert len(kept.tables) == (size if size > 0 else 10) or size > 10


def test_an_empty_schema_stays_empty() -> None:
    assert rank_tables("x", Schema(())) == []
    assert link_schema("x", Schema(()), 3) == Schema(())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orderLineNo", ["order", "line", "no"]),
        ("HTMLBody_v2", ["html", "body", "v", "2"]),
        ("MSRP", ["msrp"]),
        ("größe Ünï", ["größe", "ünï"]),
        ("", []),
    ],
)
def test_identifiers_are_taken_apart(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("cities", "city"), ("classes", "class"), ("boxes", "box"), ("courses", "course"), ("enrolled", "enrollments"),
        ("teaches", "teachers"), ("organization", "organisations"), ("booked", "bookings"), ("addresses", "address"),
        ("movies", "movie"),
    ],
)  # fmt: skip
def test_forms_of_a_word_share_a_stem(left: str, right: str) -> None:
    assert stem(left) == stem(right)
