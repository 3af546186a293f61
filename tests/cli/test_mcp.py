"""The MCP server with the official client over standard input and output, and with hostile input."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import programs
import pytest
import servers
from hostile_documents import KINDS, documents
from mcp import Client, MCPError, StdioServerParameters

from nl2sql.cli.mcp import _address, _profiles
from nl2sql.cli.mcp_server import DatabaseTools, SharedModel, _outside
from nl2sql.config import Config, build_config
from nl2sql.databases.engines import open_database
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.repair.corpus import Corpus

READING = [
    *("list_tables", "describe_table", "read_query", "explain_analyze", "get_datasource_metadata", "query_datasource"),
    "ask",
]


def talk(arguments: list[str], conversation: Callable[[Client], Awaitable[Any]]) -> Any:
    """Start ``nl2sql mcp`` with ``arguments`` as a client does, and hold ``conversation`` with it."""

    async def session() -> Any:
        command = StdioServerParameters(command=sys.executable, args=["-m", "nl2sql.cli", "mcp", *arguments])
        async with Client(command, read_timeout_seconds=120) as client:
            return await conversation(client)

    return anyio.run(session)


def shop_with_script(shop: Path, tmp_path: Path) -> list[str]:
    steps = ["extract_constraints", "generate_sql", "validate_sql", "validate_constraints", "run_sql", "finish"]
    replies = [f"Action: {step}[{{}}]" for step in steps]
    replies.insert(2, " COUNT(*) FROM orders")
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"replies": {"*": replies}}))
    return ["--db", str(shop), "--model", f"scripted:{script}", "--controller", "react"]


def test_every_tool_answers_over_stdio(shop: Path, tmp_path: Path) -> None:
    async def conversation(client: Client) -> dict[str, Any]:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == READING
        assert all(tool.annotations and tool.annotations.read_only_hint and tool.description for tool in listed)
        calls: dict[str, dict[str, Any]] = {
            "list_tables": {},
            "describe_table": {"table": "ORDERS"},
            "read_query": {"sql": "SELECT name FROM customers ORDER BY 1", "max_rows": 2},
            "explain_analyze": {"sql": "SELECT nam FROM customers"},
            "get_datasource_metadata": {},
            "query_datasource": {"query": {"fields": [{"fieldCaption": "Status", "function": "COUNTD"}]}},
            "ask": {"question": "How many orders are there?"},
        }
        found = {}
        for name, given in calls.items():
            result = await client.call_tool(name, given)
            assert not result.is_error, result.content
            found[name] = result.structured_content
        return found

    found = talk(shop_with_script(shop, tmp_path), conversation)
    assert [table["name"] for table in found["list_tables"]["tables"]] == ["customers", "orders"]
    assert found["describe_table"]["foreign_keys"][0]["table"] == "customers"
    assert len(found["describe_table"]["rows"]) == 3
    assert found["read_query"] == {"columns": ["name"], "rows": [["Ada"], ["Ben"]], "truncated": True}
    checked = found["explain_analyze"]
    assert set(checked) == {"valid", "explain", "error", "repair_guidance"}
    assert set(checked["repair_guidance"]) == {
        "violated_constraint",
        "alternative_approach",
        "category",
        "similar_fixes",
    }
    assert checked["valid"] is False and "customers.name" in checked["repair_guidance"]["alternative_approach"]
    assert {"fieldCaption", "fieldRole", "dataType"} <= set(found["get_datasource_metadata"]["data"][0])
    asked = found["query_datasource"]
    assert (asked["is_valid"], asked["error"], asked["columns"]) == (True, None, ["COUNTD(Status)"])
    assert asked["rows"] == [[2]] and asked["sql"].startswith("SELECT")
    assert (found["ask"]["sql"], found["ask"]["rows"]) == ("SELECT COUNT(*) FROM orders;", [[4]])
    assert (found["ask"]["row_count"], found["ask"]["truncated"], found["ask"]["suspicions"]) == (1, False, [])


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("read_query", {"sql": "DELETE FROM orders"}, "denied"),
    ("read_query", {"sql": "SELECT 1; DROP TABLE orders"}, "multi_statement"),
    ("read_query", {"sql": "ATTACH 'x.db' AS x"}, "denied"),
    ("read_query", {"sql": "VACUUM INTO 'copy.db'"}, "denied"),
    ("read_query", {"sql": "PRAGMA query_only=off"}, "denied"),
    ("read_query", {"sql": "SELECT load_extension('x')"}, "denied"),
    ("read_query", {"sql": ""}, "empty"),
    ("read_query", {"sql": "SELECT \x00"}, "syntax"),
    ("read_query", {"sql": "x" * 200_000}, "too_large"),
    ("read_query", {"sql": "SELECT 1", "max_rows": 10**9}, "expected 1 to 1000"),
    ("read_query", {"sql": ["SELECT 1"]}, "sql"),
    ("read_query", {}, "sql"),
    ("describe_table", {"table": "orders; DROP TABLE orders"}, "its tables: customers, orders"),
    ("describe_table", {"table": "sqlite_master"}, "no table"),
    ("query_datasource", {"query": {"fields": [{"fieldCaption": "Status"}]}, "limit": 0}, "expected 1 to 1000"),
    ("query_datasource", {"query": "SELECT 1"}, "query"),
    ("ask", {"question": ""}, "empty"),
    ("log_successful_query", {"query_id": "x", "sql": "SELECT 1", "description": ""}, "log_successful_query"),
]


def test_hostile_input_is_a_tool_error_and_changes_nothing(shop: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in shop.parent.iterdir()), shop.read_bytes()

    async def conversation(client: Client) -> None:
        for name, given, wanted in HOSTILE:
            try:
                result = await client.call_tool(name, given)
            except MCPError as error:  # no such tool
                failed, text = True, str(error)
            else:
                failed, text = result.is_error, str(result.content)
            assert failed and wanted in text and "Traceback" not in text, (name, given, text)
        wrong = await client.call_tool("query_datasource", {"query": {"fields": [{"fieldCaption": "Statsu"}]}})
        assert wrong.structured_content and not wrong.structured_content["is_valid"] and not wrong.is_error
        assert wrong.structured_content["validation_suggestions"] == ["Field 'Statsu' not found. Did you mean: Status?"]
        checked = await client.call_tool("explain_analyze", {"sql": "DROP TABLE orders"})
        assert checked.structured_content and checked.structured_content["valid"] is False
        alive = await client.call_tool("read_query", {"sql": "SELECT COUNT(*) FROM orders"})
        assert alive.structured_content and alive.structured_content["rows"] == [[4]]

    script = tmp_path / "elsewhere"
    script.mkdir()
    talk(shop_with_script(shop, script), conversation)
    assert (sorted(p.name for p in shop.parent.iterdir() if p != script), shop.read_bytes()) == before


def test_a_follow_up_is_asked_by_its_session_over_stdio(shop: Path, tmp_path: Path) -> None:
    async def conversation(client: Client) -> list[dict[str, Any]]:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        annotations = listed["ask"].annotations
        assert annotations and annotations.idempotent_hint is False and annotations.read_only_hint is True
        replies = []
        for question, session in (("How many orders are there?", None), ("What about those in Bern?", "SAME")):
            more = {"session_id": replies[0]["session_id"]} if session else {}
            result = await client.call_tool("ask", {"question": question, **more})
            assert not result.is_error and result.structured_content, result.content
            replies.append(result.structured_content)
        unnamed = await client.call_tool("ask", {"question": "What about those in Bern?"})
        assert unnamed.structured_content and unnamed.structured_content["is_followup"] is False
        for bad in ("../x", "", "a" * 129):
            refused = await client.call_tool("ask", {"question": "How many?", "session_id": bad})
            assert refused.is_error == bool(bad)
        return replies

    arguments = [*shop_with_script(shop, tmp_path), "-c", "session.resolve=concat"]
    first, second = talk(arguments, conversation)
    assert (first["is_followup"], first["resolved_query"]) == (False, "How many orders are there?")
    assert second["session_id"] == first["session_id"] and len(first["session_id"]) == 32
    assert second["is_followup"] is True
    assert second["resolved_query"] == "How many orders are there? What about those in Bern?"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_client_over_http_sees_no_other_client_s_session(mode: str, shop: Path, tmp_path: Path) -> None:
    port = servers.free_port()
    arguments = [*shop_with_script(shop, tmp_path), "-c", "session.resolve=concat", "--http", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nl2sql.cli", "mcp", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    async def session() -> None:
        address = f"http://127.0.0.1:{port}/mcp"
        async with (
            Client(address, mode=mode, read_timeout_seconds=60) as ada,
            Client(address, mode=mode, read_timeout_seconds=60) as ben,
        ):
            first = await ada.call_tool("ask", {"question": "How many orders are there?"})
            assert first.structured_content, first.content
            follow_up = {"question": "What about those in Bern?", "session_id": first.structured_content["session_id"]}
            own = await ada.call_tool("ask", follow_up)
            assert own.structured_content and own.structured_content["is_followup"] is True
            guessed = await ben.call_tool("ask", follow_up | {"session_id": "monday"})
            if mode == "legacy":  # each client has a session of HTTP, and names in it of its own
                other = await ben.call_tool("ask", follow_up)
                assert other.structured_content and other.structured_content["is_followup"] is False
                assert guessed.structured_content and guessed.structured_content["is_followup"] is False
            else:  # nobody is known: only an id that the server made is taken
                assert guessed.is_error and "no such session" in str(guessed.content)

    try:
        servers.waiting(lambda: socket.create_connection(("127.0.0.1", port), 1).close(), OSError, process)
        anyio.run(session)
    finally:
        servers.stop(process)


def test_the_corpus_is_written_only_where_it_may_be(shop: Path, tmp_path: Path) -> None:
    path, id = tmp_path / "fixes.db", str(uuid.uuid4())
    arguments = [*shop_with_script(shop, tmp_path), "--corpus", str(path), "--corpus-write"]

    async def conversation(client: Client) -> list[Any]:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        writes = listed["log_successful_query"].annotations
        assert writes is not None and writes.read_only_hint is False
        failure = {"previous_error": "no such column: nam", "previous_sql": "SELECT nam FROM customers"}
        good = {"query_id": id, "sql": "SELECT name FROM customers", "description": "Names", **failure}
        bad = [
            good | {"query_id": "7"},
            good | {"sql": "SELECT nam FROM customers"},
            good | {"sql": "DELETE FROM orders"},
        ]
        for given in bad:
            assert (await client.call_tool("log_successful_query", given)).is_error
        stored = await client.call_tool("log_successful_query", good)
        similar = await client.call_tool("explain_analyze", {"sql": "SELECT nam FROM customers"})
        return [stored.structured_content, similar.structured_content]

    stored, similar = talk(arguments, conversation)
    assert stored == {"stored": True}
    (fix,) = similar["repair_guidance"]["similar_fixes"]
    assert (fix["sql"], fix["description"]) == ("SELECT name FROM customers", "Names")
    with Corpus(path) as corpus:
        rows = list(corpus.rows())
    assert [(row["kind"], row["source"]) for row in rows] == [("query", "mcp:shop"), ("fix", "mcp:shop")]
    assert rows[0]["query_id"] == id
    assert sqlite3.connect(shop).execute("SELECT count(*) FROM orders").fetchone() == (4,)


def test_the_same_tools_answer_over_http(shop: Path) -> None:
    port = servers.free_port()
    command = [sys.executable, "-m", "nl2sql.cli", "mcp", "--db", str(shop), "--http", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def session() -> Any:
        async with Client(f"http://127.0.0.1:{port}/mcp", read_timeout_seconds=60) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == READING
            return await client.call_tool("read_query", {"sql": "SELECT COUNT(*) FROM orders"})

    def reachable() -> None:
        with socket.create_connection(("127.0.0.1", port), 1):
            pass

    try:
        servers.waiting(reachable, OSError, process)
        assert anyio.run(session).structured_content["rows"] == [[4]]
    finally:
        servers.stop(process)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--db", "nowhere.sqlite"], "nowhere.sqlite"),
        (["--db", "ftp://x"], "known forms"),
        (["--db", "SHOP", "--corpus-write"], "--corpus FILE"),
        (["--db", "SHOP", "--db", "SHOP"], "name this one, as"),
        (["--db", "SHOP", "-c", "repair.learn=true"], "add --corpus FILE --corpus-write"),
        (["--db", "SHOP", "--http", "8765"], "HOST:PORT"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: list[str], wanted: str, shop: Path, tmp_path: Path) -> None:
    given = [str(shop) if word == "SHOP" else word for word in arguments]
    done = programs.command("mcp", *given, cwd=tmp_path)
    assert done.returncode == 2 and wanted in done.stderr and len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_profile_is_named_after_its_database_and_no_address_is_quoted() -> None:
    address = "mysql://u:opensesame@box/shop?user=u&password=opensesame"
    assert _profiles([address, "logs=duckdb:l.duckdb", "packaged:x"]) == {
        "shop": address,
        "logs": "duckdb:l.duckdb",
        "x": "packaged:x",
    }
    for wrong in ([address, address], ["mysql://u:open/sesame@box/shop"]):
        with pytest.raises(UsageError) as caught:
            _profiles(wrong)
        assert "open" not in str(caught.value)


def test_a_server_has_databases_by_profile(shop: Path, tmp_path: Path) -> None:
    arguments = ["--db", f"shop={shop}", "--db", "packaged:scale_models", *shop_with_script(shop, tmp_path)[2:]]

    async def conversation(client: Client) -> list[Any]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("list_tables", {}),
            ("list_tables", {"profile": "default"}),
            ("list_tables", {"profile": "scale_models"}),
            ("read_query", {"sql": "SELECT count(*) FROM offices", "profile": "scale_models"}),
            ("ask", {"question": "How many orders are there?", "profile": "shop"}),
        ]
        done = [await client.call_tool(name, given) for name, given in calls]
        unknown = await client.call_tool("read_query", {"sql": "SELECT 1", "profile": "nowhere"})
        assert unknown.is_error and "no profile 'nowhere'; there are shop, scale_models" in str(unknown.content)
        return [result.structured_content for result in done]

    first, default, other, counted, answered = talk(arguments, conversation)
    assert first == default and [table["name"] for table in first["tables"]] == ["customers", "orders"]
    assert "offices" in [table["name"] for table in other["tables"]] and counted["rows"][0][0] > 0
    assert answered["rows"] == [[4]]


def test_a_repair_of_a_user_s_question_is_learned_where_the_server_may(shop: Path, tmp_path: Path) -> None:
    steps = ["extract_constraints", "generate_sql", "validate_sql", "repair_sql", "validate_sql"]
    steps += ["validate_constraints", "run_sql", "finish"]
    replies = [f"Action: {step}[{{}}]" for step in steps]
    replies.insert(2, " nam FROM customers")
    replies.insert(5, " name FROM customers")
    script, path = tmp_path / "script.json", tmp_path / "fixes.db"
    script.write_text(json.dumps({"replies": {"*": replies}}))
    arguments = ["--db", str(shop), "--model", f"scripted:{script}", "--controller", "react"]
    arguments += ["--corpus", str(path), "--corpus-write"]

    async def conversation(client: Client) -> Any:
        return (await client.call_tool("ask", {"question": "What are the names?"})).structured_content

    assert talk([*arguments, "-c", "repair.learn=true"], conversation)["sql"] == "SELECT name FROM customers;"
    with Corpus(path) as corpus:
        (row,) = corpus.rows()
    assert row["source"].startswith("user:shop/") and row["failed_sql"] == "SELECT nam FROM customers"


def test_a_question_that_is_given_up_keeps_nobody_waiting(shop: Path, tmp_path: Path) -> None:
    script = tmp_path / "slow.json"
    slow = {"text": "SELECT COUNT(*) FROM orders", "delay_s": 600}
    script.write_text(json.dumps({"replies": {"slow": [slow], "*": ["SELECT COUNT(*) FROM orders"]}}))
    arguments = ["--db", str(shop), "--model", f"scripted:{script}", "--controller", "single_shot"]

    async def conversation(client: Client) -> Any:
        async with anyio.create_task_group() as both:
            with anyio.move_on_after(5) as patience:
                both.start_soon(client.call_tool, "ask", {"question": "slow"})
                await anyio.sleep_forever()
            both.cancel_scope.cancel()
        assert patience.cancelled_caught
        return (await client.call_tool("ask", {"question": "How many orders are there?"})).structured_content

    assert talk(arguments, conversation)["rows"] == [[4]]


def test_an_answer_that_nobody_waits_for_is_not_waited_for() -> None:
    wanted, ended = threading.Event(), []

    async def given_up() -> None:
        with anyio.move_on_after(0.2):
            await _outside(lambda: {"ended": ended.append(wanted.wait(60))})

    anyio.run(given_up)
    assert not ended
    wanted.set()


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def request(id: Any, method: str, params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def calls(count: int) -> list[str]:
    """Requests with documents that are hard to validate; in JSON, half a surrogate pair is an escape."""
    asked = [{"name": "query_datasource", "arguments": {"query": query}} for _, query in documents(count)]
    lines = [request(i, "tools/call", call) for i, call in enumerate(asked, 1)]
    return [*lines, request(len(lines) + 1, "tools/call", {}).replace("{}", '{"id": "another", "a": ' + "[" * 5_000)]


def answered(shop: Path, lines: list[str]) -> Iterator[tuple[str, Any]]:
    """Each line over standard input, and its answer."""
    command = [sys.executable, "-m", "nl2sql.cli", "mcp", "--db", str(shop)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        guard = threading.Timer(60 + len(lines), process.kill)  # a line without an answer would be waited for
        guard.start()
        try:
            for line in lines:
                process.stdin.write(line + "\n")
                process.stdin.flush()
                yield line, json.loads(process.stdout.readline())
        finally:
            guard.cancel()
            process.kill()


def test_every_document_is_answered_under_the_id_of_its_request(shop: Path) -> None:
    """1,000 of them with NL2SQL_VIZQL_DOCUMENTS=1000."""
    count = int(os.environ.get("NL2SQL_VIZQL_DOCUMENTS", len(KINDS)))
    for i, (line, answer) in enumerate(answered(shop, [request(0, "initialize", HELLO), *calls(count)])):
        assert answer["id"] == i, (line[:200], answer)
    assert "cannot be read as JSON" in answer["error"]["message"]


NO_MESSAGES = {  # each line: the id and the code of its answer
    "[[1], [2]]": (None, -32600),
    "7": (None, -32600),
    '{"jsonrpc": "2.0", "id": 5}': (5, -32600),
    '{"jsonrpc": "1.0", "id": "x", "method": "ping"}': ("x", -32600),
    '{"jsonrpc": "2.0", "id": 8, "method": "ping", "params": [1]}': (8, -32600),
    "[" + request(1, "ping", {}) + "]": (None, -32600),
    "{oops": (None, -32700),
    '{"params": {"id": 2}, "id": "x", "q": [[[': ("x", -32700),
    request(3, "tools/call", {"name": "Sta\ud800tus"}): (3, -32700),
}


def test_what_is_no_message_is_refused(shop: Path) -> None:
    for line, answer in answered(shop, [request(0, "initialize", HELLO), *NO_MESSAGES, "\n" + request(9, "ping", {})]):
        if line in NO_MESSAGES:
            assert (answer["id"], answer["error"]["code"]) == NO_MESSAGES[line], line
    assert answer == {"jsonrpc": "2.0", "id": 9, "result": {}}


def test_over_http_the_library_refuses_what_is_no_message(shop: Path) -> None:
    address = f"127.0.0.1:{servers.free_port()}"
    process = subprocess.Popen([sys.executable, "-m", "nl2sql.cli", "mcp", "--db", str(shop), "--http", address])
    accepts = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

    def post(body: str, **headers: str) -> tuple[str, Any]:
        asked = urllib.request.Request(f"http://{address}/mcp", body.encode(), accepts | headers)
        with urllib.request.urlopen(asked, timeout=60) as reply:
            return reply.headers["mcp-session-id"], json.loads(reply.read().decode().partition("data: ")[2])

    try:
        host, _, port = address.partition(":")
        servers.waiting(lambda: socket.create_connection((host, int(port)), 1).close(), OSError, process)
        session, _ = post(request(0, "initialize", HELLO))
        for line in [*NO_MESSAGES, calls(0)[0]]:
            with pytest.raises(urllib.error.HTTPError) as refused:
                post(line, **{"mcp-session-id": session})
            assert refused.value.code == 400 and json.loads(refused.value.read())["error"]["code"] < -32000
        _, pong = post(request(9, "ping", {}), **{"mcp-session-id": session})
    finally:
        servers.stop(process)
    assert pong == {"jsonrpc": "2.0", "id": 9, "result": {}}


def test_ctrl_c_ends_the_server_though_its_client_says_nothing(shop: Path) -> None:
    command = [sys.executable, "-m", "nl2sql.cli", "mcp", "--db", str(shop)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.stdin.write(request(1, "initialize", HELLO) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(timeout=20) == 130
        finally:
            process.kill()
        assert process.stderr.read() == "interrupted\n"


def test_an_address_where_nobody_can_listen_is_one_line_and_one_in_brackets_is_read(shop: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--http 127.0.0.1:{port}: nobody can listen there .*in use"):
            _address(f"127.0.0.1:{port}")
    with pytest.raises(UsageError, match="nobody can listen there"):
        _address("no-such-host.invalid:8765")
    if socket.has_ipv6:
        assert _address(f"[::1]:{servers.free_port()}")[0] == "::1"


def test_a_table_that_is_made_while_the_server_runs_is_seen(shop: Path) -> None:
    async def conversation(client: Client) -> list[Any]:
        answers = [await client.call_tool("list_tables", {}), await client.call_tool("get_datasource_metadata", {})]
        with closing(sqlite3.connect(shop)) as connection:
            connection.executescript("CREATE TABLE refunds (amount_back REAL); INSERT INTO refunds VALUES (7)")
        answers.append(await client.call_tool("list_tables", {}))
        answers.append(await client.call_tool("describe_table", {"table": "refunds"}))
        answers.append(await client.call_tool("explain_analyze", {"sql": "SELECT amount_back FROM refunds"}))
        shop.unlink()
        answers.append(await client.call_tool("describe_table", {"table": "refunds"}))
        return answers

    before, _, after, refunds, explained, gone = talk(["--db", str(shop)], conversation)
    names = [{table["name"] for table in listed.structured_content["tables"]} for listed in (before, after)]
    assert names[1] - names[0] == {"refunds"}
    assert refunds.structured_content["rows"] == [{"amount_back": 7.0}] and explained.structured_content["valid"]
    assert gone.is_error and "No such file" in str(gone.content)


def tools_over(database: Path, corpus: Corpus | None = None, config: Config = Config()) -> DatabaseTools:
    """The tools without a server; nobody asks a model."""
    given: dict[str, Any] = {"corpus": corpus, "corpus_write": corpus is not None}
    return DatabaseTools(open_database(database), SharedModel(lambda: ScriptedModel([])), config, **given)


def test_a_column_that_is_new_is_a_field_at_once(shop: Path) -> None:
    tools = tools_over(shop)
    tools.get_datasource_metadata()
    for column in ("rating", "mood"):
        with closing(sqlite3.connect(shop)) as connection:
            connection.execute(f"ALTER TABLE customers ADD COLUMN {column} TEXT")
        if column == "rating":
            assert "rating" in str(tools.get_datasource_metadata())
        else:
            assert tools.query_datasource({"fields": [{"fieldCaption": "Mood"}]})["is_valid"]


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_data_file_is_read_again_after_a_change(
    as_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "files" / "sales.csv"
    file.parent.mkdir()
    file.write_text("amount\n1\n")
    tools = tools_over(file.parent if as_folder else file)
    assert tools.read_query("SELECT sum(amount) FROM sales")["rows"] == [[1]]
    file.write_text("amount,day\n1,Monday\n41,Tuesday\n")
    assert tools.read_query("SELECT sum(amount), max(day) FROM sales")["rows"] == [[42, "Tuesday"]]


def test_a_query_is_stored_with_its_fix_or_not_at_all(shop: Path, tmp_path: Path) -> None:
    with Corpus(tmp_path / "fixes.db", create=True) as corpus:
        tools, id = tools_over(shop, corpus), str(uuid.uuid4())
        with pytest.raises(UsageError, match="30000 characters"):
            tools.log_successful_query(id, "SELECT name FROM customers", "", None, "x" * 30_000, "SELECT nam")
        assert list(corpus.rows()) == []
        for _ in range(2):
            assert tools.log_successful_query(id, "SELECT name FROM customers", "") == {"stored": True}
        (shown,) = tools.explain_analyze("SELECT nam FROM customers")["repair_guidance"]["similar_fixes"]
        assert (shown["query_id"], shown["sql"]) == (id, "SELECT name FROM customers")
        with pytest.raises(UsageError, match="another query"):
            tools.log_successful_query(id, "SELECT count(*) FROM customers", "")


def test_a_view_that_takes_its_time_is_described_without_rows(shop: Path) -> None:
    endless = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT sum(n) AS total FROM c"
    with closing(sqlite3.connect(shop)) as connection:
        connection.execute(f"CREATE VIEW endless AS {endless}")
    described = tools_over(shop).describe_table("endless")
    assert [column["name"] for column in described["columns"]] == ["total"] and described["rows"] == []
    assert described["rows_error"].endswith("no result within 4 s")


def test_the_servers_settings_say_which_fixes_are_similar(shop: Path, tmp_path: Path) -> None:
    with Corpus(tmp_path / "fixes.db", create=True) as corpus:
        corpus.store_fix("no such column: nam", "SELECT nam FROM customers", "SELECT name FROM customers", "Names")
        for threshold, fixes in ((0.3, 1), (0.99, 0)):
            tools = tools_over(shop, corpus, build_config({"repair": {"threshold": threshold, "search_s": 60}}))
            found = tools.explain_analyze("SELECT totl, status FROM orders")
            assert len(found["repair_guidance"]["similar_fixes"]) == fixes
