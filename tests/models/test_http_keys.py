"""Keys of servers: what no key can be, and what shows none."""

from __future__ import annotations

import contextlib

import pytest
from models.standin import StandIn

from nl2sql.errors import ModelError, UsageError
from nl2sql.models.http.providers import Place, place_of
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
        transport.send("GET", f"{place.url}/models")
    assert "half" not in str(caught.value) + caplog.text and "; again in" not in caplog.text
