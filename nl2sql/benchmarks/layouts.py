"""Benchmark folders: Spider's layout, BIRD's, that of SParC and CoSQL, Dr.Spider's, and the uniform one.

A layout is recognised by its files: ``tables.json`` beside question files and ``database/`` (Spider, SParC, CoSQL);
``dev_databases/`` or ``train_databases/`` (BIRD); ``questions.json`` (uniform). A question file may hold dialogues
(``dialogues``). Databases are looked for in every folder of ``DATABASE_FOLDERS`` as ``DB/DB.sqlite`` and the other
forms of ``find_database``.

>>> [question.id for question in with_unique_ids([Question("How many?", "shop", "a")] * 2)]
['a', 'a#2']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from nl2sql.benchmarks.core import FolderBenchmark, is_interactions, turn_records, with_gold_histories
from nl2sql.benchmarks.published import LIVE, PLACES, SPIDER2, questions_file, records_of
from nl2sql.errors import BenchmarkError
from nl2sql.interfaces import Question, Turn
from nl2sql.machine import from_json
from nl2sql.sql.features import LEVELS, UNKNOWN, hardness

DATABASE_FOLDERS = (
    "databases",
    "database",
    "test_database",
    "dev_databases",
    "train_databases",
    "test_databases",
    "",
)
COSQL_FOLDER = "sql_state_tracking"  # in CoSQL's release, beside database/
WHERE = {  # layout -> where the databases can be had
    "drspider": "unpack data.tar.gz of https://github.com/awslabs/diagnostic-robustness-text-to-sql and run its "
    "data_preprocess.py",
    "spider": "database/DB/DB.sqlite comes with the archive of https://yale-lily.github.io/spider",
    "bird": "unpack dev_databases.zip or train_databases.zip of https://bird-bench.github.io; Mini-Dev: "
    "https://github.com/bird-bench/mini_dev",
}
ENDINGS = (".sqlite", ".db", "_template.sqlite")  # the last: LiveSQLBench's
BIRD_HAS = (
    *("dev_databases", "train_databases", "test_databases"),
    *("dev_databases.zip", "train_databases.zip", "dev_tables.json", "train_tables.json", "dev_tied_append.json"),
)
MINI_DEV = "mini_dev"
SPLIT_FILES = {  # question file -> split
    "train_spider.json": "train",
    "train_others.json": "train",
    "train.json": "train",
    "dev.json": "dev",
    "mini_dev_sqlite.json": MINI_DEV,
    "test.json": "test",
    f"{COSQL_FOLDER}/cosql_train.json": "train",
    f"{COSQL_FOLDER}/cosql_dev.json": "dev",
    "cosql_train.json": "train",
    "cosql_dev.json": "dev",
}
ENGINE_FILES = {  # Mini-Dev's golds for other engines -> the field that holds them (``on_engine``)
    "mini_dev_mysql.json": "query_mysql",
    "mini_dev_postgresql.json": "query_postgres",
}
HALVES = {  # Dr.Spider: split -> its file; the questions of both go together by their place
    "pre": "questions_pre_perturbation.json",
    "post": "questions_post_perturbation.json",
}
TEXT_KEYS = ("question", "nl_question", "utterance", "text", "nlq", "SpiderSynQuestion")
SQL_KEYS = ("query", "SQL", "sql", "gold_sql", "gold")
DB_KEYS = ("db_id", "database_id", "db", "database")
ID_KEYS = ("id", "question_id", "qid", "instance_id")
EVIDENCE_KEYS = ("evidence", "commonsense_knowledge")  # the second: Archer's
_TAKEN = {*TEXT_KEYS, *SQL_KEYS, *DB_KEYS, *EVIDENCE_KEYS, "alt_queries", "difficulty", "split", "history"}
_DROPPED = {  # token lists and parse trees: large, and never read
    "query_toks",
    "query_toks_no_value",
    "question_toks",
    "utterance_toks",
}


def layout_of(folder: Path) -> str | None:
    """``uniform``, ``bird``, ``spider``, ``drspider``, a layout of ``published``; None: the folder is no benchmark."""
    if found := questions_file(folder):
        return found[0]
    if (folder / "questions.json").is_file():
        return "uniform"
    if all((folder / file).is_file() for file in HALVES.values()):
        return "drspider"
    if not any((folder / name).is_file() for name in (*SPLIT_FILES, *ENGINE_FILES)):
        return None
    bird = any((folder / name).exists() for name in BIRD_HAS)
    return "bird" if bird else "spider"


def read_folder(folder: Path) -> FolderBenchmark:
    """Read a benchmark folder of any known layout. Raises BenchmarkError where it is none or is broken."""
    layout = layout_of(folder)
    if layout is None:
        names = ", ".join(["questions.json", *SPLIT_FILES, HALVES["post"], SPIDER2, *LIVE])
        inside = ", ".join(str(path) for path in sorted(folder.iterdir()) if path.is_dir() and layout_of(path))
        hint = f"; name the one inside: {inside}" if inside else ""
        raise BenchmarkError(f"{folder} is not a benchmark folder: it has none of {names}{hint}")
    name = folder.resolve().name
    if layout == "drspider":
        return _read_halves(folder, name)
    if layout in PLACES:
        questions = questions_from(records_of(folder, read_records), name)
    elif layout == "uniform":
        records = read_records(folder / "questions.json")
        questions = questions_from(records, name)
    else:
        questions = []
        for split in dict.fromkeys(SPLIT_FILES.values()):
            files = [file for file, of in SPLIT_FILES.items() if of == split and (folder / file).is_file()]
            records = [record for file in files for record in read_records(folder / file)]
            if split == MINI_DEV:
                records = _with_engine_golds(folder, records)
            questions += questions_from(records, f"{name}-{split}", split=split, bird=layout == "bird")
    questions = with_unique_ids(questions)
    places = (folder, folder.parent) if folder.name == COSQL_FOLDER else (folder,)
    folders, where = PLACES.get(layout, (DATABASE_FOLDERS, WHERE.get(layout, "")))
    roots = [place / sub for place in places for sub in folders]
    return assemble(name, questions, roots, source=str(folder), folder=folder, where=where)


def _read_halves(folder: Path, name: str) -> FolderBenchmark:
    """A set of Dr.Spider: splits ``pre`` and ``post``, each question with its place as ``meta["pair"]``.

    Of a set that perturbs databases, those of ``post`` are called ``DB_post``.
    """
    halves = {}
    for half, file in HALVES.items():
        records = [{**record, "split": half, "pair": place} for place, record in enumerate(read_records(folder / file))]
        roots = [folder / sub for sub in (f"databases_{half}_perturbation", f"database_{half}_perturbation")]
        questions = questions_from(records, f"{name}-{half}")
        halves[half] = assemble(
            name, questions, [*roots, *(folder / sub for sub in DATABASE_FOLDERS)], source=str(folder)
        )
    pre, post = halves.values()
    renamed = {db: f"{db}_post" for db, file in post.files.items() if pre.files.get(db, file) != file}
    asked = [replace(q, db_id=renamed.get(q.db_id, q.db_id)) for q in post.questions]
    questions = with_unique_ids([*pre.questions, *asked])
    files = {**pre.files, **{renamed.get(db, db): file for db, file in post.files.items()}}
    return FolderBenchmark(name, questions, _splits(questions, None), files, str(folder), WHERE["drspider"])


def _with_engine_golds(folder: Path, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mini-Dev's questions with their MySQL and PostgreSQL golds, where the folder has these files."""
    for name, field in ENGINE_FILES.items():
        if not (folder / name).is_file():
            continue
        theirs = {record.get("question_id"): record for record in read_records(folder / name)}
        if not records:
            records = [{key: value for key, value in record.items() if key != "SQL"} for record in theirs.values()]
        golds = {id_: {field: record["SQL"]} for id_, record in theirs.items() if record.get("SQL")}
        records = [{**record, **golds.get(record.get("question_id"), {})} for record in records]
    return records


