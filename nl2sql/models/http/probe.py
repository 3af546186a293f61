"""The probe of a server: three tiny questions, asked once at the start, show what it does; more where it refuses one.

Servers differ most in how they take an open assistant turn (``prefill``). In order of preference:

- ``completions``: the prompt is rendered here, with a tokenizer of the same model, and sent to ``/completions``;
- ``chat``: ``/chat/completions`` with a final assistant message and ``continue_final_message``. Held against the
  token counts that the server reports, since many servers accept the switch and ignore it;
- ``user_turn``: the text so far is quoted at the end of the user's message, with the request to go on from there.

A model that thinks before it answers is always asked by ``user_turn``: an open turn would take its thoughts from it.

What was found is kept in the cache folder (``KEPT_S``): a server that answers the first question as it did then is
asked no more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from nl2sql.errors import ModelError, Nl2SqlError
from nl2sql.interfaces import Message
from nl2sql.machine import cache_dir, masked
from nl2sql.models.chat import Chat
from nl2sql.models.http.providers import PROVIDERS
from nl2sql.models.http.server import (
    CONTINUE,
    LIMIT,
    NEWER_LIMIT,
    Server,
    about_server,
    count_remotely,
    loaded_model,
    rendered,
    served_models,
    whole_number,
)
from nl2sql.models.http.transport import RequestRefused, Unanswered
from nl2sql.models.http.wire import CLOSING, DEFAULT_BUDGET, begun, read_answers, read_counts

logger = logging.getLogger(__name__)

Way = Literal["completions", "chat", "user_turn"]
KEPT_S = 86400.0  # so long is what was found of a server believed
DEFAULT_WINDOW = 4096  # tokens, where neither the server nor the user names a window
_ASKED: tuple[Message, ...] = ({"role": "user", "content": "What is the capital of France?"},)
_SYSTEM: Message = {"role": "system", "content": "Answer."}
_SAMPLED = {"temperature": 0.7, "top_p": 0.9, "seed": 1}
_LINES = 23
_TURN = "the\n" * _LINES  # an open turn
_BEGUN = "The capital of France"  # an open turn that its answer would go on with
_ALL_THOUGHT = "model output limit was reached"  # OpenAI, where thoughts took all the tokens that were allowed
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
    echoes: bool = False  # the server gives the open turn back at the head of its answer
    stops: bool = False  # the server honours stop strings
    many: bool = False  # the server honours n
    logprobs: Mapping[str, Any] = field(default_factory=dict)  # the fields that ask for them; empty = not offered
    drop_bos: str = ""  # a token that the server puts before a text prompt by itself
    server: Mapping[str, Any] = field(default_factory=dict)  # what it says about itself
    answer: str = ""  # to the probe's question: tells weights apart that go by one name
    budget: int = 0  # tokens that the model may think with before it answers; 0: it answers at once
    opened: bool = False  # its chat template opens the thoughts, which end with a tag


def probe(
    server: Server, name: str, chat: Chat | None, window: int | None, guess: int | None, thinking: int | None = None
) -> Abilities:
    """Ask the server what it does. Raises ModelError.

    chat: a tokenizer of the same model, where there is one. window: tokens, as the user says; else the server's word
    is taken, else ``guess``. thinking: as in ``ServerOptions``.
    """
    return _Probe(server, name, chat, thinking).run(window, guess)


class _Heard(NamedTuple):
    """One answer to the probe. prompt: tokens by the server's count, 0 where it does not say."""

    prompt: int = 0
    text: str = ""
    logprob: float | None = None
    choices: int = 1
    thinks: bool = False  # or has written nothing yet
    opened: bool = False  # its text has the end of thoughts, and not their beginning


@dataclass(frozen=True)
class _Kept:
    """The findings about a server as the cache keeps them, with the answer to the first question."""

    at: float
    prompt: int
    text: str
    refused: list[str]
    abilities: Abilities

    @property
    def shown(self) -> tuple[int, str, int, Mapping[str, Any]]:
        """The findings that cost one question."""
        return self.prompt, self.text, self.abilities.window, self.abilities.server


