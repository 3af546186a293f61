"""Small real HTTP servers, one for each provider that has a name, which behave as its documentation says.

Each refuses what the real one refuses, in its words. Their model answers every question with ``SQL`` (the probe's with
``PARIS``), word by word; a thinking one writes ``THOUGHT`` before that, whose words count against the limit.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

SQL = "SELECT COUNT(*) FROM customers"
PARIS = "The capital of France is Paris, of course, as it has long been."
THOUGHT = "First I look; the tables are Observation: known and so I count the customers now"
KEY = "sk-test-4f9a77c1b2"


class Refused(Exception):
    """What the server answers with in place of text."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.status = param, status


@dataclass(frozen=True)
class Words:
    """What the model writes: thoughts, then an answer, and whether the limit ended it."""

    thought: str
    text: str
    finish: str
    logprob: bool = False


def words_of(text: str) -> int:
    return len(re.findall(r"\S+", text))


def write(asked: str, opened: str, limit: int, stops: list[str], thinks: bool) -> Words:
    """opened: the turn that the model goes on with."""
    answer = PARIS if "France" in asked else SQL
    if opened and answer.startswith(opened):
        answer = answer.removeprefix(opened)
    thought = re.findall(r"\S+\s*", THOUGHT if thinks else "")
    kept, room = thought[:limit], limit - len(thought[:limit])
    pieces = re.findall(r"\s*\S+", answer)
    text, finish = "".join(pieces[:room]), "length" if len(pieces) > room else "stop"
    for stop in stops:
        if stop in text:
            text, finish = text[: text.index(stop)], "stop"
    return Words("".join(kept), text, finish)


@dataclass
class App:
    """An OpenAI-compatible server without peculiarities; the providers' own override parts of it."""

    name: str = "some-model"
    key: str = ""
    thinks: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)  # that asked for text, refused ones too
    refusals: list[str] = field(default_factory=list)
    known: ClassVar = {"model", "messages", "max_tokens", "temperature", "top_p", "stop", "n", "seed", "logprobs"}
    known |= {"stream", "stream_options", "tools", "response_format"}
    root = "/v1"

    def get(self, path: str) -> Any:
        if path == f"{self.root}/models":
            return {"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "someone"}]}
        raise Refused("not found", status=404)

    def check_key(self, headers: Mapping[str, str]) -> None:
        if self.key and headers.get("Authorization") != f"Bearer {self.key}":
            raise Refused(f"Incorrect API key provided: {headers.get('Authorization')}.", status=401)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """JSON, or a list of events."""
        if path != f"{self.root}/chat/completions":
            raise Refused("not found", status=404)
        self.bodies.append(body)
        if body["model"] != self.name:
            raise Refused(f"The model `{body['model']}` does not exist", status=404)
        self.refuse(body)
        return self.chat(body)

    def refuse(self, body: dict[str, Any]) -> None:
        """Raises Refused for what this server does not take."""

    def opened(self, body: dict[str, Any]) -> str:
        """The open turn that the model goes on with; most servers close it."""
        return ""

    def thinking(self, body: dict[str, Any]) -> bool:
        return self.thinks

    def shown(self, words: Words) -> dict[str, Any]:
        """The message, thoughts where this server puts them."""
        return {"role": "assistant", "content": words.text, "reasoning_content": words.thought or None}

    def chat(self, body: dict[str, Any]) -> Any:
        asked = "\n".join(str(message["content"]) for message in body["messages"])
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        words = write(asked, self.opened(body), limit, stops, self.thinking(body))
        spent = words_of(words.thought)
        usage = {"prompt_tokens": words_of(asked) + 4 * len(body["messages"])}
        usage |= {"completion_tokens": spent + words_of(words.text)}
        usage |= {"completion_tokens_details": {"reasoning_tokens": spent}} if spent else {}
        message = self.shown(words)
        if body.get("stream"):
            return self.events(message, words.finish, usage)
        choice: dict[str, Any] = {"message": message, "finish_reason": words.finish}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"logprob": -0.5}] * words_of(words.text)}
        return {"choices": [{"index": at, **choice} for at in range(self.many(body))], "usage": usage}

    def many(self, body: dict[str, Any]) -> int:
        return int(body.get("n", 1))

    def events(self, message: dict[str, Any], finish: str, usage: dict[str, Any]) -> list[Any]:
        pieces = []
        for name in ("reasoning_content", "reasoning", "content"):
            pieces += [{name: piece} for piece in re.findall(r"\s*\S+\s*", message.get(name) or "")]
        deltas: list[Any] = [{"choices": [{"index": 0, "delta": piece}]} for piece in pieces]
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}
        return [*deltas, last, {"choices": [], "usage": usage}, "[DONE]"]

    def error(self, refused: Refused) -> Any:
        return {
            "error": {"message": str(refused), "type": "invalid_request_error", "param": refused.param, "code": None}
        }


