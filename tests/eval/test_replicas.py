"""Perturbed replicas differ in content and keep what the schema promises; the shuffled copy only differs in order."""

import math
import sqlite3
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nl2sql.databases.sqlite.files import fingerprint_sqlite
from nl2sql.errors import DatabaseError, UsageError
from nl2sql.eval.replicas import perturb, perturbed_replicas, shuffled_copies
from nl2sql.eval.replicas.values import fresh

SCRIPT = (Path(__file__).parents[1] / "fixtures" / "replica_schemas.sql").read_text(encoding="utf-8")
SCHEMAS = dict(part.split("\n", 1) for part in SCRIPT.split("-- name: ")[1:])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("NL2SQL_CACHE", str(folder))
    return folder


@pytest.fixture(params=SCHEMAS)
def original(request, tmp_path):
    return build(tmp_path / "original.sqlite", SCHEMAS[request.param])


@pytest.fixture
def company(tmp_path):
    return build(tmp_path / "company.sqlite", next(iter(SCHEMAS.values())))


def build(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
    return path


def query(path, sql):
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def tables(path):
    return [name for (name,) in query(path, "SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]


def contents(path):
    return {name: query(path, 'SELECT * FROM "{}"'.format(name.replace('"', '""'))) for name in tables(path)}


def test_constraints_hold_in_every_replica(original):
    assert query(original, "PRAGMA foreign_key_check") == []
    for replica in perturbed_replicas(original, 8):
        assert query(replica, "PRAGMA foreign_key_check") == []
        assert query(replica, "PRAGMA integrity_check") == [("ok",)]
        assert query(replica, "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2") == query(
            original, "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"
        )


def test_replicas_differ_from_the_original_and_from_each_other(original):
    replicas = perturbed_replicas(original, 4)
    assert len({fingerprint_sqlite(path) for path in [original, *replicas]}) == 5


def test_most_rows_survive(original):
    before = contents(original)
    for replica in perturbed_replicas(original, 4):
        for name, rows in contents(replica).items():
            assert 0.5 * len(before[name]) <= len(rows) <= 1.3 * len(before[name]) + 1, name


def test_the_same_seed_gives_the_same_replicas(company, cache, monkeypatch):
    first = [fingerprint_sqlite(path) for path in perturbed_replicas(company, 3, seed=7)]
    other_seed = [fingerprint_sqlite(path) for path in perturbed_replicas(company, 3, seed=8)]
    monkeypatch.setenv("NL2SQL_CACHE", str(cache / "second"))
    assert [fingerprint_sqlite(path) for path in perturbed_replicas(company, 3, seed=7)] == first
    assert not set(first) & set(other_seed)


def test_a_longer_suite_begins_with_the_shorter_one(company):
    few = perturbed_replicas(company, 2)
    stamps = [path.stat().st_mtime_ns for path in few]
    assert perturbed_replicas(company, 4)[:2] == few
    assert [path.stat().st_mtime_ns for path in few] == stamps  # found in the cache, not built again


def test_the_original_is_not_touched(company):
    before = company.read_bytes()
    perturbed_replicas(company, 2)
    shuffled_copies(company, [0])[0]
    assert company.read_bytes() == before
    assert [path.name for path in company.parent.iterdir() if path.is_file()] == [company.name]


def test_a_changed_original_gets_other_replicas(company):
    before = perturbed_replicas(company, 1)
    build(company, "INSERT INTO offices VALUES ('Z9', 'Chur', NULL);")
    assert perturbed_replicas(company, 1) != before


def test_concurrent_builders_end_with_complete_files(company, cache):
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: perturbed_replicas(company, 4), range(4)))
    assert all(result == results[0] for result in results)
    assert all(query(path, "PRAGMA integrity_check") == [("ok",)] for path in results[0])
    assert [path for path in cache.rglob("*") if path.is_file() and path.suffix != ".sqlite"] == []


def test_perturbation_brings_nulls_duplicates_and_new_values_where_allowed(company):
    rows = [row for path in perturbed_replicas(company, 6) for row in query(path, "SELECT text, flag, made FROM notes")]
    assert any(text is None for text, _, _ in rows)
    assert max(Counter(rows).values()) > 1
    known = set(query(company, "SELECT text FROM notes"))
    assert {(text,) for text, _, _ in rows} - known
    assert {flag for _, flag, _ in rows} <= {0, 1, None}  # a flag only takes its own values
    assert "trigger" not in {made for _, _, made in rows}  # triggers do not fire on the rows written


def test_rows_without_a_partner_appear(company):
    bare = "SELECT count(*) FROM projects WHERE id NOT IN (SELECT project FROM works)"
    assert query(company, bare) == [(0,)]
    assert sum(query(path, bare)[0][0] for path in perturbed_replicas(company, 12)) > 0


def test_large_tables_are_sampled_down_closed_under_foreign_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(perturb, "TABLE_ROWS", 600)
    script = """
    CREATE TABLE p (id INTEGER PRIMARY KEY, v TEXT);
    CREATE TABLE c (id INTEGER PRIMARY KEY, p INTEGER NOT NULL REFERENCES p(id));
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9000)
    INSERT INTO p SELECT i, i % 10 FROM n;
    INSERT INTO c SELECT id, 1 + (id * 7919) % 9000 FROM p;
    """
    path = build(tmp_path / "large.sqlite", script)
    for replica in perturbed_replicas(path, 2):
        counts = [query(replica, f"SELECT count(*) FROM {name}")[0][0] for name in "pc"]
        assert all(300 < count <= 660 for count in counts)
        assert query(replica, "PRAGMA foreign_key_check") == []


def test_a_foreign_key_that_does_not_hold_in_the_original_is_not_repaired(tmp_path):
    path = build(
        tmp_path / "dirty.sqlite",
        """
        CREATE TABLE p (id INTEGER PRIMARY KEY);
        CREATE TABLE c (p INTEGER REFERENCES p(id), q TEXT REFERENCES gone(x), n INT);
        INSERT INTO p VALUES (1), (2), (3);
        INSERT INTO c VALUES (1, 'a', 1), (9, 'b', 2), (9, 'b', 3), (2, 'c', 4);
        """,
    )
    rows = [row for replica in perturbed_replicas(path, 4) for row in query(replica, "SELECT p FROM c")]
    assert (9,) in rows


def test_broken_text_and_virtual_tables_do_not_stop_the_build(tmp_path):
    path = build(
        tmp_path / "odd.sqlite", "CREATE TABLE t (a TEXT); INSERT INTO t VALUES (CAST(x'ff41' AS TEXT)), ('b');"
    )
    try:
        build(path, "CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES ('some text');")
    except sqlite3.OperationalError:
        pytest.skip("this SQLite has no fts5")
    (replica,) = perturbed_replicas(path, 1)
    assert query(replica, "SELECT body FROM f WHERE f MATCH 'some'") == [("some text",)]
    assert query(shuffled_copies(path, [0])[0], "SELECT count(*) FROM t") == [(2,)]


def test_a_virtual_table_of_an_unknown_module_does_not_stop_the_build(tmp_path, caplog):
    path = build(
        tmp_path / "odd.sqlite",
        "CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('a'), ('b'); PRAGMA writable_schema = 1;"
        "INSERT INTO sqlite_master VALUES ('table', 'v', 'v', 0, 'CREATE VIRTUAL TABLE v USING vec0(x)');",
    )
    assert query(perturbed_replicas(path, 1)[0], "SELECT count(*) > 0 FROM t") == [(1,)]
    assert "virtual table v cannot be read: no such module: vec0" in caplog.text


def test_an_index_that_refuses_a_changed_row_does_not_stop_the_build(tmp_path, caplog):
    notes = ", ".join(f"""({n}, {n % 7}, '{{"a": {n}, "b": "{"x" * n}"}}')""" for n in range(60))
    path = build(
        tmp_path / "notes.sqlite",
        f"CREATE TABLE t (id INTEGER PRIMARY KEY, v INT, s TEXT); INSERT INTO t VALUES {notes};"
        "CREATE INDEX e ON t (json_extract(s, '$.a')); CREATE INDEX plain ON t (v);",
    )
    for replica in perturbed_replicas(path, 3):
        assert query(replica, "SELECT count(*) FROM t")[0][0] > 30
        assert ("plain",) in query(replica, "SELECT name FROM sqlite_master WHERE type = 'index'")


def test_a_database_in_wal_mode_is_read_with_its_last_rows_and_left_alone(tmp_path):
    path = tmp_path / "wal" / "w.sqlite"
    path.parent.mkdir()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript(
        "PRAGMA journal_mode=WAL; CREATE TABLE t (a INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3);"
    )
    before = sorted(file.name for file in path.parent.iterdir())
    assert query(shuffled_copies(path, [0])[0], "SELECT count(*) FROM t") == [(3,)]
    assert query(perturbed_replicas(path, 1)[0], "SELECT count(*) > 0 FROM t") == [(1,)]
    assert sorted(file.name for file in path.parent.iterdir()) == before
    writer.close()


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_the_shuffled_copy_has_the_same_rows_in_another_order(original, seed):
    before, after = contents(original), contents(shuffled_copies(original, [seed])[0])
    for name, rows in before.items():
        assert Counter(after[name]) == Counter(rows)
        if seed is None:
            assert after[name] == rows[::-1]


def test_the_shuffled_copy_keeps_views_and_collations(tmp_path, company):
    assert query(shuffled_copies(company, [0])[0], "SELECT count(*) FROM staff") == [(60,)]
    strict = build(tmp_path / "s.sqlite", SCHEMAS["strict, generated and case-insensitive columns"])
    assert query(shuffled_copies(strict, [0])[0], "SELECT n, double_n FROM s WHERE name = 'ITEM 3'") == [(8, 16)]


def test_a_type_of_any_text_keeps_its_affinity_in_the_shuffled_copy(tmp_path):
    script = 'CREATE TABLE t (a "decimal (10-2)", b "some text!", c); INSERT INTO t VALUES ("7", 7, "7")'
    copy = shuffled_copies(build(tmp_path / "t.sqlite", script), [0])[0]
    assert query(copy, "SELECT typeof(a), typeof(b), typeof(c), a > 10, b > 10 FROM t") == [
        ("integer", "text", "text", 0, 1)
    ]


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_copies_are_encoded_as_the_original(tmp_path, encoding):
    original = build(
        tmp_path / "wide.sqlite",
        f"PRAGMA encoding='{encoding}'; CREATE TABLE t (n TEXT); INSERT INTO t VALUES ('Zoë'), ('Rio'), ('Nîmes')",
    )
    shuffled, replica = shuffled_copies(original, [None])[0], perturbed_replicas(original, 1)[0]
    assert query(shuffled, "SELECT n FROM t") == [("Nîmes",), ("Rio",), ("Zoë",)]
    assert query(shuffled, "PRAGMA encoding") == query(replica, "PRAGMA encoding") == [(encoding,)]


def test_large_fractional_keys_get_new_neighbours(tmp_path):
    rows = ", ".join(f"({1.2e18 + 1000 * number}, {number})" for number in range(20))
    path = build(tmp_path / "t.sqlite", f"CREATE TABLE t (id REAL PRIMARY KEY, n INT); INSERT INTO t VALUES {rows}")
    assert query(perturbed_replicas(path, 1)[0], "SELECT count(*) > 10, count(*) = count(DISTINCT id) FROM t") == [
        (1, 1)
    ]
    assert fresh(math.inf, {math.inf}, 0) == 0.0


@pytest.mark.parametrize(
    ("text", "message"), [(None, "does not exist"), (b"not a database at all" * 100, "no replica|not a|cannot")]
)
def test_a_file_that_is_no_database_is_one_clear_line(tmp_path, text, message):
    path = tmp_path / "x.sqlite"
    if text is not None:
        path.write_bytes(text)
    for build_from in (lambda: perturbed_replicas(path, 1), lambda: shuffled_copies(path, [0])[0]):
        with pytest.raises(DatabaseError, match=message):
            build_from()


def test_a_negative_number_of_replicas_is_refused(company):
    with pytest.raises(UsageError):
        perturbed_replicas(company, -1)


def test_a_relative_path_is_read_from_where_the_program_is_now(tmp_path, monkeypatch):
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        build(folder / f"{name}.sqlite", f"CREATE TABLE {name} (a INTEGER PRIMARY KEY); INSERT INTO {name} VALUES (1)")
        monkeypatch.chdir(folder)
        assert [path.is_file() for path in perturbed_replicas(f"{name}.sqlite", 1)] == [True]
