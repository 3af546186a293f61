"""Prediction files of every kind are read without truncation or shift; what cannot be matched is said in one line."""

import json

import pytest

from nl2sql.errors import UsageError
from nl2sql.eval.predictions import read_gold_file, read_predictions, with_golds
from nl2sql.interfaces import Question

QUESTIONS = [
    Question("How many?", id="a-0", db_id="shop", gold=("SELECT 1",), meta={"gold_rows": 0}),
    Question("Which  names?", id="a-1", db_id="shop", gold=("SELECT 2",)),
    Question("How many?", id="a-2", db_id="zoo", gold=("SELECT 3",)),
]
BIRD = "\t----- bird -----\t"


@pytest.fixture
def read(tmp_path):
    def read(name, content, questions=QUESTIONS):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_predictions(path, questions)

    return read


ALL = {"a-0": "SELECT 1", "a-1": "SELECT 'ü'", "a-2": ""}
RECORDS = [{"id": id_, "sql": sql} for id_, sql in ALL.items()]
SAME = {
    "own.jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS),
    "list.json": json.dumps(RECORDS, indent=1),
    "other-names.jsonl": "".join(
        json.dumps({"question_id": r["id"], "query": "gold", "predicted_sql": r["sql"]}) + "\n" for r in RECORDS
    ),
    "spider.txt": "SELECT 1\nSELECT 'ü'\n\n",
    "spider-unended.sql": "SELECT 1\nSELECT 'ü'\n\n\n\n",
    "with-databases.sql": "SELECT 1\tshop\nSELECT 'ü'\tshop\n\tzoo\n",
    "bird.json": json.dumps(
        {"0": f"SELECT 1{BIRD}shop", "1": f"SELECT 'ü'{BIRD}shop", "2": f"{BIRD}zoo"}, ensure_ascii=False, indent=4
    ),
    "bird-by-id.json": json.dumps({"a-2": 0, "a-1": f"SELECT 'ü'{BIRD}shop", "a-0": "SELECT 1"}),
    "id.csv": "id,sql\na-2,\na-0,SELECT 1\na-1,\"SELECT 'ü'\"\n",
    "semicolons.csv": "Question_ID;Predicted_SQL\na-0;SELECT 1\na-1;SELECT 'ü'\na-2;\n",
    "tabs.tsv": "sql\tid\nSELECT 1\ta-0\nSELECT 'ü'\ta-1\n\ta-2\n",
    "by-question.csv": "question,db_id,sql\nhow many?,zoo,\nWhich names?,shop,SELECT 'ü'\nHow many?,shop,SELECT 1\n",
    "by-position.csv": "sql,db_id\nSELECT 1,shop\nSELECT 'ü',shop\n,zoo\n",
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("bytes_", ["plain", "bom", "crlf", "utf-16"])
def test_every_kind_of_file_gives_the_same_predictions(read, name, bytes_):
    text = SAME[name]
    if bytes_ == "crlf":
        text = text.replace("\n", "\r\n")
    content = text.encode({"bom": "utf-8-sig", "utf-16": "utf-16"}.get(bytes_, "utf-8"))
    found, remarks = read(name, content)
    assert found == ALL
    assert len(remarks) == 1 and "1 blank prediction(s), counted as wrong: a-2" in remarks[0]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.txt", "SELECT 1\nSELECT 2\n", "has 2 lines for 3 questions.*blank.*--split"),
        ("p.txt", "SELECT 1\n\nSELECT 2\nSELECT 3\n", "has 4 lines for 3 questions"),
        ("p.txt", "", "has 0 lines for 3 questions"),
        ("p.sql", "SELECT 1\tshop\nSELECT 2\tzoo\nSELECT 3\tzoo\n", "line 2 is for database 'zoo'.*a-1.*'shop'"),
        ("p.json", json.dumps({"0": f"SELECT 1{BIRD}zoo"}), "entry '0' is for database 'zoo'"),
        ("p.json", '{"0": {"sql": "SELECT 1"}}', "entry '0': the SQL has to be a text"),
        ("p.json", '"SELECT 1"', "expected an object"),
        ("p.json", "{", "is not JSON"),
        ("p.json", "[[1]]", "record 1: expected an object"),
        ("p.jsonl", '{"id": 1}\n', 'line 1: expected an object with "id" and "sql"'),
        ("p.jsonl", "oops\n{}\n", "line 1 is not JSON"),
        ("p.csv", "id,answer\n1,SELECT 1\n", "no column for the SQL.*found id, answer"),
        ("p.csv", "id,sql\na-0,SELECT a, b\n", "row 1 has another number of fields"),
        ("p.csv", "sql,id\nSELECT 1,a-0\nSELECT 2\n", "row 2 has another number of fields"),
        ("p.csv", "sql,question,db_id\nSELECT 1,How many?\n", "row 1 has another number of fields"),
        ("p.csv", "sql\nSELECT 1\n", "has 1 lines for 3 questions"),
        ("p.txt", b"SELECT '\xff'\n", "cannot be read"),
    ],
)
def test_what_cannot_be_matched_is_one_clear_line(read, name, content, says):
    with pytest.raises(UsageError, match=says) as error:
        read(name, content)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing\.jsonl does not exist"):
        read_predictions(tmp_path / "nothing.jsonl", [])


