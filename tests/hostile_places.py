"""More database files made to do harm: what stands at the path, beside it, or in it; ``build`` makes one of each kind.

``hostile_files`` has those that are an ordinary file with a hostile schema or damaged bytes.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hostile_files import PEOPLE

COUNT = "SELECT count(*) FROM people"
QUICK = "PRAGMA journal_mode=off; PRAGMA synchronous=off;"
TERABYTE = 2**40
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
BOMB = "instr(hex(zeroblob(2000000)), hex(zeroblob(500000)) || '1')"  # minutes, and nothing can interrupt it
QUOTED_BOMB = BOMB.replace("'", "''")


def _views(count: int, body: str) -> str:
    first = "CREATE VIEW v0 AS SELECT id AS x FROM people;"
    return first + "".join(f"CREATE VIEW v{k} AS {body.format(k - 1)};" for k in range(1, count + 1))


def _schema_entry(values: str) -> str:
    return f"{PEOPLE}PRAGMA writable_schema=on; INSERT INTO sqlite_master VALUES ({values});"


# kind -> (script, statement that springs the trap)
SCRIPTS: dict[str, tuple[str, str]] = {
    "views that double 30 times": (
        PEOPLE + _views(30, "SELECT a.x FROM v{0} a, v{0} b"),
        "SELECT count(*) FROM v30",
    ),
    "views in a chain of 2,000": (PEOPLE + _views(2000, "SELECT x FROM v{0}"), "SELECT * FROM v2000"),
    "views that read each other": (
        PEOPLE + "CREATE VIEW a AS SELECT * FROM b; CREATE VIEW b AS SELECT * FROM a;",
        "SELECT * FROM a",
    ),
    "a view of billions of rows": (
        PEOPLE + f"CREATE VIEW v AS {ENDLESS} SELECT a.i FROM n a, people b LIMIT 9000000000;",
        "SELECT count(*) FROM v",
    ),
    "10,000 tables": (
        "PRAGMA page_size=512;"
        + "".join(f"CREATE TABLE t{k} (id INTEGER PRIMARY KEY, a TEXT, b REFERENCES t{k // 2});" for k in range(9999))
        + PEOPLE,
        COUNT,
    ),
    "50,000 views": (
        _schema_entry("'view', 'v', 'v', 0, 'CREATE VIEW v AS SELECT 1'") + f"INSERT INTO sqlite_master {ENDLESS}"
        " SELECT 'view', 'v' || i, 'v' || i, 0, 'CREATE VIEW v' || i || ' AS SELECT 1' FROM n LIMIT 50000;",
        COUNT,
    ),
    "a CHECK that takes for ever": (
        f"CREATE TABLE people (id, name TEXT CHECK (name <> 'x' OR {BOMB} = 0));"
        "INSERT INTO people VALUES (1, 'Ann'); PRAGMA ignore_check_constraints=on;"
        "INSERT INTO people VALUES (2, 'x'), (3, 'x'), (4, 'x'), (5, 'x'), (6, 'x');",
        COUNT,
    ),
    "an index on an expression that takes for ever": (
        "CREATE TABLE people (id, name TEXT); INSERT INTO people VALUES (1, 'Ann'), (2, 'x');"
        "CREATE INDEX i ON people(CASE WHEN name = 'Ann' THEN 1 ELSE 0 END); PRAGMA writable_schema=on;"
        f"UPDATE sqlite_master SET sql = 'CREATE INDEX i ON people({QUOTED_BOMB})' WHERE name = 'i';",
        COUNT,
    ),
    "a stored column that explodes": (
        "CREATE TABLE people (id, x AS (hex(zeroblob(id % 30000000))) STORED);"
        "INSERT INTO people(id) VALUES (1), (2); PRAGMA writable_schema=on; UPDATE sqlite_master SET sql ="
        " 'CREATE TABLE people (id, x AS (hex(zeroblob(id + 30000000))) STORED)' WHERE name = 'people';",
        "SELECT length(x) FROM people",
    ),
    "UTF-16, little end first": (f"PRAGMA encoding='UTF-16le'; {PEOPLE}", COUNT),
    "UTF-16, big end first": (f"PRAGMA encoding='UTF-16be'; {PEOPLE}", COUNT),
    "names with control characters": (
        'CREATE TABLE "a\x1b[31mb\rc\x07" (id, "x\x1b]0;title\x07" TEXT);',
        'SELECT * FROM "a\x1b[31mb\rc\x07"',
    ),
    "names with all kinds of quotes": (
        """CREATE TABLE "a""b'c`d]e[f;--" (id, "';DROP TABLE x;--" TEXT);""",
        """SELECT "';DROP TABLE x;--" FROM "a""b'c`d]e[f;--" """,
    ),
    "names with a NUL": (
        PEOPLE + "PRAGMA writable_schema=on; UPDATE sqlite_master SET name = 'a' || char(0) || 'b';",
        COUNT,
    ),
    "names that are no UTF-8": (
        PEOPLE + "PRAGMA writable_schema=on; UPDATE sqlite_master SET name = CAST(x'70ff70' AS TEXT),"
        " tbl_name = CAST(x'70ff70' AS TEXT), sql = CAST('CREATE TABLE ' || x'70ff70' || ' (id, name)' AS TEXT);",
        COUNT,
    ),
    "a CREATE that is cut": (_schema_entry("'table', 'm', 'm', 2, 'CREATE TABLE m (a INT, b'"), COUNT),
    "a CREATE of 30 MB": (
        _schema_entry("'view', 'm', 'm', 0, 'CREATE VIEW m AS SELECT 1 -- ' || hex(zeroblob(15000000))"),
        COUNT,
    ),
    "schema entries without SQL": (_schema_entry("'table', 'm', 'm', 2, NULL"), "SELECT * FROM m"),
    "schema entries that are blobs": (_schema_entry("x'00', x'ff', x'ff', x'ff', x'ff'"), COUNT),
    "a table that says it has no rowid": (
        PEOPLE + "PRAGMA writable_schema=on; UPDATE sqlite_master SET sql ="
        " 'CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT) WITHOUT ROWID';",
        COUNT,
    ),
    "foreign keys in a circle of 500 tables": (
        PEOPLE + "".join(f"CREATE TABLE t{k} (id REFERENCES t{(k + 1) % 500});" for k in range(500)),
        "SELECT * FROM t1 NATURAL JOIN t2",
    ),
    "2,000 foreign keys of one table": (
        PEOPLE + "CREATE TABLE t (id" + ", FOREIGN KEY (id) REFERENCES people (id)" * 2000 + ");",
        "SELECT * FROM t",
    ),
    "statistics that lie": (
        PEOPLE + "ANALYZE; DELETE FROM sqlite_stat1; INSERT INTO sqlite_stat1 VALUES"
        " ('people', NULL, '9223372036854775807 -1 x'), ('people', 'nowhere', hex(zeroblob(100000)));",
        "SELECT * FROM people ORDER BY name",
    ),
    "an expression 900 deep": (
        PEOPLE + "CREATE VIEW v AS SELECT 1" + " + 1" * 900 + " AS x;",
        "SELECT * FROM v",
    ),
    "a text of 70 MB": (PEOPLE + "INSERT INTO people VALUES (3, hex(zeroblob(35000000)));", "SELECT * FROM people"),
}


def _interior(child: int, size: int = 512) -> bytes:
    """A page of a table's tree, all of whose children are the same."""
    cells = (size - 12) // 8
    page = bytearray(size)
    page[:12] = struct.pack(">BHHHBI", 5, 0, cells, size - cells * 6, 0, child)
    for k in range(cells):
        at = size - (k + 1) * 6
        page[12 + 2 * k : 14 + 2 * k] = struct.pack(">H", at)
        page[at : at + 6] = struct.pack(">IBB", child, 0x81, k)
    return bytes(page)


