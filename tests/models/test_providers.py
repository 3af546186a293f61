"""Providers by name, each against a server that behaves as its documentation says."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from models.provider_servers import (
    KEY,
    THOUGHT,
    Anthropic,
    AnthropicNewer,
    App,
    LlamaCpp,
    Ollama,
    OpenAI,
    OpenAIReasoning,
    Refused,
    Vllm,
    VllmOpenedThoughts,
    provider_at,
)
from typer.testing import CliRunner

from nl2sql.agents.controllers import answer
from nl2sql.cli import app as cli
from nl2sql.databases.engines import open_database
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Completion, Sampling
from nl2sql.machine import KEY_VARIABLES, masked
from nl2sql.models import load_model
from nl2sql.models.http.model import HttpModel
from nl2sql.models.http.providers import PROVIDERS, place_of
from nl2sql.models.load import SERVERS, resolve_spec

runner = CliRunner()
ASKED = [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": "How many customers?"}]
STAND_INS: dict[str, tuple[str, App, tuple[str, ...]]] = {  # name -> provider, server, options
    "openai": ("openai", OpenAI(key=KEY), ()),
    "openai, reasoning": ("openai", OpenAIReasoning(key=KEY, thinks=True), ()),
    "anthropic": ("anthropic", Anthropic(key=KEY), ()),
    "anthropic, newer": ("anthropic", AnthropicNewer(key=KEY), ()),
    "anthropic, thinking": ("anthropic", AnthropicNewer(key=KEY), ("thinking=1024",)),
    "ollama": ("ollama", Ollama(), ()),
    "ollama, thinking": ("ollama", Ollama(thinks=True), ()),
    "vllm": ("vllm", Vllm(key=KEY), ()),
    "vllm, thinking": ("vllm", Vllm(key=KEY, thinks=True), ("thinking=512",)),
    "vllm, opened thoughts": ("vllm", VllmOpenedThoughts(), ("thinking=512",)),
    "llamacpp": ("llamacpp", LlamaCpp(), ()),
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.address_variable, raising=False)
    for variable in KEY_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``started(name)``: the spec and the options of a stand-in that answers now."""
    with ExitStack() as stack:

        def start(provider: str, app: App) -> str:
            app.bodies.clear()
            address = stack.enter_context(provider_at(app))
            known = PROVIDERS[provider]
            host = address.removeprefix("http://") if provider == "ollama" else address
            monkeypatch.setenv(known.address_variable, host)
            monkeypatch.setenv(known.key_variable, app.key)
            return f"{provider}/{app.name}"

        yield start


