"""One server as the model and its probe talk to it, and what it says of itself and its models.

>>> refused_field("Unsupported value: 'temperature' does not support 0 with this model.", "", {"temperature": 0})
'temperature'
>>> refused_field("please stop sending nonsense", "", {"stop": [";"]})
''

A server that refuses one of ``OPTIONAL`` and names it is asked again without it, at once and from then on: that costs
one call. What is left out is said once (logger, ``refused``). What a user puts in by ``--server body.KEY=VALUE`` is
never left out, nor a temperature by a server that has taken 0: it refuses that value, and the caller is told.

>>> whole_number(8192), whole_number("8192")
(8192, None)
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message
from nl2sql.models.http import anthropic
from nl2sql.models.http.prompts import CONTINUE
from nl2sql.models.http.transport import LineSink, Reply, RequestRefused, Transport
from nl2sql.models.http.wire import MOST

logger = logging.getLogger(__name__)

OPTIONAL = ("stream_options", "seed", "top_p", "stop", "temperature")  # where a refusal names several, the first goes
LIMIT, NEWER_LIMIT = "max_tokens", "max_completion_tokens"
WHOLE = "answers in one piece"
_STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
_LEAST = re.compile(r"\bmin|least|below|less than|greater|small|>=|\blow\b|\bge\b", re.I)  # of a limit that is too low
_MOST_LEAST = 1024  # tokens: a server that wants more of a question has another trouble
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
Request = tuple[str, str, Mapping[str, Any] | None, LineSink | None]


class Server:
    """A transport with what was learned about its server. Thread-safe.

    body: fields of a user's own, which go with every request for text, over ours.
    """

    def __init__(self, transport: Transport, body: Mapping[str, Any]) -> None:
        self._transport, self._body = transport, body
        self.place, self.base = transport.place, transport.base
        self.foreign = transport.place.provider == "anthropic"  # speaks another interface than OpenAI's
        self._refused: dict[str, None] = {}
        self._took_zero = False  # as a temperature
        self._least = 0  # tokens that an answer must be allowed
        self._told_lowered = False
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
        """One request; see ``Transport.send``."""
        return self.send_all([(method, url, body, None)], **options)[0]

    def send_all(self, requests: Sequence[Request], **options: Any) -> list[Reply]:
        """Several requests side by side; see ``Transport.send_all``."""
        while True:
            fitted = [self._fitted(request) for request in requests]
            try:
                replies = self._transport.send_all([self._spoken(request) for request in fitted], **options)
            except RequestRefused as refused:
                if not self._learn(refused, fitted):
                    raise
                continue
            self._took_zero |= any(body is not None and body.get("temperature") == 0 for _, _, body, _ in fitted)
            return [self._heard(request, reply) for request, reply in zip(fitted, replies, strict=True)]

    def _fitted(self, request: Request) -> Request:
        method, url, body, lines = request
        if body is None or not url.endswith("completions"):
            return request
        kept = {name: value for name, value in body.items() if name not in self._refused or name == LIMIT}
        if LIMIT in self._refused and LIMIT in kept:
            kept[NEWER_LIMIT] = kept.pop(LIMIT)
        kept |= {name: max(kept[name], self._least) for name in (LIMIT, NEWER_LIMIT) if name in kept}
        if WHOLE in self._refused and lines is None:
            kept |= {name: value for name, value in _STREAMED.items() if name not in self._refused}
        return method, url, merged(kept, self._body), lines

    def _learn(self, refused: RequestRefused, sent: Sequence[Request]) -> bool:
        """Does the refusal name a field that can be left out, or sent otherwise? So it is from then on."""
        bodies: dict[str, Any] = {}
        for _, url, body, _ in sent:
            bodies |= body if body is not None and url.endswith("completions") else {}
        ours = {name: value for name, value in bodies.items() if name not in self._body}
        field = refused_field(refused.said, refused.field, ours) if refused.status in (400, 422) else ""
        if field == "temperature" and self._took_zero and ours[field] != 0:
            return False  # this value, not the field
        if not field and refused.status in (400, 422):
            if "stream" in refused.said.lower() and "stream" not in bodies:
                field = WHOLE
            elif least := least_limit(refused.said, ours):
                self._least = least
                logger.warning("%s answers with %d tokens at least: so many are allowed it", self.base, least)
                return True
        if field:
            self.refuse(field)
        return bool(field)

    def _spoken(self, request: Request) -> Request:
        if not self.foreign:
            return request
        asked, spoken = request[2] or {}, anthropic.request_of(*request)
        if asked.get("temperature") != (spoken[2] or {}).get("temperature") and not self._told_lowered:
            self._told_lowered = True
            logger.warning("%s takes no temperature above 1: %s is sent as 1", self.base, asked["temperature"])
        return spoken

    def _heard(self, request: Request, reply: Reply) -> Reply:
        if not self.foreign or request[2] is None:
            return reply
        return Reply(anthropic.answer_of(reply.data), reply.queue_seconds, reply.seconds)


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


def least_limit(said: str, body: Mapping[str, Any]) -> int:
    """The tokens that a refusal of a lower limit asks for, four times as many where it names no number; 0: it is none.

    >>> least_limit("'max_tokens' is below the minimum value: expected >= 16, got 8", {"max_tokens": 8})
    16
    """
    limit = next((name for name in (LIMIT, NEWER_LIMIT) if name in body and re.search(r"max\w*_tokens", said)), "")
    if not limit or not _LEAST.search(said) or "context" in said or "too large" in said:
        return 0
    named = [int(number) for number in re.findall(r"\d+", said) if body[limit] < int(number) <= _MOST_LEAST]
    least = min(named, default=4 * body[limit])
    return least if least <= _MOST_LEAST else 0


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
    chat = [dict(message) for message in messages]
    if kind == "vllm":
        if prefill:
            body = {"messages": [*chat, {"role": "assistant", "content": prefill}], **CONTINUE}
        else:
            body = {"messages": chat}
        data = server.send("POST", f"{root}/tokenize", {"model": name, **fields, **body}, retries=1).data
        count = data.get("count") if isinstance(data, Mapping) else None
    else:
        body = {"messages": chat, **fields}
        data = server.send("POST", f"{root}/apply-template", body, retries=1).data
        prompt = data.get("prompt") if isinstance(data, Mapping) else None
        if not isinstance(prompt, str):
            raise ModelError(f"{server.base}: /apply-template gives no prompt")
        whole = {"content": prompt + prefill, "add_special": True, "parse_special": True}
        data = server.send("POST", f"{root}/tokenize", whole, retries=1).data
        tokens = data.get("tokens") if isinstance(data, Mapping) else None
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
    about |= {
        key: meta[key]
        for key in ("n_params", "size", "n_vocab")
        if isinstance(meta.get(key), int) and abs(meta[key]) < MOST**2
    }
    window = entry.get("max_model_len")
    version = _ask(server, f"{root}/{'api/' * (server.place.provider == 'ollama')}version").get("version")
    props = _ask(server, f"{root}/props") if not isinstance(version, str) else {}
    if isinstance(version, str):
        about["version"] = version
    if isinstance(props.get("build_info"), str):
        about["version"] = props["build_info"]
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
