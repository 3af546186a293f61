"""Schemas and values that are unusual, but real, on other engines than SQLite: enums, several schemas, long results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import servers

from nl2sql.databases.engines import open_database
from nl2sql.databases.engines.adapters import described
from nl2sql.databases.engines.database import EngineDatabase
from nl2sql.databases.schema import schema_to_text
from nl2sql.errors import DatabaseError

ODD_POSTGRES = """
CREATE TYPE mood AS ENUM ('sad', 'Ok');
CREATE TABLE "Order Items" ("Id" int PRIMARY KEY, m mood, tags text[], doc jsonb, at timestamptz, d date, iv interval,
    t time, n numeric, cash money, "user" text);
INSERT INTO "Order Items" VALUES (1, 'Ok', '{a,b}', '{"a": true}', '2024-05-01 12:00+00', 'infinity', '1 mon 2 days',
    '24:00', 'NaN', 12.5, 'me');
CREATE SCHEMA "Sales";
CREATE TABLE "Sales".people (id int PRIMARY KEY);
CREATE TABLE people (other int PRIMARY KEY);
CREATE TABLE visits (id int PRIMARY KEY, person int REFERENCES "Sales".people (id), whose int REFERENCES people);
CREATE TABLE logged (y int) PARTITION BY RANGE (y);
CREATE TABLE logged_2020 PARTITION OF logged FOR VALUES FROM (2020) TO (2021);
GRANT USAGE ON SCHEMA "Sales" TO nl2sql_reader;
GRANT SELECT ON "Sales".people TO nl2sql_reader;
"""


@pytest.fixture(scope="module")
def odd_postgres() -> Iterator[str]:
    with servers.postgres(ODD_POSTGRES) as url:
        if url is None:
            pytest.skip("no PostgreSQL server: apt-get install postgresql")
        yield url


def test_postgres_values_come_as_the_server_writes_them(odd_postgres: str) -> None:
    with EngineDatabase("postgres", odd_postgres) as database:
        (row,) = database.sample("order items")
        assert tuple(row.values()) == (
            1, "Ok", '["a", "b"]', '{"a": true}', "2024-05-01 12:00:00+00", "infinity", "1 mon 2 days", "24:00:00",
            "nan", "$12.50", "me",
        )  # fmt: skip
        none = database.run('SELECT "Id", m AS "two words" FROM "Order Items" WHERE false')
        assert (none.success, none.columns, none.rows) == (True, ("Id", "two words"), ())


def test_postgres_rows_are_fetched_as_they_are_asked_for(odd_postgres: str) -> None:
    with EngineDatabase("postgres", odd_postgres) as database:
        cut = database.run("SELECT * FROM generate_series(1, 5000000)", max_rows=10)
        assert (len(cut.rows), cut.truncated) == (10, True)
        status = Path(f"/proc/{database._worker.process.pid}/status")  # type: ignore[union-attr]
        if status.exists():
            peak = int(status.read_text().partition("VmHWM:")[2].split()[0])
            assert peak < 150_000  # KiB; the whole result takes 200,000 more
        assert database.run("SELECT 1").rows == ((1,),)


def test_postgres_tables_are_those_of_one_schema(odd_postgres: str) -> None:
    with EngineDatabase("postgres", odd_postgres) as database:
        assert schema_to_text(database.schema()).splitlines()[1:] == [
            "people(other INTEGER PK)",
            "visits(id INTEGER PK, person INTEGER, whose INTEGER)",
            "logged(y INTEGER)",
            "visits.whose -> people.other",  # the other key refers to the people of another schema
        ]
        assert schema_to_text(database.schema()).startswith('"Order Items"("Id" INTEGER PK, m MOOD,')
    with EngineDatabase("postgres", f"{odd_postgres}?options=-csearch_path%3D%22Sales%22") as database:
        assert schema_to_text(database.schema()) == "people(id INTEGER PK)"
    with (
        EngineDatabase("postgres", f"{odd_postgres}?options=-csearch_path%3Dnowhere") as database,
        pytest.raises(DatabaseError, match="with such tables: Sales, public; name another: postgresql://"),
    ):
        database.schema()


def test_postgres_comes_back_after_its_server_ended_the_connection(odd_postgres: str) -> None:
    import psycopg

    ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{servers.READER}'"
    with (
        open_database(odd_postgres) as database,
        psycopg.connect(  # type: ignore[attr-defined]
            odd_postgres.replace(servers.READER, "postgres"), autocommit=True
        ) as admin,
    ):
        admin.execute(ended)
        assert database.run("SELECT count(*) FROM people").rows == ((0,),)
        admin.execute(ended)
        assert database.schema().table("people")


def test_a_key_to_a_table_that_the_user_does_not_see_is_left_out() -> None:
    keys = [["a", ["x"], "unseen", ["y"]], ["a", ["x"], "a", ["x"]]]
    (table,) = described([["a", "x", "int", False]], {}, keys, set())
    assert table["foreign_keys"] == [[["x"], "a", ["x"]]]


ODD_MYSQL = """
CREATE DATABASE other;
CREATE TABLE other.people (id int PRIMARY KEY);
CREATE TABLE people (id int PRIMARY KEY);
CREATE TABLE `Order Items` (id int PRIMARY KEY, e enum('a', 'It''s'), t time, `rank` int, p int,
    FOREIGN KEY (p) REFERENCES other.people (id), whose int, FOREIGN KEY (whose) REFERENCES people (id));
