"""Database files that were made to do harm: ``build(folder)`` writes one of each kind."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

PEOPLE = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO people VALUES (1, 'Ann'), (2, 'Bob');"
ROWS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO big SELECT i FROM n;"
EXPONENTIAL = "CREATE VIEW v0 AS SELECT id AS x FROM people;" + "".join(
    f"CREATE VIEW v{k} AS SELECT a.x FROM v{k - 1} a, v{k - 1} b;" for k in range(1, 16)
)

# kind -> (script, statement that springs the trap); sqlite_master may be rewritten
SCRIPTS: dict[str, tuple[str, str]] = {
    "views that double": (PEOPLE + EXPONENTIAL, "SELECT count(*) FROM v15"),
    "endless view": (
        PEOPLE + "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;",
        "SELECT count(*) FROM v",
    ),
    "view that loads code": (PEOPLE + "CREATE VIEW v AS SELECT load_extension('evil.so') AS x;", "SELECT x FROM v"),
    "view on a pragma": (PEOPLE + "CREATE VIEW v AS SELECT * FROM pragma_database_list;", "SELECT * FROM v"),
    "triggers that feed each other": (
        PEOPLE + "CREATE TRIGGER a AFTER INSERT ON people BEGIN INSERT INTO people(name) VALUES ('x'); END;"
        "CREATE VIEW v AS SELECT * FROM people;"
        "CREATE TRIGGER b INSTEAD OF DELETE ON v BEGIN DELETE FROM people; END;",
        "DELETE FROM v RETURNING *",
    ),
    "generated column that explodes": (
        "CREATE TABLE people (id, x AS (hex(zeroblob(id)))); INSERT INTO people(id) VALUES (40000000), (20000000);",
        "SELECT x FROM people",
    ),
    "CHECK and DEFAULT with bombs": (
        "CREATE TABLE people (id CHECK (length(hex(zeroblob(30000000))) > 1), y DEFAULT (hex(zeroblob(900000000))));",
        "INSERT INTO people DEFAULT VALUES RETURNING *",
    ),
    "index on an expression": (
        "CREATE TABLE people (id); CREATE INDEX i ON people(abs(id) COLLATE NOCASE) WHERE id > 0;"
        "INSERT INTO people VALUES (1);",
        "SELECT * FROM people WHERE abs(id) = 1",
    ),
    "full text over an endless view": (
        PEOPLE + "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i AS rowid, sum(i) AS body FROM n;CREATE VIRTUAL TABLE f USING fts5(body, content='v');",
        "SELECT body FROM f",
    ),
    "shadow tables rewritten": (
        PEOPLE + "CREATE VIRTUAL TABLE f USING fts5(body); INSERT INTO f VALUES ('hello world');"
        "UPDATE f_data SET block = randomblob(200); UPDATE f_content SET c0 = randomblob(9);",
        "SELECT * FROM f WHERE f MATCH 'hello' ORDER BY rank",
    ),
    "r-tree nodes rewritten": (
        PEOPLE + "CREATE VIRTUAL TABLE r USING rtree(id, a, b); INSERT INTO r VALUES (1, 0, 5);"
        "UPDATE r_node SET data = x'ffff0001ffffffff';",
        "SELECT * FROM r WHERE a < 3",
    ),
    "virtual table of a missing module": (
        PEOPLE + "PRAGMA writable_schema=on; INSERT INTO sqlite_master VALUES ('table', 'm', 'm', 0,"
        " 'CREATE VIRTUAL TABLE m USING missing(\"/etc/passwd\")');",
        "SELECT * FROM m",
    ),
    "schema entry that is no CREATE": (
        PEOPLE + "PRAGMA writable_schema=on; INSERT INTO sqlite_master VALUES ('table', 'm', 'm', 2,"
        " 'ATTACH ''new.db'' AS x; SELECT 1');",
        "SELECT * FROM m",
    ),
    "two tables on one page": (
        PEOPLE + "CREATE TABLE big (i); PRAGMA writable_schema=on;"
        "UPDATE sqlite_master SET rootpage = 1 WHERE name = 'people';",
        "SELECT * FROM people",
    ),
    "collation nobody has": (
        "PRAGMA writable_schema=on; CREATE TABLE people (id, name);"
        "UPDATE sqlite_master SET sql = 'CREATE TABLE people (id, name COLLATE nowhere)';",
        "SELECT * FROM people ORDER BY name",
    ),
    "names with line breaks": (
        'CREATE TABLE people (id, "a\nb" TEXT, "' + "x" * 50_000 + '" TEXT);',
        'SELECT "a\nb".x, * FROM people',
    ),
    "two thousand columns": (
        f"CREATE TABLE people ({', '.join(f'c{i}' for i in range(2000))}); INSERT INTO people(c0) VALUES (1);",
        "SELECT * FROM people",
    ),
    "values of 40 MB": (
        "CREATE TABLE people (id, x); INSERT INTO people VALUES (1, zeroblob(40000000)), (2, 1e999), (3, 0.0 / 0);",
        "SELECT * FROM people a, people b",
    ),
    "rows that multiply": ("CREATE TABLE big (i);" + ROWS, "SELECT * FROM big a, big b, big c"),
    "text that is no UTF-8": (
        "CREATE TABLE people (x TEXT); INSERT INTO people VALUES (CAST(x'ff00fe' AS TEXT));",
        "SELECT x FROM people",
    ),
}
# kind -> (offset, bytes) written over an ordinary file
SURGERY: dict[str, tuple[int, bytes]] = {
    "page size of zero": (16, b"\0\0"),
    "page size of one": (16, b"\0\1"),
    "more pages than bytes": (28, b"\x7f\xff\xff\xff"),
    "unknown text encoding": (56, b"\0\0\0\x63"),
    "write version from the future": (18, b"\x09\x09"),
    "free list that bites its tail": (32, b"\0\0\0\2\0\0\xff\xff"),
    "cells that point outside": (100, b"\x0d\0\0\xff\xff\0\0\0" + b"\xff" * 60),
    "first page an interior page": (100, b"\x05\0\0\0\1\0\0\0\0\0\0\1"),
    "second page that is its own child": (4096, b"\x05\0\0\0\1\x0f\xf0\0\0\0\0\2"),
    "bytes of noise": (4096, bytes(range(256)) * 16),
    "WAL mode without a WAL": (18, b"\2\2"),
}


def build(folder: Path) -> list[tuple[str, Path, str]]:
    """(kind, file, statement) for every kind."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number, (kind, (script, statement)) in enumerate(SCRIPTS.items()):
        path = folder / f"script{number}.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
        made.append((kind, path, statement))
    for number, (kind, (offset, patch)) in enumerate(SURGERY.items()):
        path = folder / f"surgery{number}.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript("PRAGMA page_size=4096; CREATE TABLE big (i);" + ROWS + PEOPLE)
        data = bytearray(path.read_bytes())
        data[offset : offset + len(patch)] = patch
        path.write_bytes(data)
        made.append((kind, path, "SELECT (SELECT count(*) FROM people) + (SELECT count(*) FROM big)"))
    whole = (folder / "surgery0.sqlite").read_bytes()
    for kind, name, data in (
        ("cut in the middle of a page", "cut.sqlite", whole[: len(whole) - 5000]),
        ("header only", "header.sqlite", b"SQLite format 3\0" + whole[16:100]),
        ("empty", "empty.sqlite", b""),
    ):
        (folder / name).write_bytes(data)
        made.append((kind, folder / name, "SELECT count(*) FROM people"))
    hot = folder / "hot.sqlite"
    hot.write_bytes((folder / "script0.sqlite").read_bytes())
    (folder / "hot.sqlite-journal").write_bytes(
        b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0\0\0\1" + b"\0" * 500 + b"\1" * 4104
    )
    made.append(("journal that wants to be rolled back", hot, "SELECT count(*) FROM people"))
    wal = folder / "wal.sqlite"
    data = bytearray((folder / "script0.sqlite").read_bytes())
    data[18:20] = b"\2\2"
    wal.write_bytes(data)
    (folder / "wal.sqlite-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(range(256)) * 40)
    made.append(("WAL of noise", wal, "SELECT count(*) FROM people"))
    return made
