"""Data files that were made to do harm, or are merely odd: ``KINDS`` says how each is made, and ``make`` makes one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pyarrow
import pyarrow.parquet

SHEET = (
    '<?xml version="1.0"?>{doctype}<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">'
    '<dimension ref="{dimension}"/><sheetData>{rows}</sheetData></worksheet>'
)
BOOK = {
    "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default '
    'Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" '
    'ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-'
    'officedocument.spreadsheetml.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" ContentType='
    '"application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/><Override PartName='
    '"/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+'
    'xml"/></Types>',
    "_rels/.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
    'Id="r" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": '<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r='
    '"http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets>{sheets}</sheets></workbook>',
    "xl/_rels/workbook.xml.rels": '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="r1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" '
    'Target="worksheets/sheet1.xml"/><Relationship Id="r2" Type="http://schemas.openxmlformats.org/officeDocument/2006/'
    'relationships/sharedStrings" Target="sharedStrings.xml"/></Relationships>',
}
PARTS = '<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">{}</sst>'


def book(
    rows: str, dimension: str = "A1:B2", doctype: str = "", strings: str = "", sheets: int = 1, filler: int = 0
) -> bytes:
    """An Excel file with one sheet of ``rows``, named ``sheets`` times; filler: bytes of nothing in it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as parts:
        for name, text in BOOK.items():
            listed = "".join(f'<sheet name="s{n}" sheetId="{n + 1}" r:id="r1"/>' for n in range(sheets))
            parts.writestr(name, text.replace("{sheets}", listed))
        parts.writestr("xl/sharedStrings.xml", PARTS.format(strings))
        with parts.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
            before, after = SHEET.format(dimension=dimension, doctype=doctype, rows=rows + "@").split("@")
            sheet.write(before.encode())
            for _ in range(filler >> 20):
                sheet.write(b" " * (1 << 20))
            sheet.write(after.encode())
    return made.getvalue()


def cell(place: str, value: object = 1) -> str:
    return f'<row r="{place.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")}"><c r="{place}"><v>{value}</v></c></row>'


def parquet(**columns: object) -> Callable[[], bytes]:
    def made() -> bytes:
        out = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), out)
        return out.getvalue()

    return made


