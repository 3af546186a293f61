"""CSV, Parquet, JSON and Excel files, and folders of them, as databases."""

from __future__ import annotations

import datetime
import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pandas as pd
import programs
import pytest

from nl2sql.databases.data_files import READERS, as_sqlite, identifier, is_data
from nl2sql.databases.engines import open_database
from nl2sql.errors import UsageError

ROWS = [["Ada", 36, 1.5, True], ["Bo, Jr.", 41, None, False]]
FRAME = pd.DataFrame(ROWS, columns=["First Name", "Age", "Score (%)", "Member?"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


def write(file: Path) -> Path:
    if file.suffix == ".csv":
        FRAME.to_csv(file, index=False)
    elif file.suffix == ".tsv":
        FRAME.to_csv(file, index=False, sep="\t")
    elif file.suffix == ".parquet":
        FRAME.to_parquet(file)
    elif file.suffix == ".xlsx":
        pytest.importorskip("openpyxl")
        FRAME.to_excel(file, index=False)
    else:
        FRAME.to_json(file, orient="records", lines=file.suffix != ".json")
    return file


@pytest.mark.parametrize("suffix", READERS)
def test_a_file_is_a_table_with_its_rows(suffix: str, tmp_path: Path) -> None:
    database = open_database(str(write(tmp_path / f"My People{suffix}")))
    (table,) = database.schema().tables
    assert (database.name, table.name) == ("my_people", "my_people")
    assert [(c.name, c.type) for c in table.columns] == [
        ("first_name", "TEXT"),
        ("age", "INTEGER"),
        ("score", "REAL"),
        ("member", "INTEGER"),
    ]
    result = database.run("SELECT * FROM my_people WHERE age > 40 ORDER BY age")
    assert result.rows == (("Bo, Jr.", 41, None, 0),)


def test_a_folder_has_a_table_per_file_and_its_keys(tmp_path: Path) -> None:
    (tmp_path / "customers.csv").write_text("id;name\n1;Ada\n2;Bé\n", encoding="cp1252")
    (tmp_path / "orders.jsonl").write_text('{"order_id": 7, "customer_id": 2}\n{"order_id": 8, "customer_id": 2}\n')
    (tmp_path / "notes.csv").write_text("customer_id,text\n9,no such customer\n")
    (tmp_path / "readme.txt").write_text("no data")
    database = open_database(tmp_path)
    tables = {table.name: table for table in database.schema().tables}
    assert sorted(tables) == ["customers", "notes", "orders"]
    assert [c.name for t in tables.values() for c in t.columns if c.primary_key] == ["id", "order_id"]
    (key,) = tables["orders"].foreign_keys
    assert (key.columns, key.ref_table, key.ref_columns) == (("customer_id",), "customers", ("id",))
    assert tables["notes"].foreign_keys == ()  # a value that is no customer's
    joined = database.run("SELECT name FROM orders o JOIN customers c ON c.id = o.customer_id")
    assert joined.rows == (("Bé",), ("Bé",))


def test_a_relative_path_means_the_folder_where_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = {}
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("x.csv").write_text(f"n\n{number}\n")
        with closing(sqlite3.connect("y.sqlite")) as connection:
            connection.executescript(f"CREATE TABLE x (n); INSERT INTO x VALUES ({number})")
        opened[number] = [open_database("x.csv"), open_database("y.sqlite")]
    for number, databases in opened.items():
        assert [database.run("SELECT n FROM x").rows for database in databases] == [((number,),)] * 2


def test_a_json_file_of_a_folder_is_a_table_where_it_lists_objects(tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text('\n[ {"id": 1, "name": "Ada"}]')
    (tmp_path / "settings.json").write_text('{"id": 1}')
    assert is_data(tmp_path) and rows(tmp_path) == {"people": ((1, "Ada"),)}
    (tmp_path / "pets.csv").write_text("name\nRex\n")
    assert rows(tmp_path) == {"people": ((1, "Ada"),), "pets": (("Rex",),)}
    (tmp_path / "pets.csv").unlink()
    (tmp_path / "databases").mkdir()
    assert not is_data(tmp_path), "a benchmark: its questions are no table"
    (tmp_path / "databases").rmdir()
    (tmp_path / "people.json").write_text("[1, 2]")
    assert not is_data(tmp_path)


def rows(path: Path) -> dict[str, tuple[tuple[object, ...], ...]]:
    database = open_database(path)
    return {t.name: database.run(f"SELECT * FROM {t.name}").rows for t in database.schema().tables}


def test_codes_with_leading_zeros_and_the_text_na_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "places.csv").write_text("zip,country,share,note\n02134,NA,0.5,\n10001,,0,\n")
    expected = (("02134", "NA", 0.5, None), ("10001", None, 0, None))
    assert rows(tmp_path) == {"places": expected}
    pytest.importorskip("openpyxl")
    columns = ["zip", "country", "share", "note"]
    pd.DataFrame(expected, columns=columns).to_excel(tmp_path / "sheet.xlsx", index=False)
    assert rows(tmp_path) == {"places": expected, "sheet": expected}


def test_numbers_written_with_commas_are_numbers(tmp_path: Path) -> None:
    text = 'amount,count,pair,code\n"1,234.50","1,000","1,2","02,134"\n2,-7,"3,4",\n,"2,000,000",,5\n'
    (tmp_path / "comma.csv").write_text(text)
    (tmp_path / "semicolon.csv").write_text("price;total;unclear\n1,50;1.234,5;1,234\n;7;5,678\n-2;-8,25;\n")
    assert rows(tmp_path) == {
        "comma": ((1234.5, 1000, "1,2", "02,134"), (2.0, -7, "3,4", None), (None, 2_000_000, None, "5")),
        "semicolon": ((1.5, 1234.5, "1,234"), (None, 7.0, "5,678"), (-2.0, -8.25, None)),
    }


def test_an_empty_cell_is_null_in_a_column_of_numbers_beyond_64_bits(tmp_path: Path) -> None:
    (tmp_path / "accounts.csv").write_text("id,number\n1,10000000000000000001\n2,\n3,5\n")
    assert rows(tmp_path) == {"accounts": ((1, "10000000000000000001"), (2, None), (3, "5"))}


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("first", ["", "sep=;"])
def test_a_csv_of_a_german_or_french_excel_has_its_columns(ends: str, first: str, tmp_path: Path) -> None:
    lines = ["id;name;note;price", "1;Bob;;3,50", '2;Ann;"red; blue, green";4', "3;Cy;a;"]
    (tmp_path / "best.csv").write_bytes(ends.join([first, *lines][not first :]).encode())
    note = "red; blue, green"
    assert rows(tmp_path) == {"best": ((1, "Bob", None, 3.5), (2, "Ann", note, 4.0), (3, "Cy", "a", None))}


def test_points_between_thousands_are_read_where_commas_are_decimal(tmp_path: Path) -> None:
    (tmp_path / "proved.csv").write_text("amount;price\n1.234;3,50\n12;4,20\n")
    (tmp_path / "unproved.csv").write_text("amount;price\n1.234;3.50\n12;4\n")
    assert rows(tmp_path) == {"proved": ((1234, 3.5), (12, 4.2)), "unproved": ((1.234, 3.5), (12.0, 4.0))}


def test_telephone_numbers_are_texts(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,phone,change\n1,+4930123456,+5\n2,,-3\n")
    assert rows(tmp_path) == {"people": ((1, "+4930123456", 5), (2, None, -3))}


def test_json_keeps_what_is_written(tmp_path: Path) -> None:
    written = [
        {"id": 1780000000000000001, "reply": None, "load_time": 45000000, "updated_at": "03/04/2024", "far": 2**70},
        {"id": 1780000000000000003, "reply": 1780000000000000001, "load_time": 2, "updated_at": None, "far": None},
    ]
    (tmp_path / "posts.json").write_text(json.dumps(written))
    (tmp_path / "more.jsonl").write_text("\n".join(map(json.dumps, written)))
    expected = tuple((r["id"], r["reply"], r["load_time"], r["updated_at"], r["far"] and str(2**70)) for r in written)
    assert rows(tmp_path) == {"more": expected, "posts": expected}


def test_a_line_of_json_ends_only_where_the_line_does(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"note": "a\u2028b"}\r\n{"note": "c\x85d"}\r\n', encoding="utf-8")
    assert rows(tmp_path) == {"notes": (("a\u2028b",), ("c\x85d",))}


def test_parts_of_a_second_are_kept(tmp_path: Path) -> None:
    times = pd.to_datetime(["2024-01-02 03:04:05.100", "2024-01-02 03:04:05.900", None])
    pd.DataFrame({"at": times}).to_parquet(tmp_path / "log.parquet")
    seconds = (("2024-01-02 03:04:05.100000",), ("2024-01-02 03:04:05.900000",), (None,))
    assert rows(tmp_path) == {"log": seconds}


def test_texts_of_an_excel_sheet_stay_texts(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    columns = {"account": ["123456789012345678901234", None], "part": ["1E5", "2E7"], "phone": ["+4930123456", None]}
    pd.DataFrame(columns).to_excel(tmp_path / "book.xlsx", index=False)
    assert rows(tmp_path) == {"book": (("123456789012345678901234", "1E5", "+4930123456"), (None, "2E7", None))}


def test_hidden_files_and_locks_of_a_folder_are_no_tables(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("b\n1\n")
    for name in ("~$a.xlsx", "._a.csv", ".hidden.csv"):
        (tmp_path / name).write_bytes(b"\0\1")
    assert rows(tmp_path) == {"a": ((1,),)}


def test_names_that_become_one_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "Orders 1.csv").write_text("a,a_3,A\n1,2,3\n")
    (tmp_path / "orders_1.tsv").write_text("b\n4\n")
    assert rows(tmp_path) == {"orders_1": ((1, 2, 3),), "orders_1_2": ((4,),)}


def test_values_that_sqlite_does_not_have_are_kept(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("a\n18446744073709551615\n1\n")
    columns = {"price": [Decimal("1.50"), None], "tags": [[1, 2], None], "took": [pd.Timedelta(1, "h"), None]}
    pd.DataFrame(columns).to_parquet(tmp_path / "parts.parquet")
    part = (1.5, "[1, 2]", "0 days 01:00:00")
    assert rows(tmp_path) == {"big": (("18446744073709551615",), ("1",)), "parts": (part, (None, None, None))}


def test_labels_of_rows_are_columns_and_counted_rows_have_none(tmp_path: Path) -> None:
    sales = pd.DataFrame({"region": ["N", "S", "N"], "year": [2020, 2020, 2021], "sales": [1, 2, 3]})
    sales.groupby("region")[["sales"]].sum().to_parquet(tmp_path / "by_region.parquet")
    sales.groupby(["region", "year"])[["sales"]].sum().to_parquet(tmp_path / "by_year.parquet")
    sales[["sales"]].set_axis(["a", "b", "c"]).to_parquet(tmp_path / "labelled.parquet")
    sales[sales["sales"] > 2].to_parquet(tmp_path / "filtered.parquet")
    assert rows(tmp_path) == {
        "by_region": (("N", 4), ("S", 2)),
        "by_year": (("N", 2020, 1), ("N", 2021, 3), ("S", 2020, 2)),
        "labelled": (("a", 1), ("b", 2), ("c", 3)),
        "filtered": (("N", 2021, 3),),
    }
    for labels, values in (('"Ada": 1, "Bo": 2', ("Ada", "Bo")), ('"2020": 1, "2021": 2', (2020, 2021))):
        (tmp_path / "labels.json").write_text(f'{{"n": {{{labels}}}}}')
        assert rows(tmp_path / "labels.json") == {"labels": ((values[0], 1), (values[1], 2))}
    (tmp_path / "counted.json").write_text('{"n": {"0": 1, "1": 2}}')
    assert rows(tmp_path / "counted.json") == {"counted": ((1,), (2,))}


def test_a_time_of_day_is_written_as_it_is_compared(tmp_path: Path) -> None:
    values = [datetime.time(9, 30), None, datetime.time(9, 30, 1, 500_000)]
    file = tmp_path / "t.parquet"
    pd.DataFrame({"opens": values, "month": pd.period_range("2024-01", periods=3, freq="M")}).to_parquet(file)
    assert rows(file) == {"t": (("09:30:00", "2024-01"), (None, "2024-02"), ("09:30:01.500000", "2024-03"))}


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a\n1\n")
    first = as_sqlite(file)
    assert as_sqlite(file) == first
    file.write_text("a\n1\n2\n")
    assert as_sqlite(file) != first and len(list(first.parent.glob("*.sqlite"))) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "cannot be read"),
        ("garbage.parquet", b"\x00garbage", "cannot be read"),
        ("broken.json", b"{", "cannot be read"),
        ("longer.csv", b"a,b\n1,2,3\n4,5,6\n", "more values than its header has names"),
        ("sqlite_x.csv", b"a,b\n1,2\n", "cannot be written as a table: object name reserved"),
        ("broken.xlsx", b"PK", "cannot be read"),
    ],
)
def test_a_file_that_is_none_of_its_kind_is_one_line(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    if name.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=rf"{name}.*{said}") as caught:
        open_database(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_names_are_identifiers() -> None:
    assert [identifier(name) for name in ("First Name (%)", "2020", "Größe", "", "a-b")] == [
        "first_name",
        "n_2020",
        "größe",
        "column",
        "a_b",
    ]
    assert not is_data(Path("shop.sqlite"))


def test_the_command_line_answers_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"replies": {"*": ["SELECT count(*) FROM people WHERE age > 40"]}}')
    file = write(tmp_path / "people.csv")
    asked = ["How many people are older than 40?", "--db", file, "--model", f"scripted:{tmp_path / 'script.json'}"]
    done = programs.command("ask", *asked, "--controller", "single_shot", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[1:3] == ["count(*)", "1"], done.stdout + done.stderr


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be-bom", "utf-8-sig", "cp1252"])
def test_a_csv_is_read_in_the_encoding_that_it_was_saved_in(encoding: str, tmp_path: Path) -> None:
    text = "id\tname\n1\tBén\n2\tZoë\n"
    raw = b"\xfe\xff" + text.encode("utf-16-be") if encoding == "utf-16-be-bom" else text.encode(encoding)
    (tmp_path / "p.csv").write_bytes(raw)
    database = open_database(tmp_path / "p.csv")
    assert [column.name for column in database.schema().tables[0].columns] == ["id", "name"]
    assert database.run("SELECT * FROM p").rows == ((1, "Bén"), (2, "Zoë"))


def test_a_csv_with_nul_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_bytes("id,name\n1,Bo\n".encode("utf-16-le"))
    with pytest.raises(UsageError, match=r"p\.csv cannot be read: it holds NUL bytes"):
        as_sqlite(tmp_path / "p.csv")