@pytest.mark.parametrize(
    ("name", "content", "surplus"),
    [
        ("p.jsonl", '{"id": "far", "sql": "SELECT 1"}\n', "far"),
        ("p.json", json.dumps({"0": f"SELECT 1{BIRD}shop", "99": f"SELECT 2{BIRD}shop"}), "99"),
        ("p.csv", "question,sql\nWhich names?,SELECT 1\nWhat else?,SELECT 2\n", "row 2"),
        ("p.csv", "question,sql\nWhich names?,SELECT 1\nWhich names?,SELECT 2\n", "row 2"),
    ],
)
def test_a_prediction_for_no_question_stays_in_as_surplus(read, name, content, surplus):
    found, _ = read(name, content)
    assert surplus in found and surplus not in {question.id for question in QUESTIONS}


def test_a_file_without_an_id_of_the_benchmark_is_told_of_its_ids(read):
    _, (remark,) = read("p.jsonl", '{"id": 0, "sql": "SELECT 1"}\n{"id": 1, "sql": "SELECT 2"}\n')
    assert "no id is one of the questions': 0, 1 in the file, a-0, a-1, a-2 in the benchmark" in remark


@pytest.mark.parametrize("name", ["predict_sql", "pred_query", "predict", "generated"])
def test_a_prediction_beside_its_gold_is_the_one_that_counts(read, name):
    record = {"question_id": "a-0", "SQL": "SELECT 1", "query": "SELECT 1", name: ""}
    assert read("p.json", json.dumps([record]))[0] == {"a-0": ""}


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_sql_of_another_name_beside_what_may_be_the_gold_is_pointed_at(read, kind):
    record = {"id": "a-0", "query": "SELECT 1", "output": "select 2", "gold": "SELECT 1", "note": "none"}
    line = json.dumps(record) if kind == "jsonl" else f"{','.join(record)}\n{','.join(record.values())}"
    found, (remark,) = read(f"p.{kind}", f"{line}\n")
    assert found == {"a-0": "SELECT 1"}
    assert "'query' is read as the prediction, and 'output' holds SQL too" in remark and "'predicted_sql'" in remark
    own = {"id": "a-0", "sql": "SELECT 1", "raw_sql": "SELECT 2", "prefill": "SELECT"}
    assert read("p.jsonl", json.dumps(own) + "\n")[1] == []


