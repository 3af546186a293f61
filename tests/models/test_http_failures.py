"""HttpModel against a small real server that misbehaves, and what is kept from whom."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from models.standin import CHAT, Dialect, StandIn, drips, hangs_up, never_ends, opened, sends, serving

from nl2sql.errors import Cancelled, ModelError
from nl2sql.models import load_model
from nl2sql.models.http.transport import RequestRefused, Unanswered

pytestmark = pytest.mark.usefixtures("no_waits")
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0}
BAD = yaml.safe_load(Path(__file__).with_name("bad_answers.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", BAD, ids=[case["name"] or "null" for case in BAD])
def test_garbage_is_one_line_that_names_the_server(case: dict[str, Any], server: StandIn) -> None:
    model = opened(server)
    content = case["text"] if "text" in case else case["json"]
    server.misbehave.append(sends(content, case.get("status", 200), Location="http://elsewhere/"))
    with pytest.raises(ModelError) as caught:
        model.generate(CHAT, max_new_tokens=4)
    assert case["says"] in str(caught.value) and str(caught.value).startswith(server.url)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
    assert model.generate(CHAT, max_new_tokens=4)[0].text == " alpha beta gamma delta"


def test_wrong_token_counts_are_not_believed(server: StandIn) -> None:
    model = opened(server)
    for usage in ("many", {"prompt_tokens": "12", "completion_tokens": -3}, {"prompt_tokens": True}, ZEROS, [], None):
        server.misbehave.append(sends({"choices": [{"message": {"content": "x y"}}], "usage": usage}))
        done = model.generate(CHAT, max_new_tokens=4)[0]
        assert done.usage.prompt_tokens == model.count_tokens(CHAT) and done.usage.completion_tokens > 0


@pytest.mark.parametrize("packings", [0, 1, 3])
def test_a_body_of_ten_megabytes_is_not_read_to_its_end_nor_unpacked(packings: int, server: StandIn) -> None:
    body = b"x" * 10_000_000
    for _ in range(packings):
        body = gzip.compress(body)
    headers = {"Content-Encoding": ", ".join(["gzip"] * packings)} if packings else {}
    model = opened(server)
    server.misbehave.append(lambda handler: handler.raw(body, headers=headers))
    with pytest.raises(ModelError, match="longer than 8 MiB"):
        model.generate(CHAT, max_new_tokens=4)


def test_a_head_without_end_is_not_read_to_its_end(server: StandIn) -> None:
    def heads(handler: Any) -> None:
        handler.close_connection = True
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"x" * 2**16)

    model = opened(server, "retries=0")
    server.misbehave.append(heads)
    with pytest.raises(ModelError, match="Receive buffer too long"):
        model.generate(CHAT, max_new_tokens=4)


def never_ends_a_line(handler: Any) -> None:
    handler.start_stream()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b"data: " + b"x" * 2**16)


@pytest.mark.parametrize("endless", [never_ends, never_ends_a_line])
def test_a_stream_without_end_is_cut_off(endless: Any) -> None:
    with serving(Dialect(stops=False)) as server:
        model = opened(server)
        server.misbehave.append(endless)
        with pytest.raises(ModelError, match="longer than 8 MiB"):
            model.generate(CHAT, stop=["nothing"], max_new_tokens=4)


@pytest.mark.parametrize(
    "line",
    [
        *("data: {oops", "data: [1]", 'data: {"error": {"message": "out of memory"}}'),
        'data: {"object": "error", "message": "out of memory", "code": 500}\n\ndata: [DONE]',
        'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\ndata: [DONE]',
        "data: [DONE]",
    ],
)
def test_a_garbled_stream_is_one_line(line: str) -> None:
    with serving(Dialect(stops=False)) as server:
        model = opened(server)

        def garbled(handler: Any) -> None:
            handler.start_stream()
            handler.wfile.write(f"{line}\n\n".encode())

        server.misbehave.append(garbled)
        with pytest.raises(ModelError, match=r"stream holds|out of memory|ended without an answer"):
            model.generate(CHAT, stop=["nothing"], max_new_tokens=4)


def test_a_stream_that_breaks_off_is_asked_for_again() -> None:
    with serving(Dialect(stops=False)) as server:
        model = opened(server)

        def half(handler: Any) -> None:
            handler.start_stream()
            handler.event({"choices": [{"index": 0, "delta": {"content": "lost"}}]})

        server.misbehave.append(half)
        assert model.generate(CHAT, stop=["gamma"], max_new_tokens=4)[0].text == " alpha beta "


def test_a_slow_drip_ends_at_the_deadline(server: StandIn) -> None:
    model = opened(server, "timeout_s=0.3")
    server.misbehave.append(drips)
    started = time.monotonic()
    with pytest.raises(ModelError, match=r"no complete answer within 0\.3 s; allow more with --server timeout_s"):
        model.generate(CHAT, max_new_tokens=4)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "bad",
    [
        hangs_up,
        sends({"error": "overloaded"}, 503),
        sends("busy", 429, Retry_After="0.01"),
        *(sends("", status) for status in (500, 520, 599)),
    ],
)
def test_what_may_pass_is_tried_again(bad: Any, server: StandIn) -> None:
    model = opened(server)
    server.misbehave += [bad, bad]
    assert model.generate(CHAT, max_new_tokens=2)[0].text == " alpha beta"
    assert len(server.requests) == 3


def test_what_does_not_pass_is_told_after_the_last_try(server: StandIn) -> None:
    model = opened(server, "retries=2")
    server.misbehave += [sends({"error": {"message": "no GPU"}}, 503)] * 9
    with pytest.raises(ModelError, match=r"HTTP 503: no GPU \(tried 3 times\)"):
        model.generate(CHAT, max_new_tokens=2)
    assert len(server.requests) == 3


def test_what_a_server_does_not_have_is_asked_for_once(server: StandIn) -> None:
    model = opened(server)
    server.misbehave.append(sends("not implemented", 501))
    with pytest.raises(ModelError, match="HTTP 501: not implemented"):
        model.generate(CHAT, max_new_tokens=2)
    assert len(server.requests) == 1


def test_retry_after_is_obeyed(server: StandIn) -> None:
    model = opened(server)
    server.misbehave.append(sends("busy", 429, Retry_After="0.4"))
    started = time.monotonic()
    model.generate(CHAT, max_new_tokens=2)
    assert time.monotonic() - started >= 0.4
    server.misbehave.append(sends("come tomorrow", 429, Retry_After="86400"))
    with pytest.raises(ModelError, match="HTTP 429: come tomorrow"):
        model.generate(CHAT, max_new_tokens=2)


def test_a_cancelled_call_returns_at_once(server: StandIn) -> None:
    model = opened(server)
    server.misbehave.append(drips)
    cancel = threading.Event()
    threading.Timer(0.2, cancel.set).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        model.generate(CHAT, max_new_tokens=4, cancel=cancel)
    assert time.monotonic() - started < 2
    assert model.generate(CHAT, max_new_tokens=2)[0].text == " alpha beta"


def test_closing_the_model_ends_waiting_calls(server: StandIn) -> None:
    model = opened(server)
    server.misbehave.append(drips)
    threading.Timer(0.2, model.close).start()
    with pytest.raises(Cancelled):
        model.generate(CHAT, max_new_tokens=4)
    with pytest.raises(ModelError, match="is closed"):
        model.generate(CHAT, max_new_tokens=4)


def test_the_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "sk-very-secret-42"
    with serving(Dialect(key=secret)) as server:
        with pytest.raises(ModelError, match="set NL2SQL_API_KEY"):
            load_model(server.spec)
        monkeypatch.setenv("NL2SQL_API_KEY", secret)
        model = opened(server)
        assert secret not in str(model.describe()) and secret not in repr(vars(model))
        server.misbehave.append(sends(f"Incorrect API key provided: {secret}", 401))
        with pytest.raises(ModelError) as caught:
            model.generate(CHAT, max_new_tokens=2)
        assert secret not in str(caught.value) and "***" in str(caught.value)
    assert secret not in caplog.text


@pytest.mark.parametrize("reason", ["length", "model_length", "max_tokens", "MAX_TOKENS"])
def test_an_answer_that_was_cut_is_told_as_cut_in_whatever_words(reason: str, server: StandIn) -> None:
    model = opened(server)
    thought = {"reasoning_content": "", "reasoning": "count them"}
    server.misbehave.append(
        sends({"choices": [{"message": {"content": "SELECT", **thought}, "finish_reason": reason}]})
    )
    done = model.generate(CHAT, max_new_tokens=4)[0]
    assert (done.finish_reason, done.thinking) == ("length", "count them")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTP_PROXY", "foo://me:secret@proxy:1"),
        ("ALL_PROXY", "socks9://me:secret@proxy:1"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_an_environment_that_allows_no_connection_is_one_line(
    variable: str, value: str, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelError, match=f"no connection can be set up.*{variable}") as caught:
        opened(server)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_errors_of_a_server_come_home_from_another_process_whole(server: StandIn) -> None:
    for bad, kind in ((sends({"error": "no"}, 401), RequestRefused), (sends({"error": "no"}, 500), Unanswered)):
        model = opened(server, "retries=0")
        server.misbehave.append(bad)
        with pytest.raises(kind) as caught:
            model.generate(CHAT, max_new_tokens=4)
        sent = pickle.loads(pickle.dumps(caught.value))
        assert type(sent) is kind and str(sent) == str(caught.value) and sent.status == caught.value.status
