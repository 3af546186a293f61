"""What a server is found to do by trying: a refused value, a busy server and one bad request show nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from models.provider_servers import KEY, SQL, Anthropic, App, Refused, provider_at
from models.standin import CHAT, Dialect, opened, sends, serving

from nl2sql.agents.controllers import answer
from nl2sql.benchmarks import load_benchmark
from nl2sql.errors import ModelError
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.models import load_model
from nl2sql.models.http.model import HttpModel

pytestmark = pytest.mark.usefixtures("no_waits")
ASKED = [{"role": "user", "content": "How many customers?"}]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``started(provider, app)``: the stand-in as a model."""
    with ExitStack() as stack:

        def start(provider: str, app: App, *options: str) -> HttpModel:
            address = stack.enter_context(provider_at(app))
            monkeypatch.setenv(f"{provider.upper()}_BASE_URL", address)
            monkeypatch.setenv(f"{provider.upper()}_API_KEY", app.key)
            model = load_model(f"{provider}/{app.name}", server=options)
            assert isinstance(model, HttpModel)
            stack.enter_context(closing(model))
            app.bodies.clear()
            return model

        yield start


class UpToOne(App):
    """Takes temperatures from 0 to 1 and samples above 0."""

    def refuse(self, body: dict[str, Any]) -> None:
        if not 0 <= body.get("temperature", 1) <= 1:
            raise Refused("temperature must be in [0, 1]", "temperature")

    def shown(self, words: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": self.said(words.text)}

    def said(self, text: str) -> str:
        body = self.bodies[-1]
        return f"{body.get('seed')} {text}" if body.get("temperature", 1) else text


def test_a_server_that_takes_temperatures_up_to_one_keeps_them(started: Any) -> None:
    app = UpToOne()
    model = started("vllm", app)
    assert model.generate(ASKED, max_new_tokens=12, sampling=Sampling(0.8), seed=1)[0].text != SQL
    assert app.bodies[-1]["temperature"] == 0.8
    assert model.generate(ASKED, max_new_tokens=12)[0].text == SQL
    assert app.bodies[-1]["temperature"] == 0 and app.refusals == [] and model.describe()["refused"] == []


def test_candidates_of_a_server_that_decodes_greedily_are_one_answer(started: Any) -> None:
    model = started("vllm", App())
    database = load_benchmark("packaged").database("scale_models")
    episode = answer("How many customers are there?", database, model, "candidates")
    assert (episode.error, episode.sql) == (None, f"{SQL};") and len(episode.rows) == 1


def test_a_server_that_leaves_the_open_turn_out_is_noticed_by_its_answer(started: Any) -> None:
    class Forgetful(Anthropic):
        def opened(self, body: dict[str, Any]) -> str:
            return ""

    assert started("anthropic", Forgetful(key=KEY)).describe()["prefill"] == "user_turn"
    assert started("anthropic", Anthropic(key=KEY)).describe()["prefill"] == "chat"


def test_a_temperature_that_is_refused_where_zero_is_taken_is_told(started: Any) -> None:
    app = UpToOne()
    model = started("vllm", app)
    with pytest.raises(ModelError, match=r"HTTP 400: temperature must be in \[0, 1\]"):
        model.generate(ASKED, max_new_tokens=12, sampling=Sampling(1.5), seed=1)
    assert model.generate(ASKED, max_new_tokens=12)[0].text == SQL
    assert app.bodies[-1]["temperature"] == 0 and model.describe()["refused"] == []


# ---------------------------------------------------------------------------------------------- a busy server

LARK = Grammar("lark", 'start: "zq" /[0-9]+/')


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("busy", [2, 8])
def test_a_server_that_is_busy_at_the_trial_of_a_grammar_is_tried_again(status: int, busy: int) -> None:
    with serving(Dialect(grammar="structured_outputs.grammar")) as server, closing(opened(server)) as model:
        server.misbehave += [sends({"error": "busy"}, status)] * busy  # each form is asked twice
        with pytest.raises(ModelError, match=f"HTTP {status}: busy"):
            model.generate(CHAT, max_new_tokens=9, grammar=LARK)
        server.misbehave.clear()
        assert model.generate(CHAT, max_new_tokens=9, grammar=LARK)[0].text == "zq123"


def test_a_form_that_is_obeyed_counts_though_another_got_no_answer() -> None:
    with serving(Dialect(grammar="guided_grammar")) as server, closing(opened(server)) as model:
        server.misbehave += [sends({"error": "no such grammar"}, 500)] * 2
        assert model.generate(CHAT, max_new_tokens=9, grammar=LARK)[0].text == "zq123"


def test_an_answer_that_cannot_be_read_is_a_no() -> None:
    with serving(Dialect()) as server, closing(opened(server)) as model:
        server.misbehave += [sends("no JSON"), sends({"choices": []}), sends("x" * 10_000_000), sends("", 400)]
        for _ in range(2):
            with pytest.raises(ModelError, match="does not obey a lark grammar"):
                model.generate(CHAT, max_new_tokens=9, grammar=LARK)


@pytest.mark.parametrize("field", ['"stop"', '"n"', '"logprobs"'])
def test_a_server_that_is_busy_while_it_is_probed_is_an_error(field: str) -> None:
    with serving(Dialect()) as server:
        server.when = lambda body: sends({"error": "busy"}, 503) if f"{field}: " in body else None
        with pytest.raises(ModelError, match=r"HTTP 503: busy \(tried 2 times\)"):
            load_model(server.spec, server=["retries=1"])


# -------------------------------------------------------------------------------------- several answers at once

FOUR: Any = {"max_new_tokens": 2, "sampling": Sampling(), "n": 4, "seed": 1}


def test_a_server_that_refuses_so_many_answers_is_asked_one_by_one_from_then_on() -> None:
    with serving(Dialect(many=2)) as server, closing(opened(server)) as model:
        assert "many" in model.describe()["honours"]
        assert len(model.generate(CHAT, **FOUR)) == 4
        assert "many" not in model.describe()["honours"]
        server.requests.clear()
        assert len(model.generate(CHAT, **FOUR)) == 4 and all("n" not in body for body in server.requests)


@pytest.mark.parametrize(("status", "requests"), [(400, 5), (401, 1), (404, 1), (413, 1)])
def test_another_refusal_leaves_several_answers_at_once(status: int, requests: int) -> None:
    """A 400 may be about n: the answers are asked for one by one before that is believed."""
    with serving(Dialect()) as server, closing(opened(server)) as model:
        model.generate(CHAT, **FOUR)  # finds out whether it samples
        server.requests.clear()
        server.when = lambda _: sends({"error": "not you"}, status)
        with pytest.raises(ModelError, match=f"HTTP {status}: not you"):
            model.generate(CHAT, **FOUR)
        assert len(server.requests) <= requests and "many" in model.describe()["honours"]
        server.when = lambda _: None
        server.requests.clear()
        assert len(model.generate(CHAT, **FOUR)) == 4 and len(server.requests) == 1


def test_a_refused_greedy_call_for_several_is_not_repeated() -> None:
    """Greedy answers are asked for one by one in any case, so the refusal is not about n."""
    with serving(Dialect()) as server, closing(opened(server, batch_size=1)) as model:
        server.when = lambda _: sends({"error": "not you"}, 400)
        with pytest.raises(ModelError, match="HTTP 400: not you"):
            model.generate(CHAT, max_new_tokens=2, n=2)
        assert len(server.requests) <= 2 and "many" in model.describe()["honours"]