class OpenAI(App):
    """A chat model of api.openai.com: what it does not know it refuses, and it continues no turn."""

    def refuse(self, body: dict[str, Any]) -> None:
        unknown = sorted(set(body) - self.known)
        if unknown:
            raise Refused(f"Unrecognized request argument supplied: {', '.join(unknown)}")
        if len(body.get("stop") or ()) > 4:
            raise Refused("Invalid 'stop': array too long. Expected an array with maximum length 4.", "stop")


class OpenAIReasoning(OpenAI):
    """One of the o and gpt-5 series: thoughts are counted and not shown; many parameters are refused."""

    known = OpenAI.known | {"max_completion_tokens", "reasoning_effort"}

    def refuse(self, body: dict[str, Any]) -> None:
        super().refuse(body)
        if "max_tokens" in body:
            raise Refused(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                "max_tokens",
            )
        if body.get("temperature", 1) != 1:
            raise Refused(
                f"Unsupported value: 'temperature' does not support {body['temperature']} with this model. "
                "Only the default (1) value is supported.",
                "temperature",
            )
        for name in ("stop", "top_p", "logprobs"):
            if name in body:
                raise Refused(f"Unsupported parameter: '{name}' is not supported with this model.", name)

    def shown(self, words: Words) -> dict[str, Any]:
        return {"role": "assistant", "content": words.text, "refusal": None}


