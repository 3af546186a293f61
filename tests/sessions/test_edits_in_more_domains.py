"""Follow-ups as people type them over a hotel, a school, flights, a tracker, recipes, calls and meters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from people import make_database
from sessions.first_edit import first_edit

from nl2sql.databases.engines import open_database
from nl2sql.interfaces import Database

DOMAINS = """
CREATE TABLE hotels (hotel_id INTEGER PRIMARY KEY, name TEXT, city TEXT, opened INTEGER);
CREATE TABLE guests (guest_id INTEGER PRIMARY KEY, name TEXT, country TEXT, vip INTEGER);
CREATE TABLE bookings (booking_id INTEGER PRIMARY KEY, guest_id INTEGER REFERENCES guests(guest_id),
    hotel_id INTEGER REFERENCES hotels(hotel_id), check_in TEXT, nights INTEGER, price_per_night REAL, status TEXT,
    cancelled_at TEXT);
CREATE TABLE departments (dept_id INTEGER PRIMARY KEY, dept_name TEXT, budget REAL);
CREATE TABLE instructors (instructor_id INTEGER PRIMARY KEY, name TEXT, salary REAL, full_time INTEGER, hire_date TEXT,
    dept_id INTEGER REFERENCES departments(dept_id));
CREATE TABLE students (student_id INTEGER PRIMARY KEY, name TEXT, gender TEXT, age INTEGER, enrolled_year INTEGER,
    major_id INTEGER REFERENCES departments(dept_id));
CREATE TABLE courses (course_id INTEGER PRIMARY KEY, title TEXT, dept_id INTEGER REFERENCES departments(dept_id),
    instructor_id INTEGER REFERENCES instructors(instructor_id));
CREATE TABLE enrolments (student_id INTEGER REFERENCES students(student_id),
    course_id INTEGER REFERENCES courses(course_id), grade TEXT, PRIMARY KEY (student_id, course_id));
