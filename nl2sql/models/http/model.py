"""Any served model as a ``Model``: ``--model http://HOST/v1#NAME``, ``openai/NAME``, ``ollama/NAME`` and so on.

``HttpModel`` is thread-safe; callers block while their requests run side by side, ``batch_size`` at a time. What the
server does is probed once at the start (nl2sql.models.http.probe) and recorded in ``describe()``. Not here: images,
more than one server behind one model.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx2

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.interfaces import Completion, Grammar, Message, ToolDefinition, Usage
from nl2sql.models.chat import Chat, Request
from nl2sql.models.http.grammar import GrammarCheck, Trials, fields_for
from nl2sql.models.http.probe import Abilities, probe
from nl2sql.models.http.providers import OWN, Place, ServerOptions, load_tokenizer, place_of, window_of
from nl2sql.models.http.server import (
    CONTINUE,
    STREAMED,
    CountedPrompts,
    Server,
    count_remotely,
    for_chat,
    quoting,
    rendered,
    served_models,
    without_echo,
)
from nl2sql.models.http.transport import Asked, Reply, RequestRefused, Transport
from nl2sql.models.http.wire import Answer, Counts, Stream, read_answers, read_counts

logger = logging.getLogger(__name__)

MAX_SAID = 600  # characters of an error about an answer
_STORY = ({"role": "user", "content": "Tell me a story."},)
_NOTHING = "(nothing)"  # in place of an empty turn, which Anthropic refuses


class HttpModel:
    """A model behind an OpenAI-compatible or Anthropic server. Use ``load_model("http://HOST/v1#NAME")``.

    spec: as ``providers.place_of`` takes it. batch_size: parallel requests at most. The key, if any, comes from the
    server's environment variable and is shown nowhere. Raises UsageError for an address without a name (and says what
    is offered) and a missing key, else ModelError.
    """

    def __init__(self, spec: str, options: ServerOptions | None = None, *, batch_size: int = 16) -> None:
        options = options or ServerOptions()
        self._connect(place_of(spec), options, batch_size)
        try:
            if not self.name:
                raise self._nameless()
            chat = load_tokenizer(options.tokenizer, self.name)
            guess = window_of(self.name) if chat else None
            abilities = probe(self._server, self.name, chat, options.context_window, guess, options.thinking)
        except BaseException:
            self._server.close()
            raise
        self._know(chat, abilities, Trials())

    def _connect(self, place: Place, options: ServerOptions, batch_size: int) -> None:
        """Set up the requests to the server at ``place``; none is made yet."""
        self.url, self.name = place.url, place.name
        self.batch_size, self.options, self._ours = batch_size, options, place.provider == OWN
        transport = Transport(place, timeout_s=options.timeout_s, retries=options.retries, concurrency=batch_size)
        self._server = Server(transport, options.body)

    def _know(self, chat: Chat | None, abilities: Abilities, trials: Trials) -> None:
        self._chat, self.abilities, self._trials = chat, abilities, trials
        self.context_window, self._many = abilities.window, abilities.many
        self._check: GrammarCheck | None = None
        self._finding = threading.Lock()
        self._counted = CountedPrompts()
        self._told = False  # that thoughts took all the tokens
        self._told_greedy = False  # that the server does not sample

    # ------------------------------------------------------------------------------------------ the protocol

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """Continue the open assistant turn; see ``Model.generate`` for the options.

        Token counts are the server's where it gives any. Where ``n`` answers come from one request, its tokens and
        seconds are split evenly. Raises ModelError, also for a grammar on a server without structured output, for
        tools that it does not show its model. A server that decodes greedily whatever it is asked is asked once: its
        answer stands for all samples, which is said once (logger).
        """
        return self._generate(Request(messages, **options))

    def _generate(self, request: Request) -> list[Completion]:
        started, n, grammar, sampling = time.perf_counter(), request.n, request.grammar, request.sampling
        if request.tools:
            self.check(grammar=grammar is not None, tools=True)
        extra = self._constraint(grammar) if grammar is not None else {}
        if sampling is not None and not self._samples():
            (only,) = self._generate(replace(request, sampling=None, n=1, seed=None))
            return [only, *[replace(only, usage=Usage())] * (n - 1)]
        known = self._known_count(request.messages, request.prefill, request.tools)
        if known is not None:
            more = ", or correct it with --server context_window=..."
            request.check_room(known, self.context_window, self.name, more)
        whole = n if self._many and sampling is not None and self.abilities.stops else 1  # answers of one request
        try:
            completions = self._ask(request, extra, whole)
        except RequestRefused as refused:
            if whole == 1 or refused.status not in (400, 422):
                raise
            completions = self._ask(request, extra, 1)
            self._many = False  # some servers take a few at once, but not so many
        if grammar is not None:
            self._hold(completions, grammar)
        seconds = (time.perf_counter() - started) / n
        return [replace(c, usage=replace(c.usage, seconds=seconds)) for c in completions]

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        """Prompt tokens that ``generate`` would condition on; never fewer.

        Exact with a tokenizer, the server's or one given. Else: the count the server reported for the longest prompt
        that this one extends plus one token a byte of what came since, while that is under half the window; otherwise
        a request for one token tells.
        """
        known = self._known_count(messages, prefill, tools)
        if known is not None:
            return known
        bound = self._counted.bound(messages, prefill, tools)
        if bound <= self.context_window // 2:
            return bound
        path, prompt = self._prompt(messages, prefill, tools)
        body = prompt | self._settings(Request(messages, max_new_tokens=1))
        try:
            count = read_counts(self._server.send("POST", f"{self.url}/{path}", body).data).prompt
        except RequestRefused:  # too long for the server
            return bound
        self._counted.remember(messages, prefill, count, tools)
        return bound if count is None else count

    def describe(self) -> dict[str, Any]:
        """The server as a manifest records it; the key is not in it."""
        abilities = self.abilities
        return {
            "backend": "http",
            "name": self.name,
            "revision": f"served by {self.url}" + (f" with {self._own}" if self._own else ""),
            "url": self.url,
            "server": dict(abilities.server),
            "prefill": abilities.way,
            "system_role": abilities.systems,
            "token_counts": abilities.counting,
            "honours": ["stops"] * abilities.stops + ["many"] * self._many + ["logprobs"] * bool(abilities.logprobs),
            "refused": self._server.refused,
            "thinking_tokens": abilities.budget,
            "body": self.options.body,
            "batch_size": self.batch_size,
            "context_window": self.context_window,
            "context_window_known": abilities.window_known,
            "prices_per_million": [self.options.price_in, self.options.price_out],
            "httpx2": httpx2.__version__,
        }

    def cache_identity(self) -> dict[str, Any]:
        """The identity of this model for the response cache: also its answer to the probe's question."""
        abilities = self.abilities
        parts: dict[str, Any] = {
            "url": self.url,
            "name": self.name,
            "server": dict(abilities.server),
            "fields": dict(abilities.fields),
        }
        parts |= {"refused": self._server.refused, "thinking": abilities.budget, "body": self.options.body}
        if self._chat is not None:  # the server does not see how its prompts were written
            parts["form"] = self._chat.form
        return parts | {"way": abilities.way, "answer": abilities.answer}

    @property
    def _own(self) -> str:
        """What a user has set that changes answers, as a run's key holds it."""
        thinking = {} if self.options.thinking is None else {"thinking": self.options.thinking}
        return json.dumps({**self.options.body, **thinking}, sort_keys=True) if self.options.body or thinking else ""

    def close(self) -> None:
        """Hang up; callers still waiting get Cancelled."""
        self._server.close()

    # --------------------------------------------------------------------------------------------- requests

    def _ask(self, request: Request, extra: dict[str, Any], whole: int) -> list[Completion]:
        """``request.n`` completions from requests of ``whole`` answers each, side by side; extra: further fields."""
        messages, prefill, stop, tools = request.messages, request.prefill, request.stop, request.tools
        echo = prefill if self.abilities.echoes and self.abilities.way == "chat" else ""
        sizes = [min(whole, request.n - at) for at in range(0, request.n, whole)]
        # Tools are not streamed: calls come in pieces of another shape, and end by themselves.
        streamed = bool(stop) and not self.abilities.stops and not tools
        streams = [self._stream(request, echo) if streamed else None for _ in sizes]
        path, prompt = self._prompt(messages, prefill, tools)
        requests: list[Asked] = []
        for index, (size, stream) in enumerate(zip(sizes, streams, strict=True)):
            one = replace(request, n=size, seed=seed_of(request.seed, index))
            body = prompt | self._settings(one) | extra | (STREAMED if stream is not None else {})
            requests.append(("POST", f"{self.url}/{path}", body, stream))
        replies = self._server.send_all(requests, cancel=request.cancel)
        completions: list[Completion] = []
        for reply, stream, size in zip(replies, streams, sizes, strict=True):
            try:
                answers, counts = self._read(reply, stream, size, stop, echo)
            except ModelError as error:
                raise ModelError(one_line(f"{self.url}: {error}", MAX_SAID)) from None
            self._counted.remember(messages, prefill, counts.prompt, tools)
            if counts.prompt is None:
                counts = replace(counts, prompt=self.count_tokens(messages, prefill, tools))
            if self.abilities.way == "user_turn" and prefill:
                answers = [without_echo(answer, prefill) for answer in answers]
            completions += self._completions(answers, counts, reply)
        return completions

    def _stream(self, request: Request, echo: str) -> Stream:
        """The collector of a streamed answer; behind thoughts it counts the answer's tokens itself."""
        most = request.max_new_tokens if self.abilities.budget else None
        return Stream(request.stop, echo, most=most, opened=self.abilities.opened)

    def _read(
        self, reply: Reply, stream: Stream | None, size: int, stop: Sequence[str], echo: str
    ) -> tuple[list[Answer], Counts]:
        """The answers of one request and its token counts; completion tokens are estimated where none are given."""
        if stream is not None and reply.data is None:
            answers, counts, tokens = [stream.answer], stream.counts, stream.pieces
        else:
            answers = read_answers(reply.data, stop, echo, opened=self.abilities.opened)
            counts = read_counts(reply.data)
            tokens = sum(len((a.thinking + a.text).encode("utf-8", "replace")) // 3 + 1 for a in answers)
        if len(answers) != size:
            raise ModelError(f"{len(answers)} answers came where {size} were asked for")
        return answers, counts if counts.completion is not None else replace(counts, completion=tokens)

    def _prompt(
        self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()
    ) -> tuple[str, dict[str, Any]]:
        """The path to post to, and the part of the body that holds the prompt."""
        abilities = self.abilities
        body: dict[str, Any] = {"model": self.name, **abilities.fields}
        if abilities.way == "completions":
            return "completions", body | {"prompt": rendered(self._chat, messages, prefill, abilities.drop_bos, tools)}
        chat, told = for_chat(messages, abilities.systems), self._server.continues
        if told:
            chat = [m if m["content"].strip() or m.get("tool_calls") else m | {"content": _NOTHING} for m in chat]
            prefill = prefill.rstrip()  # white space at the end is refused
        if tools:
            body["tools"] = [dict(tool) for tool in tools]
        if prefill and abilities.way == "chat":
            body |= {} if told else CONTINUE
            chat.append({"role": "assistant", "content": prefill})
        elif prefill:
            chat = quoting(chat, prefill)
        return "chat/completions", body | {"messages": chat}

    def _settings(self, request: Request) -> dict[str, Any]:
        limit = "max_tokens" if self.abilities.way == "completions" else self.abilities.limit_field
        room = request.max_new_tokens + self.abilities.budget
        body: dict[str, Any] = {limit: room, "temperature": 0, **self.abilities.logprobs}
        if request.sampling is not None:
            body |= {"temperature": request.sampling.temperature, "top_p": request.sampling.top_p}
            body |= {"seed": request.seed} if request.seed is not None else {}
        if request.stop and self.abilities.stops:
            body["stop"] = list(request.stop)
        return body | ({"n": request.n} if request.n > 1 else {})

    def _completions(self, answers: list[Answer], counts: Counts, reply: Reply) -> list[Completion]:
        n, prompt, completion = len(answers), counts.prompt or 0, counts.completion or 0
        paid = (prompt * self.options.price_in + completion * self.options.price_out) / 1e6
        completions = []
        for index, answer in enumerate(answers):
            usage = Usage(
                prompt_tokens=prompt,
                prefill_tokens=prompt - counts.reused if index == 0 else 0,
                completion_tokens=completion * (index + 1) // n - completion * index // n,
                model_calls=1,
                queue_seconds=reply.queue_seconds / n,
                compute_seconds=counts.compute_seconds / n,
                cost=paid / n,
            )
            text, thinking = map(self._server.without_key, (answer.text, answer.thinking))  # in pieces of a stream
            completions.append(Completion(text, answer.finish, usage, answer.logprob, thinking))
            if answer.finish == "length" and not text and not self._told:
                self._told = True
                said = "%s used all of its %d tokens and answered nothing; allow it more with --server thinking=..."
                logger.warning(said, self.name, completion)
        return completions

    # ----------------------------------------------------------------------------------------------- counting

    def _known_count(
        self, messages: Sequence[Message], prefill: str, tools: Sequence[ToolDefinition] = ()
    ) -> int | None:
        """The exact number of prompt tokens, where it costs no computing to know it."""
        abilities = self.abilities
        if abilities.counting == "tokenizer" and self._chat is not None:
            return len(self._chat.prompt_ids(messages, prefill, tools))
        count = self._counted.get(messages, prefill, tools)
        if count is None and not tools and abilities.counting in ("vllm", "llama.cpp") and abilities.way != "user_turn":
            chat = for_chat(messages, abilities.systems)
            count = count_remotely(self._server, self.name, abilities.counting, chat, prefill, abilities.fields)
            self._counted.remember(messages, prefill, count)
        return count

    # ------------------------------------------------------------------------------- found out when first needed

    def takes(self, kind: str) -> bool:
        """Does the server keep to grammars of ``kind`` (lark, json_schema)? Found out once, by a trial."""
        return bool(self._trials.form(kind, self._trial))

    def check(self, *, grammar: bool, tools: bool) -> None:
        """Raises ModelError when the server does not show its model tools, or takes no grammar beside them."""
        if not tools:
            return
        if self.abilities.way == "completions":
            if self._chat is None:
                raise ModelError(f"{self.url} has no chat, so no native tool calls; leave react.native_tools at false")
            self._chat.check_tools(grammar=grammar)
            return
        if grammar:
            raise ModelError(
                f"{self.url} parses tool calls itself, which goes with no grammar; leave --constrain at none, "
                "react.native_tools at false, or render prompts here (--server tokenizer=...)"
            )
        if not self._trials.shows_tools(self._trial):
            raise ModelError(
                f"{self.url} takes tools and does not show them to {self.name} (it counts as many tokens with them as "
                "without); leave react.native_tools at false"
            )

    def _constraint(self, grammar: Grammar) -> dict[str, Any]:
        """The request fields for a grammar. Raises ModelError when the server has no structured output for it."""
        with self._finding:
            self._check = self._check or GrammarCheck(ours=self._ours)
            self._check.prepare(grammar)
        return fields_for(grammar, self._trials.form(grammar.kind, self._trial), self.url)

    def _hold(self, completions: Sequence[Completion], grammar: Grammar) -> None:
        """Hold answers against the grammar they were asked to keep to. Raises ModelError."""
        assert self._check is not None
        try:
            for completion in completions:
                self._check.check(grammar, completion.text)
        except ModelError as error:
            raise ModelError(f"{self.url}: {error}") from None

    def _samples(self) -> bool:
        """Does the server sample? At a temperature of its own it does; one that does not is named once."""
        found = "temperature" in self._server.refused or self._trials.samples(self._trial)
        if not found and not self._told_greedy:
            self._told_greedy = True
            said = "%s decodes greedily whatever the temperature: all samples of a question are one answer"
            logger.warning(said, self.url)
        return found

    def _trial(self, tokens: int, **extra: Any) -> Any:
        path, prompt = self._prompt(_STORY, "")
        body = prompt | self._settings(Request(_STORY, max_new_tokens=tokens)) | extra
        return self._server.send("POST", f"{self.url}/{path}", body, retries=1).data

    def _nameless(self) -> UsageError:
        names = [row["id"] for row in served_models(self._server)]
        offered = f"it offers: {', '.join(names[:20])}" if names else "it lists none; ask whoever runs it"
        provider = self._server.place.provider
        example = f"{provider}/" if provider else f"{self.url}#"
        return UsageError(f"which model of {self.url}? {offered}. Example: --model {example}{[*names, 'NAME'][0]}")


def seed_of(seed: int | None, index: int) -> int | None:
    """A seed of its own for request ``index`` of a call; 31 bits, which every server takes."""
    return None if seed is None else int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "big") >> 1
