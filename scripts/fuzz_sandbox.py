"""Fuzz the sandbox: kinds of hostile database files, or mutated statements for as long as you say.

    python scripts/fuzz_sandbox.py [--json] [--only NAME]   # every kind of file, read or refused within 5 s
    python scripts/fuzz_sandbox.py --seconds 60             # statements
    python scripts/fuzz_sandbox.py --seconds 600 --seed 7 --engine atheris   # pip install atheris

The files are in ``fuzz_files.py``. Statements go through ``run``, ``explain`` and what ``nl2sql score`` does to them.
Engines: ``mutator`` (default; our own, by a small grammar, seeded) and ``atheris`` (coverage of the Python side guides
the choice of input; SQLite itself runs in child processes that it does not see). Held after every statement: no file
created or changed in the folder of the database, the working directory or the temporary folder; an answer within the
deadline + 0.5 s (times ``--slack``, for busy machines); one line of error and a documented kind; memory of the
workers bounded; this process alive. Every tenth statement runs on a copy of the database with damaged bytes.
Prints one line per violation and a summary; exit code 1 when there was a violation.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import os
import random
import re
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nl2sql.databases.sqlite.pool import QueryPool
from nl2sql.interfaces import RunResult

CORPUS = Path(__file__).parent.parent / "tests" / "fixtures" / "hostile_statements.tsv"
KINDS = (
    "syntax unknown_table unknown_column ambiguous_column denied multi_statement empty timeout too_many_rows memory "
    "too_large other"  # worker_died is documented as well, but no statement should get there
)
OVERRUN_S = 0.5  # what an answer may come after its deadline
WORKER_MB = 2048  # address space of a worker, so its memory is below
PARSE_S = 5.0  # our own reading of a prediction, in seconds of processor time
STUCK_S = 120.0  # then nothing will come: say what was running, and end
SCHEMA = """
CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT NOT NULL, age INTEGER, note BLOB);
INSERT INTO people VALUES (1, 'Ann', 31, x'00ff'), (2, 'Bob', NULL, NULL), (3, 'Cid', 17, NULL);
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, owner REFERENCES people);
CREATE VIEW adults AS SELECT * FROM people WHERE age >= 18;
CREATE TABLE numbers (i INTEGER);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) INSERT INTO numbers SELECT i FROM n;
CREATE TABLE "order" ("my column" TEXT, "select" INT);
INSERT INTO "order" VALUES ('a', 1);
"""


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
        str(f): hashlib.sha256(f.read_bytes()).hexdigest() if f.is_file() else "other"
        for folder in folders
        for f in sorted(folder.rglob("*"))
    }


class MemoryWatch:
    """The peak resident memory of the children started from now on, in MB; 0 where there is no /proc."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._others = set(_children())
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(0.03):
            for pid in set(_children()) - self._others:
                self._look(pid)

    def _look(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            # Name first, memory after it: a child that execs between the two reads has left this process's memory.
            if Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes():
                return  # between fork and exec: the memory is this process's own
            found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
            self.peak_mb = max(self.peak_mb, int(found[1]) / 1024 if found else 0.0)


def _children() -> Iterator[int]:
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            yield from map(int, children.read_text().split())


@dataclass
class Lab:
    """A database, a working directory and a temporary folder that nothing may touch, and a pool over them."""

    root: Path
    deadline_s: float = 0.25
    slack: float = 1.0
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0  # after the deadline
    current: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        self.folders = [self.root / name for name in ("data", "work", "temporary")]
        for folder in self.folders:
            folder.mkdir(parents=True)
        self.data, self.work, self.temporary = self.folders
        self.database = self.data / "people.sqlite"
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            connection.executescript(SCHEMA)

    @contextlib.contextmanager
    def open(self) -> Iterator[Lab]:
        """Stand in the laboratory: working directory, temporary folder, pool, memory watch."""
        names = ("TMPDIR", "SQLITE_TMPDIR")
        before, saved, temp = Path.cwd(), {name: os.environ.get(name) for name in names}, tempfile.tempdir
        os.chdir(self.work)
        os.environ.update(dict.fromkeys(names, str(self.temporary)))
        tempfile.tempdir = str(self.temporary)
        try:
            with MemoryWatch() as self.memory, QueryPool(workers=1) as self.pool:
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
            self.current = (time.monotonic(), sql)
            results.append(result := door(path, sql, timeout_s=self.deadline_s))
            late = time.monotonic() - self.current[0] - self.deadline_s
            self.current = None
            self.slowest_s = max(self.slowest_s, late)
            self.outcomes["ok" if result.success else str(result.error_kind)] += 1
            if late > OVERRUN_S * self.slack:
                raise Violation(f"{door.__name__} answered {late:.2f} s after its deadline")
            if (reason := complaint(result)) is not None:
                raise Violation(f"{door.__name__}: {reason}")
        if (after := snapshot(*self.folders)) != before:
            raise Violation(f"files changed: {sorted(set(after.items()) ^ set(before.items()))[:3]}")
        if self.memory.peak_mb > WORKER_MB:
            raise Violation(f"a worker took {self.memory.peak_mb:.0f} MB")
        return results

    def read_as_prediction(self, sql: str) -> None:
        """Everything that scoring does to the text itself, in this process. Raises Violation."""
        from nl2sql.eval.rules.order import order_matters
        from nl2sql.sql.features import features
        from nl2sql.sql.same import exact_match

        reading: Callable[[str], object]
        for reading in (lambda text: exact_match("SELECT 1", text), features, order_matters):
            self.current = (time.monotonic(), sql)
            started = time.thread_time()
            reading(sql)
            if (spent := time.thread_time() - started) > PARSE_S:
                raise Violation(f"reading the text took {spent:.1f} s")
            self.current = None


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


# ------------------------------------------------------------------------------------------------------- runs


@dataclass
class Fuzz:
    """A run over one laboratory until ``until`` (monotonic seconds)."""

    lab: Lab
    corpus: list[str]
    until: float
    statements: int = 0
    violations: list[str] = field(default_factory=list)

    def once(self, rng: random.Random, sql: str | None = None) -> None:
        sql = mutate(rng, self.corpus) if sql is None else sql
        self.statements += 1
        database = None
        if self.statements % 10 == 0:
            database = self.lab.data / "damaged.sqlite"
            database.write_bytes(damaged(rng, self.lab.database.read_bytes()))
        try:
            self.lab.check(sql, database)
            self.lab.read_as_prediction(sql)
        except Violation as violation:
            self.violations.append(f"{violation} | {sql!r:.500}")
            print(f"VIOLATION {self.violations[-1]}", flush=True)
        except Exception as error:  # noqa: BLE001 - whatever escapes to the caller is a finding
            self.violations.append(f"raised {error!r:.200} | {sql!r:.500}")
            print(f"VIOLATION {self.violations[-1]}", flush=True)

    def by_mutator(self, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < self.until:
            self.once(rng)

    def by_atheris(self, seed: int) -> None:
        """Never returns: libFuzzer ends the process."""
        import atheris  # type: ignore[import-not-found]

        def one_input(data: bytes) -> None:
            if time.monotonic() > self.until:
                os._exit(self.report())
            rng = random.Random(data)
            noise = data.decode("utf-8", "replace")
            self.once(rng, noise if data[:1] == b"!" else mutate(rng, [*self.corpus, noise]))

        from nl2sql.databases.sqlite import worker

        worker.single_statement = atheris.instrument_func(worker.single_statement)
        atheris.Setup([sys.argv[0], f"-seed={seed}", "-max_len=4000", "-rss_limit_mb=0"], one_input)
        atheris.Fuzz()

    def report(self) -> int:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.lab.outcomes.most_common())
        print(f"{self.statements} statements, {len(self.violations)} violations; {kinds}")
        print(
            f"worst answer {self.lab.slowest_s:+.2f} s against its deadline; {self.lab.memory.peak_mb:.0f} MB at most"
        )
        sys.stdout.flush()
        return 1 if self.violations else 0

    def watch(self) -> None:
        """End the process, with a word on what it was doing, when nothing moves any more."""
        while True:
            time.sleep(5)
            current = self.lab.current
            if current and time.monotonic() - current[0] > STUCK_S:
                print(f"VIOLATION stuck for {STUCK_S:g} s | {current[1]!r:.500}", flush=True)
                os._exit(2)


def _files(options: argparse.Namespace) -> int:
    """Walk through the kinds of files, with a cache of their own; the exit code."""
    import fuzz_files

    logging.getLogger("nl2sql").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="fuzz-sandbox-") as folder:
        os.environ["NL2SQL_CACHE"] = folder
        limit_s = fuzz_files.LIMIT_S * (options.slack or 1.0)
        lines = fuzz_files.walk(options.only, limit_s, show=(lambda line: None) if options.json else print)
    if not lines:
        print(f"error: no kind of file has {options.only!r} in its name; leave --only out to see all", file=sys.stderr)
        return 2
    return fuzz_files.report(lines, options.json)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="fuzz statements for so long; default: walk through the files")
    parser.add_argument("--only", default="", metavar="NAME", help="kinds of files with this in their name")
    parser.add_argument("--json", action="store_true", help="of the files, one JSON object")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slack", type=float, help="factor on what is allowed, for busy machines (statements: 4)")
    parser.add_argument("--engine", choices=("mutator", "atheris"), default="mutator")
    options = parser.parse_args(arguments)
    if options.seconds is None:
        return _files(options)
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="fuzz-sandbox-") as folder:
        lab = Lab(Path(folder) / "lab", slack=options.slack or 4.0)
        corpus = [expand(row[2], lab.data) for row in read_corpus()]
        with lab.open():
            fuzz = Fuzz(lab, corpus, time.monotonic() + options.seconds)
            threading.Thread(target=fuzz.watch, daemon=True).start()
            (fuzz.by_atheris if options.engine == "atheris" else fuzz.by_mutator)(options.seed)
            return fuzz.report()


if __name__ == "__main__":
    sys.exit(main())