def read_questions(file: Path, databases: Path | None) -> FolderBenchmark:
    """A file of questions over the SQLite files of a folder; None: of a folder beside the file, or one further up.

    Raises BenchmarkError where the file is broken.
    """
    questions = with_unique_ids(questions_from(read_records(file), file.stem))
    places = (databases,) if databases else (file.parent, file.parent.parent)
    roots = [place / sub for place in places for sub in ("", *DATABASE_FOLDERS)]
    return assemble(file.stem, questions, roots, source=str(databases or file.parent))


def assemble(
    name: str,
    questions: Sequence[Question],
    roots: Sequence[Path],
    *,
    source: str,
    folder: Path | None = None,
    where: str = "",
) -> FolderBenchmark:
    """Find the databases, flag questions whose database is missing, and name the splits."""
    files = {}
    for db_id in dict.fromkeys(question.db_id for question in questions):
        path = find_database(roots, db_id)
        if path is not None:
            files[db_id] = path
    flagged = [q if q.db_id in files else _flag(q, "db_missing") for q in questions]
    splits = _splits(flagged, folder)
    return FolderBenchmark(name, _relabelled(flagged, splits), splits, files, source, where)


def find_database(roots: Iterable[Path], db_id: str) -> Path | None:
    """``DB/DB.sqlite``, ``DB.sqlite``, or one of their other forms, in the first folder that has one, or None."""
    if not db_id or Path(db_id).name != db_id:
        return None  # a path in place of a name never leaves the benchmark's folders
    for root in roots:
        for relative in (*(f"{db_id}/{db_id}{end}" for end in ENDINGS), f"{db_id}.sqlite", f"{db_id}.db"):
            if isfile(root / relative):  # noqa: PTH113  Path.is_file raises for a name that no file can have
                return root / relative
    return None


