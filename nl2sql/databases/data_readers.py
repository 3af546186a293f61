"""CSV, Parquet, JSON and Excel files as tables of a SQLite file: what the process does that ``data_files`` starts.

    people.csv with the columns "First Name", "Age"   ->   people(first_name TEXT, age INTEGER)

A file's rows are laid as they are in temporary tables, some thousand at a time, and each column keeps what all of its
values look like. That gives its type, and SQL makes the values of it. So memory does not grow with a file, and its
bytes tell how far the reading is. Bounds hold for every kind alike (``DataFile``): columns, the length of a name, and
cells for each byte on the disk, which a file that unfolds into gigabytes exceeds.

Names become lower-case words joined by underscores; only an empty cell is NULL, and 02134 is a text. A key is declared
where the values allow it: a table's ``id`` (or ``<table>_id``) that is unique, and a column of that name elsewhere
whose values all stand in it. Not covered: nested JSON beyond one level (kept as its text), several header lines,
formulas.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import importlib
import io
import itertools
import json
import os
import re
import signal
import sqlite3
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from nl2sql.databases.schema import quote_always
from nl2sql.databases.sqlite.disk import resolved, stored_bytes
from nl2sql.databases.sqlite.files import shown_path
from nl2sql.databases.sqlite.process import PATIENCE, reply, requests
from nl2sql.errors import UsageError, one_line, typed
from nl2sql.machine import JSON_READER, install_command, missing_part
from nl2sql.safe_files import open_regular

MOST_TABLES = 1_000  # of a file or a folder
MOST_COLUMNS = 2_000  # of a table, as SQLite has it
LONGEST_NAME = 1_000  # characters of a column's name
LONGEST_CELL = 2**24  # characters
CELLS, CELLS_PER_BYTE = 1_000_000, 16  # how many are read of a file of no bytes, and for each byte more
UNPACKED, UNPACKED_PER_BYTE = 2**22, 50  # bytes of an Excel file when it is unpacked, likewise
BATCH_ROWS, BATCH_CELLS = 20_000, 200_000  # in memory at once
MEMORY, MEMORY_PER_BYTE = 640 * 2**20, 6  # bytes of this process, likewise
WRITTEN, WRITTEN_PER_BYTE = 2**26, 64  # bytes of the SQLite file, likewise
TOLD_S = 0.2  # between two words of how far it is
SNIFFED = 1 << 16  # bytes of a CSV file that say how it is written
HEAD = 1 << 22  # characters in which its header must end
LARGEST = 2**63 - 1  # whole number of SQLite

Row = Sequence[Any]
Table = dict[str, str]  # the columns of a temporary view: name -> type


class Sheet(NamedTuple):
    """A table as a reader finds it. header: the names, all there when the rows are. column: a new judge of the one at
    a place."""

    title: str
    header: Collection[Any]
    rows: Iterator[Row]
    column: Callable[[int], Texts | Values]


def free(name: str, taken: dict[str, int]) -> str:
    """The name, with a number where it is taken; it is from now on."""
    made = name
    while made in taken:
        taken[name] += 1
        made = f"{name}_{taken[name]}"
    taken[made] = 1
    return made


def identifier(name: str) -> str:
    """A table's or column's name as SQL takes it unquoted: ``"First Name (%)"`` -> ``first_name``."""
    plain = re.sub(r"\W+", "_", str(name).strip()).strip("_").lower() or "column"
    return f"n_{plain}" if plain[0].isdigit() else plain


class DataFile:
    """A file that is read, and the bounds of what is read of it. follow: also where its name is a link. watch: is told
    of bytes as they are read."""

    def __init__(self, path: Path, follow: bool, watch: Callable[[int], None]) -> None:
        self.path, self._real, self.watch = path, resolved(path) if follow else path, watch
        self.stored = stored_bytes(path)
        self._most, self._cells, self._bytes = CELLS + CELLS_PER_BYTE * self.stored, 0, 0

    def open(self) -> io.BufferedReader:
        """The file from its beginning. Raises NotOpened, OSError."""
        return io.BufferedReader(_Watched(self._real, self.watch), 2**18)

    def named(self, names: Iterable[Any], width: int = 0) -> list[str]:
        """The columns' names as identifiers, each once. Raises ValueError for too many and one that is too long."""
        found = [str(name or "") for name in itertools.islice(names, MOST_COLUMNS + 1)]
        if max(len(found), width) > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS:,} columns; give the file with those that you ask about")
        if (longest := max(map(len, found), default=0)) > LONGEST_NAME:
            raise ValueError(f"the name of a column has {longest:,} characters; expected at most {LONGEST_NAME:,}")
        found += [""] * (width - len(found))
        taken: dict[str, int] = {}
        return [free(identifier(name or f"Unnamed: {place}"), taken) for place, name in enumerate(found)]

    def count(self, cells: int, size: int = 0) -> None:
        """Cells that were found, and their bytes. Raises ValueError where they are too many for a file of this size."""
        self.watch(0)
        self._cells += cells
        self._bytes += size
        if self._cells > self._most or self._bytes > WRITTEN + WRITTEN_PER_BYTE * self.stored:
            most = f"of a file of {self.stored:,} bytes at most {self._most:,} cells are read"
            raise ValueError(f"it unfolds into too many rows and columns: {most}; give a part of it")


