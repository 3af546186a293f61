"""CSV, Parquet, JSON and Excel files as a database: each a table of a SQLite file in the cache.

    people.csv with the columns "First Name", "Age"   ->   people(first_name TEXT, age INTEGER)

SQLite is what the sandbox, the grammars and value grounding know, so files are copied into it, once for each content.
Names become lower-case words joined by underscores; only an empty cell is NULL, and 02134 is a text. A key is declared
where the values allow it: a table's ``id`` (or ``<table>_id``) that is unique, and a column of that name elsewhere
whose values all stand in it. Not covered: nested JSON beyond one level (kept as its text), several header lines,
formulas.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.databases.schema import quote_always
from nl2sql.errors import UsageError, one_line
from nl2sql.machine import cache_dir, install_command, missing_part

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 6  # of the copies in the cache
LARGEST = 2**63 - 1  # whole number of SQLite
SNIFFED = 1 << 16  # bytes of a CSV file that say how it is written
AS_WRITTEN: Mapping[str, Any] = {"keep_default_na": False, "na_values": [""]}  # a country is NA, a surname Null
CODES = r"[-+]?0\d(?!:)|\+\d{6,}"  # no numbers: a postcode, a telephone
EXCEL_CODES = rf"{CODES}|\d+[eE]\d|-?\d{{19,}}"  # what a cell of numbers cannot hold, so it is a text there
SEPARATOR = re.compile(r"sep=(?P<mark>.)\r?\n")  # the first line that Excel writes and reads
LISTED = re.compile(rb"\s*\[\s*\{")
WIDE = (b"\xff\xfe", b"\xfe\xff")  # how a text of UTF-16 begins


def is_data(path: Path) -> bool:
    """Whether a path is a data file, or a folder with any; one of ``.json`` beside folders is a benchmark's."""
    if not path.is_dir():
        return path.suffix.lower() in READERS
    found = list(path.iterdir())
    tables = {file.suffix.lower() for file in found if _in_folder(file)}
    return bool(tables - {".json"}) or (bool(tables) and not any(file.is_dir() for file in found))


def _in_folder(file: Path) -> bool:
    """Whether a file is a table of its folder: of ``.json``, as often a setting, what begins as a list of objects."""
    kind = file.suffix.lower()
    if file.name.startswith((".", "~$")):  # hidden, or Excel's lock beside an open book
        return False
    if kind != ".json" or not file.is_file():
        return kind in READERS
    try:
        with file.open("rb") as opened:
            return LISTED.match(opened.read(SNIFFED)) is not None
    except OSError:
        return True  # as_sqlite says why


def as_sqlite(path: Path) -> Path:
    """The SQLite copy of a data file, or of all data files in a folder; made anew when they change.

    Raises UsageError for a file that cannot be read, or holds no rows and columns; the message names the file.
    """
    if missing := missing_part("pandas"):
        raise UsageError(f"{path} is read with pandas, and {missing}")
    files = sorted(filter(_in_folder, path.iterdir())) if path.is_dir() else [path]
    digest = hashlib.sha256(str(FORMAT).encode())
    for file in files:
        try:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    copy = cache_dir("data-files") / f"{digest.hexdigest()[:32]}.sqlite"
    if not copy.exists():
        tables: dict[str, tuple[Path, pd.DataFrame]] = {}
        for file in files:
            for name, frame in _frames(file):
                tables[_free(name, tables)] = file, frame
        _write(copy, tables)
    return copy


