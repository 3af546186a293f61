"""The loop in the native tool-calling form: what the back end is asked, what of its reply is read, what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs
import pytest
from models.standin import Dialect, sends, serving
from models.tiny import TEMPLATE, TOOL_TEMPLATE, saved_tiny, tiny_model, tiny_tokenizer
from test_grammars import accepts

from nl2sql.agents.controllers import check_model_abilities
from nl2sql.agents.forms import as_action, definitions
from nl2sql.agents.grammars.select import tool_call_grammar
from nl2sql.agents.react import bootstrap, react_sql
from nl2sql.config import Config, load_config
from nl2sql.databases.sqlite.database import SqliteDatabase
from nl2sql.errors import ModelError
from nl2sql.interfaces import Question, Resources
from nl2sql.models import load_model
from nl2sql.models.http import transport
from nl2sql.models.http.wire import read_answers
from nl2sql.models.local import LocalModel
from nl2sql.models.response_cache import CachedModel
from nl2sql.models.rows import Constrainer
from nl2sql.models.scripted import ScriptedModel

NATIVE = ["react.native_tools=true"]
QUESTION = "How many orders were shipped?"


def call(name: str, **args: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': args})}\n</tool_call>"


@pytest.fixture
def database(shop: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(shop) as opened:
        yield opened


class Recorder(ScriptedModel):
    """Keeps what it was asked."""

    def generate(self, messages: Any, **options: Any) -> Any:
        self.__dict__.setdefault("asked", []).append((list(messages), options))
        return super().generate(messages, **options)


# ----------------------------------------------------------------------------------------------- the question


def test_the_history_is_a_conversation_of_calls_and_answers(database: SqliteDatabase) -> None:
    talk = "Let me see."
    model = Recorder([f"{talk}\n{call('run_sql')}", "no idea", call("get_table_samples", table="orders", n=1), "x"])
    config = load_config((), [*NATIVE, "react.max_steps=4", "react.repeat_hint=true"])
    episode = react_sql(QUESTION, database, model, config)
    messages, options = model.__dict__["asked"][3]
    assert [message["role"] for message in messages] == [
        *("system", "user", "assistant", "tool", "assistant", "tool"),  # question, bootstrap
        *("assistant", "tool", "assistant", "user", "assistant", "tool"),
    ]
    forced, answer, said, complaint, samples, rows = messages[6:]
    assert forced["content"] == talk, "the forced action stands in place of the call it overrides"
    assert forced["tool_calls"][0]["function"] == {"name": "extract_constraints", "arguments": {}}
    assert answer["tool_call_id"] == forced["tool_calls"][0]["id"] and '"agg"' in answer["content"]
    assert (said["content"], complaint["content"]) == ("no idea", "format_error:no idea")
    assert samples["tool_calls"][0]["function"]["arguments"] == {"table": "orders", "n": 1}
    assert "shipped" in rows["content"]
    assert not options.get("prefill") and len(options["tools"]) == 10
    assert episode.messages == messages[:2] and "Thought:" not in messages[0]["content"]
    assert [c["messages"] for c in episode.calls if c["kind"] == "act"][3] == messages
    assert f"{talk}\nAction: run_sql[{{}}]\nAction: extract_constraints[{{}}]\nObservation: " in episode.transcript


def test_a_hint_belongs_to_the_answer_before_it(database: SqliteDatabase) -> None:
    model = Recorder([call("get_schema"), *[call("get_schema")] * 2, "x"])
    config = load_config((), [*NATIVE, "react.max_steps=4", "react.repeat_hint=true"])
    react_sql(QUESTION, database, model, config)
    last = model.__dict__["asked"][3][0][-1]
    assert last["role"] == "tool" and last["content"].endswith("now use generate_sql.")


def test_tools_are_described_as_in_the_prompt_and_registered_ones_by_themselves(database: SqliteDatabase) -> None:
    def look_up(state: Any, args: Any) -> Any:
        """Look a word up.

        More.
        """

    look_up.parameters = {"type": "object", "properties": {"word": {"type": "string"}}}  # type: ignore[attr-defined]
    resources = Resources(ScriptedModel([]), database, tools={"look_up": look_up, "plain": lambda state, args: 1})
    found = {
        d["function"]["name"]: d["function"] for d in definitions(bootstrap(Question("?"), resources, Config()).task)
    }
    assert found["run_sql"] == {
        "name": "run_sql",
        "description": "execute the statement",
        "parameters": {"type": "object", "properties": {}},
    }
    assert found["get_table_samples"]["parameters"]["required"] == ["table"]
    assert found["look_up"]["description"] == "Look a word up." and "word" in str(found["look_up"]["parameters"])
    assert found["plain"] == {"name": "plain", "description": "plain", "parameters": {"type": "object"}}


# -------------------------------------------------------------------------------------------------- the reply


@pytest.mark.parametrize(
    ("reply", "action", "dropped"),
    [
        (call("run_sql"), "Action: run_sql[{}]", 0),
        (call("t", a="é]\n"), 'Action: t[{"a": "é]\\n"}]', 0),
        (f"So.\n\n{call('a')}\n{call('b')}", "So.\nAction: a[{}]", 1),
        ('<tool_call>{"name": "a", "arguments": "{\\"n\\": 1}"}', 'Action: a[{"n": 1}]', 0),
        ('{"name": "a", "parameters": {"n": 1}}', 'Action: a[{"n": 1}]', 0),
        ('[{"name": "a"}, {"name": "b"}]', "Action: a[{}]", 1),
        (f"<tool_call>broken</tool_call>{call('a')}", "Action: a[{}]", 0),
        ("<tool_call>" + "[" * 99_999, None, 0),
        ('<tool_call>{"name": "a", "arguments": "no json"}</tool_call>', None, 0),
        ('<tool_call>{"name": 1}</tool_call>', None, 0),
        ('{"answer": 3}', None, 0),
        ("3", None, 0),
        ("", None, 0),
    ],
)
def test_what_is_read_as_a_call(reply: str, action: str | None, dropped: int) -> None:
    assert as_action(reply) == (reply if action is None else action, dropped)


# ------------------------------------------------------------------------------------------- grammars, back ends


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        (call("run_sql"), True),
        (f"I count them.\n{call('run_sql')}", True),
        (call("look", a=1), True),
        (call("run_sql", a=1), False),
        (call("drop_table"), False),
        ("I count them.", False),
        (call("run_sql") + "\n", False),
        (f"{'x' * 61}\n{call('run_sql')}", False),
        (f"Action: run_sql[{{}}]\n{call('run_sql')}", False),
        ("Thought: x\nAction: run_sql[{}]", False),
    ],
)
def test_a_constrained_turn_is_one_call_of_a_tool_that_exists(text: str, ok: bool) -> None:
    grammar = tool_call_grammar((("run_sql", '"{}"'), ("look", "object")), 60)
    assert accepts(Constrainer(tiny_tokenizer(), 259, [1, 2]), grammar, text) is ok


def local(template: str | None) -> LocalModel:
    return LocalModel(tiny_model(), tiny_tokenizer(template), name="tiny", revision="test", batch_size=2)


def test_a_random_local_model_makes_no_format_error(database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    model = local(TOOL_TEMPLATE)
    model.context_window = 20_000
    config = load_config((), [*NATIVE, "constrain=action", "react.thought_characters=20", "react.max_steps=2"])
    check_model_abilities(model, config)
    episode = react_sql(QUESTION, database, model, config)
    model.close()
    turns = [c for c in episode.calls if c["kind"] == "act"]
    assert turns and not episode.flags.get("format_errors"), episode.error
    pattern = r'([^\n<]{1,20}\n)?<tool_call>\n\{"name": "\w+", "arguments": \{.*\}\}\n</tool_call>'
    assert all(re.fullmatch(pattern, c["text"]) for c in turns), turns
    assert "zq" not in str(turns) and all(c["usage"]["prompt_tokens"] > 1500 for c in turns), (
        "the tools are in the prompt"
    )


NO_CALLS = TEMPLATE.replace("{% for m", "{{ tools }}{% for m", 1)
OTHER_FORM = TOOL_TEMPLATE.replace("<tool_call>", "<|call|>")


@pytest.mark.parametrize(
    ("template", "settings", "says"),
    [
        (TEMPLATE, NATIVE, "the chat template shows no tools: this model has no native tool calls"),
        (None, NATIVE, "there is no chat template: this model has no native tool calls"),
        (NO_CALLS, NATIVE, "the chat template shows tools, but not their calls and answers"),
        (OTHER_FORM, [*NATIVE, "constrain=sql"], "writes tool calls in another form than <tool_call>"),
    ],
)
def test_a_template_that_cannot_is_refused_before_a_run_and_in_it(
    database: SqliteDatabase, template: str | None, settings: list[str], says: str
) -> None:
    model, config = local(template), load_config((), settings)
    with pytest.raises(ModelError, match=says):
        check_model_abilities(model, config)
    model.context_window = 20_000
    episode = react_sql("Hm?", database, model, config)
    assert episode.finish == "error" and re.match(f"model: .*{says}", episode.error or "")
    model.close()


def test_other_calls_are_other_prompts_and_other_cache_entries(tmp_path: Path) -> None:
    model = CachedModel(local(TOOL_TEMPLATE), tmp_path / "answers.sqlite")
    tool = {"type": "function", "function": {"name": "a", "description": "b", "parameters": {}}}
    asked = [{"role": "user", "content": "?"}]
    plain, offered = model.count_tokens(asked), model.count_tokens(asked, tools=[tool])
    assert offered > plain
    first = model.generate(asked, max_new_tokens=2, tools=[tool])[0].usage
    again = model.generate(asked, max_new_tokens=2, tools=[tool])[0].usage
    without = model.generate(asked, max_new_tokens=2)[0].usage
    assert [u.cached_calls for u in (first, again, without)] == [0, 1, 0]
    assert (first.prompt_tokens, without.prompt_tokens) == (offered, plain)
    model.close()


# ---------------------------------------------------------------------------------------------------- servers


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "FIRST_WAIT_S", 0.01)


@pytest.mark.parametrize("stops", [True, False])
def test_a_server_is_sent_tools_and_its_calls_are_read(database: SqliteDatabase, stops: bool) -> None:
    with serving(Dialect(tools="shows", window=9000, stops=stops)) as server:
        model = load_model(server.spec)
        server.requests.clear()
        config = load_config((), [*NATIVE, "react.max_steps=3"])
        check_model_abilities(model, config)
        episode = react_sql(QUESTION, database, model, config)
        model.close()
    actions = [r["action"] for r in episode.trace if "action" in r]
    assert actions == ["extract_constraints", "get_schema", "get_schema"], "it calls the first tool; one is overridden"
    assert episode.trace[0]["llm"] == call("get_schema")
    last = [body for body in server.requests if body.get("tools") and len(body["messages"]) > 6][-1]
    assert last["tools"][0]["function"]["name"] == "get_schema" and "continue_final_message" not in last
    assert last["messages"][-2]["tool_calls"][0]["function"] == {"name": "get_schema", "arguments": "{}"}
    assert last["messages"][-1]["role"] == "tool" and not last.get("stream")
    sent = [c["usage"]["prompt_tokens"] for c in episode.calls if c["kind"] == "act"]
    assert sent == sorted(sent) and sent[0] > 200, "tools and history count"


@pytest.mark.parametrize(
    ("dialect", "settings", "says"),
    [
        (Dialect(tools="ignores"), NATIVE, "takes tools and does not show them to org/some-model"),
        (Dialect(refuses_unknown=True), NATIVE, r"Unknown fields: \['tools'\].*react.native_tools is on"),
        (Dialect(chat=False), NATIVE, "has no chat, so no native tool calls"),
        (Dialect(tools="shows"), [*NATIVE, "constrain=action"], "parses tool calls itself, which goes with no grammar"),
    ],
)
def test_a_server_that_cannot_is_refused_before_the_run(dialect: Dialect, settings: list[str], says: str) -> None:
    with serving(dialect) as server:
        model = load_model(server.spec)
        with pytest.raises(ModelError, match=says):
            check_model_abilities(model, load_config((), settings))
        model.close()


def test_a_server_whose_prompts_are_rendered_here_gets_tools_in_the_prompt(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(TOOL_TEMPLATE)
    tokenizer.save_pretrained(tmp_path)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = {"choices": [{"text": call("a")}], "usage": {"prompt_tokens": len(tokenizer(text)["input_ids"])}}
    tool = {"type": "function", "function": {"name": "a", "description": "b", "parameters": {}}}
    with serving() as server:
        server.when = lambda said: sends(answer) if '"prompt"' in said else None
        model = load_model(server.spec, server=[f"tokenizer={tmp_path}"])
        check_model_abilities(model, load_config((), [*NATIVE, "constrain=action"]))
        done = model.generate([{"role": "user", "content": "?"}], max_new_tokens=2, tools=[tool])
        model.close()
    sent = server.requests[-1]
    assert sent["path"] == "/v1/completions" and '"name": "a"' in sent["prompt"] and "tools" not in sent
    assert as_action(done[0].text) == ("Action: a[{}]", 0)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"tool_calls": "x"}, "a str as 'tool_calls'"),
        ({"tool_calls": [3]}, "a tool call without a function's name"),
        ({"tool_calls": [{"function": {"name": 4}}]}, "a tool call without a function's name"),
        ({"tool_calls": []}, "no 'content'"),
    ],
)
def test_garbage_in_place_of_calls_is_one_line(message: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read_answers({"choices": [{"message": message}]}, ())


def test_what_a_server_says_before_its_calls_is_kept_and_arguments_that_are_no_json_are_the_loops_to_judge() -> None:
    function = {"name": "a", "arguments": "no json"}
    message = {"content": "So.", "tool_calls": [{"function": {"name": "b"}}, {"function": function}]}
    text = read_answers({"choices": [{"message": message}]}, ())[0].text
    assert text == f"So.\n{call('b')}\n" + '<tool_call>\n{"name": "a", "arguments": "no json"}\n</tool_call>'
    assert as_action(text) == ("So.\nAction: b[{}]", 0)


# ------------------------------------------------------------------------------------- once, before the first episode


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "--limit", "3", "-q", "--out", "run", "--constrain", "action"],
        ["ask", "How many orders?", "--db", "packaged:scale_models", "-c", "constrain=sql"],
    ],
)
def test_without_llguidance_a_constrained_command_fails_once_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    saved_tiny(tmp_path / "tiny")
    monkeypatch.setitem(sys.modules, "llguidance", None)
    done = programs.command(*command, "--model", tmp_path / "tiny", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "" and not (tmp_path / "run").exists()
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: constrained decoding needs llguidance: pip install ")
    assert last.endswith("[grammar]' (or --constrain none)") and done.stderr.count("llguidance") == 1
