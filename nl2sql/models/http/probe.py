"""The probe of an OpenAI-compatible server: a few tiny questions, asked once at the start, show what it does.

Servers differ most in how they take an open assistant turn (``prefill``). In order of preference:

- ``completions``: the prompt is rendered here, with a tokenizer of the same model, and sent to ``/completions``;
- ``chat``: ``/chat/completions`` with a final assistant message and ``continue_final_message``. Held against the
  token counts that the server reports, since many servers accept the switch and ignore it;
- ``user_turn``: the text so far is quoted at the end of the user's message, with the request to go on from there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message, ToolDefinition
from nl2sql.models.chat import Chat, plain_prompt, without_system
from nl2sql.models.http.transport import RequestRefused, Transport
from nl2sql.models.http.wire import MOST, read_answers, read_counts

logger = logging.getLogger(__name__)

Way = Literal["completions", "chat", "user_turn"]
CONTINUE = {"continue_final_message": True, "add_generation_prompt": False}
DEFAULT_WINDOW = 4096  # tokens, where neither the server nor the user names a window
_ASKED: tuple[Message, ...] = ({"role": "user", "content": "What is the capital of France?"},)
_TEMPLATE_SWITCH = {"chat_template_kwargs": {"enable_thinking": False}}  # models that think aloud answer directly


@dataclass(frozen=True)
class Abilities:
    """The abilities that a server was found to have."""

    way: Way
    window: int
    window_known: bool
    counting: Literal["tokenizer", "vllm", "llama.cpp", "usage"]
    fields: Mapping[str, Any] = field(default_factory=dict)  # go with every request
    limit_field: str = "max_tokens"
    systems: bool = True  # the chat template knows a system role
    trims: bool = False  # the server drops white space at the end of the open turn
    echoes: bool = False  # the server gives the open turn back at the head of its answer
    stops: bool = False  # the server honours stop strings
    many: bool = False  # the server honours n
    logprobs: Mapping[str, Any] = field(default_factory=dict)  # the fields that ask for them; empty = not offered
    drop_bos: str = ""  # a token that the server puts before a text prompt by itself
    server: Mapping[str, Any] = field(default_factory=dict)  # what it says about itself
    answer: str = ""  # to the probe's question: tells weights apart that go by one name


def served_models(transport: Transport) -> list[dict[str, Any]]:
    """The entries of ``/models``; empty where there is no such list. Raises ModelError when nobody answers."""
    try:
        data = transport.send("GET", f"{transport.base}/models").data
    except RequestRefused as refused:
        if refused.status in (401, 403) or 300 <= refused.status < 400:
            raise
        return []
    rows = data.get("data") if isinstance(data, Mapping) else None
    return [row for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)] if rows else []


def probe(transport: Transport, name: str, chat: Chat | None, window: int | None, likely: int | None) -> Abilities:
    """Ask the server what it does. Raises ModelError.

    chat: a tokenizer of the same model, where there is one. window: tokens, as the user says; else the server's word
    is taken, else ``likely``.
    """
    listed = served_models(transport)
    entry = next((row for row in listed if row["id"] == name), {})
    about = _about(transport, entry)
    said = about.pop("window", None)
    return _Probe(transport, name, chat, listed, about).run(window or said or likely)


class _Heard(NamedTuple):
    """One answer to the probe. prompt: tokens by the server's count, 0 where it does not say."""

    prompt: int
    text: str
    logprob: float | None
    choices: int


