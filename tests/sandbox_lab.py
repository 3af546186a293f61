"""A laboratory for hostile statements and files: a sandbox, and what must hold after every statement in it.

No file is created or changed in the folder of the database, the working directory or the temporary folder; an answer
comes within the deadline + 0.5 s (times ``slack``, for busy machines); an error is one line and of a documented kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from people import make_database

from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.interfaces import RunResult

CORPUS = Path(__file__).parent / "fixtures" / "hostile_statements.tsv"
KINDS = (
    "syntax unknown_table unknown_column ambiguous_column denied multi_statement empty timeout too_many_rows memory "
    "too_large other"  # worker_died is documented as well, but no statement should get there
)
OVERRUN_S = 0.5  # what an answer may come after its deadline
PARSE_S = 5.0  # our own reading of a prediction, in seconds of processor time


class Violation(AssertionError):
    """The sandbox did not hold."""


def read_corpus(path: Path = CORPUS) -> list[list[str]]:
    """[family, allowed outcomes, statement] per line of the corpus, marks not yet expanded."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [line.split("\t", 2) for line in lines if line and not line.startswith("#")]


def expand(text: str, folder: Path) -> str:
    """The statement that a line of the corpus stands for (its head explains the marks)."""
    text = re.sub(r"«([^»]*)»\*(\d+)", lambda m: m[1] * int(m[2]), text)
    for sign, meaning in (("⏎", "\n"), ("␀", "\0"), ("⟨DIR⟩", str(folder)), ("⟨LONE⟩", "\ud800")):
        text = text.replace(sign, meaning)
    return text


def snapshot(*folders: Path) -> dict[str, str]:
    """SHA-256 of every file below ``folders``."""
    return {
        str(f): _digest(f, *_stamps(f)) if f.is_file() else "other"
        for folder in folders
        for f in sorted(folder.rglob("*"))
    }