class _Watched(io.FileIO):
    """A file that says how much of it was read."""

    def __init__(self, path: Path, watch: Callable[[int], None]) -> None:
        with open_regular(path, buffering=0) as opened:
            super().__init__(os.dup(opened.fileno()))
        self._watch = watch

    read = io.RawIOBase.read  # type: ignore[assignment]  # these go by way of readinto
    readall = io.RawIOBase.readall

    def readinto(self, buffer: Any) -> int:
        size: int = super().readinto(buffer)
        self._watch(size)
        return size


# ---------------------------------------------------------------------------------------- what columns hold

CODES = r"[-+]?0\d(?!:)|\+\d{6,}| *[-+]?\d{20,} *$"  # no numbers: a postcode, a telephone, what loses its last digits
EXCEL_CODES = rf"{CODES}|\d+[eE]\d|-?\d{{19,}}"  # what a cell of numbers cannot hold, so it is a text there
LONG = re.compile(r"^ *[-+]?(\d{19}) *$", re.MULTILINE | re.ASCII)
MIDNIGHT = r"\d{4}-\d\d-\d\d 00:00:00(?:\.0+)?"
CLOCK = {"midnight": MIDNIGHT, "second": r".{19}(?:\.0+)?", "part of a second": r".{19}(?:\.\d+)?"}
NUMBERS = {
    "whole": r" *[-+]?\d+ *",
    "real": r"(?i: *[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf(?:inity)?) *)",
    "flag": "True|TRUE|true|False|FALSE|false",
    "no comma": r"[^,\n]*",
    "no point": r"[^.\n]*",
}
GROUPED = {"groups": r"(?=.{1,23}$)[-+]?(?:\d{1,18}|\d{1,3}(?:,\d{3})+)(?:\.\d+)?"}  # 1,234.5
DECIMAL_COMMA = {  # of a file with semicolons
    "decimals": r"(?=.{1,23}$)[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?",
    "thousands": r"(?=.{1,23}$)[-+]?\d{1,3}(?:\.\d{3})*",
    "unclear": r"[^,\n]*|[-+]?\d{1,3},\d{3}",
}
DECIMALS = "as_float(replace(replace({}, '.', ''), ',', '.'))"
Form = tuple[set[str], set[str], str, str]
# What all values are like, what they are not all like -> the type, and the SQL of a value; the first holds.
FORMS: tuple[Form, ...] = (
    ({"midnight"}, set(), "TEXT", "substr({}, 1, 10)"),
    ({"second"}, set(), "TEXT", "substr({}, 1, 19)"),
    ({"part of a second"}, set(), "TEXT", "substr({} || '.000000', 1, 26)"),
    ({"plain", "decimals"}, {"no comma", "unclear"}, "REAL", DECIMALS),
    ({"plain", "groups", "no point"}, {"no comma"}, "INTEGER", "CAST(replace({}, ',', '') AS INTEGER)"),
    ({"plain", "groups"}, {"no comma"}, "REAL", "as_float(replace({}, ',', ''))"),
    ({"plain", "thousands", "proved"}, {"no point"}, "INTEGER", "CAST(replace({}, '.', '') AS INTEGER)"),
    ({"plain", "whole"}, set(), "INTEGER", "CAST({} AS INTEGER)"),
    ({"plain", "real"}, set(), "REAL", "as_float({})"),
    ({"plain", "flag"}, set(), "INTEGER", "lower({}) = 'true'"),
    (set(), set(), "TEXT", "{}"),
)
TEXTS = "iif(typeof({0}) = 'blob', {0}, CAST({0} AS TEXT))"