def test_a_run_folder_stands_for_its_predictions(tmp_path):
    (tmp_path / "predictions.jsonl").write_text('{"id": "a-0", "sql": "SELECT 1"}\n')
    assert read_predictions(tmp_path, QUESTIONS) == ({"a-0": "SELECT 1"}, [])


def test_a_later_line_for_the_same_id_counts_and_a_torn_last_line_is_ignored(read):
    found, remarks = read(
        "p.jsonl", '{"id": "a-0", "sql": "SELECT 1"}\n\n{"id": 7, "sql": null}\n{"id": "a-0", "sql": "SELECT 2"}\n{"i'
    )
    assert found == {"a-0": "SELECT 2", "7": ""}
    assert ["again" in remarks[0], "torn" in remarks[1], "blank" in remarks[2]] == [True, True, True]


def test_statements_over_several_lines_fit_into_csv(read):
    assert read("p.csv", 'id,sql\r\na-0,"SELECT 1\r\n, 2"\r\n')[0] == {"a-0": "SELECT 1\r\n, 2"}


def test_a_tab_inside_sql_truncates_nothing(read):
    assert read("p.txt", "SELECT 1,\t2\nSELECT 1\nSELECT\t'a b'\n")[0] == {
        "a-0": "SELECT 1,\t2",
        "a-1": "SELECT 1",
        "a-2": "SELECT\t'a b'",
    }
    found, _ = read("p.txt", "SELECT 1,\t'x y'\tshop\nSELECT\t(1)\n\n")
    assert found == {"a-0": "SELECT 1,\t'x y'", "a-1": "SELECT\t(1)", "a-2": ""}


def test_bird_keys_are_question_ids_where_databases_say_so(read):
    questions = [Question("?", id=str(n), db_id=db) for n, db in ((2, "x"), (1, "y"), (0, "x"), (5, "z"))]
    entries = {"2": f"SELECT 2{BIRD}x", "1": f"SELECT 1{BIRD}y", "5": f"SELECT 5{BIRD}z"}
    assert read("p.json", json.dumps(entries), questions)[0] == {"2": "SELECT 2", "1": "SELECT 1", "5": "SELECT 5"}
    entries = {"0": f"SELECT 2{BIRD}x", "1": f"SELECT 1{BIRD}y", "3": f"SELECT 5{BIRD}z"}
    assert read("p.json", json.dumps(entries), questions)[0] == {"2": "SELECT 2", "1": "SELECT 1", "5": "SELECT 5"}


def test_a_gold_file_replaces_golds_in_order(tmp_path):
    path = tmp_path / "gold.sql"
    path.write_bytes(b"\xef\xbb\xbfSELECT count(*) FROM t\tshop\r\nSELECT 5\tshop\r\nSELECT 6 \tzoo\r\n\r\n")
    assert read_gold_file(path) == [("SELECT count(*) FROM t", "shop"), ("SELECT 5", "shop"), ("SELECT 6", "zoo")]
    replaced = with_golds(QUESTIONS, path)
    assert [q.gold for q in replaced] == [("SELECT count(*) FROM t",), ("SELECT 5",), ("SELECT 6",)]
    assert replaced[0].meta == {} and replaced[0].difficulty == "easy" and replaced[0].id == "a-0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT 1\tshop\n", "has 1 lines for 3 questions.* write one gold per question, or name .* was made for$"),
        ('{"id": "a-0", "sql": "SELECT 1"}\n' * 3, "line 1 is JSON; expected 'SQL<tab>database id' on every line"),
        ("SELECT 1\tshop\nSELECT 1\tzoo\nSELECT 1\tzoo\n", "line 2 is for database 'zoo'"),
        ("SELECT 1\tshop\n\nSELECT 1\tzoo\n", "line 2 has no SQL"),
        ("\n", "is empty"),
    ],
)
def test_a_gold_file_that_does_not_fit_is_refused(tmp_path, text, says):
    path = tmp_path / "gold.sql"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        with_golds(QUESTIONS, path)