class _Probe:
    def __init__(
        self, transport: Transport, name: str, chat: Chat | None, listed: list[dict[str, Any]], about: dict[str, Any]
    ) -> None:
        self._transport, self._name, self._chat, self._listed, self._about = transport, name, chat, listed, about
        self._limit = "max_tokens"
        self._fields: dict[str, Any] = {}

    def run(self, window: int | None) -> Abilities:
        if window is None:
            logger.warning(
                "%s does not say how long its context window is; assuming %d tokens (--server context_window=...)",
                self._transport.base,
                DEFAULT_WINDOW,
            )
        plain: RequestRefused | None = None
        asked, answer = 0, ""
        try:
            asked, answer = self._first_chat()
        except RequestRefused as refused:
            plain = refused
        way, bos, trims, echoes = self._way(asked, plain)
        if way == "completions":
            self._fields = {}
            answer = self._complete(_ASKED, bos, 8).text
        ask = self._complete if way == "completions" else self._converse
        return Abilities(
            way=way,
            window=window or DEFAULT_WINDOW,
            window_known=window is not None,
            counting=self._counting(way, plain is not None),
            fields=self._fields,
            limit_field=self._limit,
            systems=way == "completions" or self._systems(),
            trims=trims,
            echoes=echoes,
            stops=self._stops(lambda **more: ask(_ASKED, bos, 8, **more), answer),
            many=self._many(lambda **more: ask(_ASKED, bos, 1, **more)),
            logprobs=self._logprobs(lambda **more: ask(_ASKED, bos, 1, **more), way),
            drop_bos=bos,
            server=self._about,
            answer=answer,
        )

    # ----------------------------------------------------------------------------------------------- requests

    def _post(self, path: str, body: Mapping[str, Any]) -> _Heard:
        fields = self._fields if path == "chat/completions" else {}
        sent = {"model": self._name, "temperature": 0, **fields, **body}
        data = self._transport.send("POST", f"{self._transport.base}/{path}", sent).data
        answers = read_answers(data, ())
        return _Heard(read_counts(data).prompt or 0, answers[0].text, answers[0].logprob, len(answers))

    def _converse(self, messages: Sequence[Message], _: str, limit: int, **more: Any) -> _Heard:
        body = {"messages": [dict(m) for m in messages], self._limit: limit}
        return self._post("chat/completions", body | more)

    def _complete(self, messages: Sequence[Message], bos: str, limit: int, **more: Any) -> _Heard:
        text = rendered(self._chat, messages, "", bos)
        return self._post("completions", {"prompt": text, "max_tokens": limit} | more)

    # ------------------------------------------------------------------------------------------------ findings

    def _first_chat(self) -> tuple[int, str]:
        """A chat answer, with as many of our usual fields as the server takes."""
        refused: RequestRefused | None = None
        for fields in (_TEMPLATE_SWITCH, {}):
            for limit in ("max_tokens", "max_completion_tokens"):
                self._fields, self._limit = dict(fields), limit
                try:
                    return self._converse(_ASKED, "", 8)[:2]
                except RequestRefused as error:
                    if error.status not in (400, 404, 405, 422, 501):
                        raise
                    refused = error
                    if error.status == 404:
                        break
        self._fields, self._limit = {}, "max_tokens"
        assert refused is not None
        raise refused

    def _way(self, asked: int, plain: RequestRefused | None) -> tuple[Way, str, bool, bool]:
        """The way of an open turn to this server; a token to drop; is white space at its end lost; is it echoed."""
        if self._chat is not None:
            bos = self._rendered_alike(self._chat)
            if bos is not None:
                return "completions", bos, False, False
        if plain is not None:  # no chat here: a base model, or a server of completions only
            try:
                self._complete(_ASKED, "", 1)
            except RequestRefused:
                raise self._wrong_name(plain) from None
            return "completions", "", False, False
        turns = ("the", "the" + " the" * 10, "the\n")
        try:
            replies = [
                self._converse((*_ASKED, {"role": "assistant", "content": text}), "", 1, **CONTINUE) for text in turns
            ]
        except RequestRefused:
            return "user_turn", "", False, False
        counts = [reply.prompt for reply in replies]
        head = counts[0] - (counts[1] - counts[0]) / 10  # tokens before the open turn's first word
        if not asked or head != asked:
            return "user_turn", "", False, False
        return "chat", "", counts[2] == counts[0], replies[1].text.startswith(turns[1])

    def _systems(self) -> bool:
        try:
            self._converse(({"role": "system", "content": "Answer."}, *_ASKED), "", 1)
        except RequestRefused:
            return False
        return True

    def _rendered_alike(self, chat: Chat) -> str | None:
        """Does the server count as many tokens in a rendered prompt as the tokenizer here? None: no."""
        expected = len(chat.prompt_ids(_ASKED))
        for bos in ("", chat.bos_token):
            try:
                counted = self._complete(_ASKED, bos, 1).prompt
            except RequestRefused:
                return None
            if counted == expected:
                return bos
            if not chat.bos_token:
                break
        logger.warning("%s counts other tokens than the tokenizer given for it; not used", self._transport.base)
        return None

    def _stops(self, ask: Callable[..., _Heard], answer: str) -> bool:
        words = answer.split()
        if len(words) < 3:
            return False  # cut here, then
        try:
            return words[-1] not in ask(stop=[words[-1]]).text
        except ModelError:
            return False

    def _many(self, ask: Callable[..., _Heard]) -> bool:
        try:
            return ask(n=2, temperature=0.7).choices == 2
        except ModelError:
            return False

    def _logprobs(self, ask: Callable[..., _Heard], way: Way) -> dict[str, Any]:
        wanted: dict[str, Any] = {"logprobs": 1 if way == "completions" else True}
        try:
            return wanted if ask(**wanted).logprob is not None else {}
        except ModelError:
            return {}

    def _counting(self, way: Way, no_chat: bool) -> Literal["tokenizer", "vllm", "llama.cpp", "usage"]:
        if self._chat is not None and way == "completions":
            return "tokenizer"
        if no_chat:
            return "usage"
        kinds: tuple[Literal["vllm", "llama.cpp"], ...] = ("vllm", "llama.cpp")
        for kind in kinds:
            try:
                if count_remotely(self._transport, self._name, kind, _ASKED, "", self._fields) > 0:
                    return kind
            except ModelError:
                continue
        return "usage"

    def _wrong_name(self, refused: RequestRefused) -> ModelError:
        names = [row["id"] for row in self._listed]
        if names and self._name not in names:
            return ModelError(f"{self._transport.base} has no model {self._name!r}; it offers: {', '.join(names[:20])}")
        hint = "" if self._transport.base.endswith("/v1") else " (the address usually ends in /v1)"
        return ModelError(f"{refused}{hint}")


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


