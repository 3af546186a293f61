"""Reading prediction files of six kinds, and Spider's ``gold.sql``. Nothing is truncated, nothing is shifted.

- JSON lines: an object per line with an id and a statement (``{"id": ..., "sql": ...}``), or a JSON list of them;
- Spider's text: one statement per line in the order of the questions, a blank line where there is no answer; a
  database id may follow after a tab and is then checked. SParC's and CoSQL's has a blank line between dialogues;
- BIRD's JSON: ``{"0": "SQL\\t----- bird -----\\tdb", ...}``, by position (or by question id), databases checked;
- CSV or TSV with a header: by an id column, else by the question's text, else by position;
- a JSON list of texts, by position; a folder with a file ``ID.sql`` per question (or ``0.sql``, by position).

An id that several questions of a benchmark share is theirs one after the other, as the loader renames them (``137``,
``137#2``); where a record names the database or the question, it is that question's.

Bytes may be UTF-8 (with or without a BOM) or UTF-16 with one; lines may end in LF or CRLF. Blank predictions stay in
as "" and are scored as wrong; predictions for unknown ids stay in too, so that scores can report them as surplus.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nl2sql.errors import UsageError
from nl2sql.interfaces import Question
from nl2sql.machine import from_json
from nl2sql.safe_files import MEGABYTE, read_bytes

ID_KEYS = ("id", "question_id", "qid", "instance_id")
MAY_BE_GOLD = ("sql", "query")  # names that golds have as well
SQL_KEYS = (  # what is surely a prediction comes before what may be the gold beside it
    *("predicted_sql", "generated_query", "generated_sql", "pred_sql", "prediction", "predicted", "pred"),
    *("predicted_query", "predict_sql", "pred_query", "predict", "generated", *MAY_BE_GOLD),
)
STATEMENT = re.compile(r"\s*(?:select|with)\b", re.IGNORECASE)
NO_SQL = {  # how the text of a model begins, in place of a statement
    "a fence": re.compile(r"```|~~~"),
    "a thought or another mark": re.compile(r"<"),
    "words": re.compile(
        r"(?!(?:select|with|values|insert|update|delete|replace|create|drop|alter|explain|pragma)\b)[^\W\d_]", re.I
    ),
}
TEXT_KEYS = ("question", "nl_question", "utterance", "text", "nlq")
DB_KEYS = ("db_id", "database_id", "db", "database", "db_name")
NO_PREDICTIONS = ("gold", "gold_sql", "gold_query", "raw_sql", "prefill")  # the last two: of runs of ours
NOT_UNSURE = frozenset((*SQL_KEYS, *TEXT_KEYS, *NO_PREDICTIONS))  # fields whose SQL is known for what it is
BIRD_MARK = "\t----- bird -----\t"
MOST_BYTES = 1024 * MEGABYTE  # of the predictions of a run folder; a file that is named may be a pipe
SHOWN = 5  # ids or lines that a message names


def read_predictions(path: str | Path, questions: Sequence[Question]) -> tuple[dict[str, str], list[str]]:
    """(question id -> SQL, remarks for the reader of the scores).

    ``path`` may be a run folder, or that of a seed, which stands for its ``predictions.jsonl``.
    ``questions`` are all questions of the benchmark (and split), also those that scores leave out: text files go by
    position. Where an id comes twice the later one counts and a remark says so. Raises UsageError for a file that is
    missing, of no known kind, of another number of lines than there are questions, or for other databases.
    """
    path = Path(path)
    of_run = (path / "predictions.jsonl").is_file()
    path = path / "predictions.jsonl" if of_run else path
    reading, bounded = _Reading(path, questions), partial(read_bytes, most=MOST_BYTES)
    if path.is_dir() and (files := sorted(path.glob("*.sql"))):
        texts = [(file.stem, _read_text(file, "prediction", bounded), "") for file in files]
        _add_by_key(reading, texts)
    else:
        text = _read_text(path, "predictions file", bounded if of_run else Path.read_bytes)
        _READERS[_kind(path, text)](reading, text)
    ids = [question.id for question in questions]
    if reading.predictions and ids and reading.predictions.keys().isdisjoint(ids):
        reading.remarks.append(
            f"{path}: no id is one of the questions': {_some(list(reading.predictions))} in the file, {_some(ids)} in "
            "the benchmark"
        )
    blank = [id_ for id_, sql in reading.predictions.items() if not sql.strip()]
    if blank:
        reading.remarks.append(f"{path}: {len(blank)} blank prediction(s), counted as wrong: {_some(blank)}")
    for what, mark in NO_SQL.items():
        if marked := [id_ for id_, sql in reading.predictions.items() if mark.match(sql)]:
            reading.remarks.append(
                f"{path}: {len(marked)} of {len(reading.predictions)} begin with {what}, which no database executes: "
                f"write the SQL alone, without what the model wrote round it ({_some(marked)})"
            )
    return reading.predictions, reading.remarks


def read_gold_file(path: str | Path, questions: Sequence[Question] = ()) -> list[tuple[str, str]]:
    """(SQL, database id) per line of a ``gold.sql`` in Spider's format, ``SQL<tab>database``.

    Blank lines at the end are dropped, and those between the dialogues of ``questions`` (SParC, CoSQL). The database id
    is "" where a line has none.
    Raises UsageError for a file that is missing or empty, or that has a line without SQL between others.
    """
    path = Path(path)
    lines = _without_gaps(_lines(_read_text(path, "gold file")), questions)
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise UsageError(f"gold file {path} is empty; expected one line 'SQL<tab>database id' per question")
    for number, line in enumerate(lines, 1):
        if not line.split("\t")[0].strip():
            raise UsageError(f"gold file {path} line {number} has no SQL; expected 'SQL<tab>database id' on every line")
        if line.lstrip().startswith("{"):
            raise UsageError(f"gold file {path} line {number} is JSON; expected 'SQL<tab>database id' on every line")
    return [_sql_and_database(line) for line in lines]


def with_golds(questions: Sequence[Question], path: str | Path) -> list[Question]:
    """The same questions, each with the gold of its line in ``path`` (``read_gold_file``) and that gold only.

    What was known of the old gold (its hardness, its number of rows, its errors) is dropped. Raises UsageError where
    the number of lines differs from that of the questions, or a line names another database than its question.
    """
    golds = read_gold_file(path, questions)
    if len(golds) != len(questions):
        raise UsageError(
            f"gold file {path} has {len(golds)} lines for {len(questions)} questions, and lines go by position: write "
            "one gold per question, or name the --split that the file was made for"
        )
    _check_databases(Path(path), [database for _, database in golds], questions)
    return [with_gold(question, sql) for question, (sql, _) in zip(questions, golds, strict=True)]


def with_gold(question: Question, *golds: str) -> Question:
    """The question with other golds, and without what was known of the old ones."""
    from nl2sql.sql.features import hardness

    about_the_gold = ("gold_rows", "gold_error", "gold_tables", "no_gold", "time_dependent")
    meta = {key: value for key, value in question.meta.items() if key not in about_the_gold}
    return replace(question, gold=golds, difficulty=hardness(golds[0]), meta=meta)


# ------------------------------------------------------------------------------------------------ what every kind needs


@dataclass
class _Reading:
    path: Path
    questions: Sequence[Question]
    predictions: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)  # fields that ``look_beside`` has spoken of

    def look_beside(self, record: Mapping[Any, Any], sql_key: str) -> None:
        """Say so, once a field, where the text that counts may be the gold, and SQL of another name stands beside."""
        if sql_key.strip().lower() not in MAY_BE_GOLD:
            return
        for key, text in record.items():
            name = str(key).strip().lower()
            if name in NOT_UNSURE or name in self.unsure or not isinstance(text, str) or not STATEMENT.match(text):
                continue
            self.unsure.add(name)
            self.remarks.append(
                f"{self.path}: {sql_key!r} is read as the prediction, and {key!r} holds SQL too: if that is the "
                "prediction, call it 'predicted_sql'"
            )

    @cached_property
    def namesakes(self) -> dict[str, list[Question]]:
        """Id -> the questions that had it before the loader made ids unique, in order."""
        found: dict[str, list[Question]] = {}
        for question in self.questions:
            found.setdefault(question.id, []).append(question)
            first, mark, number = question.id.rpartition("#")
            if mark and number.isdigit():
                found.setdefault(first, []).append(question)
        return found

    @cached_property
    def by_text(self) -> dict[str, list[Question]]:
        found: dict[str, list[Question]] = {}
        for question in self.questions:
            found.setdefault(_plain(question.text), []).append(question)
        return found

    def meant(self, record: Mapping[Any, Any], id_: str | None, where: str = "") -> str:
        """The id of the question that ``record`` is for, and that has no prediction yet.

        Among those that share ``id_``; where that is None, those of the record's text, or ``where``.
        """
        keys = (_key(record, names) for names in (TEXT_KEYS, DB_KEYS))
        text, database = ("" if key is None else str(record[key]).strip() for key in keys)
        known = self.by_text.get(_plain(text), []) if id_ is None else self.namesakes.get(id_, [])
        free = [question for question in known if question.id not in self.predictions]
        if id_ is None and not database and len(known) == len(free) > 1:
            same = f"{len(known)} questions have this text; taken in order"
            self.remarks.append(f"{self.path} {where}: {same}")
        fitting = [
            question
            for question in free
            if database in ("", question.db_id) and (not text or _plain(text) == _plain(question.text))
        ]
        some = fitting if id_ is None else [*fitting, *free]
        return next((question.id for question in some), id_ or where)

    def add(self, id_: str, sql: Any, where: str) -> None:
        """``sql`` may be null or a number, as some systems write for "failed": a blank prediction."""
        if id_ in self.predictions:
            self.remarks.append(f"{self.path} {where}: {id_!r} again; the later one counts")
        if isinstance(sql, (dict, list)):
            raise UsageError(f"{self.path} {where}: the SQL has to be a text, found {str(sql)[:80]}")
        self.predictions[id_] = sql.strip() if isinstance(sql, str) else ""

    def add_in_order(self, entries: Sequence[tuple[Any, str]], where: str, *, fewer: bool = False) -> None:
        """(SQL, database or "") of one question after another; ``where``: what holds one of them in the file."""
        asked, given = self.questions, len(entries)
        if fewer and given < len(asked):
            texts = f"{given} texts for {len(asked)} questions, by position: the last have none"
            self.remarks.append(f"{self.path}: {texts}")
            asked = asked[:given]
        if given != len(asked):
            raise UsageError(
                f"predictions file {self.path} has {given} lines for {len(asked)} questions, and lines go by position: "
                "write one line per question (a blank one where there is no answer), name the --split that the file "
                'was made for, or write JSON lines {"id": ..., "sql": ...}'
            )
        _check_databases(self.path, [database for _, database in entries], asked)
        for number, (question, (sql, _)) in enumerate(zip(asked, entries, strict=True), 1):
            self.add(question.id, sql, f"{where} {number}")


def _read_text(path: Path, what: str, read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    try:
        raw = read(path)
        wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
        return raw.decode("utf-16" if wide else "utf-8-sig")
    except FileNotFoundError:
        raise UsageError(
            f"{what} {path} does not exist; name a file, or a run folder (nl2sql runs list lists them)"
        ) from None
    except IsADirectoryError:
        if seeds := sorted(file.parent for file in path.glob("seed-*/predictions.jsonl")):
            raise UsageError(f"{what} {path} is a run with seeds; name the folder of one, e.g. {seeds[0]}") from None
        raise UsageError(
            f"{what} {path} is a folder without a run in it (nl2sql runs list lists those with one)"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path} cannot be read: {error}; expected UTF-8 text") from None


def _lines(text: str) -> list[str]:
    """Lines without their ends. Only LF and CRLF end a line: SQL may hold other separators inside strings."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if lines[-1] == "":
        lines.pop()  # the last line ended as it should; an empty file has no lines
    return lines