class Texts:
    """What all texts of a column have been like so far: which of some patterns match each of them."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self.empty = True
        self._alike = {
            name: re.compile(rf"^(?:{pattern})$", re.MULTILINE | re.ASCII) for name, pattern in patterns.items()
        }

    def see(self, column: Iterable[str | None]) -> None:
        values = {text for text in column if text}
        if not values or not self._alike:
            return
        self.empty = False
        joined = "\n".join(values)
        lines = len(values) if joined.count("\n") < len(values) else -1  # a value of several lines is like nothing
        self._alike = {name: like for name, like in self._alike.items() if len(like.findall(joined)) == lines}
        if max(LONG.findall(joined), default="") > str(LARGEST):
            self._alike.pop("plain", None)
        if not any(like and like <= self._alike.keys() | {"proved"} for like, *_ in FORMS):
            self._alike = {}

    @property
    def decimal_comma(self) -> bool:
        """Whether the values are numbers with commas, and it is plain that commas are decimal."""
        return not self.empty and self.made(False)[1] == DECIMALS

    def made(self, proved: bool) -> tuple[str, str]:
        """The column's type, and the SQL of a value. proved: commas are decimal in this table."""
        if self.empty:
            return ("INTEGER" if "whole" in self._alike else "TEXT"), "{}"
        alike = self._alike.keys() | ({"proved"} if proved else set())
        return next((kind, value) for like, unlike, kind, value in FORMS if like <= alike and not unlike & alike)


class Values:
    """Which types the values of a column have had so far. declared: the column's type as long as there are none."""

    decimal_comma = False

    def __init__(self, declared: str = "TEXT") -> None:
        self._declared = declared
        self._kinds: set[type] = set()

    def see(self, column: Iterable[Any]) -> None:
        self._kinds |= set(map(type, column))

    def made(self, proved: bool) -> tuple[str, str]:
        kinds = self._kinds - {type(None)}
        if kinds in ({int}, {bool}):
            return "INTEGER", "{}"
        if kinds <= {int, float}:
            return "REAL" if kinds else self._declared, "{}"
        return "TEXT", TEXTS


# ------------------------------------------------------------------------------------------------------ CSV


def _csv(file: DataFile) -> Iterator[Sheet]:
    encoding = _encoding(file)
    with _decoded(file, encoding) as text:
        head = text.read(HEAD)
    said = re.match(r"sep=(.)\r?\n", head)  # the first line that Excel writes and reads
    head = head[said.end() :] if said else head
    mark = said[1] if said else _delimiter(head)
    options: dict[str, Any] = {"delimiter": mark, "skipinitialspace": True}
    csv.field_size_limit(LONGEST_CELL)
    first = filter(None, csv.reader(io.StringIO(head, newline=""), **options))
    header = next(first, [])
    file.named(header)
    if len(head) == HEAD and next(first, None) is None:
        raise ValueError(f"its header does not end within {HEAD:,} characters")
    end = "\x1aend of the file"  # a line behind the last; it stands in a value where a quote was never closed

    def rows() -> Iterator[Row]:
        with _decoded(file, encoding) as text:
            if said:
                text.readline()
            reader = csv.reader(itertools.chain(text, [end]), **options)
            for place, row in enumerate(filter(None, reader)):
                if row == [end]:
                    return
                if row[-1].endswith(end):
                    raise ValueError("a quote that opens a value is never closed")
                if place == 0 or (row == [""] and len(header) > 1):
                    continue
                if len(row) > len(header):
                    more = f"line {reader.line_num} has {len(row)}, its header {len(header)}"
                    raise ValueError(f"its rows have more values than its header has names: {more}")
                yield [text or None for text in row]

    patterns = {"plain": f"(?!{CODES}).*"} | NUMBERS | (DECIMAL_COMMA if mark == ";" else GROUPED)
    yield Sheet("", header, rows(), lambda place: Texts(patterns))


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


