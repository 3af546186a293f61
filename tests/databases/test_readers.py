"""What a data file becomes, read in this process: its bytes, and beside them the tables with types, keys and rows."""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nl2sql.databases import data_readers
from nl2sql.databases.data_readers import LARGEST, convert
from nl2sql.errors import UsageError

Rows = list[tuple[Any, ...]]
BIG = str(LARGEST + 1)

ONE_COLUMN = {  # values of a column -> its type, and what they become
    "1 2 -3 +4": ("INTEGER", [1, 2, -3, 4]),
    "1.5 .5 2. 1e3 -1E-2": ("REAL", [1.5, 0.5, 2.0, 1000.0, -0.01]),
    "1 2.5": ("REAL", [1.0, 2.5]),
    "inf -Infinity": ("REAL", [float("inf"), float("-inf")]),
    "nan 1": ("TEXT", ["nan", "1"]),
    "007 7": ("TEXT", ["007", "7"]),
    "0 0.5 -0.25": ("REAL", [0.0, 0.5, -0.25]),
    "00:30 01:15": ("TEXT", ["00:30", "01:15"]),
    "+12345 6": ("INTEGER", [12345, 6]),
    "+123456 6": ("TEXT", ["+123456", "6"]),
    "True false TRUE": ("INTEGER", [1, 0, 1]),
    "true yes": ("TEXT", ["true", "yes"]),
    "True 1": ("TEXT", ["True", "1"]),
    f"{LARGEST} -{LARGEST}": ("INTEGER", [LARGEST, -LARGEST]),
    f"{BIG} 1": ("TEXT", [BIG, "1"]),
    f"1 -{BIG}": ("TEXT", ["1", f"-{BIG}"]),
    "123456789012345678901234567890 1": ("TEXT", ["123456789012345678901234567890", "1"]),
    "1,000 22,000,000 7": ("INTEGER", [1000, 22_000_000, 7]),
    "1,000.25 3": ("REAL", [1000.25, 3.0]),
    "1,00 3": ("TEXT", ["1,00", "3"]),
    "2024-01-02 2024-02-03": ("TEXT", ["2024-01-02", "2024-02-03"]),
    "x": ("TEXT", ["x"]),
    "": ("INTEGER", []),
}
CSV = [  # the bytes, names and types of the columns, and rows
    (b"a,b\n1,x\n2,\n", ["a INTEGER", "b TEXT"], [(1, "x"), (2, None)]),
    (b"a, b\n1, x\n\n3\n", ["a INTEGER", "b TEXT"], [(1, "x"), (3, None)]),
    (b"\n\na\n1\n", ["a INTEGER"], [(1,)]),
    (b"a\tb\n1\tx,y\n", ["a INTEGER", "b TEXT"], [(1, "x,y")]),
    (b"a|b\n1|2.5\n", ["a INTEGER", "b REAL"], [(1, 2.5)]),
    (b"a;b;c\n1;2;3,5\n4;5;6\n", ["a INTEGER", "b INTEGER", "c REAL"], [(1, 2, 3.5), (4, 5, 6.0)]),
    (b"sep=|\na|b;c\n1|2;3\n", ["a INTEGER", "b_c TEXT"], [(1, "2;3")]),
    (b'a,b\n"1","x\ny"\n"2","say ""hi"""\n', ["a INTEGER", "b TEXT"], [(1, "x\ny"), (2, 'say "hi"')]),
    (b"a,a,A,\n1,2,3,4\n", ["a INTEGER", "a_2 INTEGER", "a_3 INTEGER", "unnamed_3 INTEGER"], [(1, 2, 3, 4)]),
    (b"\xef\xbb\xbfa\n1\n", ["a INTEGER"], [(1,)]),
    ("a\nZoë\nNaïve café\n".encode("cp1252"), ["a TEXT"], [("Zoë",), ("Naïve café",)]),
    ("a\n“Zoe’s” – 5 € für\n".encode("cp1252"), ["a TEXT"], [("“Zoe’s” – 5 € für",)]),
    (b"a;b\n1.234;1,5\n12;2,5\n", ["a INTEGER", "b REAL"], [(1234, 1.5), (12, 2.5)]),
    (b"a;b\n1.234;x\n12;y\n", ["a REAL", "b TEXT"], [(1.234, "x"), (12.0, "y")]),
    (b"a;b\n1,234;1\n5,678;2\n", ["a TEXT", "b INTEGER"], [("1,234", 1), ("5,678", 2)]),
    (b"a;b\n1.234,5;1\n678;2\n", ["a REAL", "b INTEGER"], [(1234.5, 1), (678.0, 2)]),
    (b"id,order\n1,x\n2,y\n", ["id INTEGER PRIMARY KEY", "order TEXT"], [(1, "x"), (2, "y")]),
    (b"t_id,n\n1,5\n2,5\n", ["t_id INTEGER PRIMARY KEY", "n INTEGER"], [(1, 5), (2, 5)]),
    (b"id,n\n1,5\n1,6\n", ["id INTEGER", "n INTEGER"], [(1, 5), (1, 6)]),
    (b"id,n\n1,5\n,6\n", ["id INTEGER", "n INTEGER"], [(1, 5), (None, 6)]),
    (b"a\n", ["a INTEGER"], []),
    (b"a\n\n1\n\n2\n", ["a INTEGER"], [(1,), (2,)]),
]
JSON = [  # the name of the file, its text, columns and rows
    ("t.json", '[{"a": 1, "b": "x"}, {"b": null, "c": 2.5}]', ["a INTEGER", "b TEXT", "c REAL"],
     [(1, "x", None), (None, None, 2.5)]),
    ("t.json", ' [ ] ', None, "no columns"),
    ("t.json", '[{"a": true}, {"a": false}]', ["a INTEGER"], [(1,), (0,)]),
    ("t.json", '[{"a": true}, {"a": 2}]', ["a TEXT"], [("1",), ("2",)]),
    ("t.json", '[{"a": 1}, {"a": 2.5}]', ["a REAL"], [(1.0,), (2.5,)]),
    ("t.json", '[{"a": [1, {"b": 2}]}, {"a": {"c": []}}]', ["a TEXT"], [('[1, {"b": 2}]',), ('{"c": []}',)]),
    ("t.json", f'[{{"a": {BIG}}}, {{"a": 1}}, {{"a": -{BIG}}}]', ["a TEXT"], [(BIG,), ("1",), (f"-{BIG}",)]),
    ("t.json", f'[{{"a": {LARGEST}}}]', ["a INTEGER"], [(LARGEST,)]),
    ("t.json", '{"a": [1, 2], "b": ["x", null]}', ["a INTEGER", "b TEXT"], [(1, "x"), (2, None)]),
    ("t.json", '{"a": {"0": 1, "1": 2}, "b": {"1": 5}}', ["a INTEGER", "b INTEGER"], [(1, None), (2, 5)]),
    ("t.json", '{"a": {"7": 1, "9": 2}}', ["index INTEGER", "a INTEGER"], [(7, 1), (9, 2)]),
    ("t.json", '{"index": {"x": 1, "y": 2}}', ["level_0 TEXT", "index INTEGER"], [("x", 1), ("y", 2)]),
    ("t.jsonl", '{"a": 1}\n\n{"a": 2}\n', ["a INTEGER"], [(1,), (2,)]),
    ("t.ndjson", '{"a": "\u2028"}', ["a TEXT"], [("\u2028",)]),
    ("t.json", '[{"a": 1} {"a": 2}]', None, "expected , or ] at character 10"),
    ("t.json", '[{"a": 1}', None, "expected , or ]"),
    ("t.json", '[{"a": 1}] 5', None, "more follows behind its list"),
    ("t.json", '{"a": [1]} 5', None, "more follows behind its first value"),
    ("t.json", '{"a": [1], "b": [1, 2]}', None, "expected a list of objects"),
    ("t.json", '{"a": 1}', None, "expected a list of objects"),
    ("t.json", '[1]', None, "expected objects"),
    ("t.json", "[" * 100_000, None, "nested too deeply"),
]  # fmt: skip
REFUSED = [  # the bytes of a CSV file, and what is said
    (b"a,b\n1,2,3\n", "line 2 has 3, its header 2"),
    (b'a,b\n1,"x\n2,y\n', "a quote that opens a value is never closed"),
    (b"", "no columns"),
    (b"a\0b\n1\n", "it holds NUL bytes"),
    (b"a" * 1001 + b"\n1\n", "the name of a column has 1,001 characters; expected at most 1,000"),
    (b",".join(b"c%d" % n for n in range(2001)) + b"\n", "more than 2,000 columns"),
    ("имя\nМосква и Казань\n".encode("cp1251"), "it could be cp1251"),
    ("名前\n東京と大阪と京都\n".encode("cp932"), "cp932"),
]


