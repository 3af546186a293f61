"""HttpModel against a small real server: what is probed, and what is sent."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from models.standin import CHAT, OPEN, Dialect, StandIn, opened, sends, serving, tokens
from models.tiny import TEMPLATE, tiny_tokenizer

from nl2sql.agents.resources import takes_grammars
from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Grammar, Sampling
from nl2sql.machine import cache_dir
from nl2sql.models import load_model
from nl2sql.models.http.providers import ServerOptions
from nl2sql.models.response_cache import CachedModel

pytestmark = pytest.mark.usefixtures("no_waits")
ALL = ["stops", "many", "logprobs"]
PROBED = "What is the capital of France?"


# ------------------------------------------------------------------------------------------------- the address


def test_a_missing_name_lists_what_the_server_offers() -> None:
    with serving(Dialect(names=("a/b", "c"))) as server, pytest.raises(UsageError) as caught:
        load_model(server.url)
    assert f"it offers: a/b, c. Example: --model {server.url}#a/b" in str(caught.value)


def test_an_unknown_name_lists_what_the_server_offers(server: StandIn) -> None:
    with pytest.raises(ModelError, match=r"has no model 'nope'; it offers: org/some-model"):
        load_model(f"{server.url}#nope")


@pytest.mark.parametrize("models", [5, "many", None, {"id": "x"}, [7]])
def test_a_list_of_models_that_is_none_is_passed_over(models: Any, server: StandIn) -> None:
    server.listed = {"data": models}
    assert opened(server).name == "org/some-model"


def test_nobody_there_is_one_line_with_the_address() -> None:
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/v1: cannot be reached") as caught:
        load_model("http://127.0.0.1:9/v1#x", server=["retries=1"])
    assert "\n" not in str(caught.value)


def test_a_page_that_is_no_such_server_is_one_line(server: StandIn) -> None:
    with pytest.raises(ModelError, match=r"HTTP 404: .*usually ends in /v1"):
        load_model(f"http://127.0.0.1:{server.server_port}#x")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("speed=1", "expected KEY=VALUE with KEY one of tokenizer, context_window"),
        ("retries", "expected KEY=VALUE"),
        ("retries=many", "--server retries=many"),
        ("price_in=-1", "--server price_in=-1"),
        *((f"{name}=inf", f"--server {name}=inf") for name in ("price_in", "price_out", "timeout_s")),
        ("price_out=nan", "--server price_out=nan"),
        ("body.top_p=NaN", "no infinite number"),
        ("body.top_p=[1e999]", "no infinite number"),
        ("tokenizer=nowhere-at-all", "unknown model 'nowhere-at-all'"),
    ],
)
def test_a_wrong_server_option_is_refused(server: StandIn, option: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_model(server.spec, server=[option])
    assert says in str(caught.value)


def test_options_are_read_from_text() -> None:
    found = ServerOptions.parse(["price_in=0.15", "context_window=8192", "tokenizer=/a=b"])
    assert (found.price_in, found.context_window, found.tokenizer) == (0.15, 8192, "/a=b")


def test_server_options_need_a_server() -> None:
    with pytest.raises(UsageError, match="goes with --model http://HOST"):
        load_model("smollm2-135m", server=["retries=1"])
    with pytest.raises(UsageError, match="server's own business"):
        load_model("http://127.0.0.1:9/v1#x", device="cpu")


# ---------------------------------------------------------------------------------------------------- probing


@pytest.mark.parametrize(
    ("dialect", "way", "honours"),
    [
        (Dialect(), "chat", ALL),
        (Dialect(echoes=True, tokenize=False), "chat", ALL),
        (Dialect(continues=False), "user_turn", ALL),  # takes the switch and ignores it
        (
            Dialect(continues=False, refuses_unknown=True, limit="max_completion_tokens"),
            "user_turn",
            ["stops", "many", "logprobs"],
        ),
        (Dialect(stops=False, many=1, logprobs=False), "chat", []),
        (Dialect(usage=False), "user_turn", ALL),
        (Dialect(chat=False), "completions", ALL),
    ],
)
def test_what_a_server_does_is_found_by_asking(dialect: Dialect, way: str, honours: list[str]) -> None:
    with serving(dialect) as server:
        model = opened(server)
        found = model.describe()
        assert (found["prefill"], found["honours"]) == (way, honours)
        done = model.generate(CHAT, prefill=OPEN, stop=["delta"], max_new_tokens=6)[0]
        assert (done.text.strip(), done.finish_reason) == ("alpha beta gamma", "stop")
        assert done.usage.prompt_tokens >= tokens(OPEN)
        model.close()


def test_the_open_turn_goes_out_as_a_final_message_to_continue(server: StandIn) -> None:
    model = opened(server)
    model.generate(CHAT, prefill=OPEN, max_new_tokens=3)
    sent = server.requests[-1]
    assert sent["messages"] == [*CHAT, {"role": "assistant", "content": OPEN}]
    assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
    model.generate(CHAT, max_new_tokens=3)
    assert "continue_final_message" not in server.requests[-1]


def test_without_such_a_switch_the_open_turn_is_quoted() -> None:
    with serving(Dialect(continues=False)) as server:
        model = opened(server)
        model.generate(CHAT, prefill=OPEN, max_new_tokens=3)
        assert [m["role"] for m in server.requests[-1]["messages"]] == ["system", "user"]
        assert OPEN in server.requests[-1]["messages"][-1]["content"]


def test_what_it_repeats_of_the_open_turn_is_dropped() -> None:
    with serving(Dialect(continues=False)) as server:
        model = opened(server)
        server.misbehave.append(sends({"choices": [{"message": {"content": "Action: finish[{}]"}}]}))
        assert model.generate(CHAT, prefill=OPEN, max_new_tokens=3)[0].text == " finish[{}]"


def test_with_a_tokenizer_the_prompt_is_rendered_here(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    counted = len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def counts_bytes(said: str) -> Any:
        answer = {"choices": [{"text": " alpha beta gamma"}], "usage": {"prompt_tokens": counted}}
        return sends(answer) if '"prompt"' in said else None

    with serving() as server:
        server.when = counts_bytes
        model = opened(server, f"tokenizer={tmp_path}")
        assert model.describe()["prefill"] == "completions" and model.describe()["token_counts"] == "tokenizer"
        model.generate(CHAT[1:], prefill=OPEN, max_new_tokens=3)
        sent = server.requests[-1]
        assert sent["path"] == "/v1/completions"
        assert sent["prompt"] == f"<|im_start|>user\nHow many orders?<|im_end|>\n<|im_start|>assistant\n{OPEN}"
        server.when = lambda said: None  # the server's own tokens are words: not the same model
        assert opened(server, f"tokenizer={tmp_path}").describe()["prefill"] == "chat"


def test_without_a_system_role_its_text_heads_the_users_turn() -> None:
    with serving(Dialect(systems=False)) as server:
        model = opened(server)
        assert model.describe()["system_role"] is False
        model.generate(CHAT, max_new_tokens=3)
        assert server.requests[-1]["messages"] == [{"role": "user", "content": "You write SQL.\n\nHow many orders?"}]


def test_prompts_that_are_written_by_another_template_are_other_calls(tmp_path: Path, server: StandIn) -> None:
    """The templates differ in what the probe's question does not show."""
    tokenizer, models = tiny_tokenizer(), []
    counted = len(tokenizer(f"<|im_start|>user\n{PROBED}<|im_end|>\n<|im_start|>assistant\n").input_ids)
    answer = {"choices": [{"text": " alpha beta gamma"}], "usage": {"prompt_tokens": counted}}
    server.when = lambda said: sends(answer) if '"prompt"' in said else None
    for name, template in {"one": TEMPLATE, "other": TEMPLATE.replace("m['content']", "m['content'] | trim")}.items():
        tiny_tokenizer(template).save_pretrained(tmp_path / name)
        models.append(opened(server, f"tokenizer={tmp_path / name}"))
    calls = []
    for model in models:
        assert model.abilities.way == "completions"
        cached = CachedModel(model, tmp_path / "answers.sqlite")
        calls.append(cached.generate([{"role": "user", "content": " How many? "}], max_new_tokens=3)[0].usage)
        cached.close()
    assert [usage.cached_calls for usage in calls] == [0, 0]


