"""``nl2sql runs view``: the list, reports, a run in progress, SQL in the sandbox; for this machine only."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from chromium import Browser

import nl2sql
from nl2sql.config import build_config
from nl2sql.errors import UsageError
from nl2sql.models.scripted import ScriptedModel
from nl2sql.runs.run import notes_of
from nl2sql.runs.viewer import Pages, ViewServer

HOSTILE = "SELECT '<script>document.title = 1</script>' AS one FROM a_table"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("view") / "runs"
    settings = build_config({"eval": {"replicas": 0}})
    for name in ("first", "second", "begun"):
        model = ScriptedModel({"*": [HOSTILE]}, on_exhausted="repeat")
        nl2sql.evaluate(
            model=model, controller="single_shot", split="quick", limit=3, config=settings, out=root / name,
            progress=False,
        )  # fmt: skip
    lines = (root / "begun" / "predictions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (root / "begun" / "predictions.jsonl").write_text(lines[0], encoding="utf-8")
    (root / "begun" / "report.json").unlink()
    (root / "damaged").mkdir()
    (root / "damaged" / "manifest.json").write_text("{", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ViewServer]:
    with ViewServer(Pages(folder)) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def get(server: ViewServer, address: str, form: dict[str, str] | None = None) -> tuple[int, str]:
    data = urllib.parse.urlencode(form).encode() if form else None
    try:
        with urllib.request.urlopen(server.url + address, data, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_list_shows_each_run_with_its_state(server: ViewServer) -> None:
    status, page = get(server, "")
    assert status == 200
    for shown in ("first", "second", "begun", "damaged", "1 of 3", "unreadable", "single_shot", "packaged/quick"):
        assert shown in page, shown
    assert page.count('type="checkbox"') == 2, "what is not finished cannot be compared"
    _, rows = get(server, "rows")
    assert rows.strip() in page


def test_a_report_and_a_comparison(server: ViewServer) -> None:
    status, one = get(server, "report?run=first")
    assert (
        status == 200 and "nl2sql report" in one and 'data-sql="[&#34;sql?run=first&#34;]"' in one and "All runs" in one
    )
    status, both = get(server, "report?run=first&run=second")
    assert "&#34;sql?run=first&#34;, &#34;sql?run=second&#34;" in both, "each run asks its own databases"
    assert status == 200 and "EX against first" in both and "p, Holm" in both, "the one that began first"
    status, page = get(server, "report?run=begun")
    assert status == 400 and "begun is not finished" in page
    assert "no run is chosen" in get(server, "report")[1]


def test_a_report_is_made_anew_when_the_run_is_scored_anew(folder: Path) -> None:
    pages = Pages(folder)
    first = pages.answer("report", {"run": ["first"]}, {})
    assert pages.answer("report", {"run": ["first"]}, {}).text is first.text
    report = folder / "first" / "report.json"
    report.write_text(report.read_text(encoding="utf-8"), encoding="utf-8")
    assert pages.answer("report", {"run": ["first"]}, {}).text is not first.text


def test_a_run_that_takes_long_holds_up_no_other(folder: Path) -> None:
    pages = Pages(folder)
    with pages._lock_of("first"), pages._lock_of("benchmark", "first"):
        for page in ("", "report", "sql", "progress"):
            assert pages.answer(page, {"run": ["second"]}, {}).status == 200, page


def test_a_run_in_progress_shows_its_answers_so_far_and_goes_on(server: ViewServer, folder: Path) -> None:
    status, page = get(server, "progress?run=begun")
    assert status == 200 and "begun: 1 of 3" in page and 'http-equiv="refresh"' in page
    assert "&lt;script&gt;" in page and "<script>document" not in page
    assert f"nl2sql runs replay {folder / 'begun'} --partial" in page
    whole = (folder / "first" / "predictions.jsonl").read_text(encoding="utf-8")
    own = folder / "begun" / "predictions.jsonl"
    before = own.read_text(encoding="utf-8")
    own.write_text("".join(whole.splitlines(keepends=True)[:2]), encoding="utf-8")
    try:
        assert "begun: 2 of 3" in get(server, "progress?run=begun")[1]
    finally:
        own.write_text(before, encoding="utf-8")
    done = get(server, "progress?run=first")[1]
    assert 'href="report?run=first"' in done and "refresh" not in done
    assert get(server, "progress?run=damaged")[0] == 400


def test_sql_is_executed_in_the_sandbox(server: ViewServer) -> None:
    form = {"run": "first", "db": "scale_models", "sql": "SELECT count(*) AS many, NULL AS none FROM customers"}
    status, page = get(server, "sql", form)
    assert status == 200 and "<th>many</th>" in page and '<td class="null">NULL</td>' in page and "1 row<" in page
    values = "SELECT 'NULL' AS a, x'00ff' AS b, replace(hex(zeroblob(5000)), '0', 'z') AS c"
    shown = get(server, "sql", {**form, "sql": values})[1]
    assert "<td>NULL</td><td>x&#39;00ff&#39;</td>" in shown and "9,700 more characters]" in shown
    for forbidden in ("DELETE FROM customers", "ATTACH 'x.db' AS x", "SELECT * FROM nowhere"):
        status, page = get(server, "sql", {**form, "sql": forbidden})
        assert status == 200 and 'id="error"' in page and 'id="result"' not in page, forbidden
    assert "no database" in get(server, "sql", {**form, "db": "../x"})[1]
    status, shown = get(server, "sql?" + urllib.parse.urlencode({**form, "sql": "SELECT '<b>'"}))
    assert "SELECT &#39;&lt;b&gt;&#39;</textarea>" in shown and 'id="result"' not in shown, "a link executes nothing"


def test_a_report_that_is_damaged_is_a_page_with_its_reason(folder: Path) -> None:
    shutil.copytree(folder / "first", folder / "spoiled")
    report = folder / "spoiled" / "report.json"
    told = json.loads(report.read_text(encoding="utf-8"))
    del told["items"]
    report.write_text(json.dumps(told), encoding="utf-8")
    try:
        page = Pages(folder).answer("report", {"run": ["spoiled"]}, {})
    finally:
        shutil.rmtree(folder / "spoiled")
    assert page.status == 400 and "KeyError: &#39;items&#39;" in page.text and "nl2sql runs check" in page.text


def test_a_note_is_written_into_the_runs_folder_and_shown(server: ViewServer, folder: Path) -> None:
    run = nl2sql.Run.load(folder / "second")
    item = run.report["items"][0]
    form = {"at": "1", "db": item["db_id"], "id": item["id"], "tags": "odd, wrong column", "note": "<script>"}
    before = get(server, "report?run=second")[1]
    assert get(server, "note?run=first&run=second", form) == (200, "saved")
    assert notes_of(run) == {(item["db_id"], item["id"]): {"tags": ["odd", "wrong column"], "note": "<script>"}}
    assert get(server, "report?run=second")[1] != before, "the page is made anew"
    for wrong in ({"at": "7"}, {"at": "x"}, {"id": "nothing"}):
        assert get(server, "note?run=first&run=second", form | wrong)[0] == 400
    assert get(server, "note?run=nowhere", form)[0] == 400 and get(server, "note?run=first")[0] == 400
    assert not (folder / "first" / "notes.jsonl").exists()


@pytest.mark.parametrize("name", ["../first", "/etc", "first/../first", "", "first/control", "nowhere"])
def test_only_runs_of_the_list_can_be_asked_for(server: ViewServer, name: str) -> None:
    for page in ("report", "progress", "sql"):
        status, text = get(server, f"{page}?{urllib.parse.urlencode({'run': name})}")
        assert status == 400 and "there is no run" in text


def test_a_folder_whose_name_is_no_utf_8_is_a_run_like_others(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "first", tmp_path / "caf\udce9")
    with ViewServer(Pages(tmp_path)) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        status, page = get(serving, "")
        assert (status, re.findall('href="(report[^"]*)"', page)) == (200, ["report?run=caf%E9"])
        status, report = get(serving, "report?run=caf%E9")
        assert status == 200 and "sql?run=caf%E9" in report and "note?run=caf%E9" in report
        serving.shutdown()
        thread.join()


def test_a_browser_that_hangs_up_prints_nothing(server: ViewServer, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.server_port)) as browser:
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing is a reset
            browser.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost:{server.server_port}\r\n\r\n".encode())
    assert get(server, "")[0] == 200
    deadline = time.monotonic() + 5
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the requests are still served"
        time.sleep(0.02)
    assert capfd.readouterr().err == ""


def test_nobody_gets_in_without_the_token_or_by_another_name(server: ViewServer) -> None:
    def ask(path: str, host: str, method: str = "GET", **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request(method, path, headers={"Host": host, **headers})
        return connection.getresponse().status

    own, path = f"127.0.0.1:{server.server_port}", f"/{server.token}/"
    assert ask(path, own) == 200 and ask(path, f"localhost:{server.server_port}") == 200
    for wrong in ("/", "/rows", f"/{server.token[:-1]}/", f"/x{server.token}/", "//", "/%00/", "*", "http://["):
        assert ask(wrong, own) == 404, wrong
    for name in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
        assert ask(path, name) == 404, name
    assert server.server_address[0] == "127.0.0.1"
    assert ask(f"{path}sql", own, "POST", **{"Content-Length": "9000000"}) == 413
    assert ask(f"{path}sql", own, "POST", **{"Content-Length": "x"}) == 413
    assert ask(f"{path}unknown", own) == 404


def test_the_address_of_another_page_is_not_told_the_token(server: ViewServer) -> None:
    with urllib.request.urlopen(server.url) as answer:
        assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_the_command_prints_the_address_and_ends_with_ctrl_c(folder: Path) -> None:
    command = [sys.executable, "-m", "nl2sql.cli", "runs", "view", str(folder), "--no-open"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\S{20,}/", running.stdout.readline())
        assert found and urllib.request.urlopen(found[0], timeout=20).status == 200
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
        assert running.returncode == 0 and "ended" in errors and "Traceback" not in errors
    finally:
        running.kill()


def test_a_port_that_is_taken_is_one_line(folder: Path, server: ViewServer) -> None:
    with pytest.raises(UsageError, match="leave it out for a free one"):
        ViewServer(Pages(folder), server.server_port)


@pytest.mark.skipif(chromium.find() is None, reason=chromium.INSTALL)
def test_a_phone_shows_every_run_with_its_score_and_state(server: ViewServer) -> None:
    with Browser(width=390, height=844) as browser:
        browser.visit(server.url)
        shown = "[...document.querySelectorAll('#rows td, #rows th')].map(cell => cell.getBoundingClientRect().right)"
        assert max(browser.run(shown)) <= 390


@pytest.mark.skipif(chromium.find() is None, reason=chromium.INSTALL)
def test_the_pages_in_a_browser(server: ViewServer) -> None:
    with Browser() as browser:
        browser.visit(server.url)
        browser.run("document.querySelectorAll('input[name=run]').forEach((box) => { box.checked = true; })")
        browser.click("button[type=submit]")
        browser.wait("document.querySelectorAll('#list .row').length > 0")
        browser.click("#list .row")
        browser.wait("document.querySelectorAll('a.run').length > 0")
        browser.run(
            "(box => { const [tags] = box.getElementsByTagName('input'); tags.value = 'live';"
            "tags.dispatchEvent(new Event('change')); })(document.querySelector('#episode .note'))"
        )
        browser.wait("document.querySelector('#episode .note').textContent.includes('saved in the run')")
        address = browser.run("document.querySelector('a.run').href")
        assert "sql?run=first&db=" in address
        browser.click("#episode .tabs button:last-child")
        browser.wait("document.querySelector('a.run').href.includes('sql?run=second&db=')")
        browser.visit(address)
        browser.click("button[type=submit]")
        browser.wait("document.querySelector('#result') !== null || document.querySelector('#error') !== null")
        assert browser.errors == []
