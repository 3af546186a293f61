"""CSV, Parquet, JSON and Excel files as tables of a SQLite file: what the process does that ``data_files`` starts.

    people.csv with the columns "First Name", "Age"   ->   people(first_name TEXT, age INTEGER)

A file is read twice, some thousand rows at a time: what the values of a column are like, then the values. So memory
does not grow with a file, and its bytes tell how far the reading is. Bounds hold for every kind alike (``DataFile``):
columns, the length of a name, and cells for each byte on the disk, which a file that unfolds into gigabytes exceeds.

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
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nl2sql.databases.schema import quote_always
from nl2sql.databases.sqlite.disk import resolved, stored_bytes
from nl2sql.databases.sqlite.files import shown_path
from nl2sql.databases.sqlite.framed_child import PATIENCE, reply, requests
from nl2sql.errors import UsageError, one_line, typed
from nl2sql.machine import JSON_READER, install_command, missing_part
from nl2sql.safe_files import open_regular

if TYPE_CHECKING:
    import pandas as pd

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
CODES = r"[-+]?0\d(?!:)|\+\d{6,}"  # no numbers: a postcode, a telephone
EXCEL_CODES = rf"{CODES}|\d+[eE]\d|-?\d{{19,}}"  # what a cell of numbers cannot hold, so it is a text there
WHOLE, LONG = r" *[-+]?\d+ *", r" *[-+]?\d{19,} *"
LINES = re.MULTILINE | re.ASCII
REAL = r"(?i: *[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf(?:inity)?) *)"
GROUPED = {  # by the mark between values: numbers with commas, and whole ones with points
    ",": (r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?", ""),
    ";": (r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?", r"[-+]?\d{1,3}(?:\.\d{3})*"),
}
UNCLEAR = r"[-+]?\d{1,3},\d{3}"  # in a file with semicolons
FLAGS = {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}
SEPARATOR = re.compile(r"sep=(?P<mark>.)\r?\n")  # the first line that Excel writes and reads
MIDNIGHT = " 00:00:00"
WIDE = (b"\xff\xfe", b"\xfe\xff")  # how a text of UTF-16 begins
END = "\x1aend of the file"  # a line behind the last; it stands in a value where a quote was never closed
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

Row = Sequence[Any]


class Table(NamedTuple):
    """A table as it is written: names and types of its columns, and its rows."""

    names: list[str]
    types: list[str]
    rows: Iterable[Row]


class Names:
    """Names of which each is given once: the second "a" becomes "a_2"."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._last: dict[str, int] = {}

    def free(self, name: str) -> str:
        made = name
        while made in self._taken:
            self._last[name] = self._last.get(name, 1) + 1
            made = f"{name}_{self._last[name]}"
        self._taken.add(made)
        return made


def identifier(name: str) -> str:
    """A table's or column's name as SQL takes it unquoted: ``"First Name (%)"`` -> ``first_name``."""
    plain = re.sub(r"\W+", "_", str(name).strip()).strip("_").lower() or "column"
    return f"n_{plain}" if plain[0].isdigit() else plain


