"""Keys of servers: what no key can be, and what shows none."""

from __future__ import annotations

import contextlib

import pytest
from models.standin import StandIn

from nl2sql.errors import ModelError, UsageError
from nl2sql.models.http.providers import Place, ServerOptions, place_of
from nl2sql.models.http.transport import Transport

KEY = "sk-test-4f9a77c1b2"


@pytest.mark.parametrize("key", [f"{KEY}\nlast-line", f"{KEY}\r\n{KEY}", f"“{KEY}”", f"{KEY}\x00", f"{KEY}é"])
@pytest.mark.parametrize(("spec", "variable"), [("openai/m", "OPENAI_API_KEY"), ("http://h/v1#m", "NL2SQL_API_KEY")])
def test_a_key_that_no_header_can_hold_names_its_variable(key: str, spec: str, variable: str) -> None:
    with pytest.raises(UsageError, match=f"{variable} holds a line break") as caught:
        place_of(spec, {variable: f" {key}\n"})
    assert KEY not in str(caught.value) and "last-line" not in str(caught.value)
    assert place_of(spec, {variable: f" {KEY}\n"}).key == KEY


@pytest.mark.usefixtures("no_waits")
def test_a_request_that_cannot_be_sent_is_tried_once_and_shows_no_header(
    server: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    place = Place(server.url, "m", key="sk-first-half\nsk-second-half")  # place_of refuses it
    transport = Transport(place, timeout_s=5, retries=4, concurrency=1)
    with contextlib.closing(transport), pytest.raises(ModelError, match="the request cannot be sent") as caught:
        transport.send_all([("GET", f"{place.url}/models", None, None)])
    assert "half" not in str(caught.value) + caplog.text and "; again in" not in caplog.text


@pytest.mark.parametrize(
    "item",
    [
        'body.extra={"api_key": "SECRET"}',
        'body.extra=[{"a": {"Authorization": "SECRET"}}]',
        "body.access_token=SECRET",
        "body.accessToken=SECRET",
        "body.x-api-key=SECRET",
        "body.headers.X-API-KEY=SECRET",
        "body.provider.openai_key=SECRET",
        "body.db_password=SECRET",
        "body.messages.client_secret=SECRET",
        'body.extra={"keys": ["SECRET"]}',
        "body.hf_token=SECRET",
        "api_key=SECRET",
    ],
)
def test_a_field_that_is_named_as_a_secret_is_refused_and_not_shown(item: str) -> None:
    with pytest.raises(UsageError, match="keys go into environment variables") as caught:
        ServerOptions.parse([item])
    assert "SECRET" not in str(caught.value) and item.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    "item",
    [
        "body.max_tokens=5",
        "body.stop_token_ids=[1]",
        "body.eos_token=x",
        "body.skip_special_tokens=false",
        "body.min_tokens=1",
        "body.prompt_cache_key=a",
        "body.top_k=20",
        "body.keep_alive=-1",
        'body.response_format={"json_schema": {"schema": {"properties": {"token": {"type": "string"}}}}}',
        "body.options.num_ctx=8192",
    ],
)
def test_a_field_that_is_named_otherwise_is_taken(item: str) -> None:
    assert ServerOptions.parse([item]).body