CREATE TABLE airports (code TEXT PRIMARY KEY, name TEXT, city TEXT, country TEXT);
CREATE TABLE airlines (airline_id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE flights (flight_id INTEGER PRIMARY KEY, airline_id INTEGER REFERENCES airlines(airline_id),
    origin TEXT REFERENCES airports(code), destination TEXT REFERENCES airports(code), departs TEXT, price REAL,
    delayed INTEGER);
CREATE TABLE cuisines (cuisine_id INTEGER PRIMARY KEY, cuisine TEXT);
CREATE TABLE recipes (recipe_id INTEGER PRIMARY KEY, dish TEXT, cuisine_id INTEGER REFERENCES cuisines(cuisine_id),
    prep_minutes INTEGER, cook_minutes INTEGER, vegetarian TEXT, rating REAL);
CREATE TABLE ingredients (ingredient_id INTEGER PRIMARY KEY, name TEXT, allergen INTEGER);
CREATE TABLE contents (recipe_id INTEGER REFERENCES recipes(recipe_id),
    ingredient_id INTEGER REFERENCES ingredients(ingredient_id), PRIMARY KEY (recipe_id, ingredient_id));
CREATE TABLE clients (client_id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE calls (call_id INTEGER PRIMARY KEY, client_id INTEGER REFERENCES clients(client_id), topic TEXT,
    seconds INTEGER, resolved INTEGER);
CREATE TABLE bills (bill_id INTEGER PRIMARY KEY, year INTEGER, amount REAL, paid_on TEXT, payer TEXT);
INSERT INTO hotels VALUES (1, 'Grand', 'Vienna', 1910), (2, 'Sea View', 'Lisbon', 1999);
INSERT INTO guests VALUES (1, 'Ann', 'France', 1), (2, 'Bob', 'Spain', 0);
INSERT INTO bookings VALUES (1, 1, 1, '2023-05-01', 3, 310, 'confirmed', NULL),
    (2, 2, 2, '2023-06-10', 2, 125, 'cancelled', '2023-06-01'), (3, 1, 2, '2024-01-02', 1, 85, 'pending', NULL);
INSERT INTO departments VALUES (1, 'Physics', 500000), (2, 'History', 200000);
INSERT INTO instructors VALUES (1, 'Vera', 90000, 1, '2005-09-01', 1), (2, 'Hugo', 70000, 0, '2015-02-15', 2);
INSERT INTO students VALUES (1, 'Amy', 'F', 19, 2021, 1), (2, 'Ben', 'M', 22, 2020, 2);
INSERT INTO courses VALUES (1, 'Mechanics', 1, 1), (2, 'Europe', 2, 2);
INSERT INTO enrolments VALUES (1, 1, 'A'), (2, 2, 'B');
INSERT INTO airports VALUES ('VIE', 'Schwechat', 'Vienna', 'Austria'), ('OSL', 'Gardermoen', 'Oslo', 'Norway'),
    ('LIS', 'Portela', 'Lisbon', 'Portugal');
INSERT INTO airlines VALUES (1, 'Nordwing'), (2, 'Alpair');
INSERT INTO flights VALUES (1, 1, 'OSL', 'VIE', '2023-07-01 08:00:00', 99, 0),
    (2, 2, 'VIE', 'LIS', '2023-07-02 12:30:00', 180, 1), (3, 2, 'LIS', 'OSL', '2023-08-02 12:30:00', 150, 1);
INSERT INTO cuisines VALUES (1, 'Italian'), (2, 'Thai');
INSERT INTO recipes VALUES (1, 'Carbonara', 1, 10, 20, 'no', 4.5), (2, 'Curry', 2, 20, 30, 'yes', 4.8);
INSERT INTO ingredients VALUES (1, 'rice', 0), (2, 'egg', 1);
INSERT INTO contents VALUES (1, 2), (2, 1);
INSERT INTO clients VALUES (1, 'Acme'), (2, 'Bolt');
INSERT INTO calls VALUES (1, 1, 'billing', 300, 1), (2, 1, 'outage', 120, 0);
INSERT INTO bills VALUES (1, 2022, 108.5, '2023-01-10', 'Kay'), (2, 2023, 98.0, NULL, 'Lou');
"""
BOOKED = "SELECT COUNT(*) FROM bookings"
KEPT = f"{BOOKED} WHERE status = 'confirmed'"
PRICES = "SELECT booking_id, nights FROM bookings WHERE nights > 1"
STAYS = "SELECT hotels.name, AVG(bookings.nights) FROM bookings JOIN hotels ON bookings.hotel_id = hotels.hotel_id "
STAYS += "GROUP BY hotels.hotel_id, hotels.name"
GUESTS = "SELECT name FROM guests WHERE country = 'France'"
PAY = "SELECT AVG(salary) FROM instructors"
STUDENTS = "SELECT name FROM students WHERE age > 20"
GRADES = "SELECT COUNT(*) FROM enrolments"
FLIGHTS = "SELECT COUNT(*) FROM flights"
OSLO = f"{FLIGHTS} JOIN airports ON flights.origin = airports.code WHERE airports.city = 'Oslo'"
DISHES = "SELECT dish FROM recipes"
RICE = f"{DISHES} WHERE recipe_id IN (SELECT contents.recipe_id FROM contents JOIN ingredients ON "
RICE += "contents.ingredient_id = ingredients.ingredient_id WHERE ingredients.name = 'rice')"
CALLS = "SELECT COUNT(*) FROM calls"
UNPAID = "SELECT COUNT(*) FROM bills WHERE paid_on IS NULL"
TAUGHT = "SELECT courses.title FROM courses JOIN instructors ON courses.instructor_id = instructors.instructor_id"


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    file = make_database(tmp_path_factory.mktemp("domains") / "domains.sqlite", DOMAINS)
    with open_database(file) as database:
        yield database


@pytest.mark.parametrize(
    ("before", "question", "after"),
    [
        # a condition turned round
        (KEPT, "and cancelled?", f"{BOOKED} WHERE status = 'cancelled'"),
        (KEPT, "the rest?", f"{BOOKED} WHERE status <> 'confirmed'"),
        (STUDENTS, "and the others?", "SELECT name FROM students WHERE age <= 20"),
        (f"{FLIGHTS} WHERE delayed = 1", "the other ones", f"{FLIGHTS} WHERE delayed = 0"),
        (KEPT, "all statuses", BOOKED),
        (UNPAID, "the paid ones", "SELECT COUNT(*) FROM bills WHERE NOT paid_on IS NULL"),
        (BOOKED, "neither cancelled nor pending", "WHERE NOT status IN ('cancelled', 'pending')"),
        # yes and no
        (DISHES, "not vegetarian", f"{DISHES} WHERE vegetarian = 'no'"),
        (DISHES, "vegetarian only", f"{DISHES} WHERE vegetarian = 'yes'"),
        (CALLS, "unresolved", f"{CALLS} WHERE resolved = 0"),
        (GUESTS, "vip = 0", f"{GUESTS} AND vip = 0"),
        (GUESTS, "sort by vip", f"{GUESTS} ORDER BY vip"),
        (GUESTS, "add vip", "SELECT name, vip FROM guests WHERE country = 'France'$"),
        (GUESTS, "per vip status", "SELECT vip, COUNT(*) FROM guests WHERE country = 'France' GROUP BY vip"),
        ("SELECT title FROM courses", "taught by full time instructors", f"{TAUGHT} WHERE instructors.full_time = 1"),
        (BOOKED, "made by guests from Spain", f"{BOOKED} JOIN guests ON bookings.guest_id = guests.guest_id WHERE"),
        # figures
        (BOOKED, "average price per night", "SELECT AVG(price_per_night) FROM bookings"),
        (BOOKED, "over 120 euros per night", f"{BOOKED} WHERE price_per_night > 120"),
        (PAY, "who earns less than that?", f"SELECT name FROM instructors WHERE salary < ({PAY})"),
        ("SELECT dept_name FROM departments", "average salary in each", "GROUP BY departments.dept_id"),
        (STAYS, "max", STAYS.replace("AVG", "MAX")),
        (STAYS, "sorted by nights", f"{STAYS} ORDER BY AVG(bookings.nights)"),
        (STAYS, "and the number of bookings", STAYS.replace("AVG(bookings.nights)", "COUNT(*)")),
        (STAYS.replace("AVG(bookings.nights)", "COUNT(*)"), "sort by number of bookings", "ORDER BY COUNT(*)"),
        (
            f"{STAYS} ORDER BY AVG(bookings.nights) DESC LIMIT 1",
            "total instead",
            "BY SUM(bookings.nights) DESC LIMIT 1",
        ),
        (
            "SELECT SUM(amount) FROM bills",
            "which payer gave the most?",
            "GROUP BY payer ORDER BY SUM(amount) DESC LIMIT 1",
        ),
        ("SELECT name FROM clients", "how many calls each?", "GROUP BY clients.client_id"),
        # columns
        (PRICES, "without the nights", "SELECT booking_id FROM bookings WHERE nights > 1"),
        (STAYS, "show only the names", STAYS.replace(", AVG(bookings.nights)", "")),
        (GUESTS.replace("name", "name, country"), "only names", GUESTS),
        ("SELECT title FROM courses", "the department too", "SELECT courses.title, departments.dept_name"),
        (DISHES, "by cuisine", "SELECT cuisines.cuisine, COUNT(*)"),
        # dates and units
        (BOOKED, "between May and June 2023", "BETWEEN '2023-05-01' AND '2023-06-30'"),
        (UNPAID, "in 2023", f"{UNPAID} AND year = 2023"),
        (CALLS, "longer than 5 minutes", f"{CALLS} WHERE seconds > 300"),
        ("SELECT name FROM hotels", "opened before 1950", "WHERE opened < 1950"),
        ("SELECT dept_name FROM departments", "more than 250k", "budget > 250000"),
        ("SELECT name FROM instructors", "the newest", "ORDER BY hire_date DESC LIMIT 1"),
        ("SELECT dish FROM recipes ORDER BY rating", "highest first", "ORDER BY rating DESC"),
        ("SELECT dish FROM recipes ORDER BY rating DESC LIMIT 3", "the bottom 2", f"{DISHES} ORDER BY rating LIMIT 2"),
        # which of two keys
        (FLIGHTS, "from Oslo", OSLO),
        (FLIGHTS, "to Vienna", "flights.destination = airports.code WHERE airports.city = 'Vienna'"),
        (FLIGHTS, "from LIS", f"{FLIGHTS} WHERE origin = 'LIS'"),
        (f"{FLIGHTS} WHERE origin = 'OSL'", "to Vienna", "WHERE flights.origin = 'OSL' AND airports.city = 'Vienna'"),
        (FLIGHTS, "by destination country", "SELECT airports.country, COUNT(*)"),
        (GRADES, "in Physics courses", "JOIN departments ON courses.dept_id = departments.dept_id"),
        # rows of another table
        (DISHES, "with rice but without egg", "ingredients.name = 'egg')"),
        (RICE, "but without egg", "ingredients.name = 'rice') AND NOT "),
        (
            RICE.replace(" IN (", " NOT IN (", 1),
            "but with egg",
            "AND recipes.recipe_id IN (SELECT contents.recipe_id FROM",
        ),
        ("SELECT name FROM clients", "who never called", "WHERE NOT client_id IN (SELECT client_id FROM calls"),
    ],
)
def test_what_is_said_is_what_is_changed(before: str, question: str, after: str, domains: Database) -> None:
    assert after in f"{first_edit(domains, before, question)}$"


@pytest.mark.parametrize(
    ("before", "question"),
    [
        (PAY, "which instructor is it?"),  # one row of an average
        (f"{STUDENTS} AND gender = 'F'", "the rest"),  # of which of two conditions?
        (CALLS, "what share was resolved?"),
        (STUDENTS, "both men and women"),
        (STUDENTS, "not enrolled in any course"),  # not those without a year
        (STUDENTS, "older than Ben"),
        (STUDENTS, "age above average"),
        (GRADES, "A or B"),  # not B alone
        (STUDENTS, "with an A and a B"),  # not with one of them
        (BOOKED, "all but cancelled"),
        (BOOKED, "in the first half of 2023"),
        (BOOKED, "by vip guests"),  # groups or rows?
        (DISHES, "under 30 minutes"),  # to prepare or to cook?
        (DISHES, "the fastest"),
        (DISHES, "with allergens"),
        (PRICES, "the shortest"),
        (PRICES, "drop the nights"),  # the column or the condition?
        (f"{PRICES} ORDER BY nights DESC LIMIT 2", "which of them are pending?"),  # not two others
        (FLIGHTS, "longer than 3 hours"),
        (FLIGHTS, "who flew on them?"),  # no airports, no airlines
        (OSLO, "to Vienna"),  # not from there
        (UNPAID, "for February 2023"),  # paid then?
        (PAY, "lowest first"),
        (PAY, "names"),
        (STAYS, "largest booking"),
        ("SELECT name FROM students", "of instructors born after 1970"),  # not the students of later years
    ],
)
def test_what_the_words_do_not_say_is_left_to_the_model(before: str, question: str, domains: Database) -> None:
    assert first_edit(domains, before, question) == ""


@pytest.mark.parametrize(
    "turns",
    [
        [
            (KEPT, ""),
            ("and cancelled?", "status = 'cancelled'"),
            ("by hotel", "GROUP BY hotels.hotel_id, hotels.name"),
            ("only in 2023", "BETWEEN '2023-01-01' AND '2023-12-31' GROUP BY"),
            ("which hotel has the most?", "ORDER BY COUNT(*) DESC LIMIT 1"),
        ],
        [
            (UNPAID, ""),
            ("in 2023", "paid_on IS NULL AND year = 2023"),
            ("total amount", "SELECT SUM(amount)"),
            ("and the paid ones?", "WHERE NOT paid_on IS NULL AND year = 2023"),
        ],
        [
            (PAY, ""),
            ("who earns more than that?", "WHERE salary > ("),
            ("in which department?", "SELECT DISTINCT departments.dept_name"),
            ("how many are full time?", ""),
        ],
    ],
)
def test_a_conversation_is_edited_turn_by_turn(turns: list[tuple[str, str]], domains: Database) -> None:
    sql = turns[0][0]
    for question, after in turns[1:]:
        sql = first_edit(domains, sql, question)
        assert after in sql and bool(after) == bool(sql)