@pytest.mark.parametrize("way", ["a 500", "left out"])
def test_a_chat_template_without_a_system_role_is_found_by_a_500_or_by_the_count(way: str, server: StandIn) -> None:
    """SGLang and llama.cpp answer 500 where a template raises; Phi-3's first template wrote no system text at all."""

    def answer(body: str) -> Any:
        if '"role": "system"' not in body:
            return None
        if way == "a 500":
            return sends({"error": {"message": "System role not supported"}}, 500)
        return lambda handler: handler.answer({**(said := json.loads(body)), "messages": said["messages"][1:]})

    server.when = answer
    model = opened(server, "retries=1")
    assert model.describe()["system_role"] is False
    model.generate(CHAT, max_new_tokens=3)
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "You write SQL.\n\nHow many orders?"}]


def test_a_server_that_breaks_when_it_is_asked_with_a_system_text_is_an_error(server: StandIn) -> None:
    def answer(body: str) -> Any:
        broken = any('"role": "system"' in json.dumps(request) for request in server.requests)
        return sends({"error": {"message": "out of memory"}}, 500) if broken else None

    server.when = answer
    with pytest.raises(ModelError, match="HTTP 500: out of memory"):
        opened(server, "retries=0")


def test_the_window_is_the_servers_or_the_users() -> None:
    with serving(Dialect(window=777)) as server:
        assert opened(server).context_window == 777
        assert opened(server, "context_window=99").context_window == 99