def read_records(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects, or one object per line. Raises BenchmarkError that names the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line for line in text.split("\n") if line.strip()]
        several = len(lines) > 1 and all(line[0] == "{" and line.rstrip()[-1] == "}" for line in lines)
        by_line = several or path.suffix == ".jsonl"
        records = [from_json(line) for line in lines] if by_line else from_json(text)
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise BenchmarkError(f"{path} is not a list of questions; expected [{{'question', 'query', 'db_id'}}, ...]")
    return records


def questions_from(
    records: Iterable[Mapping[str, Any]], prefix: str, *, split: str = "", bird: bool = False
) -> list[Question]:
    """Questions of raw records; ``prefix`` and the position make the id where the record gives none.

    A record that is a whole dialogue gives a question per turn. Raises BenchmarkError for a broken record.
    """
    records = list(records)
    if is_interactions(records):
        records = turn_records(records, prefix)
    questions = [_question(record, f"{prefix}-{index}", split, bird) for index, record in enumerate(records)]
    return with_gold_histories(questions)


def _question(record: Mapping[str, Any], fallback_id: str, split: str, bird: bool) -> Question:
    text = _first(record, TEXT_KEYS)
    if text is None:
        raise BenchmarkError(
            f"question {fallback_id} has no question text; expected one of the fields {', '.join(TEXT_KEYS)}, "
            f"found {', '.join(map(str, record))}"
        )
    gold = tuple(str(sql) for sql in (_first(record, SQL_KEYS), *_texts(record, "alt_queries", fallback_id)) if sql)
    meta = {key: value for key, value in record.items() if key not in _TAKEN and key not in _DROPPED}
    declared = record.get("difficulty")
    level = declared if declared in LEVELS and not bird else None
    if declared and level is None:
        meta["benchmark_difficulty"] = declared
    if not gold:
        meta["no_gold"] = True
    elif record.get("gold_tables"):
        level = UNKNOWN
    else:
        level = level or hardness(gold[0])
    id_ = _first(record, ID_KEYS)
    return Question(
        text=str(text),
        db_id=str(_first(record, DB_KEYS) or ""),
        id=str(id_) if id_ is not None else fallback_id,
        evidence=str(_first(record, EVIDENCE_KEYS) or ""),
        history=_history(record, fallback_id),
        gold=gold,
        difficulty=level,
        split=str(record.get("split") or split),
        meta=meta,
    )


