"""One server as the model and its probe talk to it: prompts in its form, what it refuses, what it says of itself.

>>> refused_field("Unsupported value: 'temperature' does not support 0 with this model.", "", {"temperature": 0})
'temperature'
>>> refused_field("please stop sending nonsense", "", {"stop": [";"]})
''

A server that refuses one of ``OPTIONAL`` and names it is asked again without it, at once and from then on: that costs
one call. What is left out is said once (logger, ``refused``). What a user puts in by ``--server body.KEY=VALUE`` is
never left out, nor a temperature by a server that has taken 0: it refuses that value, and the caller is told.

>>> whole_number(8192), whole_number("8192")
(8192, None)
>>> without_echo(Answer("SELECT 1", "stop"), prefill="SELECT").text
' 1'
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message, ToolDefinition
from nl2sql.models.chat import Chat, plain_prompt, without_system
from nl2sql.models.http.providers import PROVIDERS
from nl2sql.models.http.transport import Asked, Reply, RequestRefused, Transport
from nl2sql.models.http.wire import MOST, Answer

logger = logging.getLogger(__name__)

OPTIONAL = ("stream_options", "seed", "top_p", "stop", "temperature")  # where a refusal names several, the first goes
LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
WHOLE = "answers in one piece"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_WITHOUT = {  # what follows for a run
    WHOLE: "they are streamed",
    "stream_options": "tokens of a streamed answer are estimated",
    "seed": "its samples cannot be drawn again",
    "top_p": "it samples from all tokens",
    "stop": "answers are cut at stop strings here",
    "temperature": "it answers at a temperature of its own, so its answers vary",
    LIMIT: f"{NEWER_LIMIT} is sent in its place",
    "n": "samples are asked for one by one",
    "logprobs": "answers have no log-probability",
}
_NAMED = {  # how a sentence names a field, and not the English word
    **{name: rf"['\"`]{name}['\"`]" for name in ("seed", "stop")},
    **{name: rf"(?<![\w.]){name}(?!\w)" for name in ("top_p", "temperature")},
    "stream_options": "stream_options|include_usage",
}


class Server:
    """A transport with what was learned about its server. Thread-safe.

    body: fields of a user's own, which go with every request for text, over ours.
    """

    def __init__(self, transport: Transport, body: Mapping[str, Any]) -> None:
        self._transport, self.body = transport, body
        self.place, self.base = transport.place, transport.base
        known = PROVIDERS.get(self.place.provider)
        self.continues = known is not None and known.continues
        self._refused: dict[str, None] = {}
        self._took_zero = False  # as a temperature
        self._lock = threading.Lock()
        self.close, self.without_key = transport.close, transport.without_key

    @property
    def refused(self) -> list[str]:
        """The fields that the server refuses, in the order in which it did."""
        return list(self._refused)

    def refuse(self, field: str) -> None:
        """Leave a field out from now on, and say so once."""
        with self._lock:
            new = field not in self._refused
            self._refused[field] = None
        if new:
            logger.warning("%s refuses %s: %s", self.base, field, _WITHOUT[field])

    def send(self, method: str, url: str, body: Mapping[str, Any] | None = None, **options: Any) -> Reply:
        """One request; see ``Transport.send_all``."""
        return self.send_all([(method, url, body, None)], **options)[0]

    def send_all(self, requests: Sequence[Asked], **options: Any) -> list[Reply]:
        """Several requests side by side; see ``Transport.send_all``."""
        while True:
            fitted = [self._fitted(request) for request in requests]
            try:
                replies = self._transport.send_all(fitted, **options)
            except RequestRefused as refused:
                if not self._learn(refused, fitted):
                    raise
                continue
            self._took_zero |= any(body is not None and body.get("temperature") == 0 for _, _, body, _ in fitted)
            return replies

    def _fitted(self, request: Asked) -> Asked:
        method, url, body, lines = request
        if body is None or not url.endswith("completions"):
            return request
        kept = {name: value for name, value in body.items() if name not in self._refused or name == LIMIT}
        if LIMIT in self._refused and LIMIT in kept:
            kept[NEWER_LIMIT] = kept.pop(LIMIT)
        if WHOLE in self._refused and lines is None:
            kept |= {name: value for name, value in STREAMED.items() if name not in self._refused}
        return method, url, merged(kept, self.body), lines

    def _learn(self, refused: RequestRefused, sent: Sequence[Asked]) -> bool:
        """Does the refusal name a field that can be left out, or sent otherwise? So it is from then on."""
        if refused.status not in (400, 422):
            return False
        bodies: dict[str, Any] = {}
        for _, url, body, _ in sent:
            bodies |= body if body is not None and url.endswith("completions") else {}
        ours = {name: value for name, value in bodies.items() if name not in self.body}
        field = refused_field(refused.said, refused.field, ours)
        if field == "temperature" and self._took_zero and ours[field] != 0:
            return False  # this value, not the field
        if not field and "stream" in refused.said.lower() and "stream" not in bodies:
            field = WHOLE
        if field:
            self.refuse(field)
        return bool(field)


def refused_field(said: str, field: str, body: Mapping[str, Any]) -> str:
    """The field of ``body`` that a refusal is about and that can be left out (or renamed); "" when it is none.

    field: the one that the server names apart from its sentence. A plain English word counts in quotes only.
    """
    if LIMIT in body and NEWER_LIMIT in said and "context" not in said and "too large" not in said:
        return LIMIT
    optional = [name for name in OPTIONAL if name in body]
    if field in optional:
        return field
    return next((name for name in optional if re.search(_NAMED[name], said)), "")


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Both, ``theirs`` over ``ours``, objects inside them too."""
    both = dict(ours)
    for name, value in theirs.items():
        mine = both.get(name)
        both[name] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both