def run(*arguments: str) -> str:
    done = runner.invoke(cli, list(arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    return str(done.stdout)


# --------------------------------------------------------------------------------------------------- acceptance


@pytest.mark.parametrize("name", STAND_INS)
def test_info_ask_and_eval_work_with_every_provider(name: str, started: Any, tmp_path: Path) -> None:
    provider, app, options = STAND_INS[name]
    spec = started(provider, app)
    server = [part for option in options for part in ("--server", option)]
    facts = json.loads(run("models", "info", spec, "--json", *server))
    assert (facts["name"], facts["backend"]) == (app.name, "http")
    asking = ["--model", spec, "--db", "packaged:scale_models", "--controller", "single_shot", "--json", *server]
    shown = json.loads(run("ask", "How many customers are there?", *asking))
    assert (shown["rows"], shown["error"]) == ([[95]], None)
    out = tmp_path / "run"
    evaluating = ["eval", "--limit", "2", "--model", spec, "--replicas", "0", "--out", str(out), "-q", *server]
    run(*evaluating, "-c", "react.max_steps=2")
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 and not any((row["error"] or "").startswith("model") for row in rows)
    written = [file.read_text(encoding="utf-8") for file in out.rglob("*") if file.is_file()]
    assert written and not any(KEY in text for text in written)
    for row in rows:
        assert "<think>" not in row["sql"] and "First I look" not in row["sql"]


# ------------------------------------------------------------------------------------------- names, places, keys


def test_every_name_of_a_spec_is_a_provider() -> None:
    assert tuple(PROVIDERS) == SERVERS
    assert all(provider.key_variable in KEY_VARIABLES for provider in PROVIDERS.values())


def test_a_local_folder_goes_before_a_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_spec("openai/gpt-oss-20b").kind == "http"
    (tmp_path / "openai" / "gpt-oss-20b").mkdir(parents=True)
    assert resolve_spec("openai/gpt-oss-20b").kind == "folder"


@pytest.mark.parametrize(
    ("spec", "variable", "value", "url"),
    [
        ("openai/x", "OPENAI_BASE_URL", "https://proxy.example/openai/v1/", "https://proxy.example/openai/v1"),
        ("openai/x", "OPENAI_BASE_URL", "https://proxy.example/v1beta/openai/", "https://proxy.example/v1beta/openai"),
        ("anthropic/x", "ANTHROPIC_BASE_URL", "https://proxy.example", "https://proxy.example/v1"),
        ("anthropic/x", "ANTHROPIC_BASE_URL", "https://proxy.example/claude", "https://proxy.example/claude/v1"),
        ("ollama/x", "OLLAMA_HOST", "", "http://localhost:11434/v1"),
        ("ollama/x", "OLLAMA_HOST", "box", "http://box:11434/v1"),
        ("ollama/x", "OLLAMA_HOST", "0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        ("ollama/x", "OLLAMA_HOST", "https://ollama.com", "https://ollama.com/v1"),
        ("vllm/x", "VLLM_BASE_URL", "http://box:9000/v1", "http://box:9000/v1"),
        ("llamacpp/x", "LLAMACPP_BASE_URL", "http://box:9000", "http://box:9000/v1"),
    ],
)
def test_the_address_comes_from_the_usual_variable(spec: str, variable: str, value: str, url: str) -> None:
    assert place_of(spec, {variable: value}).url == url


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_a_missing_key_names_its_variable(name: str) -> None:
    variable = PROVIDERS[name].key_variable
    with pytest.raises(UsageError, match=f"{variable} is not set; type: export {variable}=YOUR_KEY"):
        load_model(f"{name}/some-model")
    assert place_of(f"{name}/m", {variable: KEY}).key == KEY


def test_a_key_goes_to_its_own_server_only() -> None:
    everywhere = dict.fromkeys(KEY_VARIABLES, "other") | {"OPENAI_API_KEY": KEY}
    assert place_of("openai/m", everywhere).key == KEY
    assert place_of("http://127.0.0.1:9/v1#m", everywhere).key == "other"
    assert KEY not in repr(place_of("openai/m", everywhere))


@pytest.mark.parametrize(("variable", "value"), [("VLLM_BASE_URL", "box"), ("OLLAMA_HOST", "http://a:b@box")])
def test_a_variable_that_is_no_address_is_refused(variable: str, value: str) -> None:
    spec = next(f"{name}/m" for name, known in PROVIDERS.items() if known.address_variable == variable)
    with pytest.raises(UsageError):
        place_of(spec, {variable: value})


@pytest.mark.parametrize("address", ["http://u:opensesame@", "http://u:open/sesame@h#m", "http://u:open#sesame@h"])
def test_no_error_about_an_address_shows_a_password(address: str) -> None:
    for spec, values in ((address, {}), ("vllm/m", {"VLLM_BASE_URL": address.removeprefix("http://")})):
        with pytest.raises(UsageError) as caught:
            place_of(spec, values)
        assert "open" not in str(caught.value) and "sesame" not in str(caught.value)


@pytest.mark.parametrize("variable", KEY_VARIABLES)
def test_the_key_of_every_variable_is_masked(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, KEY)
    assert masked(f"a {KEY} b {KEY[-8:]} c") == "a *** b *** c"


def test_a_wrong_key_names_the_variable_and_shows_no_key(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, app in (("openai", OpenAI(key=KEY)), ("anthropic", Anthropic(key=KEY))):
        spec, variable = started(provider, app), PROVIDERS[provider].key_variable
        monkeypatch.setenv(variable, "sk-wrong-9988776655")
        with pytest.raises(ModelError, match=f"set {variable} to a key of this server") as caught:
            load_model(spec)
        assert "9988776655" not in str(caught.value)


def test_a_provider_without_a_name_says_what_there_is(started: Any) -> None:
    started("ollama", Ollama(name="qwen3:8b"))
    with pytest.raises(UsageError, match=r"it offers: qwen3:8b. Example: --model ollama/qwen3:8b"):
        load_model("ollama/")


# ------------------------------------------------------------------------------------------- refused parameters


def opened(started: Any, provider: str, app: App, *options: str) -> HttpModel:
    made = load_model(started(provider, app), server=options)
    assert isinstance(made, HttpModel)
    return made


def ask(model: HttpModel, **options: Any) -> Completion:
    return model.generate(ASKED, **{"prefill": "SELECT", "stop": [";"], "max_new_tokens": 12, **options})[0]


def test_a_refused_parameter_costs_one_call_and_is_named(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = OpenAIReasoning(key=KEY, thinks=True)
    with caplog.at_level(logging.WARNING):
        model = opened(started, "openai", app)
    probed = len(app.bodies)
    assert ask(model).text == " COUNT(*) FROM customers"
    sampled = model.generate(ASKED, stop=[";"], max_new_tokens=12, sampling=Sampling(0.9), seed=3, n=2)
    assert [answer.text for answer in sampled] == ["SELECT COUNT(*) FROM customers"] * 2
    refused = ["max_tokens", "temperature", "logprobs", "top_p"]
    assert model.describe()["refused"] == refused
    assert len(app.refusals) == len(refused)
    assert probed == len(refused) + 3  # the question, the question with room for thoughts, the system's role
    said = [line for line in caplog.messages if "refuses" in line]
    assert [line.split()[2].rstrip(":") for line in said] == refused
    assert said[1].endswith("refuses temperature: it answers at a temperature of its own, so its answers vary")


def test_a_manifest_names_what_is_refused(started: Any, tmp_path: Path) -> None:
    spec, out = started("openai", OpenAIReasoning(key=KEY, thinks=True)), tmp_path / "run"
    run(
        "eval",
        "--limit",
        "1",
        "--model",
        spec,
        "--controller",
        "single_shot",
        "--replicas",
        "0",
        "--out",
        str(out),
        "-q",
    )
    described = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["model"]
    assert described["refused"] == ["max_tokens", "temperature", "logprobs", "top_p"]
    assert described["thinking_tokens"] == 2048


def test_refused_stop_strings_are_applied_here(started: Any) -> None:
    class NoStops(OpenAI):
        def refuse(self, body: dict[str, Any]) -> None:
            super().refuse(body)
            if "stop" in body:
                raise Refused("Unsupported parameter: 'stop' is not supported with this model.", "stop")

    app = NoStops(key=KEY)
    model = opened(started, "openai", app)
    assert ask(model, prefill="", stop=[" FROM"]).text == "SELECT COUNT(*)"
    assert model.describe()["refused"] == ["stop"] and sum("stop" in body for body in app.bodies) == 1


def test_a_refusal_that_names_no_field_of_ours_is_told(started: Any) -> None:
    class Closed(OpenAI):
        closed = False

        def refuse(self, body: dict[str, Any]) -> None:
            super().refuse(body)
            if self.closed:
                raise Refused("Please stop: your seed money and your account are used up.")

    app = Closed(key=KEY)
    model = opened(started, "openai", app)
    app.closed = True
    app.bodies.clear()
    with pytest.raises(ModelError, match="used up"):
        ask(model, sampling=None)
    assert len(app.bodies) == 1 and model.describe()["refused"] == []


def test_further_fields_go_with_every_request_and_over_ours(started: Any) -> None:
    app = Ollama()
    model = opened(started, "ollama", app, "body.top_k=20", "body.options.num_ctx=8192", "body.temperature=0.6")
    app.bodies.clear()
    ask(model)
    sent = app.bodies[-1]
    assert (sent["top_k"], sent["options"], sent["temperature"]) == (20, {"num_ctx": 8192}, 0.6)
    described = model.describe()
    assert described["body"]["top_k"] == 20 and '"top_k": 20' in described["revision"]  # so of the run's key
    assert "temperature" not in described["refused"]


def test_a_field_of_ones_own_that_is_refused_is_not_left_out(started: Any) -> None:
    with pytest.raises(ModelError, match="temperature"):
        opened(started, "openai", OpenAIReasoning(key=KEY), "body.temperature=0.5")


@pytest.mark.parametrize("item", ["body.=1", "body.messages=[]", "body.a..b=1", "body.api_key=x", "body=1"])
def test_a_wrong_further_field_is_refused(item: str) -> None:
    with pytest.raises(UsageError, match="--server"):
        load_model("http://127.0.0.1:9/v1#m", server=[item])


# -------------------------------------------------------------------------------------------- thinking, turns


@pytest.mark.parametrize("name", [name for name in STAND_INS if "think" in name or "thought" in name])
def test_thoughts_are_set_aside_and_stop_strings_are_not_looked_for_in_them(name: str, started: Any) -> None:
    provider, app, options = STAND_INS[name]
    model = opened(started, provider, app, *options)
    assert model.describe()["thinking_tokens"] > 0 and model.describe()["prefill"] == "user_turn"
    for stop in (["Observation:", "tables"], []):  # streamed, and whole
        done = ask(model, stop=stop)
        assert (done.text, done.finish_reason) == (" COUNT(*) FROM customers", "stop")
        assert done.thinking == ("" if provider == "anthropic" else THOUGHT)  # which shows none
        assert done.usage.completion_tokens > len(done.text.split())
    assert ask(model, stop=[" FROM"]).text == " COUNT(*)"
    assert ask(model, prefill="", stop=["nowhere"], max_new_tokens=2).finish_reason == "length"


def test_hidden_thoughts_get_room_too(started: Any) -> None:
    app = OpenAIReasoning(key=KEY, thinks=True)
    model = opened(started, "openai", app, "thinking=300")
    assert ask(model).text == " COUNT(*) FROM customers"
    assert app.bodies[-1]["max_completion_tokens"] == 312


def test_a_refusal_for_want_of_room_to_think_shows_a_model_that_thinks(started: Any) -> None:
    class Early(OpenAIReasoning):
        def refuse(self, body: dict[str, Any]) -> None:
            super().refuse(body)
            if body["max_completion_tokens"] < 100:
                raise Refused("Could not finish the message because max_tokens or model output limit was reached.")

    model = opened(started, "openai", Early(key=KEY, thinks=True))
    assert model.describe()["thinking_tokens"] == 2048
    assert model.describe()["refused"] == ["max_tokens", "temperature", "top_p"]


def test_thoughts_that_leave_no_room_are_told(started: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(started, "openai", OpenAIReasoning(key=KEY, thinks=True), "thinking=2")
    done = [ask(model, stop=[], max_new_tokens=4) for _ in range(2)]
    assert {(answer.text, answer.finish_reason) for answer in done} == {("", "length")}
    assert sum("answered nothing; allow it more" in record.getMessage() for record in caplog.records) == 1


def test_a_model_may_be_asked_not_to_think(started: Any) -> None:
    model = opened(started, "ollama", Ollama(thinks=True), "thinking=0")
    done = ask(model)
    assert (done.text, done.thinking, model.describe()["thinking_tokens"]) == (" COUNT(*) FROM customers", "", 0)


def test_thoughts_are_kept_by_the_cache_and_in_the_record_of_a_call(started: Any) -> None:
    spec = started("vllm", Vllm(thinks=True))
    database = open_database("packaged:scale_models")
    episodes = []
    for _ in range(2):
        model = load_model(spec, server=["thinking=512"], cache=True)
        episodes.append(answer("How many customers are there?", database, model, "single_shot"))
    assert [episode.calls[0]["thinking"] for episode in episodes] == [THOUGHT] * 2
    assert episodes[1].usage.cached_calls == 1 and THOUGHT not in episodes[0].raw_sql
    database.close()


@pytest.mark.parametrize(("name", "way"), [("anthropic", "chat"), ("anthropic, newer", "user_turn"), ("vllm", "chat")])
def test_an_open_turn_is_continued_where_the_server_does(name: str, way: str, started: Any) -> None:
    provider, app, options = STAND_INS[name]
    model = opened(started, provider, app, *options)
    assert model.describe()["prefill"] == way
    assert ask(model).text == " COUNT(*) FROM customers"


def test_anthropic_goes_on_behind_a_turn_in_which_the_model_said_nothing(started: Any) -> None:
    asked = [*ASKED, {"role": "assistant", "content": ""}, {"role": "user", "content": "No action was found."}]
    app = Anthropic(key=KEY)
    assert opened(started, "anthropic", app).generate(asked, max_new_tokens=12)[0].text
    assert app.bodies[-1]["messages"][-2] == {"role": "assistant", "content": "(nothing)"}


def test_ollama_tells_the_window_and_the_weights_of_a_loaded_model(started: Any) -> None:
    described = opened(started, "ollama", Ollama()).describe()
    assert (described["context_window"], described["context_window_known"]) == (4096, True)
    assert described["server"] == {"owned_by": "someone", "version": "0.40.12", "digest": "4c27e0f5b5ad"}
