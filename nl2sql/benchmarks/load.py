"""Finding a benchmark by name, path or hub id, and narrowing it to a split.

>>> len(load_benchmark("packaged", split="dev").questions)
100
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nl2sql.benchmarks.core import FolderBenchmark, exclusion_reason
from nl2sql.benchmarks.packaged import (
    PACKAGED_DIALOGUES,
    VIZQL,
    load_packaged,
    load_packaged_dialogues,
    load_vizql,
)
from nl2sql.errors import BenchmarkError, UsageError, one_line
from nl2sql.interfaces import Benchmark, Database, Question
from nl2sql.machine import server_parts, with_password

PACKAGED = {"packaged": load_packaged, PACKAGED_DIALOGUES: load_packaged_dialogues, VIZQL: load_vizql}
ENVIRONMENT = "NL2SQL_BENCHMARKS"
OVER = "::"  # FILE::FOLDER, questions over the databases of a folder
OF_QUESTIONS = (".json", ".jsonl")
VERIFIED = (".yaml", ".yml")  # FILE::DATABASE, verified queries over one SQLite file


def load_benchmark(
    name_or_path: str | Path = "packaged",
    *,
    split: str | None = None,
    root: str | Path | None = None,
    databases: str | Path | None = None,
    engine_url: str = "",
) -> Benchmark:
    """Load what is packaged (``packaged``, ``packaged-dialogues``, ``vizql``), a folder, ``hf:...``, or a plugin's.

    A folder is named by its path, or by its name in ``root`` or ``NL2SQL_BENCHMARKS``. ``FILE.json`` is a file of
    questions, whose SQLite files lie near it or in ``databases``; ``FILE.json::FOLDER`` is both in one name.
    ``FILE.yaml::DATABASE.sqlite`` are verified queries (``benchmarks.verified``).

    ``split`` keeps the questions of one split (``all``: every question). ``databases`` is the folder of SQLite
    files for a file of questions and for a Hugging Face data set (default: ``NL2SQL_DATABASES``, then the data set's
    own folder). ``engine_url``: ask the same databases on another engine (``on_engine``).
    Raises UsageError for an unknown name or split and BenchmarkError for what cannot be read.
    """
    name = str(name_or_path)
    if name in PACKAGED:
        benchmark: Benchmark = PACKAGED[name]()
    elif name.startswith("hf:"):
        from nl2sql.benchmarks.hub import load_hub

        benchmark = load_hub(name, databases=databases)
    else:
        from nl2sql.config.plugins import made_by_plugin  # here, since the room imports pydantic

        benchmark = made_by_plugin("benchmarks", name)
        if benchmark is None:
            from nl2sql.benchmarks.layouts import read_folder, read_questions

            if file := _questions_file(name):
                over = name.partition(OVER)[2] or databases
                place = Path(over).expanduser() if over else None
                if file.suffix.lower() in VERIFIED:
                    from nl2sql.benchmarks.verified import verified_benchmark

                    benchmark = verified_benchmark(file, place)
                else:
                    benchmark = read_questions(file, place)
            else:
                benchmark = read_folder(_find(name, root))
    narrowed = _narrow(benchmark, split)
    return on_engine(narrowed, engine_url) if engine_url else narrowed


def check_databases(benchmark: Benchmark) -> None:
    """Raises BenchmarkError where a folder has questions, and not one of their databases, and says where these are."""
    if isinstance(benchmark, FolderBenchmark) and benchmark.questions and not benchmark.files:
        missing = [question.db_id for question in benchmark.questions if exclusion_reason(question) == "db_missing"]
        first = next(iter(missing), benchmark.questions[0].db_id)
        raise BenchmarkError(f"no database of {benchmark.name!r} was found; {benchmark.expected(first)}")


def named(benchmark: str, questions: Path | None, databases: Path | None) -> str:
    """The benchmark's name that a file of questions and a folder of databases make; ``benchmark`` without them.

    Raises UsageError for a file or folder that is not there, and for databases without questions.
    """
    if questions is None:
        if databases is not None:
            raise UsageError("--databases goes with --questions FILE; a benchmark's folder holds its own")
        return benchmark
    if questions.suffix.lower() in VERIFIED or _questions_file(str(questions)) is None:
        raise UsageError(f"--questions {questions}: expected a file of questions, {' or '.join(OF_QUESTIONS)}")
    if databases is not None and not databases.expanduser().is_dir():
        raise UsageError(f"--databases {databases} is no folder; expected the one that holds DB/DB.sqlite")
    return f"{questions}{OVER}{databases}" if databases else str(questions)


def named_verified(file: Path, db: str | None, engine_url: str = "") -> str:
    """The benchmark's name that a file of verified queries and a database make.

    Raises UsageError for a file that is not there or is no YAML, and for a database on another
    engine than SQLite, which ``engine_url`` names.
    """
    if file.suffix.lower() not in VERIFIED or not file.expanduser().is_file():
        raise UsageError(f"--verified {file}: expected a YAML file of verified queries, e.g. shop_queries.yaml")
    if db is None:
        if not engine_url:
            raise UsageError(f"--verified {file}: which database? add --db FILE.sqlite, or --engine-url duckdb:FILE")
        return str(file)
    from nl2sql.databases.engines import dialect_of, open_database  # these import pydantic

    if dialect_of(db) != "sqlite":
        raise UsageError(f"--db {one_line(db, 60)} is no SQLite file; give it as --engine-url instead")
    return f"{file}{OVER}{getattr(open_database(db), 'path', db)}"


def _questions_file(name: str) -> Path | None:
    """The file of questions that ``FILE`` or ``FILE::FOLDER`` names; None where it names none that is there."""
    file = Path(name.partition(OVER)[0]).expanduser()
    return file if file.suffix.lower() in (*OF_QUESTIONS, *VERIFIED) and file.is_file() else None


def from_anywhere(name: str) -> str:
    """The name that loads the same benchmark from any folder: a path that rests on the working folder made absolute."""
    from nl2sql.config.plugins import plugin

    if name.startswith("hf:"):
        where, colon, split = name.removeprefix("hf:").partition(":")
        return f"hf:{Path(where).expanduser().absolute()}{colon}{split}" if where.startswith((".", "~")) else name
    if _questions_file(name):
        return OVER.join(str(Path(part).expanduser().absolute()) for part in name.split(OVER))
    known = name in PACKAGED or plugin("benchmarks", name) is not None
    if known or any((base / name).is_dir() for base in _search_path(None)):
        return name
    folder = Path(name).expanduser()
    return str(folder.absolute()) if name and folder.is_dir() else name


def is_at_hand(name: str) -> bool:
    """Whether ``name`` is packaged, or lies in ``NL2SQL_BENCHMARKS``: no path elsewhere, download or plugin."""
    from nl2sql.config.plugins import plugins

    if name in PACKAGED:
        return True
    if name.startswith("hf:") or name in plugins("benchmarks"):
        return False
    try:
        folder = _find(name, None).resolve()
    except (UsageError, OSError, ValueError, RuntimeError):
        return False
    return any(folder.is_relative_to(base.resolve()) for base in _search_path(None))


def available_benchmarks(root: str | Path | None = None) -> list[str]:
    """Names that ``load_benchmark`` accepts now: what is packaged or a plugin, and folders in the search path."""
    from nl2sql.benchmarks.layouts import layout_of
    from nl2sql.config.plugins import plugins

    names = {
        folder.name
        for base in _search_path(root)
        if base.is_dir()
        for folder in base.iterdir()
        if folder.is_dir() and layout_of(folder)
    }
    return [*PACKAGED, *plugins("benchmarks"), *sorted(names)]


def _search_path(root: str | Path | None) -> list[Path]:
    if root is not None:
        return [Path(root).expanduser()]
    return [Path(part).expanduser() for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]


def _find(name: str, root: str | Path | None) -> Path:
    bases = _search_path(root)
    candidates = [*(base / name for base in bases), Path(name).expanduser()] if name else []
    for folder in candidates:
        if folder.is_dir():
            return folder
    tried = ", ".join(map(str, candidates)) or "nothing"
    hint = "" if bases else f"; set {ENVIRONMENT} to the folder that holds your benchmarks"
    known = ", ".join(available_benchmarks(root))
    raise UsageError(f"no benchmark {name!r} (tried: {tried}); known: {known}{hint}")


def _narrow(benchmark: Benchmark, split: str | None) -> Benchmark:
    if split is None or (split == "all" and "all" not in benchmark.splits):
        return benchmark
    if split not in benchmark.splits:
        known = ", ".join([*benchmark.splits, "all"])
        raise UsageError(f"benchmark {benchmark.name!r} has no split {split!r}; it has: {known}")
    wanted = set(benchmark.splits[split])
    narrowed = copy.copy(benchmark)
    kept: Sequence = [question for question in benchmark.questions if question.id in wanted]
    narrowed.questions = kept
    return narrowed


# ------------------------------------------------------------------------------------- on another engine

PLACE = "{db_id}"  # in a URL: the name of the question's database


@dataclass
class OnEngine:
    """Questions over databases that ``url`` names, each opened once; ``$NAME`` in its password is read from the
    environment, so ``url`` is one that was typed (``runs.plan`` sees to that)."""

    name: str
    questions: Sequence[Question]
    splits: Mapping[str, Sequence[str]]
    url: str
    _open: dict[str, Database] = field(default_factory=dict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def database(self, db_id: str) -> Database:
        """The database of that id. Raises UsageError, DatabaseError where it cannot be opened."""
        from nl2sql.databases.engines import open_database

        with self._lock:
            if db_id not in self._open:
                self._open[db_id] = open_database(with_password(self.url).replace(PLACE, db_id))
            return self._open[db_id]


def on_engine(benchmark: Benchmark, url: str) -> OnEngine:
    """The benchmark over the databases of ``url``: a form of ``open_database``, with ``{db_id}`` for several databases.

    A question's gold is its field ``query_<dialect>`` where it has one (``query_mysql``), else the SQLite text. Raises
    UsageError for a URL that holds a password, or names one database for several.
    """
    from nl2sql.databases.engines import dialect_of

    password = server_parts(url, "the engine").password if "://" in url else None
    if password and "$" not in password:
        raise UsageError("the engine's URL holds a password, which manifests would keep; write $NAME in its place")
    databases = sorted({question.db_id for question in benchmark.questions})
    if len(databases) > 1 and PLACE not in url:
        raise UsageError(
            f"{url} names one database, and {benchmark.name} asks {len(databases)}: write {PLACE} where their names "
            "stand, e.g. duckdb:FOLDER/{db_id}.duckdb"
        )
    dialect = dialect_of(url)
    questions = [_asked_in(dialect, question) for question in benchmark.questions]
    return OnEngine(f"{benchmark.name}-{dialect}", questions, benchmark.splits, url)


def _asked_in(dialect: str, question: Question) -> Question:
    """The question with the gold of that dialect; that a SQLite file or gold is missing does not matter."""
    gold = question.meta.get(f"query_{dialect}")
    forgiven = ("db_missing", "no_gold") if gold else ("db_missing",)
    meta = {key: value for key, value in question.meta.items() if key not in forgiven}
    return replace(question, gold=(str(gold),) if gold else question.gold, meta=meta)
