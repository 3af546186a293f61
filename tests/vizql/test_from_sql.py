"""SQL as structured queries: what is written for it, why nothing is, and texts that nobody would want."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from people import make_database

from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.vizql.autofix import as_json
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.infer import infer
from nl2sql.vizql.query import Query
from nl2sql.vizql.query_errors import read_request
from nl2sql.vizql.source import DataSource

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "vizql" / "from_sql.yaml"
CASES = yaml.safe_load(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteDatabase]:
    path = make_database(tmp_path_factory.mktemp("from_sql") / "shop.sqlite", CASES["tables"])
    with SqliteDatabase(path, name="shop") as database:
        yield database


@pytest.fixture(scope="module")
def source(shop: SqliteDatabase) -> DataSource:
    return infer(shop)


@pytest.mark.parametrize(("sql", "wanted"), [(case["sql"], case["query"]) for case in CASES["written"]])
def test_sql_is_written_as_a_tableau_user_would(
    shop: SqliteDatabase, source: DataSource, sql: str, wanted: Any
) -> None:
    assert structured(sql, source, nullable=nullable_captions(source, shop.schema())).candidates[0] == wanted


@pytest.mark.parametrize(("sql", "reason"), [(case["sql"], case["reason"]) for case in CASES["left_out"]])
def test_sql_that_no_query_says_has_a_reason(source: DataSource, sql: str, reason: str) -> None:
    translation = structured(sql, source)
    assert (translation.candidates, translation.reason) == ((), reason)


def test_what_may_be_null_is_all_but_keys_where_nobody_says_so(shop: SqliteDatabase, source: DataSource) -> None:
    sql = "SELECT DISTINCT street FROM shops WHERE town <> 'Bern'"
    (part,) = structured(sql, source).candidates[0]["filters"]
    assert part["values"] == ["Bern", None]
    (part,) = structured(sql, source, nullable=nullable_captions(source, shop.schema())).candidates[0]["filters"]
    assert part["values"] == ["Bern"]
    (part,) = structured("SELECT DISTINCT town FROM shops WHERE shop_id <> 1", source).candidates[0]["filters"]
    assert part["values"] == [1]


def test_like_ignores_case_where_the_database_does(shop: SqliteDatabase, source: DataSource) -> None:
    def asked(sql: str, dialect: str) -> Any:
        return structured(sql, source, dialect).candidates[0]

    both = "SELECT DISTINCT town FROM shops WHERE town LIKE '%BER%' OR town LIKE 'OsL%'"
    query = compiled(Query.model_validate(asked(both, "sqlite")), source, "sqlite")
    assert shop.run(query.sql).rows == shop.run(both).rows != ()
    one = "SELECT DISTINCT town FROM shops WHERE town LIKE '%BER%'"
    (part,) = asked(one, "mysql")["filters"]
    assert part["filterType"] == "MATCH"
    for dialect in ("duckdb", "postgres", "clickhouse"):
        (part,) = asked(one, dialect)["filters"]
        assert part["field"] == {"calculation": 'CONTAINS([Town], "BER")'}


@pytest.mark.parametrize(
    "asked",
    ["COUNT(DISTINCT buyer_name), COUNT(DISTINCT agent_name)", "buyer_name, agent_name"],
)
def test_tables_that_the_source_joins_by_deals_are_not_joined_by_firms(tmp_path: Path, asked: str) -> None:
    sql = f"SELECT {asked} {BY_FIRM}"
    with SqliteDatabase(make_database(tmp_path / "deals.sqlite", VOTES)) as database:
        source = infer(database)
    said = structured(sql, source)
    assert (said.candidates, said.reason) == ((), "tables that the data source joins in another way")


def test_a_table_that_is_read_all_the_same_is_not_named_by_a_filter(tmp_path: Path) -> None:
    sections = "JOIN section AS s ON seat.course_id = s.course_id AND seat.no = s.no"
    sql = f"SELECT DISTINCT row, subject FROM seat {sections} JOIN course AS c ON s.course_id = c.course_id"
    with SqliteDatabase(make_database(tmp_path / "seats.sqlite", VOTES)) as database:
        source = infer(database)
        [*_, last] = structured(sql, source, nullable=nullable_captions(source, database.schema())).candidates
        assert last == {"fields": [{"fieldCaption": "Row"}, {"fieldCaption": "Subject"}]}


@pytest.mark.parametrize(
    ("sql", "groups"),
    [
        ("SELECT town, COUNT(*) FROM shops GROUP BY town", None),
        ("SELECT town AS t, COUNT(*) FROM shops GROUP BY t", None),
        ("SELECT town, COUNT(*) FROM shops GROUP BY 1", None),
        ("SELECT town FROM shops", None),
        ("SELECT MAX(floors) FROM shops", None),
        ("SELECT town, COUNT(*) FROM shops WHERE floors > 1 GROUP BY shop_id HAVING COUNT(*) > 0 LIMIT 1", (2, 1, 2)),
        ("SELECT street, COUNT(*) FROM shops GROUP BY shop_id", (3, 3, 3)),
        ("SELECT town, MAX(floors) FROM shops", (1, 2, 2)),
        ("SELECT COUNT(*) FROM shops GROUP BY town", (2, 1, 2)),
        ("SELECT town, street, COUNT(*) FROM shops GROUP BY town", (2, 3, 3)),
    ],
)
def test_groups_by_what_is_not_shown_are_counted_in_the_rows(tmp_path: Path, sql: str, groups: Any) -> None:
    shops = """CREATE TABLE shops (shop_id INTEGER PRIMARY KEY, town TEXT, street TEXT, floors INTEGER);
    INSERT INTO shops VALUES (1, 'Bern', 'A', 2), (2, 'Bern', 'B', 3), (3, 'Oslo', 'C', 1);"""
    with SqliteDatabase(make_database(tmp_path / "towns.sqlite", shops)) as database:
        translation = structured(sql, infer(database))
        assert translation.candidates
        assert (database.run(translation.groups).rows if translation.groups else None) == (groups and (groups,))


def test_a_name_with_a_bracket_is_written_as_a_formula_has_it(tmp_path: Path) -> None:
    crates = 'CREATE TABLE crates (id INTEGER PRIMARY KEY, "weight [kg]" REAL); INSERT INTO crates VALUES (1, 2.5);'
    with SqliteDatabase(make_database(tmp_path / "crates.sqlite", crates)) as database:
        source = infer(database)
        data = source.model_dump(mode="json")
        data["fields"][1]["fieldCaption"] = "Weight [kg]"
        source = DataSource.model_validate(data)
        [draft] = structured('SELECT SUM("weight [kg]" * 2) FROM crates', source).candidates
        assert draft["fields"][0]["calculation"] == "SUM([Weight [kg]]] * 2)"
        query = compiled(Query.model_validate(draft), source, "sqlite")
        assert database.run(query.sql).rows == ((5.0,),)


def test_whole_numbers_keep_all_their_digits(source: DataSource) -> None:
    [draft] = structured("SELECT COUNT(*) FROM sales WHERE pieces > 9007199254740992", source).candidates
    assert ">= 9007199254740993)" in compiled(Query.model_validate(draft), source, "sqlite").sql


def test_tables_are_known_by_their_names_in_the_database_whatever_their_ids(source: DataSource) -> None:
    data = source.model_dump(mode="json")
    for part in [*data["fields"], *data["logicalTables"]]:
        part["logicalTableId"] = "id of " + part["logicalTableId"]
    for relation in data["logicalTableRelationships"]:
        for end in ("fromLogicalTable", "toLogicalTable"):
            relation[end]["logicalTableId"] = "id of " + relation[end]["logicalTableId"]
    sql = "SELECT town, COUNT(*) FROM shops JOIN sales ON sales.shop_id = shops.shop_id GROUP BY town"
    assert structured(sql, DataSource.model_validate(data)) == structured(sql, source)


VOTES = """
CREATE TABLE student (id INTEGER PRIMARY KEY, name TEXT NOT NULL, major TEXT, age REAL);
CREATE TABLE item (item_id INTEGER PRIMARY KEY, title TEXT NOT NULL);
CREATE TABLE gift (gift_id INTEGER PRIMARY KEY, student_id INTEGER REFERENCES student (id),
  item_id INTEGER NOT NULL REFERENCES item (item_id));