def _frames(file: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """(table, rows) of a file: one, or one per sheet. Raises UsageError."""
    try:
        frames = {sheet: _plain(frame) for sheet, frame in READERS[file.suffix.lower()](file).items()}
    except ImportError as error:
        raise UsageError(f"{file}: {error}") from None
    except Exception as error:  # noqa: BLE001 - pandas raises what its parsers raise
        raise UsageError(f"{file} cannot be read: {one_line(error, 200)}") from None
    for sheet, frame in frames.items():
        if frame.shape[1]:
            stem = file.stem if len(frames) == 1 else f"{file.stem} {sheet}"
            yield identifier(stem), frame
    if not any(frame.shape[1] for frame in frames.values()):
        raise UsageError(f"{file} has no columns; expected a header line and rows")


def identifier(name: str) -> str:
    """A table's or column's name as SQL takes it unquoted: ``"First Name (%)"`` -> ``first_name``."""
    plain = re.sub(r"\W+", "_", str(name).strip()).strip("_").lower() or "column"
    return f"n_{plain}" if plain[0].isdigit() else plain


def _free(name: str, taken: Collection[str]) -> str:
    """A name that is not taken: itself, else with a number."""
    return next(free for free in (name, *(f"{name}_{n}" for n in range(2, len(taken) + 3))) if free not in taken)


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns' names as identifiers, each once, and values that SQLite can hold."""
    names: list[str] = []
    for name in map(identifier, frame.columns):
        names.append(_free(name, names))
    frame = frame.set_axis(names, axis=1)
    for name in names:
        frame[name] = _held(frame[name])
    return frame


def _held(values: pd.Series[Any]) -> pd.Series[Any]:
    """The values of a column as SQLite can hold them; whole numbers of more than 64 bits become texts."""
    from pandas.api.types import is_integer_dtype, is_list_like

    known, kind = values.dropna(), str(values.dtype)
    if kind.startswith("datetime"):
        days = (known == known.dt.normalize()).all()
        parts = "" if (known.dt.microsecond == 0).all() else ".%f"
        return values.dt.strftime("%Y-%m-%d" if days else f"%Y-%m-%d %H:%M:%S{parts}")
    if kind.startswith(("timedelta", "period", "interval")) or (is_integer_dtype(values) and (known > LARGEST).any()):
        return values.astype("string")
    if kind != "object":
        return values
    if len(known) and all(isinstance(value, Decimal) for value in known):
        return values.astype("Float64")

    def held(value: Any) -> Any:
        if isinstance(value, time):
            return value.isoformat()  # sqlite3, as pandas sets it up, would add six zeros
        return json.dumps(value, default=_in_json) if is_list_like(value) else value

    return values.map(held)


def _in_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _csv(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    text = _text(file)
    said = SEPARATOR.match(text)
    text = text[said.end() :] if said else text
    delimiter = said["mark"] if said else _delimiter(text)
    options: dict[str, Any] = {"sep": delimiter, "skipinitialspace": True, **AS_WRITTEN}
    texts = pd.read_csv(io.StringIO(text, newline=""), dtype="string", **options)
    if not isinstance(texts.index, pd.RangeIndex):
        raise ValueError("its rows have more values than its header has names")
    codes = _codes(texts, CODES)
    frame = pd.read_csv(io.StringIO(text, newline=""), dtype=codes, dtype_backend="numpy_nullable", **options)
    for name in frame.select_dtypes(["string", "object"]):
        frame[name] = texts[name]  # pandas makes the empty cells of whole numbers beyond 64 bits empty texts
    numbers = {name: _plain_numbers(texts[name], delimiter) for name in texts if name not in codes}
    if delimiter == ";" and any(plain is not None for plain in numbers.values()):  # 1.234 is no fraction here
        numbers |= {name: _thousands(texts[name]) for name, plain in numbers.items() if plain is None}
    for name, plain in numbers.items():
        if plain is not None:
            frame[name] = pd.to_numeric(plain, dtype_backend="numpy_nullable")
    return {"": frame}


def _delimiter(text: str) -> str:
    """The character between the values: that by which most of the first rows have as many as the header."""
    best, delimiter = (0.0, 1), ","
    for mark in ",;\t|":
        reader = csv.reader(io.StringIO(text[:SNIFFED], newline=""), delimiter=mark, skipinitialspace=True)
        try:
            rows = [len(row) for row in itertools.islice(reader, 50) if row]
        except csv.Error:  # a value of more than 128 KiB
            continue
        fit = (sum(row == rows[0] for row in rows) / len(rows), rows[0]) if rows else best
        if fit[1] > 1 and fit > best:
            best, delimiter = fit, mark
    return delimiter


def _plain_numbers(texts: pd.Series, delimiter: str) -> pd.Series | None:
    """Numbers written with commas, without them: 1,234.50, or in a file with semicolons 1.234,50.

    None where a value is no such number, where none has a comma, and where a comma may mean either (1,234 in a file
    with semicolons).
    """
    values = texts.dropna()
    commas = values[values.str.contains(",", regex=False)]
    if commas.empty:
        return None
    if delimiter == ";":
        unclear = commas.str.fullmatch(r"[-+]?\d{1,3},\d{3}").all()
        fits = values.str.fullmatch(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?").all()
        plain = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        return plain if fits and not unclear else None
    fits = values.str.fullmatch(r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?").all()
    return texts.str.replace(",", "", regex=False) if fits else None


def _thousands(texts: pd.Series) -> pd.Series | None:
    """Whole numbers with points between the thousands, without them; None where a value is written otherwise."""
    values = texts.dropna()
    fits = values.str.fullmatch(r"[-+]?\d{1,3}(?:\.\d{3})*").all() and values.str.contains(".", regex=False).any()
    return texts.str.replace(".", "", regex=False) if fits else None


def _codes(texts: pd.DataFrame, pattern: str) -> dict[Any, Any]:
    """The columns, read as texts, in which a value such as 02134 stands, with their type: they are no numbers."""
    return {name: "string" for name in texts if texts[name].str.match(pattern).any()}


def _text(file: Path) -> str:
    """UTF-16 where the bytes begin so, else UTF-8, else Windows-1252. Raises ValueError for what is no text."""
    raw = file.read_bytes()
    if raw.startswith(WIDE):
        return raw.decode("utf-16")
    if b"\0" in raw:
        raise ValueError("it holds NUL bytes, so it is no text in UTF-8 or Windows-1252; save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252")


def _parquet(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    return {"": _with_labels(pd.read_parquet(file, dtype_backend="numpy_nullable"))}


def _with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with their labels, which pandas keeps beside the columns after groupby or set_index, as columns.

    Unnamed numbers only count the rows."""
    from pandas.api.types import is_integer_dtype

    labels = frame.index
    counted = labels.nlevels == 1 and labels.name is None and is_integer_dtype(labels.dtype)
    return frame if counted or not frame.shape[1] else frame.reset_index(allow_duplicates=True)


def _json(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    text = _text(file)
    if file.suffix.lower() == ".json":
        records = json.loads(text)
        if not isinstance(records, list):  # columns or rows by their names
            frame = pd.read_json(io.StringIO(text), convert_dates=False, dtype_backend="numpy_nullable")
            counted = list(frame.index) == list(range(len(frame)))  # else labels, whose name JSON does not keep
            return {"": frame if counted else frame.reset_index()}
    else:
        records = [json.loads(line) for line in text.split("\n") if line.strip()]
    if not all(isinstance(record, dict) for record in records):
        raise ValueError("expected objects, {...}, one for each row")
    names = dict.fromkeys(name for record in records for name in record)
    return {"": pd.DataFrame({name: _values([record.get(name) for record in records]) for name in names})}


def _values(values: list[Any]) -> pd.Series[Any]:
    """The values of a column as JSON has them, whole numbers beside nulls whole; texts beyond 64 bits."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    whole = kinds == {int}
    if whole and any(value is not None and abs(value) > LARGEST for value in values):
        return pd.Series([None if value is None else str(value) for value in values], dtype="string")
    kind = "Int64" if whole else "boolean" if kinds == {bool} else "Float64" if kinds and kinds <= {int, float} else ""
    return pd.Series(values, dtype=kind or "object")


def _excel(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    try:
        book = pd.ExcelFile(file)
    except ImportError:
        raise ImportError(f"Excel files need openpyxl; install it: {install_command('excel')}") from None
    options: dict[str, Any] = {"dtype_backend": "numpy_nullable", **AS_WRITTEN}
    sheets = {}
    with book:
        for sheet, texts in pd.read_excel(book, sheet_name=None, dtype="string", **AS_WRITTEN).items():
            frame = pd.read_excel(book, sheet_name=sheet, dtype=_codes(texts, EXCEL_CODES), **options)
            for name in frame.select_dtypes(["string"]):
                frame[name] = texts[name]
            sheets[sheet] = frame
    return sheets


READERS: Mapping[str, Callable[[Path], dict[str, pd.DataFrame]]] = {
    **dict.fromkeys((".csv", ".tsv"), _csv),
    ".parquet": _parquet,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json),
    ".xlsx": _excel,
}


# ---------------------------------------------------------------------------------------------------------- keys


def _write(copy: Path, tables: Mapping[str, tuple[Path, pd.DataFrame]]) -> None:
    """Write the tables, each of a file, with their keys, beside the copy's place and then to it. Raises UsageError."""
    frames = {table: frame for table, (_, frame) in tables.items()}
    keys = {table: key for table, frame in frames.items() if (key := _primary(table, frame))}
    handle, name = tempfile.mkstemp(dir=copy.parent, suffix=".part")
    os.close(handle)
    try:
        with closing(sqlite3.connect(name)) as connection, connection:
            for table, (file, frame) in tables.items():
                try:
                    connection.execute(_definition(table, frame, keys, frames))
                    frame.to_sql(table, connection, index=False, if_exists="append")
                except Exception as error:  # noqa: BLE001 - pandas and SQLite raise what a value or a name makes them
                    why = one_line(error.__cause__ or error, 200)  # pandas' own words are "Execution failed"
                    raise UsageError(f"{file} cannot be written as a table: {why}") from None
        Path(name).replace(copy)
    finally:
        Path(name).unlink(missing_ok=True)


def _primary(table: str, frame: pd.DataFrame) -> str:
    """The column that tells the rows apart and is called so; "" without one."""
    singular = table.removesuffix("s")
    for name in ("id", f"{table}_id", f"{singular}_id", f"{singular}id"):
        if name in frame and frame[name].notna().all() and frame[name].is_unique:
            return name
    return ""


def _definition(table: str, frame: pd.DataFrame, keys: Mapping[str, str], frames: Mapping[str, pd.DataFrame]) -> str:
    """The CREATE TABLE of a table, with its key and those of others that its columns refer to."""
    parts = []
    for name in frame.columns:
        unique = " PRIMARY KEY" if keys.get(table) == name else ""
        parts.append(f"{quote_always(name)} {_type(frame[name])}{unique}")
    for other, key in keys.items():
        if other != table and (name := _refers(frame, other, key)) and _within(frame[name], frames[other][key]):
            reference = f"{quote_always(other)} ({quote_always(key)})"
            parts.append(f"FOREIGN KEY ({quote_always(name)}) REFERENCES {reference}")
    return f"CREATE TABLE {quote_always(table)} ({', '.join(parts)})"


def _refers(frame: pd.DataFrame, other: str, key: str) -> str:
    """The column that is called like another table's key; "" without one."""
    names: Sequence[str] = (f"{other}_id", f"{other.removesuffix('s')}_id") if key == "id" else (key,)
    return next((name for name in names if name in frame), "")


def _within(values: pd.Series[Any], key: pd.Series[Any]) -> bool:
    return bool(values.dropna().isin(key).all())


def _type(values: pd.Series[Any]) -> str:
    kind = str(values.dtype).lower()
    return "INTEGER" if kind.startswith(("int", "uint", "bool")) else "REAL" if kind.startswith("float") else "TEXT"
