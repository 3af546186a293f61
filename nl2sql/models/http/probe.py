"""The probe of a server: three tiny questions, asked once at the start, show what it does; more where it refuses one.

Servers differ most in how they take an open assistant turn (``prefill``). In order of preference:

- ``completions``: the prompt is rendered here, with a tokenizer of the same model, and sent to ``/completions``;
- ``chat``: ``/chat/completions`` with a final assistant message and ``continue_final_message``. Held against the
  token counts that the server reports, since many servers accept the switch and ignore it;
- ``user_turn``: the text so far is quoted at the end of the user's message, with the request to go on from there.

A model that thinks before it answers is always asked by ``user_turn``: an open turn would take its thoughts from it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from nl2sql.errors import ModelError
from nl2sql.interfaces import Message
from nl2sql.models.chat import Chat
from nl2sql.models.http.prompts import CONTINUE, rendered
from nl2sql.models.http.providers import PROVIDERS
from nl2sql.models.http.server import (
    LIMIT,
    NEWER_LIMIT,
    Server,
    about_server,
    count_remotely,
    loaded_model,
    served_models,
    whole_number,
)
from nl2sql.models.http.transport import RequestRefused, Unanswered
from nl2sql.models.http.wire import CLOSING, DEFAULT_BUDGET, begun, read_answers, read_counts

logger = logging.getLogger(__name__)

Way = Literal["completions", "chat", "user_turn"]
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
    trims: bool = False  # the server drops white space at the end of the open turn
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
    server: Server,
    name: str,
    chat: Chat | None,
    window: int | None,
    likely: int | None,
    thinking: int | None = None,
) -> Abilities:
    """Ask the server what it does. Raises ModelError.

    chat: a tokenizer of the same model, where there is one. window: tokens, as the user says; else the server's word
    is taken, else ``likely``. thinking: as in ``ServerOptions``.
    """
    listed = served_models(server)
    entry = next((row for row in listed if row["id"] == name), {})
    about = about_server(server, entry)
    said = about.pop("window", None)
    return _Probe(server, name, chat, listed, about, thinking).run(window or said, likely)


class _Window(NamedTuple):
    tokens: int
    known: bool


class _Heard(NamedTuple):
    """One answer to the probe. prompt: tokens by the server's count, 0 where it does not say."""

    prompt: int
    text: str
    logprob: float | None
    choices: int
    thinks: bool  # or has written nothing yet
    opened: bool = False  # its text has the end of thoughts, and not their beginning