CREATE TABLE vote (vid INTEGER PRIMARY KEY, student_id INTEGER NOT NULL REFERENCES student (id),
  item_id INTEGER NOT NULL REFERENCES item (item_id), stars INTEGER);
CREATE TABLE car (plate INTEGER PRIMARY KEY, colour TEXT);
CREATE TABLE permit (plate INTEGER PRIMARY KEY REFERENCES car (plate));
CREATE TABLE course (course_id INTEGER PRIMARY KEY, subject TEXT NOT NULL);
CREATE TABLE section (course_id INTEGER REFERENCES course (course_id), no INTEGER, PRIMARY KEY (course_id, no));
CREATE TABLE seat (seat_id INTEGER PRIMARY KEY, course_id INTEGER NOT NULL, no INTEGER NOT NULL, row TEXT,
  FOREIGN KEY (course_id, no) REFERENCES section (course_id, no));
CREATE TABLE room (room_id INTEGER PRIMARY KEY, floor TEXT NOT NULL);
CREATE TABLE pupil (pupil_id INTEGER PRIMARY KEY, first_name TEXT NOT NULL);
CREATE TABLE desk (pupil_id INTEGER PRIMARY KEY REFERENCES pupil (pupil_id),
  room_id INTEGER NOT NULL REFERENCES room (room_id));
