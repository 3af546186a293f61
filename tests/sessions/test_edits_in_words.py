"""Follow-ups as people type them, over the packaged databases: the SQL that each makes of the previous one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from people import make_database
from sessions.first_edit import first_edit

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


CLINIC = """
CREATE TABLE doctors (doctor_id INTEGER PRIMARY KEY, name TEXT, hired_on TEXT);
CREATE TABLE nurses (nurse_id INTEGER PRIMARY KEY, full_name TEXT, doctor_id INTEGER REFERENCES doctors(doctor_id));
CREATE TABLE patients (patient_id INTEGER PRIMARY KEY, name TEXT, gender TEXT, smoker INTEGER, blood_type TEXT);
CREATE TABLE visits (visit_id INTEGER PRIMARY KEY, patient_id INTEGER NOT NULL REFERENCES patients(patient_id),
    doctor_id INTEGER REFERENCES doctors(doctor_id), visited_at TEXT, reason TEXT, cost REAL, minutes INTEGER);
CREATE TABLE drugs (drug_id INTEGER PRIMARY KEY, visit_id INTEGER REFERENCES visits(visit_id), drug TEXT, organic TEXT);
CREATE TABLE teams (team_id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE members (member_id INTEGER PRIMARY KEY, tag TEXT, team_id INTEGER REFERENCES teams(team_id),
    goals INTEGER, assists INTEGER);
CREATE TABLE matches (match_id INTEGER PRIMARY KEY, home_id INTEGER REFERENCES teams(team_id),
    away_id INTEGER REFERENCES teams(team_id), season INTEGER, played_on TEXT);
CREATE TABLE harvests (harvest_id INTEGER PRIMARY KEY, year INTEGER, tonnes REAL);
INSERT INTO doctors VALUES (1, 'Ina Roth', '2010-02-01'), (2, 'Kim Vale', '2015-05-01');
INSERT INTO patients VALUES (1, 'Max Orr', 'M', 1, 'O'), (2, 'Nia Poe', 'F', 0, 'A');
INSERT INTO visits VALUES (1, 1, 1, '2023-01-10 09:30:00', 'Checkup', 120, 30),
    (2, 1, 2, '2023-03-10 10:30:00', 'Headache', 80, 20), (3, 2, 2, '2024-03-15 14:00:00', 'Headache', 90, 25);
INSERT INTO drugs VALUES (1, 1, 'Aspirin', 'no'), (2, 2, 'Sage', 'yes');
INSERT INTO teams VALUES (1, 'Rovers', 'Derby'), (2, 'United', 'Leeds');
INSERT INTO members VALUES (1, 'A1', 1, 12, 3), (2, 'B2', 1, 0, 0), (3, 'C3', 2, 8, 5);
INSERT INTO matches VALUES (1, 1, 2, 7, '2022-08-10'), (2, 2, 1, 8, '2023-08-10');
INSERT INTO harvests VALUES (1, 2022, 40.5), (2, 2022, 20.5), (3, 2023, 70.5);
"""
PATIENTS = "SELECT name FROM patients WHERE gender = 'F'"
VISITS = "SELECT COUNT(*) FROM visits WHERE reason = 'Headache'"
BILLED = "SELECT doctors.name, SUM(visits.cost) FROM doctors JOIN visits ON doctors.doctor_id = visits.doctor_id "
BILLED += "GROUP BY doctors.doctor_id, doctors.name"
SCORED = "SELECT teams.name, SUM(members.goals) FROM teams JOIN members ON teams.team_id = members.team_id "
SCORED += "GROUP BY teams.team_id, teams.name"
PLAYED = "SELECT COUNT(*) FROM matches WHERE season = 7"
DRUGS = "SELECT drug, COUNT(*) FROM drugs GROUP BY drug"
HARVEST = "SELECT SUM(tonnes) FROM harvests WHERE year = 2022"


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    file = make_database(tmp_path_factory.mktemp("clinic") / "clinic.sqlite", CLINIC)
    with open_database(file) as database:
        yield database


@pytest.mark.parametrize(
    ("before", "question", "after"),
    [
        (PATIENTS, "only non-smokers", f"{PATIENTS} AND smoker = 0"),
        (PATIENTS, "who don't smoke", f"{PATIENTS} AND smoker = 0"),
        (VISITS.replace("= 'H", "<> 'H"), "only non-checkups", "reason <> 'Checkup'"),
        (BILLED, "in 2023", "WHERE visits.visited_at BETWEEN '2023-01-01' AND '2023-12-31 23:59:59'"),
        (BILLED, "average per day", "SELECT STRFTIME('%Y-%m-%d', visits.visited_at), AVG(visits.cost)"),
        (VISITS, "on 2023-03-10", "visited_at BETWEEN '2023-03-10' AND '2023-03-10 23:59:59'"),
        (VISITS, "after 2023-03-10", "visited_at > '2023-03-10 23:59:59'"),
        (VISITS, "between 2023-03-01 and 2023-03-10", "BETWEEN '2023-03-01' AND '2023-03-10 23:59:59'"),
        (VISITS, "how many patients is that?", "SELECT COUNT(DISTINCT patients.patient_id)"),
        (BILLED, "how many doctors are they?", "SELECT COUNT(DISTINCT doctors.doctor_id)"),
        (DRUGS, "by patient gender", "SELECT patients.gender, COUNT(*)"),
        (SCORED, "only teams with more than 10 goals", f"{SCORED} HAVING SUM(members.goals) > 10"),
        (SCORED, "only members with more than 10 goals", "WHERE members.goals > 10 GROUP BY"),
        (SCORED, "per member", "SELECT members.member_id, SUM(members.goals)"),
        (PLAYED, "by home team", "matches.home_id = teams.team_id"),
        (HARVEST, "which harvest was the biggest?", "ORDER BY tonnes DESC LIMIT 1"),
        ("SELECT tonnes FROM harvests", "older than 2023", "year < 2023"),
        (VISITS, "not between 20 and 40 minutes", "NOT minutes BETWEEN 20 AND 40"),
        (VISITS, "no longer than 20 minutes", "minutes <= 20"),
        ("SELECT tonnes FROM harvests", "not after 2022", "year <= 2022"),
        ("SELECT tonnes FROM harvests", "no older than 2022", "year >= 2022"),
        (VISITS, "minutes above 20 and below 40", "minutes > 20 AND minutes < 40"),
        (VISITS, "on the 10th of March 2023", "visited_at BETWEEN '2023-03-10' AND '2023-03-10 23:59:59'"),
        (PATIENTS, "no smokers", f"{PATIENTS} AND smoker = 0"),
        (PATIENTS, "that had no headaches", f"{PATIENTS} AND NOT patient_id IN"),
        ("SELECT name FROM doctors", "until 2015-05-01", "hired_on <= '2015-05-01'"),
        (DRUGS, "more than 1 and less than 5", "HAVING COUNT(*) > 1 AND COUNT(*) < 5"),
        (SCORED, "above goals 3", "HAVING SUM(members.goals) > 3"),
        ("SELECT nurse_id FROM nurses", "sort by name descending", "ORDER BY full_name DESC"),
        (DRUGS.partition(" GROUP")[0].replace("drug, ", ""), "only organic ones", "WHERE organic = 'yes'"),
        (VISITS, "by reason, for checkups and headaches", "WHERE reason IN ('Checkup', 'Headache') GROUP BY reason"),
    ],
)
def test_another_domain_is_read_alike(before: str, question: str, after: str, clinic: Database) -> None:
    assert after in first_edit(clinic, before, question)


@pytest.mark.parametrize(
    ("before", "question"),
    [
        (VISITS, "after 10:00"),  # of any day
        (VISITS, "for checkups in march"),  # of which year?
        (VISITS.replace("COUNT(*)", "AVG(cost)"), "for patients over 40"),  # not what they paid
        (PATIENTS, "with blood type o+"),  # not one more column
        (PLAYED, "played by United"),  # at home or away?
        (PLAYED, "by away team"),
        ("SELECT name FROM teams", "without matches"),
        ("SELECT city FROM teams", "who plays there?"),
        (SCORED, "with more than 2 members"),  # not two goals
        (SCORED, "and assists?"),  # another figure, not groups
        (VISITS, "that were visited"),
        (VISITS, "in 2023 and 2024"),
        ("SELECT visit_id FROM visits", "with organic drugs"),  # not all that have drugs
        ("SELECT visit_id FROM visits", "how much sage?"),
        (VISITS, "minutes under 20 or over 40"),
        (f"{VISITS} AND visited_at > '2023-01-01'", "on March 15"),  # of which year?
        ("SELECT year FROM harvests", "and which has the most visits?"),
        (VISITS, "for checkups and rashes"),  # nobody came for one of them
        (VISITS, "rashes or checkups"),
        ("SELECT name FROM patients WHERE gender = 'F' OR smoker = 1", "only non-smokers"),
        (VISITS.replace("COUNT(*)", "AVG(cost)"), "which is the most expensive?"),
    ],
)
def test_what_another_domain_leaves_open_is_left_to_the_model(before: str, question: str, clinic: Database) -> None:
    assert first_edit(clinic, before, question) == ""