def _decoded(file: DataFile, encoding: str, newline: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(file.open(), encoding, newline=newline)


# Windows-1252 as people of the West write it: a letter alone, or two beside a letter of ASCII. All other high bytes are
# odd, but for signs of typography alone.
WESTERN = re.compile(
    rb"(?<![\x80-\xff])[\xc0-\xff](?![\x80-\xff])|(?:(?<=[A-Za-z])[\xc0-\xff]{2}|[\xc0-\xff]{2}(?=[A-Za-z]))(?![\x80-\xff])"
)
SIGNS = re.compile(rb"(?<![\x80-\xff])[\x80\x85\x91-\x97\x99\xa0\xa3\xa7\xa9\xab\xae\xb0\xb4\xb7\xbb](?![\x80-\xff])")
# What else a file may be written in, with two bytes that are usual in it; the narrower first.
LEGACY = {
    "cp949": rb"[\xb0-\xc8][\xa1-\xfe]",
    "gb18030": rb"[\xb0-\xd7][\xa1-\xfe]",
    "big5": rb"[\xa4-\xc6][\x40-\x7e\xa1-\xfe]",
    "cp932": rb"[\x81-\x83\x88-\x97][\x40-\xfc]",
    "euc-jp": rb"[\xa4\xa5\xb0-\xcf][\xa1-\xfe]",
    "cp1251": rb"[\xc0-\xff]{2}",
}


def _encoding(file: DataFile) -> str:
    """UTF-16 where the bytes begin so, else UTF-8, else Windows-1252. Raises ValueError for what is none of them."""
    high, nul, utf8 = b"", False, False
    with file.open() as opened:
        if opened.peek(2).startswith((b"\xff\xfe", b"\xfe\xff")):
            return "utf-16"
        pieces = iter(lambda: opened.read(2**20), b"")
        with contextlib.suppress(UnicodeDecodeError):
            nul = any("\0" in text for text in codecs.iterdecode(pieces, "utf-8"))
            utf8 = True
        opened.seek(0)
        for piece in () if utf8 else iter(lambda: opened.read(2**20), b""):
            nul = nul or b"\0" in piece
            high += piece if len(high) < SNIFFED and not piece.isascii() else b""
    if nul:
        raise ValueError("it holds NUL bytes, so it is no text in UTF-8 or Windows-1252; save it as UTF-8")
    if utf8:
        return "utf-8-sig"
    odd = WESTERN.sub(b"", SIGNS.sub(b"", high))
    western = sum(map(len, WESTERN.findall(high)))
    if sum(byte > 127 for byte in odd) > western or not _reads("cp1252", high):
        usual = {name: len(re.findall(pair, high)) for name, pair in LEGACY.items() if _reads(name, high)}
        maybe = sorted(usual, key=lambda name: -usual[name]) or ["ENCODING"]
        said = f"it is no text in UTF-8 or Windows-1252 (it could be {', '.join(maybe)})"
        how = f"iconv -f {maybe[0]} -t UTF-8 {typed(file.path.name)} -o utf8{file.path.suffix}"
        raise ValueError(f"{said}; save it as UTF-8: {how}")
    return "cp1252"


def _reads(encoding: str, sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


# ----------------------------------------------------------------------------------------------------- JSON


def _json(file: DataFile) -> Iterator[Sheet]:
    header: dict[str, int] = {}

    def rows() -> Iterator[Row]:
        for record in _records(file):
            if not isinstance(record, dict):
                raise ValueError("expected objects, {...}, one for each row")
            header.update(dict.fromkeys(record, 0))
            if len(header) > MOST_COLUMNS:
                file.named(header)
            yield [_held(record.get(name)) for name in header]

    yield Sheet("", header, rows(), lambda place: Values())


def _records(file: DataFile) -> Iterator[Any]:
    with _decoded(file, _encoding(file), "\n") as opened:
        if file.path.suffix.lower() != ".json":
            while line := opened.readline(LONGEST_CELL + 1):
                if len(line) > LONGEST_CELL:
                    raise ValueError(f"a line has more than {LONGEST_CELL:,} characters")
                if line.strip():
                    yield _parsed(line, 0)[0]
            return
        text = opened.read()
    begin = len(text) - len(text.lstrip())
    if text.startswith("[", begin):
        yield from _listed(text, begin + 1)
        return
    made, end = _parsed(text, begin)
    if text[end:].strip():
        raise ValueError("more follows behind its first value; name it .jsonl where each line is an object")
    yield from _turned(file, made)


_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*([,\]]|$)[ \t\n\r]*")


def _listed(text: str, at: int) -> Iterator[Any]:
    """The values of a JSON list, one after another, from behind its bracket."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    mark = "]" if text.startswith("]", at) else ","
    at += mark == "]"
    while mark == ",":
        value, at = _parsed(text, at)
        yield value
        found = _COMMA.match(text, at)
        if found is None or not found[1]:
            raise ValueError(f"expected , or ] at character {at + 1}")
        mark, at = found[1], found.end()
    if text[at:].strip():
        raise ValueError("more follows behind its list")


def _parsed(text: str, at: int) -> tuple[Any, int]:
    try:
        found: tuple[Any, int] = JSON_READER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def _turned(file: DataFile, made: Any) -> Iterator[dict[str, Any]]:
    """The rows of columns by their names, {"age": {"Ada": 36}} or {"age": [36]}.

    Labels that do not count the rows are the first column."""
    columns = list(made.values()) if isinstance(made, dict) else []
    file.named(made if columns else ())
    if columns and all(isinstance(column, list) for column in columns) and len({*map(len, columns)}) == 1:
        yield from (dict(zip(made, row, strict=True)) for row in zip(*columns, strict=True))
        return
    if not columns or not all(isinstance(column, dict) for column in columns):
        raise ValueError("expected a list of objects, [{...}, ...], one for each row")
    labels = dict.fromkeys(label for column in columns for label in column)
    counted = all(label == str(place) for place, label in enumerate(labels))
    numbered = all(re.fullmatch(r"-?\d{1,18}", label) for label in labels)
    name = "index" if "index" not in made else "level_0"
    for label in labels:
        first = {} if counted else {name: int(label) if numbered else label}
        yield first | {column: values.get(label) for column, values in made.items()}


# ---------------------------------------------------------------------------------------------------- Excel


def _excel(file: DataFile) -> Iterator[Sheet]:
    """A sheet each; its first row that is not empty is the header."""
    try:
        import openpyxl
    except ImportError:
        raise ImportError(f"Excel files need openpyxl; install it: {install_command('excel')}") from None
    with zipfile.ZipFile(file.open()) as parts:
        unpacked, most = sum(part.file_size for part in parts.infolist()), UNPACKED + UNPACKED_PER_BYTE * file.stored
        if unpacked > most:
            raise ValueError(f"it unpacks to {unpacked:,} bytes; of a file of its size at most {most:,} are read")
    book = openpyxl.load_workbook(file.open(), read_only=True, data_only=True, keep_links=False)
    if len(book.worksheets) > MOST_TABLES:
        raise ValueError(f"it has {len(book.worksheets):,} sheets; at most {MOST_TABLES:,} are read")
    patterns = {"midnight": MIDNIGHT, "plain": f"(?!{EXCEL_CODES}).*"} | NUMBERS
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what a file says of its size need not be so
        rows = _cells(file, sheet)
        yield Sheet(sheet.title, next(rows, ()), rows, lambda place: Texts(patterns))


def _cells(file: DataFile, sheet: Any) -> Iterator[Row]:
    """The rows that are not empty, each up to its last cell that is not."""
    for cells in sheet.iter_rows(values_only=True):
        file.watch(0)
        row = list(map(_cell, cells))
        while row and row[-1] is None:
            row.pop()
        if row:
            yield row


_ERRORS = frozenset(("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"))


def _cell(value: Any) -> str | None:
    """A cell as a text; None for an empty one and for an error of its formula."""
    if value is None or value == "" or value in _ERRORS:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, (bool, float)) else str(_held(value))


# -------------------------------------------------------------------------------------------------- Parquet


def _parquet(file: DataFile) -> Iterator[Sheet]:
    if missing := missing_part("pandas", "pyarrow"):
        raise ImportError(f"Parquet files are read with pandas and pyarrow, and {missing}")
    import pyarrow
    from pyarrow import parquet, types

    importlib.import_module("pandas.core.arrays.arrow.extension_types")  # periods; it takes away types that are pickled
    pyarrow.set_cpu_count(1)
    with parquet.ParquetFile(file.open()) as opened:
        schema = opened.schema_arrow
        file.named(schema.names)
        places = _labelled(schema)
        size = max(1, min(BATCH_ROWS, BATCH_CELLS // max(len(schema.names), 1)))

        def rows() -> Iterator[Row]:
            for batch in opened.iter_batches(size, use_threads=False):
                columns = [_unfolded(batch.column(place)) for _, place in places]
                file.count(0, sum(column.nbytes for column in columns))
                yield from zip(*([_held(value) for value in column.to_pylist()] for column in columns), strict=True)

        def column(place: int) -> Texts | Values:
            kind = schema.types[places[place][1]]
            if types.is_timestamp(kind):
                return Texts(CLOCK)
            whole = types.is_integer(kind) or types.is_boolean(kind)
            return Values("INTEGER" if whole else "REAL" if types.is_floating(kind) else "TEXT")

        yield Sheet("", [name for name, _ in places], rows(), column)


def _labelled(schema: Any) -> list[tuple[str, int]]:
    """The columns' names and places. Labels of rows, which pandas lays behind the columns after groupby or set_index,
    come first; unnamed numbers only count the rows."""
    about = JSON_READER.decode((schema.metadata or {}).get(b"pandas", b"{}").decode())
    labels = [name for name in about.get("index_columns", ()) if isinstance(name, str) and name in schema.names]
    columns = [(name, place) for place, name in enumerate(schema.names) if name not in labels]
    unnamed = ["level_{}"] if len(labels) > 1 or "index" in schema.names else ["index"]
    if len(labels) == 1 and labels[0].startswith("__index_level_") and "int" in str(schema.field(labels[0]).type):
        return columns
    return [
        (unnamed[0].format(n) if name.startswith("__index_level_") else name, schema.names.index(name))
        for n, name in enumerate(labels)
    ] + columns


def _unfolded(column: Any) -> Any:
    """A column of Arrow as one that Python has values for, each stored for itself."""
    import pyarrow
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return column.dictionary_decode()
    if types.is_timestamp(kind):
        return column.cast(pyarrow.timestamp("us", kind.tz), safe=False)
    if types.is_duration(kind) or str(getattr(kind, "extension_name", "")).startswith("pandas."):
        return pyarrow.array(column.to_pandas().astype("string"))
    return column


def _held(value: Any) -> Any:
    """A value as SQLite can hold it; whole numbers of more than 64 bits and lists become texts."""
    if value is None or isinstance(value, (str, float, bytes)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    if isinstance(value, (date, time_of_day)):
        return value.isoformat()
    if isinstance(value, (list, tuple, dict, set)):
        return json.dumps(value, default=str)
    return str(value)


READERS: Mapping[str, Callable[[DataFile], Iterator[Sheet]]] = {
    **dict.fromkeys((".csv", ".tsv"), _csv),
    ".parquet": _parquet,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json),
    ".xlsx": _excel,
}


# ------------------------------------------------------------------------------------------ the SQLite file


def convert(paths: Sequence[Path], follow: bool, target: Path, watch: Callable[[int], None]) -> None:
    """Write the tables of all files, with their keys, to the empty file ``target``. follow, watch: of ``DataFile``.

    Raises UsageError."""
    taken, tables = dict[str, int](), dict[str, Table]()
    laid = target.with_name(f"{target.name}.rows")
    try:
        with closing(sqlite3.connect(target, isolation_level=None)) as connection:
            connection.execute("ATTACH ? AS laid", (str(laid),))
            connection.executescript(_SETTINGS)
            connection.set_progress_handler(lambda: watch(0), 1_000_000)
            connection.create_function("as_float", 1, lambda text: text and float(text), deterministic=True)
            connection.execute("BEGIN")  # thrown away where anything fails
            for path in paths:
                with _refused(path):
                    _lay(connection, DataFile(path, follow, watch), taken, tables)
            for name, definition in _definitions(connection, tables).items():
                connection.execute(definition)
                connection.execute(f"INSERT INTO main.{quote_always(name)} SELECT * FROM temp.{quote_always(name)}")
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise UsageError(f"{shown_path(paths[0])} cannot be written as a database: {one_line(error, 200)}") from None
    finally:
        laid.unlink(missing_ok=True)


_SETTINGS = """
PRAGMA journal_mode = OFF; PRAGMA main.synchronous = OFF; PRAGMA laid.synchronous = OFF; PRAGMA temp_store = MEMORY"""


def _lay(connection: sqlite3.Connection, file: DataFile, taken: dict[str, int], tables: dict[str, Table]) -> None:
    """Make a temporary view of each table of the file. Raises what its reader does."""
    found = []
    for place, sheet in enumerate(READERS[file.path.suffix.lower()](file)):
        rows = f'laid."{len(tables)} {place}"'
        names, columns = _lay_rows(connection, file, sheet, rows)
        if sheet.header:
            found.append((sheet.title, rows, names, columns))
    if not found:
        raise ValueError("it has no columns; expected a header line and rows")
    for title, rows, names, columns in found:
        proved = any(column.decimal_comma for column in columns)
        made = [column.made(proved) for column in columns]
        name = free(identifier(file.path.stem if len(found) == 1 else f"{file.path.stem} {title}"), taken)
        tables[name] = {column: kind for column, (kind, _) in zip(names, made, strict=True)}
        listed = ", ".join(map(quote_always, names))
        values = ", ".join(value.format(f"c{place}") for place, (_, value) in enumerate(made))
        connection.execute(f"CREATE TEMP VIEW {quote_always(name)} ({listed}) AS SELECT {values} FROM {rows}")


def _lay_rows(
    connection: sqlite3.Connection, file: DataFile, sheet: Sheet, table: str
) -> tuple[list[str], list[Texts | Values]]:
    """Lay the rows in a table of columns c0, c1, ...: the names, and what the columns are like."""
    names: list[str] = []
    columns: list[Texts | Values] = []
    for width, batch in _batches(sheet):
        file.count(len(batch) * width)
        if new := range(len(columns), width):
            names = file.named(sheet.header, width)
            if not columns:
                connection.execute(f"CREATE TABLE {table} ({', '.join(f'c{place}' for place in new)})")
            else:
                for place in new:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN c{place}")
            columns += map(sheet.column, new)
        padded = ([*row, *[None] * (width - len(row))] for row in batch)
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", padded)
        for column, values in zip(columns, itertools.zip_longest(*batch), strict=False):
            column.see(values)
    return names, columns


def _batches(sheet: Sheet) -> Iterator[tuple[int, list[Row]]]:
    """The rows, some at a time and none at last, with how wide the widest so far and the header are."""
    width, batch = max(1, len(sheet.header)), list[Row]()
    for row in sheet.rows:
        batch.append(row)
        width = max(width, len(row), len(sheet.header))
        if len(batch) >= BATCH_ROWS or len(batch) * width >= BATCH_CELLS:
            yield width, batch
            batch = []
    yield width, batch


@contextmanager
def _refused(file: Path) -> Iterator[None]:
    """Whatever is raised in the block as one line about the file."""
    name = shown_path(file)
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except ImportError as error:
        raise UsageError(f"{name}: {error}") from None
    except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
        raise UsageError(f"{name} cannot be written as a table: {one_line(error, 200)}") from None
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or one_line(error, 200)}") from None
    except Exception as error:  # noqa: BLE001 - parsers of files raise what a stranger's bytes make them
        raise UsageError(f"{name} cannot be read: {one_line(error, 300) or type(error).__name__}") from None


def _definitions(connection: sqlite3.Connection, tables: Mapping[str, Table]) -> dict[str, str]:
    """The CREATE TABLE of each table, with its key and those of others that its columns refer to."""
    keys = {name: key for name, table in tables.items() if (key := _primary(connection, name, table))}
    made = {}
    for name, table in tables.items():
        parts = [
            f"{quote_always(column)} {kind}" + (" PRIMARY KEY" if keys.get(name) == column else "")
            for column, kind in table.items()
        ]
        for other, key in keys.items():
            if other != name and (column := _refers(connection, (name, table), (other, tables[other], key))):
                reference = f"{quote_always(other)} ({quote_always(key)})"
                parts.append(f"FOREIGN KEY ({quote_always(column)}) REFERENCES {reference}")
        made[name] = f"CREATE TABLE main.{quote_always(name)} ({', '.join(parts)})"
    return made


def _primary(connection: sqlite3.Connection, name: str, table: Table) -> str:
    """The column that tells the rows apart and is called so; "" without one."""
    singular = name.removesuffix("s")
    for column in ("id", f"{name}_id", f"{singular}_id", f"{singular}id"):
        if column in table:
            counts = f"count(*), count({quote_always(column)}), count(DISTINCT {quote_always(column)})"
            if len(set(connection.execute(f"SELECT {counts} FROM {quote_always(name)}").fetchone())) == 1:
                return column
    return ""


def _refers(connection: sqlite3.Connection, here: tuple[str, Table], there: tuple[str, Table, str]) -> str:
    """The column that is called like another table's key and holds nothing but its values; "" without one."""
    (name, table), (other, keyed, key) = here, there
    called = (f"{other}_id", f"{other.removesuffix('s')}_id") if key == "id" else (key,)
    column = next((column for column in called if column in table), "")
    if not column or (table[column] == "TEXT") != (keyed[key] == "TEXT"):
        return ""
    outside = f"{quote_always(column)} NOT IN (SELECT {quote_always(key)} FROM {quote_always(other)})"
    found = connection.execute(f"SELECT EXISTS (SELECT 1 FROM {quote_always(name)} WHERE {outside})").fetchone()
    return "" if found[0] else column


# ------------------------------------------------------------------------------------------------------- the process


def main() -> None:
    """Answer requests until the socket closes: ``{"read": bytes}`` now and then, each acknowledged, then the end."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    asked = requests()
    for request in asked:
        state = {"read": 0, "told": time.monotonic()}

        def watch(size: int, state: dict[str, Any] = state, seconds: float = request["seconds"]) -> None:
            state["read"] += size
            if time.monotonic() - state["told"] > TOLD_S:
                reply({"read": state["read"]})
                next(asked)
                state["told"] = time.monotonic()
                signal.alarm(int(seconds * PATIENCE) + 5)  # the end of an orphan

        watch(0)
        _limit(request["stored"])
        try:
            os.chdir(request["folder"])
            convert(list(map(Path, request["files"])), request["follow"], Path(request["target"]), watch)
            answer = {}
        except MemoryError:
            answer = {"error": "reading it takes too much memory"}
        except UsageError as error:
            answer = {"refused": str(error)}
        signal.alarm(0)
        reply(answer)


def _limit(stored: int) -> None:
    """Bound the memory of this process and the size of what it writes, for files of so many bytes."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        for name, most in (
            (resource.RLIMIT_DATA, MEMORY + MEMORY_PER_BYTE * stored),
            (resource.RLIMIT_FSIZE, WRITTEN + WRITTEN_PER_BYTE * stored),
        ):
            resource.setrlimit(name, (most, resource.getrlimit(name)[1]))
