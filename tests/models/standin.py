"""A small real HTTP server that speaks the OpenAI protocol, well or badly, for tests.

Its tokens are words and line ends; its model writes the same eight words to everything. ``Dialect`` says which of the
protocol's extensions it has; ``misbehave`` holds what goes wrong, in order, with requests that generate.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from nl2sql.interfaces import Model
from nl2sql.models import load_model
from nl2sql.models.http.model import HttpModel

CHAT = [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": "How many orders?"}]
OPEN = "Thought: count them.\nAction:"
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@dataclass(frozen=True)
class Dialect:
    continues: bool = True  # a final assistant message is left open when asked to
    refuses_unknown: bool = False  # 400 for fields it does not know
    stops: bool = True
    many: int = 8  # completions at once; 1 = n is ignored
    logprobs: bool = True
    samples: bool = True
    chat: bool = True
    systems: bool = True
    completions: bool = True
    tokenize: bool = True
    grammar: str = ""  # the field that holds a grammar it obeys
    limit: str = "max_tokens"
    usage: bool = True
    echoes: bool = False
    streams: bool = True
    tools: str = ""  # "shows": tools are in the prompt, the model calls the first; "ignores": taken, dropped
    key: str = ""
    names: tuple[str, ...] = ("org/some-model",)
    window: int = 2048


KNOWN = {"model", "messages", "prompt", "max_tokens", "temperature", "top_p", "stop", "n", "seed", "logprobs", "stream"}
KNOWN |= {"stream_options", "response_format"}


def tokens(text: str) -> int:
    return len(re.findall(r"\S+|\n", text))


class StandIn(ThreadingHTTPServer):
    """``requests`` holds every body that asked for a completion, with its path."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dialect = dialect
        self.requests: list[dict[str, Any]] = []
        self.misbehave: list[Callable[[_Handler], None]] = []
        self.when: Callable[[str], Callable[[_Handler], None] | None] = lambda text: None
        self.at_once = self.most_at_once = 0
        self.delay_s = 0.0
        self.listed: Any = None  # in place of the list of models
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def spec(self) -> str:
        return f"{self.url}#{self.dialect.names[0]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is no error here."""