CREATE TABLE firm (firm_id INTEGER PRIMARY KEY, branch TEXT NOT NULL);
CREATE TABLE buyer (buyer_id INTEGER PRIMARY KEY, buyer_name TEXT, firm_id INTEGER NOT NULL REFERENCES firm (firm_id));
CREATE TABLE agent (agent_id INTEGER PRIMARY KEY, agent_name TEXT, firm_id INTEGER NOT NULL REFERENCES firm (firm_id));
CREATE TABLE deal (deal_id INTEGER PRIMARY KEY, buyer_id INTEGER NOT NULL REFERENCES buyer (buyer_id),
  agent_id INTEGER NOT NULL REFERENCES agent (agent_id));
CREATE TABLE port (port_id INTEGER PRIMARY KEY, port_name TEXT);
CREATE TABLE flight (flight_id INTEGER PRIMARY KEY, code TEXT, target INTEGER NOT NULL REFERENCES port (port_id),
  origin INTEGER NOT NULL REFERENCES port (port_id));
INSERT INTO port VALUES (1, 'a'), (2, 'b');
INSERT INTO flight VALUES (1, 'x', 1, 2), (2, 'x', 2, 1), (3, 'y', 2, 1);
INSERT INTO room VALUES (1, 'low'), (2, 'high');
INSERT INTO pupil VALUES (1, 'Di'), (2, 'Ed');
INSERT INTO desk VALUES (2, 1);
INSERT INTO student VALUES (1, 'Ann', 'x', 20.0), (2, 'Bob', 'x', 30.0), (3, 'Cy', 'y', 40.0);
INSERT INTO item VALUES (1, 'a'), (2, 'b');
INSERT INTO gift VALUES (1, 3, 1), (2, NULL, 2);
INSERT INTO vote VALUES (1, 1, 1, 5), (2, 1, 2, 4);
INSERT INTO car VALUES (7, 'red'), (8, 'blue');
INSERT INTO permit VALUES (8);
INSERT INTO course VALUES (1, 'Art'), (2, 'Law'), (3, 'Tax');
INSERT INTO section VALUES (1, 1), (2, 1), (2, 2);
INSERT INTO seat VALUES (1, 2, 1, 'A'), (2, 2, 2, 'A');
"""
BY_FIRM = "FROM firm AS f JOIN buyer AS b ON b.firm_id = f.firm_id JOIN agent AS a ON a.firm_id = f.firm_id"
BY_DESK = "FROM pupil AS p JOIN desk AS d ON d.pupil_id = p.pupil_id"
BY_VOTE = "FROM student AS s JOIN vote AS v ON v.student_id = s.id"


@pytest.mark.parametrize(
    ("sql", "executable"),
    [
        (f"SELECT DISTINCT s.name {BY_VOTE}", True),
        (f"SELECT COUNT(DISTINCT s.id) {BY_VOTE}", True),
        (f"SELECT s.major, COUNT(DISTINCT s.id) {BY_VOTE} GROUP BY s.major", True),
        (f"SELECT DISTINCT s.name {BY_VOTE} WHERE v.stars > 4", True),
        (f"SELECT DISTINCT i.title {BY_VOTE} JOIN item AS i ON i.item_id = v.item_id", True),
        (f"SELECT DISTINCT s.name, i.title {BY_VOTE} JOIN item AS i ON i.item_id = v.item_id", True),  # not by gift
        (f"SELECT AVG(s.age) {BY_VOTE}", False),  # an age would count once for each vote
        ("SELECT DISTINCT subject FROM seat JOIN course ON seat.course_id = course.course_id", True),  # past a section
        ("SELECT subject, COUNT(*) FROM seat JOIN course ON seat.course_id = course.course_id GROUP BY subject", True),
        ("SELECT DISTINCT colour FROM car JOIN permit ON permit.plate = car.plate", False),  # one to one
        ("SELECT DISTINCT s.name FROM gift AS g JOIN student AS s ON g.student_id = s.id", True),
        ("SELECT DISTINCT name FROM gift JOIN student ON student_id = id AND id = student_id", True),
        (f"SELECT first_name, floor {BY_DESK} JOIN room AS r ON d.room_id = r.room_id", False),  # past one to one
        ("SELECT code FROM flight JOIN port ON flight.origin = port.port_id", True),  # no matter which of the two ways
        ("SELECT port_name FROM flight JOIN port ON flight.origin = port.port_id", False),
        ("SELECT g.gift_id FROM gift AS g JOIN item AS i ON g.item_id = i.item_id", True),
    ],
)
def test_a_join_to_a_table_of_which_nothing_is_asked_still_leaves_rows_out(
    tmp_path: Path, sql: str, executable: bool
) -> None:
    with SqliteDatabase(make_database(tmp_path / "votes.sqlite", VOTES), name="votes") as database:
        source, rows = infer(database), sorted(database.run(sql).rows)
        found = structured(sql, source, nullable=nullable_captions(source, database.schema())).candidates
        queries = [compiled(request, source, "sqlite") for query in found if (request := read_request(query))]
        assert queries and [not query.not_executable for query in queries] == [executable] * len(queries)
        if executable:  # the last one is the most literal, which is what the controller takes
            assert sorted(database.run(queries[-1].sql).rows) == rows


@pytest.mark.parametrize("limit", [1000, 50_000])
def test_texts_that_nobody_would_want_raise_nothing(source: DataSource, limit: int) -> None:
    head = "SELECT town FROM shops WHERE "
    texts = [
        head + " OR ".join(["town = 'a'"] * 400),
        head + " AND ".join(["floors > 1 OR town = 'b'"] * 400),
        head + "(" * 150 + "floors" + ")" * 150 + " = 1",
        head + "NOT " * 500 + "floors = 1",
        head + " + ".join(["floors"] * 4000) + " > 1",
        head + "floors IN (" + ", ".join(map(str, range(4000))) + ") OR town = 'x'",
        head + "town = " + "CASE WHEN floors = 1 THEN " * 60 + "'a'" + " END" * 60,
        "SELECT " + ", ".join(["SUM(floors) + 1"] * 1500) + " FROM shops",
        "SELECT town FROM shops LIMIT " + "9" * 6000,
        "SELECT ROUND(AVG(floors), -1), ROUND(AVG(floors), town) FROM shops",
    ]
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        for text in texts:
            translation = structured(text, source)
            assert not translation.reason.startswith("not read"), (text[:200], translation.reason)
            as_json(list(translation.candidates))
    finally:
        sys.setrecursionlimit(before)