def _tree_that_doubles(path: Path) -> None:
    """Twelve levels of pages, each of which is the only child of the one above, sixty times."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA page_size=512; CREATE TABLE people (id, name);")
        connection.execute("CREATE TABLE room (x)")
        connection.executemany("INSERT INTO room VALUES (zeroblob(400))", [()] * 20)
        connection.execute("INSERT INTO people VALUES (1, 'Ann')")
        connection.commit()
    data = bytearray(path.read_bytes())
    leaf = data[512:1024]
    for level in range(12):
        data[512 * (1 + level) : 512 * (2 + level)] = _interior(level + 3)
    data[512 * 13 : 512 * 14] = leaf
    path.write_bytes(data)


def _overflow_that_bites_its_tail(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript("PRAGMA page_size=512; CREATE TABLE people (id, name);")
        connection.execute("INSERT INTO people VALUES (1, zeroblob(200000))")
        connection.commit()
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 512):
        data[512 * page : 512 * page + 4] = struct.pack(">I", 3)
    path.write_bytes(data)


# what is refused at a deadline, or takes a second by itself: not looked at by the tests of every kind
SLOW = frozenset(
    kind
    for kind in SCRIPTS
    if any(word in kind for word in ("double", "chain", "billions", "10,000", "50,000", "for ever", "explodes", "MB"))
) | {"a tree whose pages are met again and again", "a file that somebody has locked"}


class Zoo:
    """A folder in which one file of each kind is made. ``kinds``: name -> (path, statement)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.kinds: dict[str, tuple[Path, str]] = {}
        self.meanwhile: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {}
        self.good = folder / "good.sqlite"
        with contextlib.closing(sqlite3.connect(self.good)) as connection:
            connection.executescript(PEOPLE)

    def add(self, kind: str, path: Path, sql: str = COUNT) -> Path:
        self.kinds[kind] = (path, sql)
        return path

    def fresh(self, kind: str, name: str | None = None, *, wal: bool = False) -> Path:
        """A sound database for a kind, at a name of its own."""
        path = self.add(kind, self.folder / (name or f"place{len(self.kinds)}.sqlite"))
        data = bytearray(self.good.read_bytes())
        if wal:
            data[18:20] = b"\2\2"
        path.write_bytes(data)
        return path

    def link(self, kind: str, target: str) -> None:
        self.add(kind, self.folder / f"place{len(self.kinds)}.sqlite").symlink_to(target)