class Anthropic(App):
    """api.anthropic.com by its OpenAI-compatible interface; an older model, which continues a turn."""

    prefill = True

    def check_key(self, headers: Mapping[str, str]) -> None:
        if headers.get("x-api-key") != self.key:
            raise Refused("invalid x-api-key", status=401)
        if not headers.get("anthropic-version"):
            raise Refused("anthropic-version: header is required")

    def refuse(self, body: dict[str, Any]) -> None:
        if body.get("n", 1) != 1:
            raise Refused("n: must be exactly 1")
        if "temperature" in body and "top_p" in body:
            raise Refused("`temperature` and `top_p` cannot both be specified for this model. Please use only one.")
        *before, last = body["messages"]
        if not all(str(message["content"]).strip() for message in before):
            raise Refused("messages: all messages must have non-empty content except for the optional final assistant")
        if last["role"] == "assistant":
            if not self.prefill or body.get("thinking"):
                raise Refused("This model does not support assistant message prefill.")
            if last["content"] != last["content"].rstrip():
                raise Refused("messages: final assistant content cannot end with trailing whitespace")
        if body.get("thinking") and body["thinking"]["budget_tokens"] >= body["max_tokens"]:
            raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`")
        if body.get("thinking") and body.get("temperature", 1) != 1:
            raise Refused("`temperature` may only be set to 1 when thinking is enabled.")

    def opened(self, body: dict[str, Any]) -> str:
        last = body["messages"][-1]
        return str(last["content"]) if last["role"] == "assistant" else ""

    def thinking(self, body: dict[str, Any]) -> bool:
        return bool(body.get("thinking"))

    def shown(self, words: Words) -> dict[str, Any]:
        return {"role": "assistant", "content": words.text}  # thoughts are counted and not shown

    def chat(self, body: dict[str, Any]) -> Any:
        return super().chat({name: value for name, value in body.items() if name != "logprobs"})


class AnthropicNewer(Anthropic):
    """A model that continues no turn."""

    prefill = False


class Ollama(App):
    """ollama serve: what it does not know it ignores; n too. /api/ps tells the window that the model was given."""

    def get(self, path: str) -> Any:
        if path == "/api/version":
            return {"version": "0.40.12"}
        if path == "/api/ps":
            row = {"name": self.name, "model": self.name, "digest": "4c27e0f5b5ad", "context_length": 4096}
            return {"models": [row] if self.bodies else []}  # it is loaded by the first request
        return super().get(path)

    def many(self, body: dict[str, Any]) -> int:
        return 1

    def thinking(self, body: dict[str, Any]) -> bool:
        return self.thinks and body.get("reasoning_effort") != "none"

    def shown(self, words: Words) -> dict[str, Any]:
        return {"role": "assistant", "content": words.text, **({"reasoning": words.thought} if words.thought else {})}


class Vllm(App):
    """vllm serve --reasoning-parser: continues turns, counts with /tokenize, obeys the chat template's switch."""

    def get(self, path: str) -> Any:
        if path == "/version":
            return {"version": "0.11.2"}
        if path == "/v1/models":
            return {"data": [{"id": self.name, "owned_by": "vllm", "root": self.name, "max_model_len": 4096}]}
        raise Refused("Not Found", status=404)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/tokenize":
            return {"count": self.chat({**body, "max_tokens": 1})["usage"]["prompt_tokens"], "max_model_len": 4096}
        return super().post(path, body)

    def opened(self, body: dict[str, Any]) -> str:
        return body["messages"][-1]["content"] if body.get("continue_final_message") else ""

    def thinking(self, body: dict[str, Any]) -> bool:
        return self.thinks and body.get("chat_template_kwargs", {}).get("enable_thinking", True)

    def chat(self, body: dict[str, Any]) -> Any:
        answer = super().chat(body)
        if self.opened(body) and isinstance(answer, dict):
            answer["usage"]["prompt_tokens"] -= 4  # no end of turn, no new turn's head
        return answer


class VllmOpenedThoughts(Vllm):
    """vllm serve without a parser, of a model whose chat template opens the thoughts (DeepSeek-R1)."""

    def thinking(self, body: dict[str, Any]) -> bool:
        return True

    def shown(self, words: Words) -> dict[str, Any]:
        done = f"\n</think>\n\n{words.text}" if words.text else ""
        return {"role": "assistant", "content": words.thought + done}


class LlamaCpp(Vllm):
    """llama-server: /props, /apply-template and /tokenize at its root; thoughts in a field."""

    def get(self, path: str) -> Any:
        if path == "/props":
            return {"build_info": "b6999-abc", "default_generation_settings": {"n_ctx": 4096}}
        if path == "/v1/models":
            return {"data": [{"id": self.name, "owned_by": "llamacpp", "meta": {"n_params": 134515008}}]}
        raise Refused("File Not Found", status=404)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/apply-template":
            return {"prompt": "\n".join(f"{m['content']} a b c d" for m in body["messages"])}
        if path == "/tokenize":
            return {"tokens": [0] * words_of(body["content"])}
        return App.post(self, path, body)


# -------------------------------------------------------------------------------------------------- the server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(lambda: self.server.app.get(self.path.partition("?")[0]))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(lambda: self.server.app.post(self.path, body))

    def _answer(self, work: Any) -> None:
        app, status = self.server.app, 200
        try:
            with self.server.lock:
                app.check_key(self.headers)
                data = work()
        except Refused as refused:
            data, status = app.error(refused), refused.status
            app.refusals += [str(refused)] if status == 400 else []
        self.close_connection = isinstance(data, list)
        self.send_response(status)
        if isinstance(data, list):
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in data:
                kind = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
                text = event if isinstance(event, str) else json.dumps(event)
                with contextlib.suppress(OSError):  # the client has hung up
                    self.wfile.write(f"{kind}data: {text}\n\n".encode())
            return
        content = json.dumps(data).encode()
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextlib.contextmanager
def provider_at(app: App) -> Iterator[str]:
    """The address, without ``/v1``, at which ``app`` answers."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.app, server.lock, server.daemon_threads = app, threading.Lock(), True
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