class DataFile:
    """A file that is read, and the bounds of what is read of it. follow: also where its name is a link. watch: is told
    of bytes as they are read."""

    def __init__(self, path: Path, follow: bool, watch: Callable[[int], None]) -> None:
        self.path, self._real, self._watch = path, resolved(path) if follow else path, watch
        self.stored = stored_bytes(path)
        self._most, self._cells, self._bytes = CELLS + CELLS_PER_BYTE * self.stored, 0, 0

    def open(self) -> io.BufferedReader:
        """The file from its beginning. Raises NotOpened, OSError."""
        return io.BufferedReader(_Watched(open_regular(self._real, buffering=0), self._watch), 2**18)

    def tick(self) -> None:
        """Say that the reading goes on."""
        self._watch(0)

    def named(self, names: Iterable[Any], width: int = 0) -> list[str]:
        """The columns' names as identifiers, each once. Raises ValueError for too many and one that is too long."""
        found = list(itertools.islice((str(name) for name in names), MOST_COLUMNS + 1))
        if max(len(found), width) > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS:,} columns; give the file with those that you ask about")
        if (longest := max(map(len, found), default=0)) > LONGEST_NAME:
            raise ValueError(f"the name of a column has {longest:,} characters; expected at most {LONGEST_NAME:,}")
        found += [""] * (width - len(found))
        given = Names()
        return [given.free(identifier(name or f"Unnamed: {place}")) for place, name in enumerate(found)]

    def count(self, cells: int, size: int = 0) -> None:
        """Cells that were found, and their bytes. Raises ValueError where they are too many for a file of this size."""
        self._cells += cells
        self._bytes += size
        if self._cells > self._most or self._bytes > WRITTEN + WRITTEN_PER_BYTE * self.stored:
            most = f"of a file of {self.stored:,} bytes at most {self._most:,} cells are read"
            raise ValueError(f"it unfolds into too many rows and columns: {most}; give a part of it")


class _Watched(io.RawIOBase):
    """A file that says how much of it was read."""

    def __init__(self, file: Any, watch: Callable[[int], None]) -> None:
        self._file, self._watch = file, watch

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size: int = self._file.readinto(buffer)
        self._watch(size)
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place: int = self._file.seek(offset, whence)
        return place

    def tell(self) -> int:
        place: int = self._file.tell()
        return place

    def close(self) -> None:
        self._file.close()
        super().close()


# ------------------------------------------------------------------------------------------------- columns of texts


class _Column:
    """What the texts of a column have been like so far. codes: what no number looks like. mark: between values."""

    def __init__(self, codes: str, mark: str = "") -> None:
        self._codes = re.compile(rf"^(?:{codes})", LINES)
        self._grouped, self._thousands = GROUPED.get(mark, GROUPED[","] if mark else ("", ""))
        self.empty, self.code, self.commas, self.points = True, False, False, False
        self.whole = self.real = self.flag = self.unclear = True
        self.grouped, self.thousands, self.midnight = bool(self._grouped), bool(self._thousands), True

    def see(self, column: Iterable[str | None]) -> None:
        values = {text for text in column if text}
        if not values or self.text:
            return
        joined = "\n".join(values)

        def all_are(pattern: str, among: int = len(values)) -> bool:
            return len(re.findall(rf"^{pattern}$", joined, LINES)) == among

        self.empty = False
        self.code = self.code or bool(self._codes.search(joined)) or joined.count("\n") >= len(values)
        self.whole = self.whole and all_are(WHOLE)
        self.real = self.real and all_are(REAL)
        long = re.findall(rf"^{LONG}$", joined, LINES) if self.real else ()
        if any(len(text) > 25 or abs(int(text)) > LARGEST for text in long):
            self.code = True  # as a number it would lose its last digits
        self.flag = self.flag and values <= FLAGS.keys()
        self.midnight = self.midnight and all_are(rf"\d{{4}}-\d\d-\d\d{MIDNIGHT}")
        self.grouped = self.grouped and max(map(len, values)) < 24 and all_are(self._grouped)
        self.thousands = self.thousands and max(map(len, values)) < 24 and all_are(self._thousands)
        self.commas, self.points = self.commas or "," in joined, self.points or "." in joined
        self.unclear = self.unclear and all_are(UNCLEAR, sum("," in text for text in values))

    @property
    def text(self) -> bool:
        """Whether nothing but a text is left."""
        return self.code or not (self.real or self.flag or self.grouped or self.thousands or self.midnight)

    def kind(self, mark: str, proved: bool) -> tuple[str, Callable[[str], Any] | None]:
        """The column's type, and what makes its value of a text; None: nothing. proved: commas are decimal here."""
        if self.code or self.empty:
            return ("TEXT" if self.code else "INTEGER"), None
        if self.comma_number(mark):
            if mark == ";":
                return "REAL", lambda text: float(text.replace(".", "").replace(",", "."))
            kind: Callable[[str], Any] = float if self.points else int
            return ("REAL" if self.points else "INTEGER"), lambda text: kind(text.replace(",", ""))
        if proved and self.thousands and self.points:
            return "INTEGER", lambda text: int(text.replace(".", ""))
        if self.real:
            return ("INTEGER", int) if self.whole else ("REAL", float)
        return ("INTEGER", FLAGS.__getitem__) if self.flag else ("TEXT", None)

    def comma_number(self, mark: str) -> bool:
        """Whether the values are numbers with commas, and it is plain what a comma means."""
        return not self.code and self.commas and self.grouped and not (mark == ";" and self.unclear)