def repeated(value: object, times: int) -> Callable[[], bytes]:
    def made() -> bytes:
        out = io.BytesIO()
        ones = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0]).take(pyarrow.array([0] * 1000)), [value])
        with pyarrow.parquet.ParquetWriter(out, pyarrow.schema([("a", ones.type)])) as writer:
            table = pyarrow.table({"a": pyarrow.chunked_array([ones] * (times // 1000))})
            writer.write_table(table, row_group_size=times)
        return out.getvalue()

    return made


def framed(**columns: object) -> Callable[[], bytes]:
    return lambda: pd.DataFrame(columns).to_parquet()


def numbered(count: int, form: str = "c{}", between: str = ",") -> str:
    return between.join(form.format(n) for n in range(count))


def patched(made: Callable[[], bytes], at: int, patch: bytes) -> Callable[[], bytes]:
    def done() -> bytes:
        data = bytearray(made())
        at_ = at % len(data)
        data[at_ : at_ + len(patch)] = patch
        return bytes(data)

    return done


SMALL = framed(a=[1, 2], b=["x", None])
Maker = Callable[[], bytes] | bytes | str
# kind -> (name of the file, its content); a content that is callable is made at test time
KINDS: dict[str, tuple[str, Maker]] = {
    # CSV
    "1,900 columns that become one identifier": ("a.csv", lambda: (",".join(["%"] * 1900) + "\n1\n").encode()),
    "1,900 columns that differ in signs": ("a.csv", lambda: (numbered(1900, "a{}"[:1] + "-" * 3) + "\n1\n").encode()),
    "names that take each other's numbers": ("a.csv", lambda: ("a," * 900 + numbered(900, "a_{}") + "\n1\n").encode()),
    "3 million columns": ("a.csv", lambda: (numbered(30, "c{}") * 100_000 + "\n").encode()),
    "3 million columns without a name": ("a.csv", b"," * 3_000_000),
    "3 million columns in the second row": ("a.csv", lambda: b"a,b\n" + b"1," * 3_000_000 + b"\n"),
    "3 million columns in the last row": ("a.csv", lambda: b"a,b\n" + b"1,2\n" * 60_000 + b"1," * 3_000_000),
    "a header of 10 MB": ("a.csv", lambda: b"a" * 10_000_000 + b",b\n1,2\n"),
    "a header without an end in quotes": ("a.csv", lambda: b'"' + b"a\n" * 3_000_000),
    "a name of two kilobytes": ("a.csv", lambda: b"a" * 2_000 + b",b\n1,2\n"),
    "a cell of 20 MB": ("a.csv", lambda: b"a,b\n1," + b"x" * 20_000_000 + b"\n"),
    "a quote that is never closed": ("a.csv", lambda: b'a,b\n1,"' + b"2,3\n" * 500_000),
    "quotes and nothing else": ("a.csv", lambda: b'"' * 5_000_001),
    "quotes that close and open": ("a.csv", lambda: b'a\n"x"y"z"\n' * 1000),
    "rows without values under 2,000 columns": ("a.csv", lambda: numbered(2000).encode() + b"\n" + b"1\n" * 50_000),
    "line ends and nothing else": ("a.csv", b"\n" * 5_000_000),
    "carriage returns as line ends": ("a.csv", b"a,b\r1,2\r3,4\r"),
    "NUL bytes": ("a.csv", b"a,b\n1,\0\n"),
    "noise": ("a.csv", lambda: bytes(range(256)) * 4000),
    "half of a mark of UTF-16": ("a.csv", b"\xff\xfea"),
    "UTF-16 that breaks": ("a.csv", b"\xff\xfea\0\n\0\x00\xd8"),
    "numbers of 100,000 digits": ("a.csv", lambda: b"a\n" + b"9" * 100_000 + b"\n-" + b"9" * 100_000 + b"\n"),
    "numbers with many commas": ("a.csv", lambda: b'a\n"1' + b",111" * 20_000 + b'"\n"1' + b",11" * 20_000 + b'"\n'),
    "numbers beyond the floats": ("a.csv", b"a,b\n1e999,1e-999\n-1e999,inf\n"),
    "dates of no calendar": ("a.csv", b"a\n9999-99-99\n0000-00-00\n"),
    "control signs in names and values": ("a.csv", "a\x1b[2J,\u202eb\n\x1b]0;x\x07,\x9b\n"),
    "the words that end a file": ("a.csv", "a\n\x1aend of the file\n1\n"),
    "a table whose name SQLite keeps": ("sqlite_master.csv", b"a\n1\n"),
    "a statement as names": ("a.csv", b'"x"" INT); DROP TABLE a; --",b\n1,2\n'),
    "a separator of no characters": ("a.csv", b"sep=\n1,2\n"),
    "a separator that is a quote": ("a.csv", b'sep="\na,b\n1,2\n'),
    "nothing": ("a.csv", b""),
    "GB18030": ("a.csv", "姓名,城市\n王小明,北京\n李四,上海\n".encode("gb18030")),
    "Big5": ("a.csv", "姓名,城市\n王小明,臺北\n李四,高雄\n".encode("big5")),
    "Shift JIS": ("a.csv", "名前,都市\n山田太郎,東京\nテスト,大阪\n".encode("cp932")),
    "EUC-KR": ("a.csv", "이름,도시\n홍길동,서울\n김철수,부산\n".encode("cp949")),
    "Cyrillic of Windows": ("a.csv", "имя,город\nИван,Москва\n".encode("cp1251")),
    # JSON
    "50,000 keys in one object": ("a.json", lambda: json.dumps([{f"k{n}": n for n in range(50_000)}]).encode()),
    "50,000 objects of a key each": ("a.json", lambda: json.dumps([{f"k{n}": n} for n in range(50_000)]).encode()),
    "50,000 keys that become one": ("a.jsonl", lambda: json.dumps({"%" * n: 1 for n in range(1, 1900)}).encode()),
    "2,000 keys, and rows without them": (
        "a.jsonl",
        lambda: json.dumps({f"k{n}": n for n in range(2000)}).encode() + b'\n{"k1":1}' * 20_000,
    ),
    "50,000 columns by their names": (
        "a.json",
        lambda: json.dumps({f"k{n}": {"0": 1} for n in range(50_000)}).encode(),
    ),
    "columns that share no label": (
        "a.json",
        lambda: json.dumps({f"k{n}": {f"{n}-{m}": 1 for m in range(12)} for n in range(1900)}).encode(),
    ),
    "a million brackets": ("a.json", b"[" * 1_000_000),
    "a million braces": ("a.jsonl", b'{"a":' * 1_000_000),
    "an object in an object, 900 deep": ("a.json", lambda: b'[{"a":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}]"),
    "numbers of 100,000 digits in JSON": ("a.json", lambda: b'[{"a": ' + b"9" * 100_000 + b"}]"),
    "a number that is none": ("a.json", b'[{"a": NaN, "b": -Infinity, "c": 1e999}]'),
    "halves of a character": ("a.json", rb'[{"a": "\ud800", "\udfff": 1}]'),
    "NUL in a text": ("a.json", rb'[{"a": "x\u0000y"}]'),
    "5": ("a.json", b"5"),
    "a list of numbers": ("a.jsonl", b"[1, 2]\n5\n"),
    "a line of 20 MB": ("a.jsonl", lambda: b'{"a": "' + b"x" * 20_000_000 + b'"}'),
    "empty objects": ("a.json", lambda: b"[" + b"{}," * 500_000 + b"{}]"),
    "two values": ("a.json", b'[{"a": 1}] [{"a": 2}]'),
    "a list that is cut": ("a.json", b'[{"a": 1}, {"a": '),
    # Excel
    "a cell at XFD1048576": ("a.xlsx", lambda: book(cell("A1") + cell("XFD1048576"), "A1:XFD1048576")),
    "a cell at A1048576": ("a.xlsx", lambda: book(cell("A1") + cell("A1048576"), "A1:A1048576")),
    "a cell beyond the sheet": ("a.xlsx", lambda: book(cell("A1") + cell("ZZZZ99999999"))),
    "a size that is a lie": ("a.xlsx", lambda: book(cell("A1", "7") + cell("A2"), "A1:XFD1048576")),
    "a zip bomb": ("a.xlsx", lambda: book(cell("A1"), filler=200 << 20)),
    "a smaller zip bomb": ("a.xlsx", lambda: book(cell("A1"), filler=3 << 20)),
    "rows that the sheet repeats": ("a.xlsx", lambda: book(cell("A1") * 200_000)),
    "entities that double": (
        "a.xlsx",
        lambda: book(
            cell("A1", "&e20;"),
            doctype='<!DOCTYPE x [<!ENTITY e0 "xx">'
            + "".join(f'<!ENTITY e{n} "&e{n - 1};&e{n - 1};">' for n in range(1, 21))
            + "]>",
        ),
    ),
    "an entity that is a file": (
        "a.xlsx",
        lambda: book(cell("A1", "&e;"), doctype='<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'),
    ),
    "a text that a million cells share": (
        "a.xlsx",
        lambda: book(
            cell("A1") + '<row><c t="s"><v>0</v></c></row>' * 60_000, strings=f"<si><t>{'x' * 30_000}</t></si>"
        ),
    ),
    "a text that is not there": ("a.xlsx", lambda: book('<row r="1"><c r="A1" t="s"><v>99</v></c></row>')),
    "3,000 sheets": ("a.xlsx", lambda: book(cell("A1") + cell("A2"), sheets=3000)),
    "a number that is none in a cell": ("a.xlsx", lambda: book(cell("A1", "x") + cell("A2", "1e9999"))),
    "a zip without its parts": ("a.xlsx", b"PK\5\6" + bytes(18)),
    "a CSV that says it is Excel": ("a.xlsx", b"a,b\n1,2\n"),
    # Parquet
    "two million rows of one value": ("a.parquet", repeated("x", 2_000_000)),
    "a text of a megabyte in every row": ("a.parquet", repeated("x" * 1_000_000, 200_000)),
    "a text of ten kilobytes in every row": ("a.parquet", repeated("x" * 10_000, 800_000)),
    "5,000 columns": ("a.parquet", lambda: parquet(**{f"c{n}": [1] for n in range(5000)})()),
    "lists in lists": ("a.parquet", parquet(a=[[[[1, 2], []], None]])),
    "times and decimals": ("a.parquet", framed(a=[pd.Timestamp("2024-01-01"), None], b=[b"\xff", None])),
    "a footer that is longer than the file": ("a.parquet", patched(SMALL, -8, b"\xff\xff\xff\x7f")),
    "a footer of noise": ("a.parquet", patched(SMALL, -60, bytes(range(50)))),
    "a page of noise": ("a.parquet", patched(SMALL, 4, bytes(range(40)))),
    "a beginning and an end": ("a.parquet", b"PAR1PAR1"),
}


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _folder(folder: Path, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        (folder / f"{number}.csv").write_bytes(b"a\n1\n")


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("p"))
    path.symlink_to("p")


def _socket(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as opened:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            opened.bind(path.name)
        finally:
            os.chdir(here)


def _inside(folder: Path, lay: Callable[[Path], object], name: str = "a.csv") -> None:
    folder.mkdir()
    (folder / "b.csv").write_bytes(b"a\n1\n")
    lay(folder / name)


# kind -> (name, what lays it there)
PLACES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a pipe": ("a.csv", os.mkfifo),
    "a link to a pipe": ("a.json", _link_to_a_pipe),
    "a link to a device": ("a.csv", lambda path: path.symlink_to("/dev/zero")),
    "a link to a terminal": ("a.xlsx", lambda path: path.symlink_to("/dev/tty")),
    "a link to a process's memory": ("a.csv", lambda path: path.symlink_to("/proc/self/mem")),
    "a link to itself": ("a.csv", lambda path: path.symlink_to("a.csv")),
    "a link to nothing": ("a.parquet", lambda path: path.symlink_to("nowhere")),
    "a socket": ("a.csv", _socket),
    "a terabyte of nothing": ("a.csv", lambda path: _sparse(path, 1 << 40)),
    "a gigabyte of nothing": ("a.json", lambda path: _sparse(path, 1 << 30)),
    "60 MB of nothing": ("a.jsonl", lambda path: _sparse(path, 60 << 20)),
    "2,000 files": ("d", lambda path: _folder(path, 2_000)),
    "11,000 files": ("d", lambda path: _folder(path, 11_000)),
    "a folder with a pipe": ("d", lambda path: _inside(path, os.mkfifo)),
    "a folder with a pipe of JSON": ("d", lambda path: _inside(path, os.mkfifo, "a.json")),
    "a folder with a device": ("d", lambda path: _inside(path, lambda at: at.symlink_to("/dev/zero"))),
    "a folder with a link to a file elsewhere": (
        "d",
        lambda path: _inside(path, lambda at: at.symlink_to("/etc/passwd")),
    ),
    "a folder with a folder that is called a table": ("d", lambda path: _inside(path, Path.mkdir)),
    "a folder of a folder": ("a.csv", Path.mkdir),
    "a name that is not UTF-8": ("\udcff\udce9.csv", lambda path: path.write_bytes(b"a,b\n1,2\n")),
    "a name that does not print": ("a\n\x1b[2J.csv", lambda path: path.write_bytes(b"\0")),
    "a name of 250 characters": ("x" * 246 + ".csv", lambda path: path.write_bytes(b"a,b\n1,2\n")),
    "a folder with a name that is not UTF-8": (
        "d",
        lambda path: _inside(path, lambda at: at.write_bytes(b"a\n\0\n"), "\udcff.csv"),
    ),
}


def make(kind: str, folder: Path) -> Path:
    """The file or folder of a kind, made in ``folder``."""
    if kind in PLACES:
        name, lay = PLACES[kind]
        lay(folder / name)
    else:
        name, content = KINDS[kind]
        made = content() if callable(content) else content
        (folder / name).write_bytes(made.encode() if isinstance(made, str) else made)
    return folder / name