SHARED = [  # as the loader renames questions of one id
    Question("How many?", id="7", db_id="shop"),
    Question("Who?", id="7#2", db_id="zoo"),
    Question("When?", id="7#3", db_id="zoo"),
    Question("Where?", id="8", db_id="zoo"),
]
IN_ORDER = {"7": "SELECT 1", "7#2": "SELECT 2", "7#3": "SELECT 3", "8": "SELECT 4"}
LINES = [("7", "shop", "How many?"), ("7", "zoo", "Who?"), ("7", "zoo", "When?"), ("8", "zoo", "Where?")]
RECORDED = [
    {"question_id": int(id_), "sql": f"SELECT {n}", "db_id": db, "question": text}
    for n, (id_, db, text) in enumerate(LINES, 1)
]
TURNED = [RECORDED[n] for n in (3, 2, 1, 0)]  # in another order: the questions' texts say which is meant


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lines.jsonl", "".join(json.dumps({"id": r["question_id"], "sql": r["sql"]}) + "\n" for r in RECORDED)),
        ("turned.jsonl", "".join(json.dumps(r) + "\n" for r in TURNED)),
        ("list.json", json.dumps(RECORDED)),
        ("turned.json", json.dumps(TURNED)),
        ("id.csv", "id,sql\n" + "".join(f"{r['question_id']},{r['sql']}\n" for r in RECORDED)),
        ("by-id.json", '{"7": "SELECT 1", "7": "SELECT 2", "7": "SELECT 3", "8": "SELECT 4"}'),
        ("by-id-db.json", '{"7": "SELECT 2|zoo", "7": "SELECT 1|shop", "8": "SELECT 4", "7": "SELECT 3|zoo"}'),
        ("own.jsonl", "".join(json.dumps({"id": id_, "sql": sql}) + "\n" for id_, sql in IN_ORDER.items())),
    ],
)
def test_ids_that_repeat_are_given_out_as_the_loader_names_them(read, name, content):
    assert read(name, content.replace("|", json.dumps(BIRD)[1:-1]), SHARED) == (IN_ORDER, [])


def test_an_id_that_comes_more_often_than_there_are_questions_is_said(read):
    found, remarks = read("lines.jsonl", '{"id": "8", "sql": "SELECT 1"}\n{"id": "8", "sql": "SELECT 2"}\n', SHARED)
    assert found == {"8": "SELECT 2"} and "'8' again; the later one counts" in remarks[0]


@pytest.mark.parametrize(
    ("first", "named"), [("```sql\nSELECT 1\n```", "a fence"), ("<think>x</think> SELECT 1", "a thought")]
)
def test_what_a_model_wrote_round_its_sql_is_said(read, first, named):
    found, remarks = read(
        "list.json", json.dumps([first, "-- why\n(SELECT 2)", "WITH x AS (SELECT 1) SELECT * FROM x"])
    )
    assert found["a-0"] == first and [named in remark and "1 of 3" in remark for remark in remarks] == [True]


def test_texts_are_read_by_position_and_files_by_name(read, tmp_path):
    assert read("list.json", '["SELECT 1", null, "SELECT 3"]')[0] == {"a-0": "SELECT 1", "a-1": "", "a-2": "SELECT 3"}
    found, remarks = read("short.json", '["SELECT 1"]')
    assert found == {"a-0": "SELECT 1"} and "1 texts for 3 questions" in remarks[0]
    with pytest.raises(UsageError, match="4 lines for 3 questions"):
        read("long.json", '["SELECT 1", "SELECT 2", "SELECT 3", "SELECT 4"]')
    for folder, names in (("ids", ("a-2", "a-0")), ("places", ("2", "0"))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.sql").write_text(f"SELECT '{name}'\n")
        found, _ = read_predictions(tmp_path / folder, QUESTIONS)
        assert found == {"a-2": f"SELECT '{names[0]}'", "a-0": f"SELECT '{names[1]}'"}