def _of_texts(
    file: DataFile,
    header: Sequence[str],
    rows: Callable[[], Iterator[Sequence[str | None]]],
    codes: str,
    mark: str = "",
) -> Table:
    """The table whose rows are texts. rows: gives them from the beginning, each no longer than the header."""
    names = file.named(header)
    columns = [_Column(codes, mark) for _ in names]
    for batch in _batches(rows(), len(names)):
        file.count(len(batch) * len(names))
        for column, values in zip(columns, itertools.zip_longest(*batch), strict=False):
            column.see(values)
    proved = mark == ";" and any(column.comma_number(mark) for column in columns)
    made = [column.kind(mark, proved) for column in columns]
    if codes == EXCEL_CODES:  # only there a day is written with its midnight
        days = [not column.empty and column.midnight for column in columns]
        made = [
            ("TEXT", lambda text: text[:10]) if day else (of, make) for day, (of, make) in zip(days, made, strict=True)
        ]
    makes = [make for _, make in made]

    def by_rows() -> Iterator[Row]:
        for batch in _batches(rows(), len(names)):
            by_column: list[Sequence[str | None]] = list(itertools.zip_longest(*batch))
            by_column += [(None,) * len(batch)] * (len(names) - len(by_column))
            yield from zip(*map(_made, makes, by_column), strict=True)

    return Table(names, [of for of, _ in made], by_rows())


def _made(make: Callable[[str], Any] | None, column: Sequence[str | None]) -> list[Any]:
    if make is None:
        return [text or None for text in column]
    return [make(text) if text else None for text in column]


