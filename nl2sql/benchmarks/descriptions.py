"""What a benchmark's own files say of the columns of a database.

BIRD: ``database_description/TABLE.csv`` beside the SQLite file, in UTF-8 or in Windows' code page 1252, with a row
``original_column_name, column_name, column_description, data_format, value_description`` per column. LiveSQLBench and
Mini-Interact: ``DB_column_meaning_base.json``, ``{"DB|TABLE|COLUMN": text or {"column_meaning", "fields_meaning"}}``.

    descriptions_beside(Path("dev_databases/shop/shop.sqlite"))[("customers", "city")]   # 'where the customer lives'
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from nl2sql.errors import BenchmarkError
from nl2sql.machine import from_json

FOLDER = "database_description"
MEANINGS = "*_column_meaning_base.json"


def descriptions_beside(database: Path) -> dict[tuple[str, str], str]:
    """(table, column) in lower case -> what is said of it. Raises BenchmarkError for a file that cannot be read."""
    try:
        return _read(database)
    except (ValueError, AttributeError, TypeError, csv.Error) as error:
        raise BenchmarkError(f"what is said of the columns of {database.name} cannot be read: {error}") from None


def _read(database: Path) -> dict[tuple[str, str], str]:
    tables = sorted((database.parent / FOLDER).glob("*.csv"))
    meanings = [
        file for file in database.parent.glob(MEANINGS) if database.stem.startswith(file.name[: -len(MEANINGS[1:])])
    ]
    entries = [entry for file in tables for entry in _of_csv(file)] + [e for file in meanings for e in _of_json(file)]
    return {(table.lower(), column.lower()): text for table, column, text in entries if text}


def _of_csv(file: Path) -> Iterator[tuple[str, str, str]]:
    for row in csv.DictReader(io.StringIO(_text(file), newline="")):
        known = {str(key).strip(): " ".join(value.split()) for key, value in row.items() if isinstance(value, str)}
        said = known.get("column_description") or known.get("column_name", "")
        values = known.get("value_description", "")
        yield file.stem, known.get("original_column_name", ""), "; ".join(filter(None, (said, values)))


def _of_json(file: Path) -> Iterator[tuple[str, str, str]]:
    meanings = from_json(_text(file))
    for key, said in meanings.items():
        _, table, column = key.split("|", 2)
        if isinstance(said, dict):
            fields = ", ".join(said.get("fields_meaning") or ())
            said = said.get("column_meaning", "") + (f" (fields: {fields})" if fields else "")
        yield table, column, str(said)


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise BenchmarkError(f"{file} cannot be read: {error}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")