@contextlib.contextmanager
def serving(dialect: Dialect | None = None) -> Iterator[StandIn]:
    server = StandIn(dialect or Dialect())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        dialect = self.server.dialect
        if self.path == "/v1/models":
            rows = [{"id": name, "object": "model", "max_model_len": dialect.window} for name in dialect.names]
            return self.reply(self.server.listed or {"object": "list", "data": rows})
        return self.reply({"error": {"message": "not found"}}, 404)

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.body = body
        if server.dialect.key and self.headers.get("Authorization") != f"Bearer {server.dialect.key}":
            return self.reply({"error": {"message": f"bad key {self.headers.get('Authorization')}"}}, 401)
        if self.path == "/tokenize" and server.dialect.tokenize:
            return self.reply({"count": tokens(self.prompt(body)), "max_model_len": server.dialect.window})
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            return self.reply({"detail": "Not Found"}, 404)
        with server.lock:
            server.requests.append({"path": self.path, **body})
            bad = server.misbehave.pop(0) if server.misbehave else server.when(json.dumps(body))
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            time.sleep(server.delay_s)
            return bad(self) if bad else self.answer(body)
        finally:
            with server.lock:
                server.at_once -= 1

    def answer(self, body: dict[str, Any]) -> None:
        dialect, chat = self.server.dialect, self.path.endswith("/chat/completions")
        unknown = set(body) - KNOWN - {dialect.limit, dialect.grammar.partition(".")[0]}
        if dialect.continues:
            unknown -= {"continue_final_message", "add_generation_prompt", "chat_template_kwargs"}
        unknown -= {"tools"} if dialect.tools else set()
        if body.get("model") not in dialect.names:
            return self.reply({"error": {"message": f"The model `{body.get('model')}` does not exist."}}, 404)
        if not (dialect.chat if chat else dialect.completions):
            return self.reply({"error": {"message": "no such endpoint"}}, 404)
        if chat and not dialect.systems and any(m["role"] == "system" for m in body["messages"]):
            return self.reply({"error": {"message": "System role not supported"}}, 400)
        if (dialect.refuses_unknown and unknown) or dialect.limit not in body:
            return self.reply({"error": {"message": f"Unknown fields: {sorted(unknown)}"}}, 400)
        if body.get("n", 1) > dialect.many > 1:
            return self.reply({"error": {"message": f"n is at most {dialect.many}"}}, 400)
        prompt = self.prompt(body)
        count = tokens(prompt)
        if count + body[dialect.limit] > dialect.window:
            return self.reply({"error": {"message": "maximum context length exceeded"}}, 400)
        n = body.get("n", 1) if dialect.many > 1 else 1
        choices = [self.choice(body, index, chat) for index in range(n)]
        used = {"prompt_tokens": count, "completion_tokens": sum(len(c["text"].split()) for c in choices)}
        used["prompt_tokens_details"] = {"cached_tokens": count // 2}
        if body.get("stream") and dialect.streams:
            return self.stream(choices[0], used, chat)
        for choice in choices:
            text = choice.pop("text")
            if chat and dialect.echoes and body["messages"][-1]["role"] == "assistant":
                text = body["messages"][-1]["content"] + text
            choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            if dialect.tools == "shows" and body.get("tools"):
                call = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
                calls = [{"id": "x", "type": "function", "function": call}]
                choice |= {"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
        return self.reply({"choices": choices, **({"usage": used} if dialect.usage else {})})

    def prompt(self, body: dict[str, Any]) -> str:
        if "prompt" in body:
            return body["prompt"]
        open_turn = self.server.dialect.continues and body.get("continue_final_message")
        *rest, last = body["messages"]
        closed = "".join(f"<{m['role']}> {m['content']} </s>\n" for m in (rest if open_turn else [*rest, last]))
        shown = json.dumps(body["tools"]) + "\n" if self.server.dialect.tools == "shows" and body.get("tools") else ""
        closed = shown + closed
        return closed + ("<assistant> " + (last["content"] if open_turn else ""))

    def choice(self, body: dict[str, Any], index: int, chat: bool) -> dict[str, Any]:
        dialect = self.server.dialect
        shift = (body.get("seed") or 0) + index if dialect.samples and body["temperature"] > 0 else 0
        words = [WORDS[(at + shift) % 8] for at in range(8)][: body[dialect.limit]]
        text, finish = " " + " ".join(words), "length" if len(words) == body[dialect.limit] else "stop"
        if dialect.grammar and self.field(dialect.grammar) is not None:
            text, finish = "zq123", "stop"
        for stop in body.get("stop") or () if dialect.stops else ():
            if stop in text:
                text, finish = text[: text.index(stop)], "stop"
        found: dict[str, Any] = {"index": index, "text": text, "finish_reason": finish}
        if dialect.logprobs and "logprobs" in body:
            each = [-0.5] * len(text.split())
            found["logprobs"] = {"content": [{"logprob": v} for v in each]} if chat else {"token_logprobs": each}
        return found

    def field(self, dotted: str) -> Any:
        value: Any = self.body
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def stream(self, choice: dict[str, Any], used: dict[str, Any], chat: bool) -> None:
        self.start_stream()
        for word in re.findall(r"\s*\S+", choice["text"]):
            part = {"delta": {"content": word}} if chat else {"text": word}
            self.event({"choices": [{"index": 0, **part}]})
        self.event({"choices": [{"index": 0, "text": "", "finish_reason": choice["finish_reason"]}]})
        self.event({"choices": [], **({"usage": used} if self.server.dialect.usage else {})})
        self.wfile.write(b"data: [DONE]\n\n")

    def start_stream(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def event(self, data: Any) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()

    def reply(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.raw(json.dumps(data).encode(), status, headers)

    def raw(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


# ------------------------------------------------------------------------------------------------ misbehaviour


def sends(content: Any, status: int = 200, **headers: str) -> Callable[[_Handler], None]:
    """A body (text, or anything as JSON) with a status and headers."""
    data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    return lambda handler: handler.raw(data, status, {k.replace("_", "-"): v for k, v in headers.items()})


def hangs_up(handler: _Handler) -> None:
    """Half an answer, then nothing."""
    handler.close_connection = True
    handler.wfile.write(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"choices": ['
    )


def drips(handler: _Handler) -> None:
    """One byte now and then, for ever."""
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


def never_ends(handler: _Handler) -> None:
    """A stream of tokens without end."""
    handler.start_stream()
    with contextlib.suppress(OSError):
        while True:
            handler.event({"choices": [{"index": 0, "text": "word " * 2000, "delta": {"content": "word " * 2000}}]})


# -------------------------------------------------------------------------------------------------- the other end


def opened(server: StandIn, *options: str, batch_size: int = 4) -> HttpModel:
    """The stand-in as a model; what the probe asked is forgotten."""
    made = load_model(server.spec, server=options, batch_size=batch_size)
    assert isinstance(made, HttpModel) and isinstance(made, Model)
    server.requests.clear()
    return made