class _Probe:
    def __init__(self, server: Server, name: str, chat: Chat | None, thinking: int | None) -> None:
        self._server, self._name, self._chat, self._thinking = server, name, chat, thinking
        self._listed = served_models(server)
        self._about = about_server(server, next((row for row in self._listed if row["id"] == name), {}))
        self._limit = LIMIT
        self._fields: dict[str, Any] = {}
        self._written = ""  # the answer to a rendered prompt
        self._logprobs: dict[str, Any] = {}

    def run(self, wanted: int | None, guess: int | None) -> Abilities:
        said = self._about.pop("window", None)
        kept, plain, first = self._read_kept(), None, _Heard()
        for refused_field in kept.refused if kept else ():
            self._server.refuse(refused_field)
        try:
            first = self._first_chat(kept)
        except RequestRefused as refused:
            plain = refused
        window, window_known = self._window(wanted or said, guess)
        thinks = plain is None and (first.thinks or bool(self._thinking))
        told = plain is None and not thinks and self._chat is None  # the first answer shows what else it does
        if kept and told and (first.prompt, first.text, window, self._about) == kept.shown:
            return kept.abilities
        found = self._thinker(first.prompt) if thinks and self._chat is None else self._plain(first, plain)
        abilities = Abilities(
            window=window, window_known=window_known, limit_field=self._limit, server=self._about, **found
        )
        self._keep(_Kept(time.time(), first.prompt, first.text, self._server.refused, abilities))
        return abilities

    def _plain(self, first: _Heard, plain: RequestRefused | None) -> dict[str, Any]:
        """The abilities of a model that answers at once. plain: what it said where it has no chat."""
        answer = first.text
        way, bos, echoes = self._way(first.prompt, answer, plain)
        if way == "completions":
            self._fields, answer = {}, self._written
        stops, many, systems = self._extras(way, bos, first.prompt, answer)
        found: dict[str, Any] = {"way": way, "counting": self._counting(way, plain is not None), "fields": self._fields}
        found |= {"systems": systems, "echoes": echoes, "stops": stops, "many": many}
        return found | {"logprobs": self._logprobs, "drop_bos": bos, "answer": answer}

    def _thinker(self, asked: int) -> dict[str, Any]:
        """The abilities of a model that thinks: it is asked nothing that would cost its thoughts each time."""
        budget = DEFAULT_BUDGET if self._thinking is None else self._thinking
        said = "%s thinks before it answers: %d tokens more are allowed for that (--server thinking=...)"
        logger.warning(said, self._name, budget)
        room = 8 + (0 if self._fields.get("thinking") else budget)
        heard = self._converse(_ASKED, "", room, top_p=0.9, seed=1)  # greedy still; a refusal shows here
        return {
            "way": "user_turn",
            "counting": self._counting("user_turn", False),
            "fields": self._fields,
            "systems": self._systems(asked),
            "answer": heard.text,
            "budget": budget,
            "opened": heard.opened,
        }

    def _window(self, said: int | None, guess: int | None) -> tuple[int, bool]:
        """The context window, and is it known? Else it is a guess that is told."""
        provider = self._server.place.provider
        if provider == "ollama":
            loaded = loaded_model(self._server, self._name)
            self._about |= {key: loaded[key] for key in ("digest",) if isinstance(loaded.get(key), str)}
            said = said or whole_number(loaded.get("context_length"))
        if known := said or guess:
            return known, True
        if provider and PROVIDERS[provider].window:
            return PROVIDERS[provider].window, False
        told = "%s does not say how long its context window is; assuming %d tokens (--server context_window=...)"
        logger.warning(told, self._server.base, DEFAULT_WINDOW)
        return DEFAULT_WINDOW, False

    # ------------------------------------------------------------------------------------------------ the cache

    @property
    def _file(self) -> Path:
        asked = [self._server.base, self._name, self._thinking, self._server.body, self._chat is None]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        return cache_dir("servers") / f"{digest[:32]}.json"

    def _read_kept(self) -> _Kept | None:
        try:
            kept = TypeAdapter(_Kept).validate_json(self._file.read_bytes())
        except (OSError, ValueError, Nl2SqlError):
            return None
        return kept if 0 <= time.time() - kept.at < KEPT_S else None

    def _keep(self, found: _Kept) -> None:
        with contextlib.suppress(OSError, Nl2SqlError):  # then it is asked again
            self._file.write_text(masked(TypeAdapter(_Kept).dump_json(found).decode()), encoding="utf-8")

    # ----------------------------------------------------------------------------------------------- requests

    def _post(self, path: str, body: Mapping[str, Any]) -> _Heard:
        fields = self._fields if path == "chat/completions" else {}
        sent = {"model": self._name, "temperature": 0, **fields, **body}
        data = self._server.send("POST", f"{self._server.base}/{path}", sent).data
        answers, counts = read_answers(data, ()), read_counts(data)
        first = answers[0]
        thinks = bool(first.thinking or counts.thought or (not first.text and first.finish == "length"))
        return _Heard(counts.prompt or 0, first.text, first.logprob, len(answers), thinks, _opened(data))

    def _converse(self, messages: Sequence[Message], _: str, limit: int, **more: Any) -> _Heard:
        thoughts = self._fields.get("thinking", {}).get("budget_tokens", 0)  # Anthropic wants room for them
        body = {"messages": [dict(m) for m in messages], self._limit: limit + thoughts}
        return self._post("chat/completions", body | more)

    def _complete(self, messages: Sequence[Message], bos: str, limit: int, **more: Any) -> _Heard:
        text = rendered(self._chat, messages, "", bos)
        return self._post("completions", {"prompt": text, "max_tokens": limit} | more)

    # ------------------------------------------------------------------------------------------------ findings

    def _first_chat(self, kept: _Kept | None) -> _Heard:
        """A chat answer, with as many of our usual fields as the server takes."""
        refused: RequestRefused | None = None
        ways = [(dict(fields), limit) for fields in self._usual_fields() for limit in (LIMIT, NEWER_LIMIT)]
        if kept:
            ways.sort(key=lambda way: way != (kept.abilities.fields, kept.abilities.limit_field))
        hopeless: list[dict[str, Any]] = []
        for self._fields, self._limit in ways:
            if self._fields in hopeless:
                continue
            try:
                return self._scored(lambda **more: self._converse(_ASKED, "", 8, **more), {"logprobs": True})
            except RequestRefused as error:
                if error.status not in (400, 404, 405, 422, 501):
                    raise
                if _ALL_THOUGHT in error.said:
                    return _Heard(thinks=True)
                refused = error
                if error.status == 404 or any(name in error.said for name in self._fields):
                    hopeless.append(self._fields)
        self._fields, self._limit = {}, LIMIT
        assert refused is not None
        raise refused

    def _scored(self, ask: Callable[..., _Heard], wanted: dict[str, Any]) -> _Heard:
        """An answer, with log probabilities where the server gives any; ``_logprobs``: the fields that ask for them."""
        try:
            heard = ask(**wanted)
        except RequestRefused:
            heard = ask()
            self._server.refuse("logprobs")  # without it, it answers
        self._logprobs = wanted if heard.logprob is not None else {}
        return heard

    def _complete_scored(self, bos: str) -> _Heard:
        return self._scored(lambda **more: self._complete(_ASKED, bos, 8, **more), {"logprobs": 1})

    def _usual_fields(self) -> list[Mapping[str, Any]]:
        """The fields that make a model think or not, each set to be tried in place of the one before."""
        if self._server.continues:
            thinks = {"type": "enabled", "budget_tokens": self._thinking}
            return [{"thinking": thinks}] if self._thinking else [{}]
        provider = self._server.place.provider
        if self._thinking or provider == "openai":
            return [{}]
        if provider == "ollama":
            return [{} if self._thinking is None else {"reasoning_effort": "none"}]
        return [_TEMPLATE_SWITCH, {}]

    def _way(self, asked: int, answer: str, plain: RequestRefused | None) -> tuple[Way, str, bool]:
        """The way of an open turn to this server; a token to drop; is it echoed.

        Tokens tell whether the turn was left open: the lines of ``_TURN`` have equally many, and what closes a turn
        is no multiple of them. Where the documentation says that turns are continued, and no count tells, the answer
        does: a server that leaves the open turn out answers as it did without it.
        """
        if self._chat is not None:
            bos = self._rendered_alike(self._chat)
            if bos is not None:
                return "completions", bos, False
        if plain is not None:  # no chat here: a base model, or a server of completions only
            try:
                self._written = self._complete_scored("").text
            except RequestRefused:
                raise self._wrong_name(plain) from None
            return "completions", "", False
        turn, switch = (_BEGUN, {}) if self._server.continues else (_TURN, CONTINUE)
        try:
            heard = self._converse((*_ASKED, {"role": "assistant", "content": turn}), "", 8, **switch)
        except (RequestRefused, Unanswered) as error:
            self._check_refused(error)
            return "user_turn", "", False
        if self._server.continues:
            if heard.text == answer:
                logger.warning("%s leaves out the turn that it is to continue; it is quoted instead", self._server.base)
                return "user_turn", "", False
            return "chat", "", False
        tokens = heard.prompt - asked  # of the open turn, and of what closes it
        if not asked or tokens < _LINES - 1 or -tokens % _LINES > 1:
            return "user_turn", "", False
        return "chat", "", heard.text.startswith(turn.rstrip())

    def _extras(self, way: Way, bos: str, asked: int, answer: str) -> tuple[bool, bool, bool]:
        """Does it honour stop strings, n, a system text? Asked by one request, and by others if it refuses that."""
        ask = self._complete if way == "completions" else self._converse
        words = answer.split()
        stop = {"stop": words[1:4]} if len(words) > 2 else {}
        many = {} if self._server.continues else {"n": 2}
        told = _ASKED if way == "completions" else (_SYSTEM, *_ASKED)
        for messages, more in ((told, many), (_ASKED, many), (told, {})):
            try:
                heard = ask(messages, bos, 8, **_SAMPLED, **more, **stop)
            except ModelError as error:
                if isinstance(error, Unanswered) and error.status != 500:
                    raise
                continue
            if many and not more:
                self._server.refuse("n")
            stops = bool(stop) and not any(word in heard.text for word in words[1:4])
            systems = way == "completions" or (messages is told and (not asked or heard.prompt != asked))
            return stops, heard.choices == 2, systems
        return False, False, way == "completions" or self._systems(asked)

    def _systems(self, asked: int) -> bool:
        """Does it take a system text, and does the text make the prompt longer? Some templates leave it out."""
        try:
            heard = self._converse((_SYSTEM, *_ASKED), "", 1)
        except (RequestRefused, Unanswered) as error:
            self._check_refused(error)
            return False
        return not asked or heard.prompt != asked

    def _check_refused(self, error: RequestRefused | Unanswered) -> None:
        """Raises ``error`` where the server is out of order; a 500 beside a plain answer is a chat template's no."""
        if isinstance(error, Unanswered):
            if error.status != 500:
                raise error
            self._converse(_ASKED, "", 1)

    def _rendered_alike(self, chat: Chat) -> str | None:
        """Does the server count as many tokens in a rendered prompt as the tokenizer here? None: no."""
        expected = len(chat.prompt_ids(_ASKED))
        for bos in ("", chat.bos_token):
            try:
                heard = self._complete_scored(bos)
            except RequestRefused:
                return None
            if heard.prompt == expected:
                self._written = heard.text
                return bos
            if not chat.bos_token:
                break
        logger.warning("%s counts other tokens than the tokenizer given for it; not used", self._server.base)
        return None

    def _counting(self, way: Way, no_chat: bool) -> Literal["tokenizer", "vllm", "llama.cpp", "usage"]:
        if self._chat is not None and way == "completions":
            return "tokenizer"
        if no_chat:
            return "usage"
        kinds: tuple[Literal["vllm", "llama.cpp"], ...] = ("vllm", "llama.cpp")
        for kind in kinds:
            try:
                if count_remotely(self._server, self._name, kind, _ASKED, "", self._fields) > 0:
                    return kind
            except ModelError:
                continue
        return "usage"

    def _wrong_name(self, refused: RequestRefused) -> ModelError:
        names = [row["id"] for row in self._listed]
        if names and self._name not in names:
            return ModelError(f"{self._server.base} has no model {self._name!r}; it offers: {', '.join(names[:20])}")
        hint = "" if self._server.base.endswith("/v1") else " (the address usually ends in /v1)"
        return ModelError(f"{refused}{hint}")


def _opened(data: Any) -> bool:
    """Does the first answer hold the end of thoughts without their beginning? Then the template wrote that."""
    choice = data["choices"][0]
    message = choice.get("message")
    text = message.get("content") if isinstance(message, Mapping) else choice.get("text")
    return isinstance(text, str) and bool(CLOSING.search(text)) and not begun(text)