# ------------------------------------------------------------------------------------------------- generating


def test_usage_is_what_the_server_counts(server: StandIn) -> None:
    model = opened(server, "price_in=2", "price_out=10")
    done = model.generate(CHAT, prefill=OPEN, max_new_tokens=5)[0]
    prompt = model.count_tokens(CHAT, OPEN)
    usage = done.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.model_calls) == (prompt, 5, 1)
    assert usage.reused_tokens == prompt // 2
    assert usage.cost == pytest.approx((2 * prompt + 10 * 5) / 1e6)
    assert done.logprob == -2.5 and done.finish_reason == "length"


@pytest.mark.parametrize("many", [8, 1, 2])
def test_n_samples_come_from_one_request_or_from_several(many: int) -> None:
    with serving(Dialect(many=many)) as server:
        model = opened(server)
        model.generate(CHAT, max_new_tokens=2, sampling=Sampling(), n=4, seed=1)  # finds out whether it samples
        server.requests.clear()
        found = model.generate(CHAT, max_new_tokens=8, sampling=Sampling(0.7, 0.8), n=4, seed=1)
        assert len(found) == 4 and len(server.requests) == (1 if many == 8 else 4)
        assert all(r["temperature"] == 0.7 and r["top_p"] == 0.8 and r["seed"] < 2**31 for r in server.requests)
        assert sum(c.usage.completion_tokens for c in found) == 32
        again = model.generate(CHAT, max_new_tokens=8, sampling=Sampling(0.7, 0.8), n=4, seed=1)
        assert [c.text for c in found] == [c.text for c in again]


def test_a_server_that_cannot_sample_gives_one_answer_for_all_samples(caplog: pytest.LogCaptureFixture) -> None:
    with serving(Dialect(samples=False)) as server:
        model = opened(server)
        (one,) = model.generate(CHAT, max_new_tokens=4)
        model.generate(CHAT, max_new_tokens=4, sampling=Sampling(), seed=1)
        before = len(server.requests)
        found = model.generate(CHAT, max_new_tokens=4, sampling=Sampling(), seed=1, n=5)
        assert [c.text for c in found] == [one.text] * 5 and len(server.requests) == before + 1
        assert [c.usage.model_calls for c in found] == [1, 0, 0, 0, 0]
        assert caplog.text.count("decodes greedily") == 1


@pytest.mark.parametrize("dialect", [Dialect(), Dialect(tokenize=False, usage=True), Dialect(chat=False)])
def test_a_server_is_asked_three_things_before_the_first_question(dialect: Dialect) -> None:
    with serving(dialect) as server:
        opened(server).close()
        assert len(server.requests) <= 3 + (not dialect.chat) * 4, [request["path"] for request in server.requests]


def test_a_server_that_answers_as_before_is_asked_one_thing(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path))
    first = opened(server)
    again = load_model(server.spec)
    assert len(server.requests) == 1 and again.describe() == first.describe() | {"batch_size": again.batch_size}
    kept = "".join(file.read_text(encoding="utf-8") for file in cache_dir("servers").iterdir())
    assert "org/some-model" not in kept  # neither the name nor the address
    server.requests.clear()
    server.when = lambda body: sends({"choices": [{"message": {"content": "other weights"}}]})
    assert load_model(server.spec).describe()["prefill"] == "user_turn" and len(server.requests) > 1


def test_a_finding_that_is_old_or_cannot_be_read_is_forgotten(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path))
    for damage in (lambda text: text.replace('"at":1', '"at":0'), lambda text: text[:-9], lambda text: "{}"):
        opened(server)
        (file,) = cache_dir("servers").iterdir()
        file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
        load_model(server.spec)
        assert len(server.requests) == 3


def test_stop_strings_are_cut_here_and_the_stream_is_hung_up() -> None:
    with serving(Dialect(stops=False)) as server:
        model = opened(server)
        done = model.generate(CHAT, stop=["gam", "delta"], max_new_tokens=8)[0]
        assert (done.text, done.finish_reason) == (" alpha beta ", "stop")
        assert server.requests[-1]["stream"] is True and "stop" not in server.requests[-1]
        assert done.usage.completion_tokens == 3