def _without_gaps(lines: list[str], questions: Sequence[Question]) -> list[str]:
    """The lines without the blank ones between dialogues, where there is one between every two of them."""
    dialogues = [question.meta.get("interaction_id", question.id) for question in questions]
    starts = [at for at in range(1, len(dialogues)) if dialogues[at] != dialogues[at - 1]]
    gaps = {start + number for number, start in enumerate(starts)}
    if len(starts) == len(dialogues) - 1 or len(lines) < len(questions) + len(gaps):
        return lines  # single questions, or no room for gaps
    if any(lines[at].strip() for at in gaps):
        return lines
    return [line for at, line in enumerate(lines) if at not in gaps]


def _kind(path: Path, text: str) -> str:
    """By content where that is plain (an object, a list), else by the suffix."""
    start = text.lstrip()[:1]
    if path.suffix.lower() in (".csv", ".tsv"):
        return "csv"
    if start == "[" and path.suffix.lower() != ".jsonl":
        return "list"
    if path.suffix.lower() == ".jsonl":
        return "jsonl"
    if start == "{":
        return "jsonl" if _is_record_line(text.lstrip().split("\n", 1)[0]) else "bird"
    return "bird" if path.suffix.lower() == ".json" else "text"


def _is_record_line(line: str) -> bool:
    try:
        record = from_json(line)
    except ValueError:
        return False
    return isinstance(record, dict) and _key(record, ID_KEYS) is not None and _key(record, SQL_KEYS) is not None


