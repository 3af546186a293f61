"""CSV, Parquet, JSON and Excel files as a database: each a table of a SQLite file in the cache.

    people.csv with the columns "First Name", "Age"   ->   people(first_name TEXT, age INTEGER)

SQLite is what the sandbox, the grammars and value grounding know, so files are copied into it, once for each content.
Names become lower-case words joined by underscores. A key is declared where the values allow it: a table's ``id`` (or
``<table>_id``) that is unique, and a column of that name elsewhere whose values all stand in it. Not covered: nested
JSON beyond one level (kept as its text), several header lines, formulas.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql.databases.schema import quote_always
from nl2sql.errors import UsageError, one_line
from nl2sql.machine import cache_dir, install_command, missing_part

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1  # of the copies in the cache
SNIFFED = 1 << 16  # characters of a CSV file that say how it is written
ENCODINGS = ("utf-8-sig", "cp1252")  # tried in this order


def is_data(path: Path) -> bool:
    """Whether a path is a data file, or a folder with any."""
    if path.is_dir():
        return any(_in_folder(file) for file in path.iterdir())
    return path.suffix.lower() in READERS


def _in_folder(file: Path) -> bool:
    """Whether a file is a table of its folder; a lone ``.json`` is as often a setting as data."""
    return file.suffix.lower() in READERS and file.suffix.lower() != ".json"


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
        _write(copy, {name: frame for file in files for name, frame in _frames(file)})
    return copy


def _frames(file: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """(table, rows) of a file: one, or one per sheet. Raises UsageError."""
    try:
        frames = READERS[file.suffix.lower()](file)
    except ImportError as error:
        raise UsageError(f"{file}: {error}") from None
    except Exception as error:  # noqa: BLE001 - pandas raises what its parsers raise
        raise UsageError(f"{file} cannot be read: {one_line(error, 200)}") from None
    for sheet, frame in frames.items():
        if frame.shape[1]:
            stem = file.stem if len(frames) == 1 else f"{file.stem} {sheet}"
            yield identifier(stem), _plain(frame)
    if not any(frame.shape[1] for frame in frames.values()):
        raise UsageError(f"{file} has no columns; expected a header line and rows")


def identifier(name: str) -> str:
    """A table's or column's name as SQL takes it unquoted: ``"First Name (%)"`` -> ``first_name``."""
    plain = re.sub(r"\W+", "_", str(name).strip()).strip("_").lower() or "column"
    return f"n_{plain}" if plain[0].isdigit() else plain


def _plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with the columns' names as identifiers, each once, and values that SQLite can hold."""
    names: list[str] = []
    for name in map(identifier, frame.columns):
        names.append(name if name not in names else f"{name}_{names.count(name) + len(names)}")
    frame = frame.set_axis(names, axis=1)
    for name in names:
        if frame[name].dtype == object:
            frame[name] = frame[name].map(lambda v: json.dumps(v) if isinstance(v, (dict, list)) else v)
        elif str(frame[name].dtype).startswith("datetime"):
            days = (frame[name].dropna() == frame[name].dropna().dt.normalize()).all()
            frame[name] = frame[name].dt.strftime("%Y-%m-%d" if days else "%Y-%m-%d %H:%M:%S")
    return frame


def _csv(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    text = _decoded(file.read_bytes()[:SNIFFED])
    try:
        delimiter = csv.Sniffer().sniff(text, delimiters=",;\t|").delimiter
    except csv.Error:  # one column
        delimiter = ","
    encoding = next(name for name in ENCODINGS if _decodes(file, name))
    options: Mapping[str, Any] = {"sep": delimiter, "encoding": encoding, "dtype_backend": "numpy_nullable"}
    return {"": pd.read_csv(file, skipinitialspace=True, **options)}


def _decoded(raw: bytes) -> str:
    return raw.decode(ENCODINGS[0], "ignore")


def _decodes(file: Path, encoding: str) -> bool:
    try:
        file.read_bytes().decode(encoding)
    except UnicodeDecodeError:
        return encoding == ENCODINGS[-1]
    return True


def _parquet(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    return {"": pd.read_parquet(file, dtype_backend="numpy_nullable")}


def _json(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    lines = file.suffix.lower() != ".json"
    return {"": pd.read_json(file, lines=lines, dtype_backend="numpy_nullable")}


def _excel(file: Path) -> dict[str, pd.DataFrame]:
    import pandas as pd

    try:
        sheets = pd.read_excel(file, sheet_name=None, dtype_backend="numpy_nullable")
    except ImportError:
        raise ImportError(f"Excel files need openpyxl; install it: {install_command('excel')}") from None
    return {str(name): frame for name, frame in sheets.items()}


READERS: Mapping[str, Callable[[Path], dict[str, pd.DataFrame]]] = {
    **dict.fromkeys((".csv", ".tsv"), _csv),
    ".parquet": _parquet,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json),
    ".xlsx": _excel,
}


# ---------------------------------------------------------------------------------------------------------- keys


def _write(copy: Path, frames: Mapping[str, pd.DataFrame]) -> None:
    """Write the tables with their keys, beside the copy's place and then to it."""
    keys = {table: key for table, frame in frames.items() if (key := _primary(table, frame))}
    handle, name = tempfile.mkstemp(dir=copy.parent, suffix=".part")
    os.close(handle)
    try:
        with closing(sqlite3.connect(name)) as connection, connection:
            for table, frame in frames.items():
                connection.execute(_definition(table, frame, keys, frames))
                frame.to_sql(table, connection, index=False, if_exists="append")
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