@pytest.mark.parametrize("field", ["structured_outputs.grammar", "guided_grammar", "grammar", "ebnf"])
def test_a_grammar_goes_out_in_the_form_that_the_server_obeys(field: str) -> None:
    with serving(Dialect(grammar=field)) as server:
        model = opened(server)
        lark = 'start: "zq" /[0-9]+/'
        assert model.generate(CHAT, max_new_tokens=9, grammar=Grammar("lark", lark))[0].text == "zq123"
        sent: Any = server.requests[-1]
        for part in field.split("."):
            sent = sent[part]
        assert sent.endswith(lark)


def test_a_server_that_silently_drops_a_grammar_is_found_out(server: StandIn) -> None:
    with serving(Dialect(grammar="grammar")) as server:  # llama.cpp goes on unconstrained when it cannot compile one
        model = opened(server)
        with pytest.raises(ModelError, match=r"left the grammar it was asked to keep to, at '123'") as caught:
            model.generate(CHAT, max_new_tokens=9, grammar=Grammar("lark", 'start: "zq" /[a-z]+/'))
        assert str(caught.value).startswith(server.url)
        cut = model.generate(CHAT, max_new_tokens=9, grammar=Grammar("lark", 'start: "zq" /[0-9]{9}/'))
        assert cut[0].text == "zq123"  # a beginning of what the grammar allows: the limit may have cut it


@pytest.mark.parametrize("grammar", [Grammar("lark", "start: {"), Grammar("json_schema", '{"type": 7}')])
def test_a_malformed_grammar_is_one_line(grammar: Grammar, server: StandIn) -> None:
    model = opened(server)
    with pytest.raises(ModelError, match=f"malformed {grammar.kind} grammar") as caught:
        model.generate(CHAT, max_new_tokens=9, grammar=grammar)
    assert "\n" not in str(caught.value) and not server.requests


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize(("kind", "text"), [("lark", 'start: "x"'), ("json_schema", '{"type": "integer"}')])
def test_a_server_without_structured_output_says_so(kind: Any, text: str, refuses: bool) -> None:
    with serving(Dialect(refuses_unknown=refuses)) as server:
        model = opened(server)
        for _ in range(2):
            with pytest.raises(ModelError, match=rf"does not obey a {kind} grammar .*leave --constrain at none"):
                model.generate(CHAT, max_new_tokens=9, grammar=Grammar(kind, text))


@pytest.mark.parametrize("dialect", [Dialect(), Dialect(tokenize=False), Dialect(tokenize=False, usage=False)])
def test_tokens_are_never_counted_too_few(dialect: Dialect) -> None:
    with serving(dialect) as server:
        model = opened(server)
        turns = ["", OPEN, OPEN + " finish[{}]\nObservation: no.\n" * 40, "word " * 1500]
        for turn in turns:
            model.generate(CHAT, prefill=turn[: len(turn) // 2], max_new_tokens=1)
            real = tokens("".join(f"<{m['role']}> {m['content']} </s>\n" for m in CHAT) + f"<assistant> {turn}")
            assert model.count_tokens(CHAT, turn) >= real
            if dialect.tokenize:
                assert model.count_tokens(CHAT, turn) == real


def test_a_prompt_that_does_not_fit_is_told_with_numbers(server: StandIn) -> None:
    model = opened(server, "context_window=100")
    with pytest.raises(
        ModelError, match=r"prompt of \d+ tokens \+ max_new_tokens 90 exceeds the context window of 100"
    ):
        model.generate(CHAT, prefill=OPEN, max_new_tokens=90)


def test_as_many_requests_at_once_as_the_batch_size(server: StandIn) -> None:
    model = opened(server, batch_size=3)
    server.delay_s = 0.05
    with ThreadPoolExecutor(12) as threads:
        done = list(threads.map(lambda _: model.generate(CHAT, max_new_tokens=2)[0], range(12)))
    assert server.most_at_once == 3
    assert max(c.usage.queue_seconds for c in done) > 0.1


@pytest.mark.parametrize("field", ["", "guided_grammar"])
def test_a_server_is_tried_before_it_is_believed_to_take_grammars(field: str) -> None:
    with serving(Dialect(grammar=field)) as server, contextlib.closing(opened(server)) as model:
        assert takes_grammars(model) is bool(field)
        asked = len(server.requests)
        assert takes_grammars(model) is bool(field) and len(server.requests) == asked