def build(folder: Path) -> Zoo:
    """All kinds."""
    zoo = Zoo(folder)
    for kind, (script, statement) in SCRIPTS.items():
        path = zoo.add(kind, folder / f"more{len(zoo.kinds)}.sqlite", statement)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(QUICK + script)
    _trees(zoo)
    _at_the_path(zoo)
    _beside_it(zoo)
    _sizes(zoo)
    _names(zoo)
    _in_use(zoo)
    return zoo


def _trees(zoo: Zoo) -> None:
    _tree_that_doubles(zoo.add("a tree whose pages are met again and again", zoo.folder / "tree.sqlite", COUNT))
    path = zoo.add("a value whose pages run in a circle", zoo.folder / "chain.sqlite", "SELECT * FROM people")
    _overflow_that_bites_its_tail(path)


def _at_the_path(zoo: Zoo) -> None:
    zoo.add("no file", zoo.folder / "nowhere.sqlite")
    zoo.add("a folder", zoo.folder / "folder.sqlite").mkdir()
    os.mkfifo(zoo.add("a pipe", zoo.folder / "pipe.sqlite"))
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        here = Path.cwd()
        os.chdir(zoo.folder)  # the path of a socket has at most a hundred characters
        try:
            listener.bind("socket.sqlite")
        finally:
            os.chdir(here)
    zoo.add("a socket", zoo.folder / "socket.sqlite")
    zoo.link("a link to a device without end", "/dev/zero")
    zoo.link("a link to the terminal", "/dev/tty")
    zoo.link("a link to the kernel's log", "/proc/kmsg")
    zoo.link("a link to this process's memory", "/proc/self/mem")
    zoo.link("a link to nothing", str(zoo.folder / "nothing"))
    zoo.link("a link to itself", str(zoo.folder / f"place{len(zoo.kinds)}.sqlite"))
    zoo.link("a link to a sound database", str(zoo.good))
    zoo.add("a path that is too long", zoo.folder / Path(*["d" * 200] * 30) / "x.sqlite")
    zoo.add("a file as a folder", zoo.good / "x.sqlite")
    zoo.add("text", zoo.folder / "text.sqlite").write_text("id,name\n1,Ann\n")
    zoo.add("a compressed database", zoo.folder / "gz.sqlite").write_bytes(gzip.compress(zoo.good.read_bytes()))
    zoo.add("one byte", zoo.folder / "byte.sqlite").write_bytes(b"S")
    zoo.add("sixteen right bytes", zoo.folder / "magic.sqlite").write_bytes(b"SQLite format 3\0")
    zoo.fresh("no permission to read").chmod(0)