def count_remotely(
    transport: Transport, name: str, kind: str, messages: Sequence[Message], prefill: str, fields: Mapping[str, Any]
) -> int:
    """Tokens of a prompt by the server's own tokenizer. Raises ModelError where it has none."""
    root = transport.base.removesuffix("/v1")
    chat = [dict(message) for message in messages]
    if kind == "vllm":
        if prefill:
            body = {"messages": [*chat, {"role": "assistant", "content": prefill}], **CONTINUE}
        else:
            body = {"messages": chat}
        data = transport.send("POST", f"{root}/tokenize", {"model": name, **fields, **body}, retries=1).data
        count = data.get("count") if isinstance(data, Mapping) else None
    else:
        body = {"messages": chat, **fields}
        data = transport.send("POST", f"{root}/apply-template", body, retries=1).data
        prompt = data.get("prompt") if isinstance(data, Mapping) else None
        if not isinstance(prompt, str):
            raise ModelError(f"{transport.base}: /apply-template gives no prompt")
        whole = {"content": prompt + prefill, "add_special": True, "parse_special": True}
        data = transport.send("POST", f"{root}/tokenize", whole, retries=1).data
        tokens = data.get("tokens") if isinstance(data, Mapping) else None
        count = len(tokens) if isinstance(tokens, list) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST:
        raise ModelError(f"{transport.base}: /tokenize gives no count")
    return count


def _about(transport: Transport, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The server's word about itself and the model; nothing that changes from one start to the next."""
    root = transport.base.removesuffix("/v1")
    described = entry.get("meta")
    meta: Mapping[str, Any] = described if isinstance(described, Mapping) else {}
    about: dict[str, Any] = {key: entry[key] for key in ("owned_by", "root") if isinstance(entry.get(key), str)}
    about |= {
        key: meta[key]
        for key in ("n_params", "size", "n_vocab")
        if isinstance(meta.get(key), int) and abs(meta[key]) < MOST**2
    }
    window = entry.get("max_model_len")
    version = _ask(transport, f"{root}/version").get("version")
    props = _ask(transport, f"{root}/props") if not isinstance(version, str) else {}
    if isinstance(version, str):
        about["version"] = version
    if isinstance(props.get("build_info"), str):
        about["version"] = props["build_info"]
    settings = props.get("default_generation_settings")
    if window is None and isinstance(settings, Mapping):
        window = settings.get("n_ctx")
    if isinstance(window, int) and not isinstance(window, bool) and 0 < window <= MOST:
        about["window"] = window
    return about


def _ask(transport: Transport, url: str) -> Mapping[str, Any]:
    try:
        data = transport.send("GET", url, retries=0).data
    except ModelError:
        return {}
    return data if isinstance(data, Mapping) else {}