class _Probe:
    def __init__(
        self,
        server: Server,
        name: str,
        chat: Chat | None,
        listed: list[dict[str, Any]],
        about: dict[str, Any],
        thinking: int | None,
    ) -> None:
        self._server, self._name, self._chat, self._listed, self._about = server, name, chat, listed, about
        self._thinking = thinking
        self._limit = LIMIT
        self._fields: dict[str, Any] = {}
        self._written = ""  # the answer to a rendered prompt
        self._logprobs: dict[str, Any] = {}

    def run(self, said: int | None, likely: int | None) -> Abilities:
        plain: RequestRefused | None = None
        asked, answer, thinks = 0, "", False
        try:
            first = self._first_chat()
            asked, answer, thinks = first.prompt, first.text, first.thinks or bool(self._thinking)
        except RequestRefused as refused:
            plain = refused
        window = self._window(said, likely)
        if thinks and self._chat is None:
            return self._thinker(window, asked)
        way, bos, trims, echoes = self._way(asked, answer, plain)
        if way == "completions":
            self._fields, answer = {}, self._written
        stops, many, systems = self._extras(way, bos, asked, answer)
        return Abilities(
            way=way,
            window=window.tokens,
            window_known=window.known,
            counting=self._counting(way, plain is not None),
            fields=self._fields,
            limit_field=self._limit,
            systems=systems,
            trims=trims,
            echoes=echoes,
            stops=stops,
            many=many,
            logprobs=self._logprobs,
            drop_bos=bos,
            server=self._about,
            answer=answer,
        )

    def _thinker(self, window: _Window, asked: int) -> Abilities:
        """What is asked of a model that thinks: nothing that would cost its thoughts each time."""
        budget = DEFAULT_BUDGET if self._thinking is None else self._thinking
        logger.warning(
            "%s thinks before it answers: %d tokens more are allowed for that (--server thinking=...)",
            self._name,
            budget,
        )
        room = 8 + (0 if self._fields.get("thinking") else budget)
        heard = self._converse(_ASKED, "", room, top_p=0.9, seed=1)  # greedy still; a refusal shows here
        return Abilities(
            way="user_turn",
            window=window.tokens,
            window_known=window.known,
            counting=self._counting("user_turn", False),
            fields=self._fields,
            limit_field=self._limit,
            systems=self._systems(asked),
            server=self._about,
            answer=heard.text,
            budget=budget,
            opened=heard.opened,
        )

    def _window(self, said: int | None, likely: int | None) -> _Window:
        """The context window: what was said of it, what shows once the model is loaded, or a guess that is told."""
        provider = self._server.place.provider
        if provider == "ollama":
            loaded = loaded_model(self._server, self._name)
            self._about |= {key: loaded[key] for key in ("digest",) if isinstance(loaded.get(key), str)}
            said = said or whole_number(loaded.get("context_length"))
        if known := said or likely:
            return _Window(known, True)
        if provider and PROVIDERS[provider].window:
            return _Window(PROVIDERS[provider].window, False)
        logger.warning(
            "%s does not say how long its context window is; assuming %d tokens (--server context_window=...)",
            self._server.base,
            DEFAULT_WINDOW,
        )
        return _Window(DEFAULT_WINDOW, False)

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

    def _first_chat(self) -> _Heard:
        """A chat answer, with as many of our usual fields as the server takes."""
        refused: RequestRefused | None = None
        for fields in self._usual_fields():
            for limit in (LIMIT, NEWER_LIMIT):
                self._fields, self._limit = dict(fields), limit
                try:
                    return self._scored(lambda **more: self._converse(_ASKED, "", 8, **more), {"logprobs": True})
                except RequestRefused as error:
                    if error.status not in (400, 404, 405, 422, 501):
                        raise
                    if _ALL_THOUGHT in error.said:
                        return _Heard(0, "", None, 1, True)
                    refused = error
                    if error.status == 404 or any(name in error.said for name in fields):
                        break
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
        if self._server.foreign:
            thinks = {"type": "enabled", "budget_tokens": self._thinking}
            return [{"thinking": thinks}] if self._thinking else [{}]
        provider = self._server.place.provider
        if self._thinking or provider == "openai":
            return [{}]
        if provider == "ollama":
            return [{} if self._thinking is None else {"reasoning_effort": "none"}]
        return [_TEMPLATE_SWITCH, {}]

    def _way(self, asked: int, answer: str, plain: RequestRefused | None) -> tuple[Way, str, bool, bool]:
        """The way of an open turn to this server; a token to drop; is white space at its end lost; is it echoed.

        Tokens tell whether the turn was left open: the lines of ``_TURN`` have equally many, and what closes a turn
        is no multiple of them. Where the documentation says that turns are continued, and no count tells, the answer
        does: a server that leaves the open turn out answers as it did without it.
        """
        if self._chat is not None:
            bos = self._rendered_alike(self._chat)
            if bos is not None:
                return "completions", bos, False, False
        if plain is not None:  # no chat here: a base model, or a server of completions only
            try:
                self._written = self._complete_scored("").text
            except RequestRefused:
                raise self._wrong_name(plain) from None
            return "completions", "", False, False
        turn = _BEGUN if self._server.foreign else _TURN
        try:
            heard = self._converse((*_ASKED, {"role": "assistant", "content": turn}), "", 8, **CONTINUE)
        except (RequestRefused, Unanswered) as error:
            self._check_refused(error)
            return "user_turn", "", False, False
        if self._server.foreign:
            if heard.text == answer:
                logger.warning("%s leaves out the turn that it is to continue; it is quoted instead", self._server.base)
                return "user_turn", "", False, False
            return "chat", "", True, False
        tokens = heard.prompt - asked  # of the open turn, and of what closes it
        if not asked or tokens < _LINES - 1 or -tokens % _LINES > 1:
            return "user_turn", "", False, False
        return "chat", "", tokens % _LINES > 0, heard.text.startswith(turn.rstrip())

    def _extras(self, way: Way, bos: str, asked: int, answer: str) -> tuple[bool, bool, bool]:
        """Does it honour stop strings, n, a system text? Asked by one request, or by one each if it refuses that."""
        ask = self._complete if way == "completions" else self._converse
        words = answer.split()
        stop = {"stop": words[1:4]} if len(words) > 2 else {}
        messages = _ASKED if way == "completions" else (_SYSTEM, *_ASKED)
        try:
            heard = ask(messages, bos, 8, **_SAMPLED, n=2, **stop)
        except ModelError:
            return (
                self._stops(lambda **more: ask(_ASKED, bos, 8, **more), answer),
                self._many(lambda **more: ask(_ASKED, bos, 1, **more)),
                way == "completions" or self._systems(asked),
            )
        stops = bool(stop) and not any(word in heard.text for word in words[1:4])
        systems = way == "completions" or not asked or heard.prompt != asked
        return stops, heard.choices == 2, systems

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

    def _stops(self, ask: Callable[..., _Heard], answer: str) -> bool:
        words = answer.split()
        if len(words) < 3:
            return False  # cut here, then
        try:
            return words[-1] not in ask(stop=[words[-1]]).text
        except Unanswered:
            raise
        except ModelError:
            return False

    def _many(self, ask: Callable[..., _Heard]) -> bool:
        """Does it give two answers at once? The fields of a sample are sent along, so that a refusal shows here."""
        try:
            return ask(n=2, **_SAMPLED).choices == 2
        except RequestRefused:
            self._server.refuse("n")
        except Unanswered:
            raise
        except ModelError:
            pass
        return False

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