# ----------------------------------------------------------------------------- what the server says


def served_models(server: Server) -> list[dict[str, Any]]:
    """The entries of ``/models``; empty where there is no such list. Raises ModelError when nobody answers."""
    try:
        data = server.send("GET", f"{server.base}/models").data
    except RequestRefused as refused:
        if refused.status in (401, 403) or 300 <= refused.status < 400:
            raise
        return []
    found = data.get("data") if isinstance(data, Mapping) else None
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]


def count_remotely(
    server: Server, name: str, kind: str, messages: Sequence[Message], prefill: str, fields: Mapping[str, Any]
) -> int:
    """Tokens of a prompt by the server's own tokenizer. Raises ModelError where it has none."""
    root = server.base.removesuffix("/v1")

    def ask(path: str, body: Mapping[str, Any], wanted: str) -> Any:
        data = server.send("POST", f"{root}/{path}", body, retries=1).data
        return data.get(wanted) if isinstance(data, Mapping) else None

    chat = [dict(message) for message in messages]
    if kind == "vllm":
        more = {"messages": [*chat, {"role": "assistant", "content": prefill}], **CONTINUE} if prefill else {}
        count = ask("tokenize", {"model": name, **fields, "messages": chat, **more}, "count")
    else:
        prompt = ask("apply-template", {"messages": chat, **fields}, "prompt")
        if not isinstance(prompt, str):
            raise ModelError(f"{server.base}: /apply-template gives no prompt")
        body = {"content": prompt + prefill, "add_special": True, "parse_special": True}
        tokens = ask("tokenize", body, "tokens")
        count = len(tokens) if isinstance(tokens, list) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST:
        raise ModelError(f"{server.base}: /tokenize gives no count")
    return count


