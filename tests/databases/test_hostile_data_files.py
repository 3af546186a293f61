"""Data files of strangers: each kind is read, or refused in a line, in bounded memory; and honest files are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hostile_data_files import KINDS, PLACES, make

from nl2sql.databases import data_files
from nl2sql.databases.data_files import as_sqlite
from nl2sql.databases.engines import open_database
from nl2sql.errors import Nl2SqlError, UsageError

pytest.importorskip("openpyxl")
MOST_MEMORY = 2**30
SAID = {  # kind -> what must be said of it; of the others it is enough that they are read or refused
    "1,900 columns that become one identifier": "read",
    "names that take each other's numbers": "read",
    "3 million columns": "more than 2,000 columns",
    "3 million columns in the last row": "line 60002 has 3000001, its header 2",
    "rows without values under 2,000 columns": "unfolds into too many rows and columns",
    "a quote that is never closed": "a quote that opens a value is never closed",
    "numbers of 100,000 digits": "read",
    "the words that end a file": "read",
    "GB18030": "iconv -f gb18030 -t UTF-8 a.csv -o utf8.csv",
    "Big5": "iconv -f big5 ",
    "Shift JIS": "iconv -f cp932 ",
    "EUC-KR": "iconv -f cp949 ",
    "Cyrillic of Windows": "iconv -f cp1251 ",
    "50,000 keys in one object": "more than 2,000 columns",
    "50,000 objects of a key each": "more than 2,000 columns",
    "2,000 keys, and rows without them": "unfolds into too many rows",
    "columns that share no label": "unfolds into too many rows",
    "a million brackets": "nested too deeply",
    "a cell at XFD1048576": "more than 2,000 columns",
    "a cell at A1048576": "read",
    "a size that is a lie": "read",
    "a zip bomb": "unpacks to 209,",
    "rows that the sheet repeats": "unpacks to",
    "an entity that is a file": "cannot be read",
    "3,000 sheets": "3,000 sheets; at most 1,000",
    "two million rows of one value": "unfolds into too many rows",
    "a text of a megabyte in every row": "too much memory",
    "a text of ten kilobytes in every row": "unfolds into too many rows",
    "a pipe": "is a pipe",
    "a link to a pipe": "is a pipe",
    "a link to a device": "is a device",
    "a terabyte of nothing": "expected at most 67,108,864",
    "60 MB of nothing": "NUL bytes",
    "2,000 files": "2,000 tables; at most 1,000",
    "11,000 files": "more than 10,000 files",
    "a folder with a pipe of JSON": "is a pipe",
    "a folder with a link to a file elsewhere": "is a link, and is not opened",
    "a name that is not UTF-8": "read",
    "a folder with a name that is not UTF-8": r"udcff.csv' cannot be read: it holds NUL",
}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("NL2SQL_CACHE", str(folder))
    return folder


@pytest.mark.parametrize("kind", [*KINDS, *PLACES])
def test_a_strangers_file_is_read_or_refused_in_a_line(kind: str, tmp_path: Path, cache: Path) -> None:
    file = make(kind, tmp_path)
    try:
        database = open_database(file)
        said = f"read {database.run(f'SELECT * FROM {database.schema().tables[0].name}', max_rows=5)}"
    except Nl2SqlError as error:
        said = str(error)
        assert said.isprintable() and len(said) < 1000
    assert SAID.get(kind, "") in said
    peaks = [Path(f"/proc/{reader.process.pid}/status").read_text() for reader in data_files._readers.idle]
    assert all(int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) * 1024 < MOST_MEMORY for status in peaks)
    assert not [left for left in cache.rglob("*") if left.suffix in (".part", ".rows")]


def test_there_are_at_least_sixty_kinds() -> None:
    assert len(KINDS) + len(PLACES) >= 60 and SAID.keys() <= KINDS.keys() | PLACES.keys()


def test_a_file_that_gets_no_further_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "STALLED_S", 0.0)
    monkeypatch.setattr(data_files, "BYTES_PER_S", 1e12)
    monkeypatch.setattr(data_files, "PATIENCE", 1.0)
    (tmp_path / "a.json").write_bytes(b"[" + b"{}," * 500_000 + b"{}]")
    with pytest.raises(UsageError, match=r"a\.json cannot be read: it got no further"):
        as_sqlite(tmp_path / "a.json")


def test_a_long_file_is_read_with_a_bar_that_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data_files, "SHOWN_S", 0.0)
    lines = "".join(f"{n},Customer {n},{n % 97}.5\n" for n in range(300_000))
    (tmp_path / "long.csv").write_text(f"id,name,paid\n{lines}")
    result = open_database(tmp_path / "long.csv").run("SELECT count(*), max(id), sum(paid) FROM long")
    assert result.rows == ((300_000, 299_999, sum(n % 97 + 0.5 for n in range(300_000))),)
    shown = [int(percent) for percent in re.findall(r"long\.csv: +(\d+)%", capsys.readouterr().err)]
    assert len(set(shown)) > 3 and shown == sorted(shown)


def test_a_link_that_is_typed_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("a\n1\n")
    (tmp_path / "t.csv").symlink_to("blob")
    assert open_database(tmp_path / "t.csv").run("SELECT a FROM t").rows == ((1,),)


WESTERN = ["Größe;Preis\nÄÖ;1\n", "á\n€\n", "Nom\ncréées à Orléans; «à l'œuvre»\n", "x\nção ções\n"]


@pytest.mark.parametrize("text", WESTERN)
def test_western_texts_of_windows_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text.encode("cp1252"))
    assert open_database(tmp_path / "t.csv").run("SELECT * FROM t").rows
