"""Follow-ups as people type them, over the packaged databases: the SQL that each makes of the previous one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database, Turn
from nl2sql.sessions.detection import evidence_of
from nl2sql.sessions.edits import edited

DEAR = "SELECT title FROM products WHERE list_price > 100"
NEW = "SELECT title, genre FROM titles WHERE published_year > 2010"
ALONE = "SELECT first_name, last_name FROM students WHERE advisor_id IS NULL"
STRONG = "SELECT name, rating FROM players WHERE rating > 2000"
JOINED = "SELECT full_name FROM patrons WHERE joined_on > '2022-01-01'"
OPEN = "SELECT name FROM stations WHERE step_free = 1"
SHIPPED = "SELECT COUNT(*) FROM \"order\" WHERE status = 'shipped'"
PAID = (
    "SELECT AVG(instructors.salary) FROM instructors JOIN departments ON departments.dept_code = instructors.dept_code"
)
COUNTED = "SELECT genre, COUNT(*) FROM titles GROUP BY genre"
COPIES = "SELECT copy_id FROM copies WHERE status = 'lost'"
ADVISORS = "SELECT DISTINCT instructors.name FROM students JOIN instructors ON students.advisor_id ="
TAUGHT = "instructors JOIN sections ON instructors.instructor_id = sections.instructor_id JOIN courses"
HISTORY = "ON courses.dept_code = departments.dept_code WHERE departments.name = 'History'"
HOT = "SELECT MAX(temp_max) FROM daily_readings"


@pytest.fixture(scope="module")
def databases() -> Iterator[dict[str, Database]]:
    opened: dict[str, Database] = {}
    yield opened
    for database in opened.values():
        database.close()


def edit(databases: dict[str, Database], name: str, before: str, question: str) -> str:
    database = databases.setdefault(name, open_database(f"packaged:{name}"))
    assert evidence_of(question, [Turn("", sql=before)], database), "held for a question of its own"
    edits = edited(question, Turn("", sql=before), database)
    return edits[0][0] if edits else ""


@pytest.mark.parametrize(
    ("name", "before", "question", "after"),
    [
        ("scale_models", DEAR, "What is the cheapest of them?", f"{DEAR} ORDER BY list_price LIMIT 1"),
        ("scale_models", DEAR, "and those that cost less than 20?", "SELECT title FROM products WHERE list_price < 20"),
        ("scale_models", DEAR, "cheaper than 150", "SELECT title FROM products WHERE list_price < 150"),
        ("library_network", NEW, "exclude poetry", f"{NEW} AND genre <> 'poetry'"),
        ("library_network", NEW, "without the genre", "SELECT title FROM titles WHERE published_year > 2010"),
        ("library_network", JOINED, "who is the oldest?", "birth_year LIMIT 1"),
        ("campus_registry", ALONE, "sort by last name", f"{ALONE} ORDER BY last_name"),
        ("campus_registry", ALONE, "and those who have one?", ALONE.replace("advisor_id IS", "NOT advisor_id IS")),
        ("campus_registry", ALONE.replace("first_name, last_name", "status"), "who are they?", ALONE),
        ("chess_league", STRONG, "those without a title", f"{STRONG} AND title_code IS NULL"),
        ("chess_league", STRONG, "the youngest three", f"{STRONG} ORDER BY birth_year DESC LIMIT 3"),
        ("chess_league", STRONG, "and below 1500?", STRONG.replace("> 2000", "< 1500")),
        ("scale_models", "SELECT title FROM products WHERE scale = '1:87'", "Who makes it?", "SELECT DISTINCT maker"),
        ("rail_operator", OPEN, "when were they opened?", OPEN.replace("name", "opened_on")),
        ("rail_operator", OPEN, "how many platforms in total?", OPEN.replace("name", "SUM(platforms)")),
        (
            "weather_network",
            HOT,
            "on which day?",
            "SELECT reading_date FROM daily_readings WHERE temp_max = (",
        ),
        ("scale_models", SHIPPED, "show me the list", "SELECT order_id FROM"),
        ("scale_models", DEAR, "show the top 3", f"{DEAR} ORDER BY list_price DESC LIMIT 3"),
        ("library_network", COUNTED, "sort descending", f"{COUNTED} ORDER BY COUNT(*) DESC"),
        ("library_network", COUNTED, "the top 2", f"{COUNTED} ORDER BY COUNT(*) DESC LIMIT 2"),
        (
            "chess_league",
            "SELECT club_id, AVG(rating) FROM players GROUP BY club_id",
            "and the maximum?",
            "MAX(rating)",
        ),
        ("campus_registry", "SELECT * FROM students WHERE entry_year = 2022", "Who are their advisors?", ADVISORS),
        (
            "campus_registry",
            "SELECT name FROM instructors WHERE rank = 'Reader'",
            "what courses do they teach?",
            TAUGHT,
        ),
        ("campus_registry", PAID.replace("AVG(i.salary)", "COUNT(*)"), "how many earn over 90000?", "salary > 90000"),
        ("library_network", COPIES, "cheaper than 10 euros", "price < 10"),
        ("library_network", COUNTED, "just the genres with more than 50", f"{COUNTED} HAVING COUNT(*) > 50"),
        ("library_network", f"{COUNTED} HAVING COUNT(*) > 50", "at least 20", f"{COUNTED} HAVING COUNT(*) >= 20"),
        ("library_network", COUNTED, "And the second most?", "ORDER BY COUNT(*) DESC LIMIT 1 OFFSET 1"),
        (
            "campus_registry",
            "SELECT title FROM courses WHERE dept_code = 'PHY'",
            "and of the History department",
            HISTORY,
        ),
        ("weather_network", "SELECT name FROM stations WHERE elevation_m > 100", "and in 2022?", "2022-01-01"),
    ],
)
def test_what_is_said_is_what_is_changed(
    name: str, before: str, question: str, after: str, databases: dict[str, Database]
) -> None:
    assert after in edit(databases, name, before, question)


@pytest.mark.parametrize(
    ("name", "before", "question", "shown", "key", "order"),
    [
        ("library_network", NEW, "Which genre has the most?", "genre, COUNT(*)", "genre", "COUNT(*) DESC"),
        ("library_network", NEW, "Which genre has the fewest?", "genre, COUNT(*)", "genre", "COUNT(*)"),
        ("scale_models", SHIPPED, "which customer has the most of them?", "COUNT(*)", "contact_name", "COUNT(*) DESC"),
        ("campus_registry", PAID, "which department pays the most?", "AVG(", "departments.name", "AVG("),
        ("weather_network", HOT, "which station had the lowest?", "MAX(", "stations.name", "MAX("),
    ],
)
def test_the_group_with_the_most_is_one_row(
    name: str, before: str, question: str, shown: str, key: str, order: str, databases: dict[str, Database]
) -> None:
    sql = edit(databases, name, before, question)
    selected, _, rest = sql.partition(" FROM ")
    grouped, _, ordered = rest.partition(" ORDER BY ")
    assert shown in selected and key in grouped.partition(" GROUP BY ")[2]
    assert ordered.startswith(order) and ordered.endswith(" LIMIT 1")
    assert (" DESC " in ordered) == ("lowest" not in question and "fewest" not in question)


@pytest.mark.parametrize("question", ["how many per club?", "how many by club?", "group by club"])
def test_a_count_per_row_of_another_table_is_grouped_by_its_name(question: str, databases: dict[str, Database]) -> None:
    sql = edit(databases, "chess_league", STRONG, question)
    assert sql.startswith("SELECT clubs.name, COUNT(*)") and "GROUP BY clubs.club_id, clubs.name" in sql


@pytest.mark.parametrize(
    ("name", "before", "question"),
    [
        ("scale_models", SHIPPED, "which were late?"),
        ("library_network", NEW, "who wrote them?"),
        ("library_network", NEW, "only those cheaper than 10"),
        ("library_network", COUNTED, "What about fines?"),
        ("scale_models", "SELECT title FROM products", "how many of them weigh more than 5?"),
    ],
)
def test_what_the_words_do_not_say_is_left_to_the_model(
    name: str, before: str, question: str, databases: dict[str, Database]
) -> None:
    assert edit(databases, name, before, question) == ""


@pytest.mark.parametrize(
    "question",
    ["how many per country", "group by product line", "Which customers placed them?", "average price by scale"],
)
def test_what_is_asked_of_nothing_is_a_follow_up(question: str, databases: dict[str, Database]) -> None:
    database = databases.setdefault("scale_models", open_database("packaged:scale_models"))
    assert evidence_of(question, [Turn("", sql=DEAR)], database)
    for whole in ("How many customers are there per country?", "Average price of products"):
        assert not evidence_of(whole, [Turn("", sql=DEAR)], database)