def _beside_it(zoo: Zoo) -> None:
    for suffix, wal in (("-journal", False), ("-wal", True), ("-shm", True)):
        path = zoo.fresh(f"a pipe as its {suffix}", wal=wal)
        os.mkfifo(f"{path}{suffix}")
        path = zoo.fresh(f"a link to a device as its {suffix}", wal=wal)
        Path(f"{path}{suffix}").symlink_to("/dev/zero")
        path = zoo.fresh(f"a folder as its {suffix}", wal=wal)
        Path(f"{path}{suffix}").mkdir()
    path = zoo.fresh("a WAL of a terabyte of nothing", wal=True)
    _sparse(Path(f"{path}-wal"))
    path = zoo.fresh("a journal of a terabyte of nothing")
    _sparse(Path(f"{path}-journal"))
    path = zoo.fresh("a journal that names another one to read")
    name = b"/dev/zero"
    tail = struct.pack(">II", len(name), sum(name)) + b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    Path(f"{path}-journal").write_bytes(
        b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + b"\0\0\0\1" + b"\0" * 500 + b"\1" * 4104 + b"\0\0\0\1" + name + tail
    )
    closed = zoo.folder / "closed"
    closed.mkdir()
    zoo.fresh("a WAL database in a folder that cannot be written", "closed/place.sqlite", wal=True)
    closed.chmod(0o555)


def _sizes(zoo: Zoo) -> None:
    _sparse(zoo.fresh("a terabyte, nearly all of it a hole"))
    _sparse(zoo.fresh("a terabyte with a WAL, nearly all of it a hole", wal=True))
    _sparse(zoo.add("a terabyte of zeros", zoo.folder / "zeros.sqlite"))
    path = zoo.fresh("a page count of four billion")
    data = bytearray(path.read_bytes())
    data[28:32] = b"\xff\xff\xff\xfe"
    data[96:100] = data[24:28]
    path.write_bytes(data)


def _sparse(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(TERABYTE)


def _names(zoo: Zoo) -> None:
    for kind, name in (
        ("a name with a line break", "a\nb.sqlite"),
        ("a name that colours the terminal", "\x1b[31mred\x07.sqlite"),
        ("a name that means something in an address", "a?mode=rwc&b=%00#c'\".sqlite"),
        ("a name that is no UTF-8", "a\udcff.sqlite"),
    ):
        with contextlib.suppress(OSError):  # a file system may refuse it
            zoo.fresh(kind, name)
        broken = zoo.folder / f"broken {name}"
        with contextlib.suppress(OSError):
            zoo.add(f"{kind}, and noise in it", broken).write_bytes(b"noise" * 100)
    zoo.add("a name with a NUL", zoo.folder / "a\0b.sqlite")


def _in_use(zoo: Zoo) -> None:
    growing = zoo.fresh("a file that grows meanwhile")
    zoo.meanwhile["a file that grows meanwhile"] = lambda: _growing(growing)
    wal = zoo.fresh("a WAL database that grows meanwhile", wal=True)
    zoo.meanwhile["a WAL database that grows meanwhile"] = lambda: _growing(wal)
    locked = zoo.fresh("a file that somebody has locked")
    zoo.meanwhile["a file that somebody has locked"] = lambda: _locked(locked)


@contextlib.contextmanager
def _growing(path: Path) -> Iterator[None]:
    end = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            while not end.is_set() and file.tell() < 200 * 2**20:
                file.write(b"\0" * 2**16)
                file.flush()
                time.sleep(0.002)

    thread = threading.Thread(target=grow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


LOCK = (
    "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN EXCLUSIVE'); print(1, flush=True); input()"
)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """In another process: what this one opens and closes would take its own lock away."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LOCK, str(path)], **pipes) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()