def read(file: Path) -> tuple[list[str], Rows]:
    """The columns and rows of the one table."""
    ((_, columns, rows),) = tables([file])
    return columns, rows


def tables(files: list[Path]) -> list[tuple[str, list[str], Rows]]:
    target = files[0].parent / "made.sqlite"
    target.unlink(missing_ok=True)
    convert(files, False, target, lambda size: None)
    assert [file.name for file in target.parent.glob("made*")] == ["made.sqlite"]
    with contextlib.closing(sqlite3.connect(target)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [(name, _columns(connection, name), connection.execute(f'SELECT * FROM "{name}"').fetchall())
                for name in names]  # fmt: skip


def _columns(connection: sqlite3.Connection, name: str) -> list[str]:
    info = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
    keys = {row[3]: f" -> {row[2]}.{row[4]}" for row in connection.execute(f'PRAGMA foreign_key_list("{name}")')}
    return [f"{n} {kind}{' PRIMARY KEY' * bool(key)}{keys.get(n, '')}" for _, n, kind, _, _, key in info]


def typed(rows: Rows) -> list[list[tuple[type, Any]]]:
    return [[(type(value), value) for value in row] for row in rows]


@pytest.mark.parametrize(("values", "made"), ONE_COLUMN.items())
def test_the_values_of_a_column_give_its_type(values: str, made: tuple[str, list[Any]], tmp_path: Path) -> None:
    texts = values.split()
    (tmp_path / "t.csv").write_text("".join(f'"{text}"\n' for text in ["a", *texts]))
    columns, rows = read(tmp_path / "t.csv")
    assert (columns, typed(rows)) == ([f"a {made[0]}"], typed([(value,) for value in made[1]]))


@pytest.mark.parametrize("size", [1, 2, 20_000])
def test_a_column_is_read_alike_in_batches_of_any_size(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_readers, "BATCH_ROWS", size)
    for values, (kind, made) in ONE_COLUMN.items():
        (tmp_path / "t.csv").write_text("".join(f'"{text}"\n' for text in ["a", *values.split()]))
        assert read(tmp_path / "t.csv") == ([f"a {kind}"], [(value,) for value in made])


@pytest.mark.parametrize(("content", "columns", "rows"), CSV)
def test_a_csv_is_a_table(content: bytes, columns: list[str], rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    found = read(tmp_path / "t.csv")
    assert (found[0], typed(found[1])) == (columns, typed(rows))


@pytest.mark.parametrize(("name", "text", "columns", "rows"), JSON)
def test_json_is_a_table(name: str, text: str, columns: list[str] | None, rows: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    if columns is None:
        with pytest.raises(UsageError, match=rf"^\S*{name} cannot be read: .*{rows}"):
            read(tmp_path / name)
    else:
        found = read(tmp_path / name)
        assert (found[0], typed(found[1])) == (columns, typed(rows))


@pytest.mark.parametrize(("content", "said"), REFUSED)
def test_what_is_no_csv_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UsageError, match=rf"t\.csv cannot be read: .*{said}"):
        read(tmp_path / "t.csv")
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".rows"] == []


def test_keys_are_declared_where_the_values_allow_it(tmp_path: Path) -> None:
    texts = {
        "bakers": "id,name\n1,Ada\n2,Bo\n",
        "prizes": "prize_id,baker_id\n7,1\n8,\n9,2\n",
        "sales": "baker_id,prizes_id,prize_id\n3,7,7\n1,8,8\n",  # a baker that is not there; the key is prize_id
        "notes": "prize_id,bakers_id\nx,1\n",  # a text, beside a key of numbers
        "shelf": "id,shelf_id\n1,1\n1,2\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    found = {name: columns for name, columns, _ in tables([tmp_path / f"{name}.csv" for name in texts])}
    assert found == {
        "bakers": ["id INTEGER PRIMARY KEY", "name TEXT"],
        "prizes": ["prize_id INTEGER PRIMARY KEY", "baker_id INTEGER -> bakers.id"],
        "sales": ["baker_id INTEGER", "prizes_id INTEGER", "prize_id INTEGER -> prizes.prize_id"],
        "notes": ["prize_id TEXT", "bakers_id INTEGER -> bakers.id"],
        "shelf": ["id INTEGER", "shelf_id INTEGER PRIMARY KEY"],
    }


def test_sheets_are_tables_of_what_their_cells_hold(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    first = book.active
    for row in (
        [None, None], ["Name", "Day", "At", "n", None, "code", "e"],
        ["Ada", datetime.datetime(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, 4, 5), 3.0, "more", "1e5", "#N/A"],
        [], [None, datetime.datetime(2024, 2, 3), None, 4.5, None, "22", True],
    ):  # fmt: skip
        first.append(row)
    book.create_sheet("Empty")
    book.create_sheet("Sheet 2").append(["only"])
    book.save(tmp_path / "b.xlsx")
    assert tables([tmp_path / "b.xlsx"]) == [
        (
            "b_sheet",
            ["name TEXT", "day TEXT", "at TEXT", "n REAL", "unnamed_4 TEXT", "code TEXT", "e INTEGER"],
            [
                ("Ada", "2024-01-02", "2024-01-02 03:04:05", 3.0, "more", "1e5", None),
                (None, "2024-02-03", None, 4.5, None, "22", 1),
            ],
        ),
        ("b_sheet_2", ["only INTEGER"], []),
    ]


def test_a_book_may_unpack_to_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.append(["a"])
    book.save(tmp_path / "b.xlsx")
    with zipfile.ZipFile(tmp_path / "b.xlsx") as parts:
        unpacked = sum(part.file_size for part in parts.infolist())
    stored = (tmp_path / "b.xlsx").stat().st_size
    monkeypatch.setattr(data_readers, "UNPACKED_PER_BYTE", 1)
    monkeypatch.setattr(data_readers, "UNPACKED", unpacked - stored)
    assert read(tmp_path / "b.xlsx") == (["a INTEGER"], [])
    monkeypatch.setattr(data_readers, "UNPACKED", unpacked - stored - 1)
    with pytest.raises(UsageError, match=f"it unpacks to {unpacked:,} bytes; .* at most {unpacked - 1:,} are read"):
        read(tmp_path / "b.xlsx")


def test_parquet_keeps_types_and_values(tmp_path: Path) -> None:
    day, clock = pd.Timestamp("2024-01-02"), pd.Timestamp("2024-01-02 03:04:05")
    columns: dict[str, tuple[list[Any], str, list[Any]]] = {
        "i": ([1, -2], "INTEGER", [1, -2]),
        "n": (pd.array([1, None], "Int16"), "INTEGER", [1, None]),
        "u": (pd.array([2**64 - 1, 1], "UInt64"), "TEXT", [str(2**64 - 1), "1"]),
        "r": ([0.5, None], "REAL", [0.5, None]),
        "f": ([True, None], "INTEGER", [1, None]),
        "d": ([day, None], "TEXT", ["2024-01-02", None]),
        "s": ([clock, day], "TEXT", ["2024-01-02 03:04:05", "2024-01-02 00:00:00"]),
        "p": ([clock + pd.Timedelta(1, "us"), None], "TEXT", ["2024-01-02 03:04:05.000001", None]),
        "t": ([datetime.time(9, 30), None], "TEXT", ["09:30:00", None]),
        "a": ([datetime.date(2024, 1, 2), None], "TEXT", ["2024-01-02", None]),
        "m": ([Decimal("1.50"), None], "REAL", [1.5, None]),
        "l": ([[1, 2], None], "TEXT", ["[1, 2]", None]),
        "b": ([b"\x01", None], "TEXT", [b"\x01", None]),
        "c": (pd.Categorical(["x", None]), "TEXT", ["x", None]),
        "z": ([None, None], "TEXT", [None, None]),
    }  # fmt: skip
    pd.DataFrame({name: values for name, (values, _, _) in columns.items()}).to_parquet(tmp_path / "t.parquet")
    found, rows = read(tmp_path / "t.parquet")
    assert found == [f"{name} {kind}" for name, (_, kind, _) in columns.items()]
    assert typed(rows) == typed(list(zip(*(made for _, _, made in columns.values()), strict=True)))


def test_a_file_may_unfold_into_so_many_cells_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n")
    file = data_readers.DataFile(tmp_path / "t.csv", False, lambda size: None)
    stored = (tmp_path / "t.csv").stat().st_size
    file.count(1_000_000 + 16 * stored, 2**26 + 64 * stored)
    for cells, size in ((1, 0), (0, 1)):
        again = data_readers.DataFile(tmp_path / "t.csv", False, lambda size: None)
        again.count(1_000_000 + 16 * stored, 2**26 + 64 * stored)
        with pytest.raises(ValueError, match=f"of a file of {stored} bytes at most {1_000_000 + 16 * stored:,} cells"):
            again.count(cells, size)


def test_the_cells_of_every_kind_of_file_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_readers, "CELLS_PER_BYTE", 0)
    frame = pd.DataFrame({name: range(10) for name in "abc"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    frame.to_json(tmp_path / "t.json")
    for file, cells in (("t.csv", 30), ("t.parquet", 30), ("t.jsonl", 28), ("t.json", 30)):  # one, then three a row
        monkeypatch.setattr(data_readers, "CELLS", 10 * cells)
        assert len(read(tmp_path / file)[1]) == 10
        monkeypatch.setattr(data_readers, "CELLS", cells - 1)
        with pytest.raises(
            UsageError, match=f"it unfolds into too many rows and columns: .* at most {cells - 1} cells"
        ):
            read(tmp_path / file)


def test_how_much_is_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([{"a": n} for n in range(50)]))
    told: list[int] = []
    convert([tmp_path / "t.json"], True, tmp_path / "made.sqlite", told.append)
    assert sum(told) >= 2 * (tmp_path / "t.json").stat().st_size  # once for its encoding, once for its values