def _history(record: Mapping[str, Any], fallback_id: str) -> tuple[Turn, ...]:
    """Earlier turns: their texts, or records with a question and, if known, its query and standalone text."""
    value = record.get("history")
    if not isinstance(value, list) or not all(isinstance(item, dict) and _first(item, TEXT_KEYS) for item in value):
        return tuple(map(Turn, _texts(record, "history", fallback_id)))
    return tuple(
        Turn(str(_first(item, TEXT_KEYS)), str(_first(item, ("standalone",)) or ""), str(_first(item, SQL_KEYS) or ""))
        for item in value
    )


def _texts(record: Mapping[str, Any], key: str, fallback_id: str) -> tuple[str, ...]:
    """A list of texts; one text stands for a list of one. Raises BenchmarkError for anything else."""
    value = record.get(key) or []
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BenchmarkError(f"question {fallback_id}: {key} is {str(value)[:60]!r}; expected a list of texts")
    return tuple(value)


def _first(record: Mapping[str, Any], keys: Iterable[str]) -> Any:
    """The first of ``keys`` with a scalar value (Spider's ``sql`` is a parse tree, and never meant)."""
    for key in keys:
        value = record.get(key)
        if value is not None and not isinstance(value, (dict, list)):
            return value
    return None


def with_unique_ids(questions: Iterable[Question]) -> list[Question]:
    """The same questions; an id that came before gets ``#2``, ``#3``, ... in order, without those that others have."""
    questions = list(questions)
    taken = {question.id for question in questions}
    counts: dict[str, int] = {}
    result = []
    for question in questions:
        id_, count = question.id, counts.get(question.id, 0) + 1
        while count > 1 and (id_ := f"{question.id}#{count}") in taken:
            count += 1
        counts[question.id] = count
        taken.add(id_)
        result.append(replace(question, id=id_))
    return result


def _flag(question: Question, flag: str) -> Question:
    return replace(question, meta={**question.meta, flag: True})


def _relabelled(questions: Sequence[Question], splits: Mapping[str, Sequence[str]]) -> list[Question]:
    """Questions that ``splits.json`` took out of their own split carry the name of the one that has them now: what
    learns from questions of ``train`` must not take a held-out one for such."""
    members = {name: set(ids) for name, ids in splits.items()}
    return [
        question
        if not question.split or question.id in members[question.split]
        else replace(question, split=next((name for name, ids in members.items() if question.id in ids), ""))
        for question in questions
    ]


def _splits(questions: Sequence[Question], folder: Path | None) -> dict[str, list[str]]:
    """Splits by the questions' own field, then those of ``splits.json`` (lists of databases).

    Databases that ``splits.json`` sets aside are taken out of ``train``: a held-out set that training reads is none.
    """
    splits: dict[str, list[str]] = {}
    for question in questions:
        if question.split:
            splits.setdefault(question.split, []).append(question.id)
    path = folder / "splits.json" if folder else None
    if path is None or not path.is_file():
        return splits
    try:
        declared = from_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path} cannot be read: {error}") from None
    if not isinstance(declared, dict):
        raise BenchmarkError(f"{path} is a {type(declared).__name__}; expected {{'split name': [database ids], ...}}")
    lists = {name: dbs for name, dbs in declared.items() if isinstance(dbs, list)}
    for name, dbs in lists.items():
        if not all(isinstance(db, str) for db in dbs):
            raise BenchmarkError(f"{path}: split {name!r} is not a list of database ids")
    by_database = {name: set(dbs) for name, dbs in lists.items()}
    if "train" not in by_database and "train" in splits:
        aside = set().union(*by_database.values())
        database_of = {question.id: question.db_id for question in questions}
        splits["train"] = [id_ for id_ in splits["train"] if database_of[id_] not in aside]
    for name, databases in by_database.items():
        splits[name] = [question.id for question in questions if question.db_id in databases]
    return splits
