"""The environment in the form of the verifiers library, over a real server that speaks the OpenAI protocol.

verifiers pins older versions of two libraries than this project's extras need, so it is installed apart (.ci/run).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

vf = pytest.importorskip("verifiers.v1", reason="pip install verifiers==0.4.0 in an environment of its own")

GOLD = "SELECT COUNT(*) FROM students WHERE status = 'on leave'"
LUCKY = "SELECT MIN(22) FROM students"  # the count itself, written into the query


class Server(ThreadingHTTPServer):
    """Writes an action of the loop where one is asked for, and ``sql`` where a query is. ``asked``: all bodies."""

    daemon_threads = True

    def __init__(self, sql: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sql, self.asked, self.broken = sql, list[dict[str, Any]](), False


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        said = body["messages"][-1]["content"]
        acts = "Action:" in said
        step = next((step for step in STEPS if f"Action: {step}[" not in said), "finish")
        text = f"Thought: next.\nAction: {step}[{{}}]" if acts else self.server.sql
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
        }
        data = json.dumps(reply).encode()
        self.send_response(500 if self.server.broken else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


STEPS = ("generate_sql", "validate_sql", "validate_constraints", "run_sql")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(GOLD) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def play(server: Server, controller: str, **taskset: Any) -> Any:
    """The trace of the first question, through the library's own environment."""
    config = {
        "taskset": {"id": "nl2sql_verifiers", "limit": 1, **taskset},
        "agent": {
            "harness": {"id": "nl2sql_verifiers", "controller": controller},
            "runtime": {"type": "subprocess"},
        },
    }
    from verifiers.v1.utils.loaders import resolve_env_config

    environment = vf.load_environment(resolve_env_config(config))
    url = f"http://127.0.0.1:{server.server_port}/v1"
    context = vf.ModelContext(model="tiny", client=vf.EvalClientConfig(base_url=url, api_key_var="NONE_NEEDED"))

    async def run() -> Any:
        async with environment.serving():
            [task] = list(environment.taskset)
            return await environment.run_episode(task, context)

    episode = asyncio.run(run())
    return episode.traces[0]


@pytest.mark.parametrize(("controller", "turns"), [("single_shot", 1), ("react_plus", 2)])
def test_a_right_answer_earns_each_part_through_the_library(server: Server, controller: str, turns: int) -> None:
    trace = play(server, controller)
    assert trace.ok, trace.errors
    scores = {name: reward.score for name, reward in trace.rewards.items()}
    assert {**scores, "cost": 0} == {"ex": 1, "ts": 1, "format": 1, "cost": 0}
    assert trace.rewards["ts"].weight == 0.7 and trace.rewards["cost"].score < 0
    assert trace.reward == pytest.approx(trace.info["nl2sql_reward"]["total"])
    assert trace.num_turns == len(server.asked) == turns


def test_a_number_written_into_the_query_is_seen_as_lucky(server: Server) -> None:
    server.sql = LUCKY
    trace = play(server, "single_shot")
    assert (trace.rewards["ex"].score, trace.rewards["ts"].score, trace.metrics["lucky"]) == (1, 0, 1)
    assert trace.reward < 0.3


def test_weights_are_those_of_our_configuration(server: Server) -> None:
    trace = play(server, "single_shot", settings={"reward": {"ts": 0.5}})
    assert trace.rewards["ts"].weight == 0.5


def test_no_gold_is_in_a_trace_or_a_prompt(server: Server) -> None:
    server.sql = "SELECT name FROM students"
    trace = play(server, "react_plus")
    assert GOLD.removeprefix("SELECT ") not in json.dumps(trace.to_record(), default=str) + json.dumps(server.asked)


def test_a_server_that_fails_is_an_error_of_the_rollout_and_ends_the_thread(server: Server) -> None:
    server.broken = True
    trace = play(server, "react_plus")
    assert not trace.ok and trace.errors
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("episode-")] == []