def _stamps(file: Path) -> tuple[int, ...]:
    """What the file system changes with the content; no program can set the time of the inode."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=10_000)
def _digest(file: Path, *stamps: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass
class Lab:
    """A database, a working directory and a temporary folder that nothing may touch, and a pool over them."""

    root: Path
    deadline_s: float = 0.25
    slack: float = 1.0

    def __post_init__(self) -> None:
        self.folders = [self.root / name for name in ("data", "work", "temporary")]
        for folder in self.folders:
            folder.mkdir(parents=True)
        self.data, self.work, self.temporary = self.folders
        self.database = self.data / "people.sqlite"
        make_database(self.database)

    @contextlib.contextmanager
    def open(self) -> Iterator[Lab]:
        """Stand in the laboratory: working directory, temporary folder, pool."""
        names = ("TMPDIR", "SQLITE_TMPDIR")
        before, saved, temp = Path.cwd(), {name: os.environ.get(name) for name in names}, tempfile.tempdir
        os.chdir(self.work)
        os.environ.update(dict.fromkeys(names, str(self.temporary)))
        tempfile.tempdir = str(self.temporary)
        try:
            with QueryPool(workers=1) as self.pool:
                self.pool.run(self.database, "SELECT 1", timeout_s=60)
                yield self
        finally:
            os.chdir(before)
            tempfile.tempdir = temp
            for name, value in saved.items():
                os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)

    def check(self, sql: str, database: Path | None = None) -> list[RunResult]:
        """What ``run`` and ``explain`` make of ``sql``. Raises Violation."""
        path = database or self.database
        before = snapshot(*self.folders)
        results = []
        for door in (self.pool.run, self.pool.explain):
            began = time.monotonic()
            results.append(result := door(path, sql, timeout_s=self.deadline_s))
            late = time.monotonic() - began - self.deadline_s
            if late > OVERRUN_S * self.slack:
                raise Violation(f"{door.__name__} answered {late:.2f} s after its deadline")
            if (reason := complaint(result)) is not None:
                raise Violation(f"{door.__name__}: {reason}")
        if (after := snapshot(*self.folders)) != before:
            raise Violation(f"files changed: {sorted(set(after.items()) ^ set(before.items()))[:3]}")
        return results

    def read_as_prediction(self, sql: str) -> None:
        """Everything that scoring does to the text itself, in this process. Raises Violation."""
        from nl2sql.eval.rules.order import order_matters
        from nl2sql.sql.features import features
        from nl2sql.sql.same import exact_match

        reading: Callable[[str], object]
        for reading in (lambda text: exact_match("SELECT 1", text), features, order_matters):
            started = time.thread_time()
            reading(sql)
            if (spent := time.thread_time() - started) > PARSE_S:
                raise Violation(f"reading the text took {spent:.1f} s")


def complaint(result: RunResult) -> str | None:
    """What is wrong with the form of a result; None for a sound one."""
    if result.success:
        return None if result.error is None and result.error_kind is None else "a success with an error"
    if result.error_kind not in KINDS.split():
        return f"error kind {result.error_kind!r}: {result.error}"
    if not result.error or len(result.error.splitlines()) != 1 or len(result.error) > 2500:
        return f"the error is not one line: {result.error!r}"
    return None if result.rows == () else "rows beside an error"


# --------------------------------------------------------------------------------------------------- mutation

TOKEN = re.compile(r"\s+|\w+|'(?:[^']|'')*'|.", re.DOTALL)
WORDS = """SELECT FROM people name * ( ) , ; ' " ` [ ] -- /* */ WHERE LIKE GLOB UNION ALL WITH RECURSIVE AS DELETE
INSERT INTO ATTACH PRAGMA EXPLAIN VALUES VACUUM JOIN LEFT NATURAL ON USING CASE WHEN THEN END OVER PARTITION BY ORDER
GROUP HAVING LIMIT OFFSET DISTINCT EXISTS IN BETWEEN CAST COLLATE RETURNING REPLACE MATERIALIZED sqlite_master temp
main numbers adults 1 -1 0 NULL x'00' 1e999 9223372036854775807 2147483647 ? :a || = < -> ->>""".split()  # noqa: SIM905
WORDS += ["\0", "\n", "\ud800", "\ufeff", "🎉"]
FUNCTIONS = """abs char coalesce concat count format glob group_concat hex ifnull iif instr json json_array
json_array_length json_each json_extract json_group_array json_group_object json_insert json_object json_patch
json_quote json_remove json_replace json_set json_tree json_type json_valid last_insert_rowid length like likelihood
load_extension lower ltrim matchinfo max min nth_value ntile nullif printf quote random randomblob replace round rtrim
rtreecheck rtreenode sign snippet soundex sqlite_compileoption_get sqlite_offset strftime substr sum total trim typeof
unhex unicode unlikely upper zeroblob""".split()  # noqa: SIM905
ARGUMENTS = """1 -1 NULL '' 'a' '%.*c' '%999999999d' '$' '$[0]' '[1,[2]]' 2147483647 1e999 x'ff' zeroblob(9000000)
hex(zeroblob(1000000)) name id i * 'now' char(0)""".split()  # noqa: SIM905
ARGUMENTS += ["'+1 day'", "CAST(x'ff' AS TEXT)", "'{\"a\": 1}'"]
WRAPPERS = (
    "SELECT * FROM ({})",
    "WITH x AS ({}) SELECT * FROM x, x AS y",
    "SELECT ({})",
    "{} UNION ALL {}",
    "SELECT 1 WHERE EXISTS ({})",
    "SELECT count(*) FROM ({}), numbers a, numbers b",
    "EXPLAIN {}",
    "{}; {}",
    "SELECT group_concat(a.name) OVER (ORDER BY ({})) FROM people a",
    "WITH RECURSIVE x(n) AS ({} UNION ALL SELECT n FROM x) SELECT * FROM x",
    "DELETE FROM people WHERE id IN ({}) RETURNING *",
    "INSERT INTO people(id) {}",
    "CREATE TEMP TABLE people AS {}",
)


def call(rng: random.Random, depth: int = 0) -> str:
    """A call of some SQLite function on extreme arguments."""
    arguments = [
        call(rng, depth + 1) if depth < 3 and rng.random() < 0.3 else rng.choice(ARGUMENTS)
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))
    ]
    return f"{rng.choice(FUNCTIONS)}({', '.join(arguments)})"


def mutate(rng: random.Random, corpus: list[str], rounds: int | None = None) -> str:
    """One statement made of the corpus by a few random changes; at most 120,000 characters."""
    sql = rng.choice(corpus)
    for _ in range(rng.randint(1, 4) if rounds is None else rounds):
        tokens = TOKEN.findall(sql[:20_000]) or [" "]
        at = rng.randrange(len(tokens))
        upto = min(len(tokens), at + rng.choice((1, 1, 2, 5, 20)))
        match rng.randrange(9):
            case 0:
                del tokens[at:upto]
            case 1:
                tokens[at:at] = tokens[at:upto] * rng.choice((1, 3, 50))
            case 2:
                tokens[at] = f" {rng.choice(WORDS)} "
            case 3:
                tokens.insert(at, f" {rng.choice(WORDS)} ")
            case 4:
                tokens[at:upto] = [call(rng)]
            case 5:
                tokens = [f"SELECT {call(rng)} FROM {rng.choice(('people', 'numbers', 'adults, numbers'))}"]
            case 6:
                tokens = [rng.choice(WRAPPERS).format("".join(tokens), rng.choice(corpus)[:5000])]
            case 7:
                tokens[at:] = TOKEN.findall(rng.choice(corpus)[:5000])[-rng.randint(1, 40) :]
            case 8:
                tokens[at] = rng.choice(("0", "-1", "1e999", "9223372036854775808", "'" * rng.randint(1, 9), "\0"))
        sql = "".join(tokens)[:120_000]
    return sql


def damaged(rng: random.Random, image: bytes) -> bytes:
    """``image`` with some bytes changed, or cut."""
    data = bytearray(image)
    for _ in range(rng.choice((1, 3, 30))):
        at = rng.randrange(100) if rng.random() < 0.3 else rng.randrange(len(data))
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)