def about_server(server: Server, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The server's word about itself and the model; nothing that changes from one start to the next."""
    root = server.base.removesuffix("/v1")
    described = entry.get("meta")
    meta: Mapping[str, Any] = described if isinstance(described, Mapping) else {}
    about: dict[str, Any] = {key: entry[key] for key in ("owned_by", "root") if isinstance(entry.get(key), str)}
    sizes = {key: meta.get(key) for key in ("n_params", "size", "n_vocab")}
    about |= {key: size for key, size in sizes.items() if isinstance(size, int) and abs(size) < MOST**2}
    window = entry.get("max_model_len")
    version = _ask(server, f"{root}/{'api/' * (server.place.provider == 'ollama')}version").get("version")
    props = _ask(server, f"{root}/props") if not isinstance(version, str) else {}
    if isinstance(told := props.get("build_info", version), str):
        about["version"] = told
    settings = props.get("default_generation_settings")
    if window is None and isinstance(settings, Mapping):
        window = settings.get("n_ctx")
    if whole_number(window):
        about["window"] = window
    return about


def loaded_model(server: Server, name: str) -> Mapping[str, Any]:
    """What Ollama says of a model that it holds in memory, its window as it was started among it."""
    models = _ask(server, f"{server.base.removesuffix('/v1')}/api/ps").get("models")
    rows = [row for row in models if isinstance(row, Mapping)] if isinstance(models, list) else []
    return next((row for row in rows if row.get("model") in (name, f"{name}:latest")), {})


def whole_number(value: Any) -> int | None:
    """A count that a server gives, where it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST else None


def _ask(server: Server, url: str) -> Mapping[str, Any]:
    try:
        data = server.send("GET", url, retries=0).data
    except ModelError:
        return {}
    return data if isinstance(data, Mapping) else {}


# ------------------------------------------------------------------------------------------ prompts
# Where a server continues no open turn, the turn is quoted in the user's message. Where it has no
# tokenizer to ask, what it reported for earlier prompts bounds what those that grew from them have.

CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
_REMEMBERED_COUNTS = 4096  # the latest
_QUOTED = (
    "\n\nYour answer has already begun; it stands between the lines below. Go on exactly where it stops, and repeat "
    "nothing of it.\n-----\n{prefill}\n-----"
)


def for_chat(messages: Sequence[Message], systems: bool) -> list[dict[str, Any]]:
    """Messages as a chat request takes them: the arguments of calls as text, no system role where none is known."""
    chat = [
        {**m, "tool_calls": [_on_the_wire(call) for call in m["tool_calls"]]} if m.get("tool_calls") else dict(m)
        for m in messages
    ]
    return chat if systems else without_system(chat)


def _on_the_wire(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def rendered(
    chat: Chat | None, messages: Sequence[Message], prefill: str, drop_bos: str, tools: Sequence[ToolDefinition] = ()
) -> str:
    """The prompt as text: the tokenizer's chat template, or the plain one of a model that has none."""
    if chat is None and tools:
        raise ModelError("this server has no chat, so no native tool calls; leave react.native_tools at false")
    text = chat.prompt_text(messages, prefill, tools) if chat is not None else plain_prompt(messages) + prefill
    return text.removeprefix(drop_bos) if drop_bos else text


def quoting(chat: list[dict[str, Any]], prefill: str) -> list[dict[str, Any]]:
    """The conversation with the open turn quoted at its end, for a server that cannot continue one."""
    text = _QUOTED.format(prefill=prefill)
    if chat and chat[-1]["role"] == "user":
        return [*chat[:-1], {**chat[-1], "content": chat[-1]["content"] + text}]
    return [*chat, {"role": "user", "content": text.lstrip()}]


def without_echo(answer: Answer, prefill: str) -> Answer:
    """An answer without the text it was asked not to repeat."""
    last = prefill.rstrip().rpartition("\n")[2]
    for echo in (prefill, prefill.strip(), last):
        if echo.strip() and answer.text.lstrip().startswith(echo):
            return replace(answer, text=answer.text.lstrip().removeprefix(echo), logprob=None)
    return answer


class CountedPrompts:
    """The counts that a server gave, of each conversation with its last open turn; the latest only. Thread-safe."""

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()) -> int | None:
        """The count of this very prompt."""
        with self._lock:
            turn, count = self._counts.get(_digest(messages, tools), ("", None))
        return count if turn == prefill else None

    def remember(
        self, messages: Sequence[Message], prefill: str, count: int | None, tools: Sequence[ToolDefinition] = ()
    ) -> None:
        """Keep a count that the server gave, if it did."""
        if count:
            with self._lock:
                self._counts[_digest(messages, tools)] = prefill, count
                if len(self._counts) > _REMEMBERED_COUNTS:
                    self._counts.popitem(last=False)

    def bound(self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()) -> int:
        """An upper bound: what the longest beginning was counted at, and one token a byte of what came since.

        Templates add a few dozen tokens a message at most, and explain the form of tools.
        """
        count, new = 64 + len(_QUOTED) + (2 * len(json.dumps(list(tools))) + 1024 if tools else 0), prefill
        at = 0
        with self._lock:
            for end in range(len(messages), 0, -1):
                turn, counted = self._counts.get(_digest(messages[:end], tools), ("", 0))
                if counted and (end < len(messages) or prefill.startswith(turn)):
                    at, count, new = end, counted, prefill.removeprefix(turn) if end == len(messages) else prefill
                    break
        texts = (json.dumps([m["content"], m.get("tool_calls", [])], ensure_ascii=False) for m in messages[at:])
        since = sum(len(text.encode("utf-8", "replace")) + 64 for text in texts)
        return count + since + len(new.encode("utf-8", "replace")) + 4


def _digest(messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> bytes:
    said = [f"{m['role']}\1{m['content']}" + (f"\1{m['tool_calls']}" if m.get("tool_calls") else "") for m in messages]
    text = "\0".join([*said, *([repr(list(tools))] if tools else [])])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