def _batches(rows: Iterator[Row], width: int) -> Iterator[list[Row]]:
    size = max(1, min(BATCH_ROWS, BATCH_CELLS // max(width, 1)))
    while batch := list(itertools.islice(rows, size)):
        yield batch


# -------------------------------------------------------------------------------------------------------------- CSV


def _csv(file: DataFile) -> dict[str, Table]:
    encoding = _encoding(file)
    with _decoded(file, encoding) as text:
        head = text.read(HEAD)
    said = SEPARATOR.match(head)
    head = head[said.end() :] if said else head
    mark = said["mark"] if said else _delimiter(head)
    options: dict[str, Any] = {"delimiter": mark, "skipinitialspace": True}
    csv.field_size_limit(LONGEST_CELL)
    first = filter(None, csv.reader(io.StringIO(head, newline=""), **options))
    header = next(first, [])
    file.named(header)
    if len(head) == HEAD and next(first, None) is None:
        raise ValueError(f"its header does not end within {HEAD:,} characters")

    def rows() -> Iterator[list[str]]:
        with _decoded(file, encoding) as text:
            if said:
                text.readline()
            reader = csv.reader(itertools.chain(text, [END]), **options)
            for place, row in enumerate(filter(None, reader)):
                if row == [END]:
                    return
                if row[-1].endswith(END):
                    raise ValueError("a quote that opens a value is never closed")
                if place == 0 or (row == [""] and len(header) > 1):
                    continue
                if len(row) > len(header):
                    more = f"line {reader.line_num} has {len(row)}, its header {len(header)}"
                    raise ValueError(f"its rows have more values than its header has names: {more}")
                yield row

    return {"": _of_texts(file, header, rows, CODES, mark)}


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


def _decoded(file: DataFile, encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(file.open(), encoding, newline="")


def _encoding(file: DataFile) -> str:
    """UTF-16 where the bytes begin so, else UTF-8, else Windows-1252. Raises ValueError for what is none of them."""
    with file.open() as opened:
        if opened.peek(2).startswith(WIDE):
            return "utf-16"
        decoder, utf8, high = codecs.getincrementaldecoder("utf-8")(), True, bytearray()
        while piece := opened.read(2**20):
            if b"\0" in piece:
                raise ValueError("it holds NUL bytes, so it is no text in UTF-8 or Windows-1252; save it as UTF-8")
            try:
                decoder.decode(piece)
            except UnicodeDecodeError:
                utf8 = False
            if not utf8 or not piece.isascii():
                high += piece if len(high) < SNIFFED else b""
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            utf8 = False
    if utf8:
        return "utf-8-sig"
    odd = WESTERN.sub(b"", SIGNS.sub(b"", bytes(high)))
    western = sum(map(len, WESTERN.findall(high)))
    if sum(byte > 127 for byte in odd) > western or not _reads("cp1252", high):
        usual = {name: len(re.findall(pair, high)) for name, pair in LEGACY.items() if _reads(name, high)}
        maybe = sorted(usual, key=lambda name: -usual[name]) or ["ENCODING"]
        said = f"it is no text in UTF-8 or Windows-1252 (it could be {', '.join(maybe)})"
        how = f"iconv -f {maybe[0]} -t UTF-8 {typed(file.path.name)} -o utf8{file.path.suffix}"
        raise ValueError(f"{said}; save it as UTF-8: {how}")
    return "cp1252"


def _reads(encoding: str, sample: bytes | bytearray) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(bytes(sample))  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- JSON


def _json(file: DataFile) -> dict[str, Table]:
    records = _records(file)
    names: dict[str, tuple[set[type], list[bool]]] = {}
    for record in records():
        if not isinstance(record, dict):
            raise ValueError("expected objects, {...}, one for each row")
        file.count(max(len(names), 1))
        for name, value in record.items():
            kinds, beyond = names.setdefault(name, (set(), []))
            if value is not None:
                kinds.add(type(value))
                if type(value) is int and abs(value) > LARGEST and not beyond:
                    beyond.append(True)
        if len(names) > MOST_COLUMNS:
            break
    made = file.named(names)
    types = ["TEXT" if beyond else _json_type(kinds) for kinds, beyond in names.values()]
    return {"": Table(made, types, ([_held(record.get(name)) for name in names] for record in records()))}


def _json_type(kinds: set[type]) -> str:
    if kinds in ({int}, {bool}):
        return "INTEGER"
    return "REAL" if kinds and kinds <= {int, float} else "TEXT"


def _records(file: DataFile) -> Callable[[], Iterator[Any]]:
    """What gives the objects of a file from the first, as often as it is called."""
    encoding = _encoding(file)
    if file.path.suffix.lower() != ".json":

        def lines() -> Iterator[Any]:
            with io.TextIOWrapper(file.open(), encoding, newline="\n") as text:
                while line := text.readline(LONGEST_CELL + 1):
                    if len(line) > LONGEST_CELL:
                        raise ValueError(f"a line has more than {LONGEST_CELL:,} characters")
                    if line.strip():
                        yield _parsed(line, 0)[0]

        return lines
    with _decoded(file, encoding) as opened:
        text = opened.read()
    begin = re.compile(r"\s*").match(text).end()  # type: ignore[union-attr]
    if text[begin : begin + 1] == "[":
        return lambda: _listed(text, begin + 1)
    made, end = _parsed(text, begin)
    if text[end:].strip():
        raise ValueError("more follows behind its first value; name it .jsonl where each line is an object")
    return _turned(file, made)


_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*([,\]]|$)[ \t\n\r]*")


def _listed(text: str, at: int) -> Iterator[Any]:
    """The values of a JSON list, one after another, from behind its bracket."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] == "]":
        return
    while True:
        value, at = _parsed(text, at)
        yield value
        found = _COMMA.match(text, at)
        if found is None or not found[1]:
            raise ValueError(f"expected , or ] at character {at + 1}")
        at = found.end()
        if found[1] == "]":
            if at < len(text):
                raise ValueError("more follows behind its list")
            return


def _parsed(text: str, at: int) -> tuple[Any, int]:
    try:
        found: tuple[Any, int] = JSON_READER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def _turned(file: DataFile, made: Any) -> Callable[[], Iterator[dict[str, Any]]]:
    """What gives the rows of columns by their names, {"age": {"Ada": 36}} or {"age": [36]}.

    Labels that do not count the rows are the first column."""
    columns = list(made.values()) if isinstance(made, dict) else []
    file.named(made if columns else ())
    if columns and all(isinstance(column, list) for column in columns) and len({*map(len, columns)}) == 1:
        return lambda: (dict(zip(made, row, strict=True)) for row in zip(*columns, strict=True))
    if not columns or not all(isinstance(column, dict) for column in columns):
        raise ValueError("expected a list of objects, [{...}, ...], one for each row")
    labels = dict.fromkeys(label for column in columns for label in column)
    counted = all(label == str(place) for place, label in enumerate(labels))
    numbered = all(re.fullmatch(r"-?\d{1,18}", label) for label in labels)
    file.count(len(labels) * len(columns))
    name = "index" if "index" not in made else "level_0"

    def rows() -> Iterator[dict[str, Any]]:
        for label in labels:
            first = {} if counted else {name: int(label) if numbered else label}
            yield first | {column: values.get(label) for column, values in made.items()}

    return rows


# ------------------------------------------------------------------------------------------------------------ Excel


def _excel(file: DataFile) -> dict[str, Table]:
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
    return {sheet.title: table for sheet in book.worksheets if (table := _sheet(file, sheet))}


def _sheet(file: DataFile, sheet: Any) -> Table | None:
    """A sheet's table; its first row that is not empty is the header. None for an empty one."""

    unnamed = tempfile.TemporaryFile()  # noqa: SIM115 - for the rows, which are parsed but once; ends with the table
    spool = io.TextIOWrapper(unnamed, "utf-8", "surrogatepass", newline="")
    writer, width = csv.writer(spool), 0
    sheet.reset_dimensions()  # what a file says of its size need not be so
    for cells in sheet.iter_rows(values_only=True):
        row = list(map(_cell, cells))
        while row and row[-1] is None:
            row.pop()
        if row:
            width = max(width, len(row))
            file.named((), width)
            writer.writerow(row)
            file.tick()

    def rows() -> Iterator[list[str]]:
        spool.seek(0)
        yield from csv.reader(spool)

    header = next(rows(), None)
    if header is None:
        return None
    padded = [*header, *[""] * (width - len(header))]
    return _of_texts(file, padded, lambda: itertools.islice(rows(), 1, None), EXCEL_CODES)


_ERRORS = frozenset(("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A"))


def _cell(value: Any) -> str | None:
    """A cell as a text; None for an empty one and for an error of its formula."""
    if value is None or value == "" or value in _ERRORS:
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, (bool, float)) else str(_held(value))


# ---------------------------------------------------------------------------------------------------------- Parquet


def _parquet(file: DataFile) -> dict[str, Table]:
    if missing := missing_part("pandas", "pyarrow"):
        raise ImportError(f"Parquet files are read with pandas and pyarrow, and {missing}")
    import pyarrow
    import pyarrow.parquet

    importlib.import_module("pandas.core.arrays.arrow.extension_types")  # periods; it takes away types that are pickled
    pyarrow.set_cpu_count(1)
    with pyarrow.parquet.ParquetFile(file.open()) as opened:
        about = opened.metadata
        file.named(opened.schema_arrow.names)
        file.count(about.num_rows * max(about.num_columns, 1))

    types = _nullable()

    def framed(table: pyarrow.Table) -> pd.DataFrame:
        return _with_labels(table.to_pandas(types_mapper=types.get, use_threads=False))

    def frames(count: Callable[[int, int], None] = lambda *_: None) -> Iterator[pd.DataFrame]:
        with pyarrow.parquet.ParquetFile(file.open()) as opened:
            size = max(1, min(BATCH_ROWS, BATCH_CELLS // max(opened.metadata.num_columns, 1)))
            yield framed(opened.schema_arrow.empty_table())
            for batch in opened.iter_batches(size, use_threads=False):
                table = pyarrow.Table.from_batches([batch])
                for place, column in enumerate(table.schema.types):
                    if pyarrow.types.is_dictionary(column):
                        whole = table.column(place).cast(column.value_type)
                        table = table.set_column(place, table.schema.names[place], whole)
                count(0, table.nbytes)
                yield framed(table)

    names: list[str] = []
    kinds: list[set[str]] = []
    for frame in frames(file.count):
        names = names or file.named(frame.columns)
        kinds = kinds or [set() for _ in names]
        for place, seen in enumerate(kinds):
            seen.add(_kind(frame.iloc[:, place]))
    forms = [next((form for form in FORMS if form in seen), "") for seen in kinds]

    def rows() -> Iterator[Row]:
        for frame in frames():
            yield from zip(*(_values(frame.iloc[:, place], form) for place, form in enumerate(forms)), strict=True)

    return {"": Table(names, [TYPES.get(form, "TEXT") for form in forms], rows())}


def _nullable() -> dict[Any, Any]:
    """Types of pandas that keep whole numbers beside empty cells, by the types of Arrow."""
    import pandas as pd
    import pyarrow

    whole = {getattr(pyarrow, name.lower())(): getattr(pd, f"{name}Dtype")() for name in _WHOLE}
    reals = {pyarrow.float32(): pd.Float32Dtype(), pyarrow.float64(): pd.Float64Dtype()}
    return whole | reals | {pyarrow.bool_(): pd.BooleanDtype()}


_WHOLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
TYPES = {"whole": "INTEGER", "real": "REAL", "decimal": "REAL"}
DAYS, SECONDS, PARTS = "%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f"
FORMS = (PARTS, SECONDS, DAYS, "text", "object", "whole", "real", "decimal")  # the first of its parts' is the column's


def _with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows with their labels, which pandas keeps beside the columns after groupby or set_index, as columns.

    Unnamed numbers only count the rows."""
    from pandas.api.types import is_integer_dtype

    labels = frame.index
    counted = labels.nlevels == 1 and labels.name is None and is_integer_dtype(labels.dtype)
    return frame if counted or not frame.shape[1] else frame.reset_index(allow_duplicates=True)


def _kind(values: pd.Series[Any]) -> str:
    """What the values of a column are, in some of its rows; "": nothing, where an object could be anything."""
    from pandas.api.types import is_bool_dtype, is_float_dtype, is_integer_dtype

    known, kind = values.dropna(), str(values.dtype)
    if kind.startswith("datetime"):
        days = (known == known.dt.normalize()).all()
        return DAYS if days else SECONDS if (known.dt.microsecond == 0).all() else PARTS
    if kind.startswith(("timedelta", "period", "interval")) or (is_integer_dtype(values) and (known > LARGEST).any()):
        return "text"
    if is_integer_dtype(values) or is_bool_dtype(values):
        return "whole"
    if is_float_dtype(values):
        return "real"
    return "" if known.empty else "decimal" if all(isinstance(value, Decimal) for value in known) else "object"


def _values(values: pd.Series[Any], form: str) -> list[Any]:
    """The values of a column as SQLite can hold them."""
    if form in (DAYS, SECONDS, PARTS):
        values = values.dt.strftime(form)
    elif form == "text":
        values = values.astype("string")
    held: list[Any] = values.to_numpy(dtype=object, na_value=None).tolist()  # type: ignore[call-overload]
    return list(map(_held, held))


def _held(value: Any) -> Any:
    """A value as SQLite can hold it; whole numbers of more than 64 bits and lists become texts."""
    if value is None or isinstance(value, (str, float, bytes)):
        return value
    if isinstance(value, int):
        return value if abs(value) <= LARGEST else str(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, (date, time_of_day)):
        return value.isoformat()
    if isinstance(value, (list, tuple, dict, set)) or hasattr(value, "tolist"):
        return json.dumps(value, default=_in_json)
    return str(value)


def _in_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


READERS: Mapping[str, Callable[[DataFile], dict[str, Table]]] = {
    **dict.fromkeys((".csv", ".tsv"), _csv),
    ".parquet": _parquet,
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), _json),
    ".xlsx": _excel,
}


# --------------------------------------------------------------------------------------------------- the SQLite file


def convert(paths: Sequence[Path], follow: bool, target: Path, watch: Callable[[int], None]) -> None:
    """Write the tables of all files, with their keys, to the empty file ``target``. follow, watch: of ``DataFile``.

    Raises UsageError."""
    given, tables = Names(), dict[str, Table]()
    staged = target.with_name(f"{target.name}.rows")
    try:
        with closing(_written(staged, watch)) as connection:
            for path in paths:
                for name, table in _tables(path, follow, watch):
                    tables[given.free(name)] = table
                    _fill(connection, path, list(tables)[-1], table)
            definitions = _definitions(connection, tables)
            connection.execute("COMMIT")
        with closing(_written(target, watch)) as connection:
            connection.execute("COMMIT")
            connection.execute("ATTACH ? AS staged", (str(staged),))
            connection.execute("BEGIN")
            for name, definition in definitions.items():
                connection.execute(definition)
                connection.execute(f"INSERT INTO main.{quote_always(name)} SELECT * FROM staged.{quote_always(name)}")
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise UsageError(f"{shown_path(paths[0])} cannot be written as a database: {one_line(error, 200)}") from None
    finally:
        staged.unlink(missing_ok=True)


def _written(file: Path, watch: Callable[[int], None]) -> sqlite3.Connection:
    """A connection in a transaction to a new file of ours, which is thrown away where anything fails."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY; BEGIN")
    connection.set_progress_handler(lambda: watch(0), 1_000_000)
    return connection


def _tables(file: Path, follow: bool, watch: Callable[[int], None]) -> Iterator[tuple[str, Table]]:
    """(name, table) of a file: one, or one per sheet. Raises UsageError."""
    with _refused(file):
        found = READERS[file.suffix.lower()](DataFile(file, follow, watch))
        if not any(table.names for table in found.values()):
            raise ValueError("it has no columns; expected a header line and rows")
    for sheet, table in found.items():
        if table.names:
            yield identifier(file.stem if len(found) == 1 else f"{file.stem} {sheet}"), table


def _fill(connection: sqlite3.Connection, file: Path, name: str, table: Table) -> None:
    columns = ", ".join(f"{quote_always(column)} {kind}" for column, kind in zip(table.names, table.types, strict=True))
    places = ", ".join("?" * len(table.names))
    with _refused(file):
        connection.execute(f"CREATE TABLE {quote_always(name)} ({columns})")
        connection.executemany(f"INSERT INTO {quote_always(name)} VALUES ({places})", table.rows)


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
            for column, kind in zip(table.names, table.types, strict=True)
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
        if column in table.names:
            counts = f"count(*), count({quote_always(column)}), count(DISTINCT {quote_always(column)})"
            if len(set(connection.execute(f"SELECT {counts} FROM {quote_always(name)}").fetchone())) == 1:
                return column
    return ""


def _refers(connection: sqlite3.Connection, here: tuple[str, Table], there: tuple[str, Table, str]) -> str:
    """The column that is called like another table's key and holds nothing but its values; "" without one."""
    (name, table), (other, keyed, key) = here, there
    called = (f"{other}_id", f"{other.removesuffix('s')}_id") if key == "id" else (key,)
    column = next((column for column in called if column in table.names), "")
    if not column:
        return ""
    kinds = table.types[table.names.index(column)], keyed.types[keyed.names.index(key)]
    if (kinds[0] == "TEXT") != (kinds[1] == "TEXT"):
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