INSERT INTO `Order Items` (id, e, t) VALUES (1, 'a', '25:05:00'), (2, 'a', '-01:00:00')
"""


def test_mysql_reads_odd_types_and_names_and_ends_what_it_does_not_need() -> None:
    with servers.mysql(ODD_MYSQL) as url:
        if url is None:
            pytest.skip("no MariaDB server: apt-get install mariadb-server")
        with open_database(url) as database:  # type: ignore[attr-defined]
            lines = schema_to_text(database.schema()).splitlines()
            assert sorted(lines) == [
                "`Order Items`(id INT(11) PK, e ENUM('a','It''s'), t TIME, `rank` INT(11), p INT(11), whose INT(11))",
                "`Order Items`.whose -> people.id",
                "people(id INT(11) PK)",
            ]
            assert [row["t"] for row in database.sample("Order Items")] == ["25:05:00", "-01:00:00"]
            for _ in range(2):
                cut = database.run("SELECT * FROM seq_1_to_100000000", timeout_s=20, max_rows=10)
                assert (len(cut.rows), cut.truncated) == (10, True) and cut.seconds < 10
            assert database.run("SELECT id FROM `Order Items`").rows == ((1,), (2,))


def test_mysql_comes_back_after_its_server_ended_the_connection_and_tells_of_no_tables() -> None:
    with servers.mysql("CREATE TABLE people (id int)") as url:
        if url is None:
            pytest.skip("no MariaDB server: apt-get install mariadb-server")
        import pymysql

        port = urlsplit(url).port or 0
        with (
            open_database(url) as database,  # type: ignore[attr-defined]
            pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True) as admin,
            admin.cursor() as cursor,
        ):
            cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (servers.READER,))
            for (connection,) in cursor.fetchall():
                cursor.execute(f"KILL {connection}")
            assert database.run("SELECT count(*) FROM people").rows == ((0,),)
            cursor.execute("CREATE DATABASE bare")
            cursor.execute(f"GRANT SELECT ON bare.* TO {servers.READER}")
        with pytest.raises(DatabaseError, match="has the option 'ssl_ca'; the only one is socket=PATH"):
            open_database(f"{url}?ssl_ca=/etc/ca.pem&charset=utf8mb4")
        with (
            open_database(url.replace("/shop", "/bare")) as bare,  # type: ignore[attr-defined]
            pytest.raises(DatabaseError, match="bare has no tables that this user may read"),
        ):
            bare.schema()


def test_clickhouse_tells_of_a_database_without_tables(tmp_path: Path) -> None:
    pytest.importorskip("chdb", reason="pip install chdb")
    made = "from chdb import session; import sys; s = session.Session(sys.argv[1]); s.query('CREATE DATABASE other'); "
    made += "s.query('CREATE TABLE other.t (a Int32) ENGINE = MergeTree ORDER BY a'); s.close()"
    subprocess.run([sys.executable, "-c", made, str(tmp_path / "ch")], check=True)
    with (
        open_database(f"clickhouse:{tmp_path}/ch") as database,  # type: ignore[attr-defined]
        pytest.raises(DatabaseError, match="default has no tables"),
    ):
        database.schema()


def test_duckdb_reads_one_schema_and_writes_lists_as_json(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    with duckdb.connect(str(tmp_path / "odd.duckdb")) as made:
        made.execute("""
            CREATE SCHEMA sales;
            CREATE TABLE people (id int PRIMARY KEY, "at" int, m ENUM('sad', 'Ok'));
            CREATE TABLE visits (id int);
            CREATE TABLE sales.people (other int PRIMARY KEY);
            CREATE VIEW sales.visits AS SELECT 1 AS a;
        """)
    with duckdb.connect(str(tmp_path / "apart.duckdb")) as made:
        made.execute("CREATE SCHEMA sales; CREATE TABLE sales.people (id int)")
    with open_database(f"duckdb:{tmp_path}/odd.duckdb") as database:  # type: ignore[attr-defined]
        lines = schema_to_text(database.schema()).splitlines()
        assert sorted(lines) == ["people(id INTEGER PK, \"at\" INTEGER, m ENUM('sad', 'Ok'))", "visits(id INTEGER)"]
        lists, spans = "[DATE '2024-01-01', NULL], {'a': 1.5::DECIMAL(3, 1), 'b': 'x'}", "'-1 hour'::INTERVAL, '2 days'"
        assert database.run(f"SELECT {lists}, {spans}::INTERVAL").rows == (
            ('["2024-01-01", null]', '{"a": 1.5, "b": "x"}', "-01:00:00", "2 days"),
        )
    with (
        open_database(f"duckdb:{tmp_path}/apart.duckdb") as database,  # type: ignore[attr-defined]
        pytest.raises(DatabaseError, match="schema main has no tables"),
    ):
        database.schema()


def test_clickhouse_types_keep_their_case_and_numbers_that_are_none_are_no_nulls(tmp_path: Path) -> None:
    statements = [
        "CREATE DATABASE IF NOT EXISTS default",
        "CREATE TABLE default.t (id UInt8, e Enum8('Ok' = 1), c LowCardinality(Nullable(String))) "
        "ENGINE = MergeTree ORDER BY id",
        "CREATE MATERIALIZED VIEW default.mv ENGINE = MergeTree ORDER BY id AS SELECT id FROM default.t",
    ]
    code = "import sys\nfrom chdb import session\nmade = session.Session(sys.argv[1])\n"
    code += "for statement in sys.argv[2:]:\n    made.query(statement)\nmade.close()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "odd"), *statements], check=True)
    with open_database(f"clickhouse:{tmp_path}/odd") as database:  # type: ignore[attr-defined]
        schema = database.schema()
        assert [table.name for table in schema.tables] == ["mv", "t"]
        columns = schema.tables[1].columns
        assert [(c.type, c.not_null) for c in columns] == [
            ("UInt8", True), ("Enum8('Ok' = 1)", True), ("LowCardinality(Nullable(String))", False),
        ]  # fmt: skip
        assert database.run("SELECT nan, -inf, NULL").rows == (("nan", "-inf", None),)
