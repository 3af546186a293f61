"""Layouts with files of their own beside the questions: Spider 2.0-lite, LiveSQLBench, Mini-Interact.

Each reader gives records with the fields of ``layouts``, so that all else is as with any other folder.

>>> live_query({"sol_sql": ["SELECT 1"], "category": "Query", "conditions": {"order": True}})
'SELECT 1 /* in this order */'

Spider 2.0-lite publishes golds as tables of results, ``exec_result/ID.csv``, or ``ID_a.csv``, ... A table becomes a
statement that gives its rows, so that it is executed, compared and shown as any gold is. What the official
``condition_cols`` leave out is not in it, and it has an ORDER BY where the order of rows counts.

>>> table_sql("id,name\\n1,Ada\\n2,\\n", [1], ordered=True)
'SELECT value ->> 0 AS "name" FROM json_each(\\'[["Ada"], [null]]\\') ORDER BY json_each.key'
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql.databases.schema import quote_always, quote_text
from nl2sql.errors import BenchmarkError
from nl2sql.eval.rules.published import IN_ORDER, ORDERED, as_pandas_reads

Record = Mapping[str, Any]
Read = Callable[[Path], list[dict[str, Any]]]

SPIDER2 = "spider2-lite.jsonl"
GOLD = "evaluation_suite/gold"
DOCUMENTS = "resource/documents"
STANDARD = "spider2lite_eval.jsonl"
LIVE = ("livesqlbench_data_sqlite.jsonl", "livesqlbench_data.jsonl", "mini_interact.jsonl")
PLACES = {  # layout -> folders of its databases, and where these and its golds can be had
    "spider2": (
        ("resource/databases/spider2-localdb", "resource/databases", "resource/databases/sqlite"),
        "the golds are in git clone https://github.com/xlang-ai/Spider2, the SQLite files in the archive that "
        "spider2-lite/README.md there links to: unpack it into resource/databases/spider2-localdb",
    ),
    "livesqlbench": (
        ("", "database"),
        "hf download --repo-type dataset birdsql/livesqlbench-base-lite-sqlite (or birdsql/mini-interact); sol_sql and "
        "external_knowledge come by mail from bird.bench25@gmail.com: put that file beside it, named *gt*.jsonl",
    ),
}


def questions_file(folder: Path) -> tuple[str, Path] | None:
    """(layout, its file of questions) of a folder; None where it is neither."""
    for name in (SPIDER2, *LIVE):
        if (folder / name).is_file():
            return ("spider2" if name == SPIDER2 else "livesqlbench"), folder / name
    return None


def records_of(folder: Path, read: Read) -> list[dict[str, Any]]:
    """The records of such a folder. Raises BenchmarkError, which says what is missing, where it has no golds."""
    layout, file = questions_file(folder) or ("", folder)
    try:
        records = list((_of_spider2 if layout == "spider2" else _of_live)(folder, read(file), read))
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{file} or a file that it names is not as published: {error!r}") from None
    if not any(record.get("query") for record in records):
        what = f"{GOLD}/exec_result/ID.csv" if layout == "spider2" else "sol_sql"
        raise BenchmarkError(f"{file} has questions without golds: {what} is missing; {PLACES[layout][1]}")
    return records


def _of_spider2(folder: Path, questions: list[dict[str, Any]], read: Read) -> Iterator[dict[str, Any]]:
    standard = folder / GOLD / STANDARD
    if not standard.is_file():
        raise BenchmarkError(f"{standard} is missing; {PLACES['spider2'][1]}")
    standards = {record["instance_id"]: record for record in read(standard)}
    for question in questions:
        id_ = _name(question["instance_id"])
        local = id_.startswith("local")  # the others ask BigQuery or Snowflake
        golds = _golds_of(id_, folder / GOLD / "exec_result", standards.get(id_, {})) if local else []
        document = folder / DOCUMENTS / _name(question.get("external_knowledge") or "none")
        evidence = document.read_text(encoding="utf-8-sig").strip() if local and document.is_file() else ""
        marks = {"gold_tables": True} if local else {"other_engine": True}
        yield {**question, "query": next(iter(golds), None), "alt_queries": golds[1:], "evidence": evidence, **marks}


def _of_live(folder: Path, questions: list[dict[str, Any]], read: Read) -> Iterator[dict[str, Any]]:
    sent = {record["instance_id"]: record for file in sorted(folder.glob("*gt*.jsonl")) for record in read(file)}
    known: dict[str, dict[int, Record]] = {}
    for public in questions:
        record = {**public, **sent.get(public["instance_id"], {})}
        db_id = _name(record["selected_database"])
        if db_id not in known:
            known[db_id] = _knowledge(folder, db_id, read)
        named = [known[db_id][id_] for id_ in record.get("external_knowledge") or () if id_ in known[db_id]]
        gold = live_query(record)
        yield {
            "id": record["instance_id"],
            "db_id": db_id,
            "question": record.get("query") or record.get("amb_user_query"),
            "query": gold,
            "evidence": _evidence(named),
            "ambiguous": not record.get("query"),
            **_ambiguous(record, named, known[db_id]),
            "writes": record.get("category") == "Management" or bool(record.get("sol_sql") and gold is None),
        }


def _ambiguous(record: Record, named: Sequence[Record], known: Mapping[int, Record]) -> dict[str, Any]:
    """What ``agents.user`` asks and answers in place of a question, where its ambiguities are known.

    The evidence lacks the knowledge that the item hides; a term that needs it means its definition.
    """
    in_query, hidden = record.get("user_query_ambiguity") or {}, record.get("knowledge_ambiguity") or []
    critical = in_query.get("critical_ambiguity") or []
    if not (record.get("query") and record.get("amb_user_query") and (critical or hidden)):
        return {}
    gone = {entry.get("deleted_knowledge") for entry in hidden}
    definitions = []
    for entry in (*critical, *(in_query.get("non_critical_ambiguity") or ()), *hidden):
        defined = known.get(entry.get("deleted_knowledge"), {})
        definitions.append([str(entry["term"]), str(defined.get("definition") or entry.get("sql_snippet") or "")])
    told = {
        "question": record["amb_user_query"],
        "evidence": _evidence(entry for entry in named if entry["id"] not in gone),
        "says": definitions,
        "points": len(critical) + len(hidden),
    }
    return {"user": told}


def _evidence(named: Iterable[Record]) -> str:
    return "\n".join(f"{entry['knowledge']}: {entry['definition']}" for entry in named)


def live_query(record: Record) -> str | None:
    """The gold of an item that reads; None for one that writes, or has no solution."""
    golds = record.get("sol_sql") or []
    golds = [golds] if isinstance(golds, str) else golds
    if len(golds) != 1 or record.get("category") == "Management" or record.get("preprocess_sql"):
        return None
    ordered = (record.get("conditions") or {}).get("order")
    return f"{golds[0].rstrip('; ')} {IN_ORDER}" if ordered else str(golds[0])


def _name(text: str) -> str:
    """The text, which names a file. Raises BenchmarkError for a path, which may lead out of the folder."""
    if Path(text).name != text:
        raise BenchmarkError(f"{text!r} is no name of a file in the benchmark's folder")
    return text


def _knowledge(folder: Path, db_id: str, read: Read) -> dict[int, Record]:
    files = (folder / place / db_id / f"{db_id}_kb.jsonl" for place in PLACES["livesqlbench"][0])
    return {entry["id"]: entry for file in files if file.is_file() for entry in read(file)}


# -------------------------------------------------------------------------------- tables of results


def table_sql(text: str, columns: Sequence[int], *, ordered: bool) -> str:
    """The statement that gives the rows of a CSV table, of ``columns`` only (none: of all). Raises IndexError."""
    names, *rows = (row for row in csv.reader(io.StringIO(text, newline="")) if row)
    read = [as_pandas_reads(column) for column in zip(*rows, strict=True)] if rows else [()] * len(names)
    kept = [(names[place], read[place]) for place in columns or range(len(names))]
    shown = ", ".join(f"value ->> {place} AS {quote_always(name)}" for place, (name, _) in enumerate(kept))
    cells = json.dumps(list(zip(*(column for _, column in kept), strict=True)), ensure_ascii=False)
    return f"SELECT {shown} FROM json_each({quote_text(cells)})" + (f" {ORDERED}" if ordered else "")


def _golds_of(id_: str, folder: Path, standard: dict[str, Any]) -> list[str]:
    """The statements of a question's tables; none where ``folder`` has no table of it. Raises BenchmarkError."""
    single = folder / f"{id_}.csv"
    variant = re.compile(re.escape(id_) + r"(_[a-z])?\.csv")
    files = [single] if single.is_file() else sorted(f for f in folder.glob(f"{id_}*.csv") if variant.fullmatch(f.name))
    columns = _columns(standard.get("condition_cols"), len(files), several=files != [single])
    try:
        return [
            table_sql(file.read_text(encoding="utf-8-sig"), chosen, ordered=not standard.get("ignore_order"))
            for file, chosen in zip(files, columns, strict=False)
        ]
    except (OSError, ValueError, IndexError, csv.Error) as error:
        raise BenchmarkError(f"{folder}/{id_}*.csv with condition_cols {columns}: {error}") from None


def _columns(declared: Any, tables: int, *, several: bool) -> list[list[int]]:
    """The columns that count, of each table: declared once for all, or a list for each."""
    if declared in (None, [], [[]], [None]):
        return [[]] * tables
    if not several or (tables > 1 and not all(isinstance(columns, list) for columns in declared)):
        return [declared] * tables
    # A single table of variants gets the first column that a flat list names, and every one where that is column 0.
    return [columns if isinstance(columns, list) else [columns] if columns else [] for columns in declared]
