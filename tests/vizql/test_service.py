"""Queries sent to a VizQL Data Service: a local server with the service's paths."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
from test_compile import SOURCE, TABLES
from vds_server import LUID, PAT, TOKEN, VdsServer, serving

from nl2sql.databases.engines import open_database
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Database
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.query import Request
from nl2sql.vizql.service import ENVIRONMENT, VizqlService, known_code, known_codes, open_service, pauses
from nl2sql.vizql.source import DataSource, read_source

FACTOR = {"parameterCaption": "Factor", "parameterName": "[F]", "parameterType": "ANY_VALUE", "dataType": "INTEGER"}
WHOLE = {  # a service says these, which a YAML file may leave out
    "parameters": [FACTOR | {"value": 3}],
    "logicalTableRelationships": SOURCE.model_dump()["logicalTableRelationships"],
}
SERVED = DataSource.model_validate(SOURCE.model_dump(exclude_unset=True) | WHOLE)
CITY, AMOUNT = {"fieldCaption": "City"}, {"fieldCaption": "Amount", "function": "SUM"}
NOTE, N = {"fieldCaption": "Note"}, {"fieldCaption": "N"}
KINDS: dict[str, dict[str, Any]] = {
    "dimension": {"fields": [CITY]},
    "measure, not in the order of the letters": {"fields": [NOTE, AMOUNT]},
    "measure without a function, beside another": {"fields": [{"fieldCaption": "N", "function": "AVG"}, N]},
    "alias": {"fields": [AMOUNT | {"fieldAlias": "City"}, CITY | {"fieldAlias": "A"}]},
    "calculation": {"fields": [{"fieldCaption": "Twice", "calculation": "SUM([Amount]) * 2"}, NOTE]},
    "bin": {"fields": [{"fieldCaption": "N", "binSize": 2}, {"fieldCaption": "Amount", "function": "COUNT"}]},
    "date part": {"fields": [AMOUNT, {"fieldCaption": "Day", "function": "YEAR", "sortPriority": 1}]},
    "boolean": {"fields": [{"fieldCaption": "Big", "calculation": "SUM([Amount]) > 12"}, CITY]},
    "set": {"fields": [NOTE], "filters": [{"filterType": "SET", "field": NOTE, "values": ["Red", None]}]},
    "match": {"fields": [NOTE], "filters": [{"filterType": "MATCH", "field": NOTE, "startsWith": "red"}]},
    "number": {
        "fields": [NOTE],
        "filters": [
            {"filterType": "QUANTITATIVE_NUMERICAL", "field": AMOUNT, "quantitativeFilterType": "MIN", "min": 10}
        ],
    },
    "date": {
        "fields": [NOTE],
        "filters": [
            {
                "filterType": "QUANTITATIVE_DATE",
                "field": {"fieldCaption": "Day"},
                "quantitativeFilterType": "MAX",
                "maxDate": "2024-02-29",
            }
        ],
    },
    "top": {
        "fields": [CITY],
        "filters": [{"filterType": "TOP", "field": CITY, "howMany": 1, "fieldToMeasure": AMOUNT, "direction": "TOP"}],
    },
    "parameter": {
        "fields": [{"fieldCaption": "Times", "calculation": "SUM([N]) * [Parameters].[Factor]"}],
        "parameters": [{"parameterCaption": "Factor", "value": 5}],
    },
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(TABLES)
    connection.close()
    database = open_database(Path(path))
    yield database
    database.close()


@pytest.fixture
def server(shop: Database) -> Iterator[VdsServer]:
    with serving(SERVED, shop) as started:
        yield started


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NL2SQL_VDS_TOKEN", TOKEN)


@pytest.fixture
def service(server: VdsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[VizqlService]:
    monkeypatch.setattr("nl2sql.vizql.service.pauses", lambda: (0.01, 0.02, 0.03))
    with open_service(server.url, datasource_luid=LUID, timeout_s=20) as opened:
        yield opened


def of_the_database(query: dict[str, Any], shop: Database, **options: Any) -> tuple[Any, ...]:
    asked = Request.model_validate({"query": query} | ({"options": options} if options else {}))
    made = compiled(asked, SERVED, shop.dialect)
    result = shop.run(made.sql)
    assert result.success and result.rows, (result.error, made)
    return result.rows


# ------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("form", [None, "OBJECTS", "ARRAYS"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_service_gives_the_rows_of_the_compiled_query(
    kind: str, form: str | None, service: VizqlService, shop: Database
) -> None:
    draft = {"query": KINDS[kind]} | ({"options": {"returnFormat": form}} if form else {})
    result = service.run(draft)
    assert (result.error, result.truncated) == (None, False)
    assert sorted(result.rows, key=repr) == sorted(of_the_database(KINDS[kind], shop), key=repr)
    assert len(result.columns) == len(KINDS[kind]["fields"])


def test_columns_have_the_names_of_the_service_in_the_order_of_the_query(service: VizqlService) -> None:
    assert service.run({"fields": [NOTE, AMOUNT]}).columns == ("Note", "SUM(Amount)")
    assert service.run({"fields": [AMOUNT | {"fieldAlias": "City"}, CITY | {"fieldAlias": "A"}]}).columns == (
        "City",
        "A",
    )


def test_what_is_sent_is_the_request_and_a_limit_of_rows(service: VizqlService, server: VdsServer) -> None:
    asked = {"datasource": {"datasourceLuid": LUID}, "query": KINDS["set"], "options": {"disaggregate": True}}
    assert service.run(asked, max_rows=7).success
    sent = server.bodies[-1]
    assert sent["query"]["filters"][0]["values"] == ["Red", None]
    assert {"disaggregate": True, "rowLimit": 8}.items() <= sent["options"].items()
    assert server.headers[-1]["User-Agent"] == "nl2sql"
    service.run(asked | {"options": {"rowLimit": 3}}, max_rows=7)
    assert server.bodies[-1]["options"]["rowLimit"] == 3


def test_more_rows_than_max_rows_are_cut_and_said(service: VizqlService) -> None:
    draft = {"query": {"fields": [CITY | {"sortPriority": 1}]}}
    result = service.run(draft, max_rows=2)
    assert (result.rows, result.truncated) == ((("Bern",), ("Oslo",)), True)
    assert not service.run(draft, max_rows=3).truncated
    limited = service.run(draft | {"options": {"rowLimit": 2}}, max_rows=2)
    assert (len(limited.rows), limited.truncated) == (2, False), "what the query limits is not cut"


def test_no_rows_have_columns(service: VizqlService) -> None:
    nobody = {"filterType": "SET", "field": NOTE, "values": ["nobody"]}
    result = service.run({"fields": [AMOUNT, NOTE], "filters": [nobody]})
    assert (result.success, result.columns, result.rows) == (True, ("SUM(Amount)", "Note"), ())


def test_the_service_describes_its_data_source(service: VizqlService) -> None:
    described = service.source
    assert described.luid == LUID
    assert described.fields == SERVED.fields and described.parameters == SERVED.parameters
    assert described.logicalTableRelationships == SERVED.logicalTableRelationships
    assert [table.caption for table in described.logicalTables] == ["Sale", "Shop"]


def test_the_command_writes_the_data_source_of_a_service(server: VdsServer, tmp_path: Path) -> None:
    out = tmp_path / "shop.yaml"
    line = ["data", "vizql", "infer", "--vds", server.url]
    done = programs.command(*line, "--luid", LUID, "--out", out, cwd=tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"wrote 9 fields of 2 tables to {out}\n")
    assert read_source(out).fields == SERVED.fields and read_source(out).luid == LUID
    for wrong in (line, [*line, "--luid", LUID, "--db", "packaged:scale_models"], line[:3]):
        done = programs.command(*wrong, cwd=tmp_path)
        assert done.returncode == 2 and "expected --db DATABASE, or --vds URL with --luid LUID" in done.stderr
    done = programs.command(*line, "--luid", "other", cwd=tmp_path)
    assert done.returncode == 1 and "404950: there is no such data source" in done.stderr


def test_many_threads_ask_at_once(service: VizqlService, shop: Database) -> None:
    results: dict[int, Any] = {}

    def ask(i: int) -> None:
        results[i] = service.run(list(KINDS.values())[i]).rows

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(KINDS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, query in enumerate(KINDS.values()):
        assert sorted(results[i], key=repr) == sorted(of_the_database(query, shop), key=repr)


# ----------------------------------------------------------------------------------------------------------- errors

REACTIONS = {
    "refine": "400000 400800 400802 400803 404934 invalid",
    "stop": "401001 401002 403157 403800 429000 400804 404950 409000 302 400 404 timeout unreadable too_large else",
    "again": "408000 500000 500810 503800 504000 502 599 unreachable",
}


@pytest.mark.parametrize(
    ("kind", "expected"), [(kind, what) for what, kinds in REACTIONS.items() for kind in kinds.split()]
)
def test_every_code_has_its_reaction(kind: str, expected: str) -> None:
    assert known_code(kind).reaction == expected
    assert known_code(None).reaction == "stop"


@pytest.mark.parametrize("code", ["400000", "400800", "400802", "400803", "404934", "401002", "403800", "429000"])
def test_an_error_is_data_and_is_not_sent_again(code: str, service: VizqlService, server: VdsServer) -> None:
    server.next_error(code, "No such thing", messages=["first", {"message": "second"}, {"other": 3}])
    result = service.run({"fields": [CITY]})
    assert (result.success, result.error_kind, result.rows) == (False, code, ())
    assert (result.error or "").endswith('): No such thing; first; second; {"other": 3}')
    assert len(server.bodies) == 1
    assert service.run({"fields": [CITY]}).success, "the next one is answered"


def test_the_server_s_own_errors_arrive_with_their_code(service: VizqlService) -> None:
    unknown = service.run({"fields": [{"fieldCaption": "Ctiy"}]})
    assert unknown.error_kind == "404934" and "'Ctiy'" in (unknown.error or "")
    assert service.run({"fields": [CITY | {"function": "SUM"}]}).error_kind == "400803"


def test_another_data_source_is_not_asked_in_place_of_this_one(service: VizqlService, server: VdsServer) -> None:
    elsewhere = {"datasource": {"datasourceLuid": "other"}, "query": {"fields": [CITY]}}
    result = service.run(elsewhere)
    assert result.error_kind == "invalid" and "asks data source 'other'" in (result.error or "")
    assert server.bodies == []
    with open_service(server.url, datasource_luid="other", timeout_s=20) as other:
        assert other.run(elsewhere).error_kind == "404950"


@pytest.mark.parametrize("code", ["408000", "500000", "503800"])
def test_an_error_that_may_pass_is_sent_again(code: str, service: VizqlService, server: VdsServer) -> None:
    server.next_error(code)
    server.next_error(code)
    assert service.run({"fields": [CITY]}).success
    assert len(server.bodies) == 3


def test_a_request_is_sent_again_as_often_as_there_are_pauses(service: VizqlService, server: VdsServer) -> None:
    for _ in range(9):
        server.next_error("500000", "down")
    result = service.run({"fields": [CITY]})
    assert result.error_kind == "500000"
    assert result.error == "500000 (the service has an error): down (sent 4 times)"
    assert len(server.bodies) == 1 + len(pauses()) == 4


def test_the_page_has_the_table_of_reactions() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vizql.md").read_text(encoding="utf-8")
    for name in ("refine", "stop", "again"):
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", page, re.MULTILINE)
        assert re.findall("`(.+?)`", row) == [known.code for known in known_codes() if known.reaction == name]


def test_pauses_grow() -> None:
    assert pauses() and list(pauses()) == sorted(set(pauses()))


def test_another_error_than_the_first_one_ends_it(service: VizqlService, server: VdsServer) -> None:
    server.next_error("500000")
    server.next_error("400803")
    assert service.run({"fields": [CITY]}).error_kind == "400803"


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (500, "<html><body><h1>Bad <b>thing</b></h1></body></html>", "500", "Bad"),
        (400, "", "400", "HTTP 400"),
        (404, "[]", "404", "HTTP 404"),
        (403, '"no"', "403", "no"),
        (400, '{"errorCode": 400803, "message": 5}', "400803", "5"),
        (400, '{"tab-error-code": "400000"}', "400000", "HTTP 400"),
        (400, '{"errorCode": "a code <b>\\n", "message": null, "messages": "x"}', "400", "x"),
        (400, "[" * 100_000, "400", "[["),
        (400, b"\xff\xfe\x00", "400", "?"),
        (520, "who knows", "520", "who knows"),
        (302, "", "302", "give that address instead"),
        (200, "<html>a portal</html>", "unreadable", "not as expected"),
        (200, "", "unreadable", "not as expected"),
        (200, "[1]", "unreadable", "not as expected"),
        (200, "{}", "unreadable", "no list 'data'"),
        (200, '{"data": [1]}', "unreadable", "not objects"),
        (200, '{"data": [["a", "b"]]}', "unreadable", "lists of 1 values"),
        (200, '{"data": [{"a": 1, "b": 2}]}', "unreadable", "2 columns; expected 1"),
        (200, '{"data": [], "error": {"errorCode": "429000", "message": "slow"}}', "429000", "slow"),
        (200, '{"data": [[1' + "0" * 5000 + "]]}", "unreadable", ""),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_any_body_is_an_error_with_a_kind(
    status: int, body: str | bytes, kind: str, said: str, service: VizqlService, server: VdsServer
) -> None:
    for _ in range(4):
        server.next_answer(status, body, "text/html")
    result = service.run({"fields": [CITY]})
    assert (result.success, result.error_kind) == (False, kind), result.error
    assert said in (result.error or "") and len(result.error or "") < 2200 and "\n" not in (result.error or "")


@pytest.mark.parametrize("dripping", [b"", b"H", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n[[[["], ids=len)
def test_a_server_that_hangs_ends_at_the_limit(dripping: bytes, service: VizqlService, server: VdsServer) -> None:
    server.next_hangs(dripping)
    result = service.run({"fields": [CITY]}, timeout_s=0.4)
    assert result.error_kind == "timeout" and not result.success
    assert result.seconds >= 0.4 and len(server.bodies) == 1
    assert service.run({"fields": [CITY]}).success, "others are not held up"


def test_the_limit_counts_what_is_sent_again(server: VdsServer) -> None:
    for _ in range(9):
        server.next_error("500000")
    with open_service(server.url, datasource_luid=LUID) as opened:
        result = opened.run({"fields": [CITY]}, timeout_s=0.9)  # the pauses are 0.5 and 1 s
    assert result.error_kind == "500000" and len(server.bodies) == 2


def test_a_server_that_is_not_there_is_tried_again(service: VizqlService, server: VdsServer) -> None:
    with open_service("http://127.0.0.1:1", datasource_luid=LUID) as nobody:
        result = nobody.run({"fields": [CITY]})
    assert result.error_kind == "unreachable" and "(sent 4 times)" in (result.error or "")


def test_a_redirect_is_not_followed(service: VizqlService, server: VdsServer) -> None:
    server.next_redirect("http://127.0.0.1:1/elsewhere")
    result = service.run({"fields": [CITY]})
    assert (result.error_kind, known_code(result.error_kind).reaction) == ("307", "stop")
    assert "it redirects to http://127.0.0.1:1/elsewhere; give that address instead" in (result.error or "")


def test_an_answer_has_a_largest_size(
    service: VizqlService, server: VdsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nl2sql.vizql.service._Client.most_bytes", 20)
    result = service.run({"fields": [CITY]})
    assert result.error_kind == "too_large" and "ask for fewer rows" in (result.error or "")


# --------------------------------------------------------------------------------------------------- what is not sent


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"fields": []}, "'query.fields' is missing or empty"),
        ({"fields": [{"fieldCaption": "City", "functoin": "SUM"}]}, "'functoin'"),
        ("SELECT 1", "takes structured queries as JSON"),
        ({"query": {"fields": [CITY]}, "options": {"returnServerSentEvents": True}}, "returnServerSentEvents"),
        ({"fields": [CITY], "filters": [{"filterType": "SET", "field": CITY, "values": ["\ud800"]}]}, "half a"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "replace").decode(),
)
def test_what_the_service_would_drop_or_refuse_is_not_sent(
    asked: Any, said: str, service: VizqlService, server: VdsServer
) -> None:
    result = service.run(asked)
    assert result.error_kind == "invalid" and said in (result.error or ""), result
    assert server.bodies == []


# ------------------------------------------------------------------------------------------- sign-in, output, secrets


def test_nothing_is_printed_and_the_token_is_in_no_message(
    server: VdsServer,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG")
    said = []
    with open_service(server.url, datasource_luid=LUID) as opened:
        assert opened.schema().tables
        assert opened.run({"fields": [CITY]}).success
        for body in (f'{{"errorCode": "403800", "message": "token {TOKEN}", "messages": ["{TOKEN}"]}}', f"<p>{TOKEN}"):
            server.next_answer(403, body)
            said.append(opened.run({"fields": [CITY]}))
        server.next_answer(200, f'{{"error": {{"message": "{TOKEN}"}}}}')
        said.append(opened.run({"fields": [CITY]}))
        server.next_answer(403, "x" * 1990 + TOKEN)
        said.append(opened.run({"fields": [CITY]}))
    monkeypatch.setenv("NL2SQL_VDS_TOKEN", "wrong-token-99887766")
    with open_service(server.url, datasource_luid=LUID) as stranger:
        said.append(stranger.run({"fields": [CITY]}))
        assert said[-1].error_kind == "401002" and "not signed in: ***" in (said[-1].error or "")
        with pytest.raises(Nl2SqlError, match=r"does not describe data source .*: 401002 \(the sign-in") as caught:
            stranger.schema()
    texts = [*map(str, said), str(caught.value), caplog.text]
    assert not any(part in text for text in texts for part in (TOKEN, TOKEN[:9], "99887766"))
    assert capfd.readouterr() == ("", "")


def test_a_personal_access_token_signs_in_and_out(
    server: VdsServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.delenv("NL2SQL_VDS_TOKEN")
    monkeypatch.setenv("NL2SQL_VDS_PAT_NAME", PAT[0])
    monkeypatch.setenv("NL2SQL_VDS_PAT_SECRET", PAT[1])
    monkeypatch.setenv("NL2SQL_VDS_SITE", "marketing")
    with open_service(server.url + "/", datasource_luid=LUID) as opened:
        assert opened.run({"fields": [CITY]}).success
        server.next_error("403800", f"of the sign-in: {TOKEN}")
        assert "sign-in: ***" in (opened.run({"fields": [CITY]}).error or "")
    assert (server.paths["/api/3.25/auth/signin"], server.paths["/api/3.25/auth/signout"]) == (1, 1)
    monkeypatch.setenv("NL2SQL_VDS_PAT_SECRET", "wrong-secret-5544332211")
    with pytest.raises(
        Nl2SqlError, match=r"cannot sign in at http.*401001.*check the address, NL2SQL_VDS_PAT"
    ) as caught:
        open_service(server.url, datasource_luid=LUID)
    assert not any(secret in str(caught.value) + caplog.text for secret in ("5544332211", PAT[1], TOKEN))
    for body in ("<html>", "", "<a/>"):
        server.next_answer(200, body, "text/xml")
        with pytest.raises(Nl2SqlError, match="cannot sign in"):
            open_service(server.url, datasource_luid=LUID)
    server.next_redirect("/elsewhere")
    with pytest.raises(Nl2SqlError, match="it redirects to /elsewhere; give that address instead"):
        open_service(server.url, datasource_luid=LUID)
    assert not server.paths["/elsewhere"], "the secret goes nowhere else"
    server.next_hangs()
    with pytest.raises(Nl2SqlError, match="cannot sign in"):
        open_service(server.url, datasource_luid=LUID, timeout_s=0.3)
    assert capfd.readouterr() == ("", "")


def test_a_missing_sign_in_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NL2SQL_VDS_TOKEN")
    with pytest.raises(
        UsageError, match="no NL2SQL_VDS_PAT_NAME and NL2SQL_VDS_PAT_SECRET; type: export NL2SQL_VDS_PAT"
    ):
        open_service("https://tableau.example", datasource_luid=LUID)
    monkeypatch.setenv("NL2SQL_VDS_PAT_NAME", "me")
    with pytest.raises(UsageError, match="has no NL2SQL_VDS_PAT_SECRET;"):
        open_service("https://tableau.example", datasource_luid=LUID)
    monkeypatch.setenv("NL2SQL_VDS_TOKEN", "two words")
    with pytest.raises(UsageError, match="NL2SQL_VDS_TOKEN is no token") as caught:
        open_service("https://tableau.example", datasource_luid=LUID)
    assert "two words" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "tableau.example", "ftp://x", "https://", "http://[", "http://x:0", "http://x:y/"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"address of .*example: https://"):
        open_service(url, datasource_luid=LUID)


@pytest.mark.parametrize("url", ["https://me:geheim@x", "https://x/?key=geheim", "https://x/#geheim"])
def test_an_address_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="give a sign-in in the environment") as caught:
        open_service(url, datasource_luid=LUID)
    assert "geheim" not in str(caught.value)