def _key(record: Mapping[str, Any], names: Iterable[str]) -> str | None:
    """The record's key that is the first of ``names``; case and the space round a CSV header do not matter."""
    known = {str(key).strip().lower(): key for key in record}
    return next((known[name] for name in names if name in known), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _check_databases(path: Path, databases: Sequence[str], questions: Sequence[Question]) -> None:
    """A database id that is not the question's shows that lines and questions are shifted against each other."""
    for number, (database, question) in enumerate(zip(databases, questions, strict=True), 1):
        if database and database != question.db_id:
            raise UsageError(
                f"{path} line {number} is for database {database!r} but question {number} ({question.id}) asks "
                f"{question.db_id!r}: the file was made for other questions or another --split, or a line is missing"
            )


def _sql_and_database(line: str) -> tuple[str, str]:
    """``SQL<tab>database``: the last field is a database only if it looks like a name, as SQL may hold tabs."""
    sql, tab, last = line.rpartition("\t")
    last = last.strip()
    if tab and last and not any(char.isspace() or char in "'\"();=<>,*" for char in last):
        return sql.strip(), last
    return line.strip(), ""


# ------------------------------------------------------------------------------------------------- one reader per kind


def _read_jsonl(reading: _Reading, text: str) -> None:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record: Any = from_json(line)
        except ValueError as error:
            if number == len(lines):  # a run that was killed while it wrote: no newline after the torn line
                reading.remarks.append(f"{reading.path}: the last line is torn and was ignored")
                continue
            reason = getattr(error, "msg", error)
            raise UsageError(
                f"{reading.path} line {number} is not JSON ({reason}); expected an object per line"
            ) from None
        _add_record(reading, record, f"line {number}")


def _read_list(reading: _Reading, text: str) -> None:
    records = _load(reading.path, text)
    if not records or not all(record is None or isinstance(record, str) for record in records):
        for number, record in enumerate(records, 1):
            _add_record(reading, record, f"record {number}")
        return
    reading.add_in_order([(sql, "") for sql in records], "record", fewer=True)


def _add_record(reading: _Reading, record: Any, where: str) -> None:
    id_key = _key(record, ID_KEYS) if isinstance(record, dict) else None
    sql_key = _key(record, SQL_KEYS) if isinstance(record, dict) else None
    if id_key is None or sql_key is None:
        shown = json.dumps(record, ensure_ascii=False)[:80]
        raise UsageError(f'{reading.path} {where}: expected an object with "id" and "sql", found {shown}')
    reading.look_beside(record, sql_key)
    reading.add(reading.meant(record, str(record[id_key])), record[sql_key], where)


def _read_text_lines(reading: _Reading, text: str) -> None:
    questions = reading.questions
    lines = _without_gaps(_lines(text), questions)
    while len(lines) > len(questions) and not lines[-1].strip():
        lines.pop()
    pairs = [_sql_and_database(line) for line in lines]
    known = {question.db_id for question in questions}
    named = [bool(database) for line, (_, database) in zip(lines, pairs, strict=True) if line.strip()]
    if not any(database in known for _, database in pairs) and not (named and all(named)):
        pairs = [(line.strip(), "") for line in lines]  # the tab is part of the SQL
    reading.add_in_order(pairs, "line")


def _read_bird(reading: _Reading, text: str) -> None:
    pairs: list[tuple[str, Any]] = _load(reading.path, text, pairs=True)
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UsageError(f'{reading.path}: expected an object {{"0": "SQL{BIRD_MARK}database", ...}}')
    entries = []
    for key, value in pairs:
        sql, _, database = value.partition(BIRD_MARK) if isinstance(value, str) else (value, "", "")
        entries.append((key, sql, database.strip()))
    _add_by_key(reading, entries)


def _add_by_key(reading: _Reading, entries: Sequence[tuple[str, Any, str]]) -> None:
    """Predictions of (position or id, SQL, database or "").

    Keys are positions (as BIRD writes them) or question ids: the reading that more keys and their databases fit;
    positions where both fit alike.
    """
    places = {str(place): [question] for place, question in enumerate(reading.questions)}

    def misfits_of(target: Mapping[str, Sequence[Question]]) -> list[tuple[str, str]]:
        known = [(key, db) for key, _, db in entries if db and key in target]
        return [(key, db) for key, db in known if all(question.db_id != db for question in target[key])]

    keys = {key for key, _, _ in entries}
    target = max((places, reading.namesakes), key=lambda target: len(target.keys() & keys) - len(misfits_of(target)))
    if misfits := misfits_of(target):
        key, db = misfits[0]
        question = target[key][0]
        raise UsageError(
            f"{reading.path} entry {key!r} is for database {db!r} but question {question.id} asks "
            f"{question.db_id!r}: the file was made for other questions or another --split"
        )
    for key, sql, database in entries:
        by_id = target is reading.namesakes or key not in target
        id_ = reading.meant({"db_id": database}, key) if by_id else target[key][0].id
        reading.add(id_, sql, f"entry {key!r}")


def _load(path: Path, text: str, *, pairs: bool = False) -> Any:
    try:
        return from_json(text, pairs=pairs)
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None


def _read_csv(reading: _Reading, text: str) -> None:
    header = text.split("\n", 1)[0]
    delimiter = max((",", ";", "\t"), key=header.count)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise UsageError(f"{reading.path} is not CSV: {error}") from None
    names = dict.fromkeys(name.strip() for name in header.rstrip("\r").split(delimiter))
    columns: Mapping[str, Any] = rows[0] if rows else names
    sql_key = _key(columns, SQL_KEYS)
    if sql_key is None:
        raise UsageError(
            f"{reading.path} has no column for the SQL: expected one of {', '.join(SQL_KEYS)}, found {', '.join(names)}"
        )
    id_key = _key(columns, ID_KEYS)
    needed = [sql_key, *([id_key] if id_key else filter(None, (_key(columns, TEXT_KEYS), _key(columns, DB_KEYS))))]
    for number, row in enumerate(rows, 1):
        if None in row or any(row[key] is None for key in needed):
            raise UsageError(f"{reading.path} row {number} has another number of fields than the header; quote the SQL")
    db_key = _key(columns, DB_KEYS)
    for row in rows:
        reading.look_beside(row, sql_key)
    if not id_key and _key(columns, TEXT_KEYS) is None:
        reading.add_in_order([(row[sql_key], row[db_key].strip() if db_key else "") for row in rows], "row")
        return
    for number, row in enumerate(rows, 1):
        where, id_ = f"row {number}", row[id_key].strip() if id_key else None
        reading.add(reading.meant(row, id_, where), row[sql_key], where)


def _plain(text: str) -> str:
    return " ".join(text.split()).lower()


_READERS = {
    "jsonl": _read_jsonl,
    "list": _read_list,
    "text": _read_text_lines,
    "bird": _read_bird,
    "csv": _read_csv,
}
