"""A model that answers from a script: deterministic, dependency-free, product code (tests need no mocks).

>>> message = {"role": "user", "content": "How many?"}
>>> ScriptedModel(["SELECT 1"]).generate([message], max_new_tokens=9)[0].text
'SELECT 1'

Used from Python, ``ScriptedModel(["SELECT 1"])``, or from the command line, ``--model scripted:FILE`` (the file's
format is in docs/models.md). Token counts are whitespace-separated words. It does not batch and knows no grammar.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nl2sql.errors import Cancelled, ModelError, UsageError, one_line
from nl2sql.interfaces import Completion, Message, ToolDefinition, Usage
from nl2sql.machine import from_json, from_yaml
from nl2sql.models.chat import Request, cut_at

Reply: TypeAlias = str | Mapping[str, Any]  # text, or {text | error, finish_reason?, delay_s?}
OnExhausted: TypeAlias = Literal["error", "repeat"]
ANY = "*"  # the key for any other question, and for any other controller
_REPLY_KEYS = {"text", "error", "finish_reason", "delay_s"}
_FILE_KEYS = {"name", "context_window", "on_exhausted", "replies"}


class ScriptedModel:
    """Replies consumed in order: one list for everything, or one list per question (and per controller).

    replies: a sequence of replies; or a mapping from question text (``"*"`` = any other) to a sequence or to a
    mapping from controller name (``"*"`` = any other) to a sequence. ``for_episode`` gives each episode fresh
    cursors; calling ``generate`` directly advances the cursors of this object.
    on_exhausted: ``"error"`` raises ModelError when a list runs out, ``"repeat"`` gives its last reply again.
    Raises UsageError for replies of another shape.
    """

    def __init__(
        self,
        replies: Sequence[Reply] | Mapping[str, Any],
        *,
        name: str = "scripted",
        context_window: int = 8192,
        on_exhausted: OnExhausted = "error",
    ) -> None:
        if on_exhausted not in ("error", "repeat"):
            raise UsageError(f"on_exhausted={on_exhausted!r}; expected 'error' or 'repeat'")
        if isinstance(context_window, bool) or not isinstance(context_window, int) or context_window < 1:
            raise UsageError(f"context_window={context_window!r}; expected a positive whole number")
        self.name, self.context_window, self.on_exhausted = name, context_window, on_exhausted
        self._table = _table(replies)
        self._cursors: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        self._episode: tuple[str, str] | None = None

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedModel:
        """Read a YAML or JSON script. Raises UsageError with one line that names the file and what is wrong."""
        data = _read_script(Path(path).expanduser())
        try:
            return cls(
                data["replies"],
                name=str(data.get("name") or f"scripted:{path}"),
                context_window=data.get("context_window", 8192),
                on_exhausted=data.get("on_exhausted", "error"),
            )
        except UsageError as error:
            raise UsageError(f"script {path}: {error}") from None

    def for_episode(self, question_text: str, controller: str) -> ScriptedModel:
        """A view for one episode: the same replies, fresh cursors, question and controller fixed."""
        view = copy.copy(self)
        view._cursors, view._lock, view._episode = {}, threading.Lock(), (question_text, controller)
        return view

    def generate(self, messages: Sequence[Message], **options: Any) -> list[Completion]:
        """The next ``n`` replies; see ``Model.generate`` for the options.

        ``grammar``, ``sampling``, ``seed`` and ``tools`` are accepted and change nothing. Raises ModelError when the
        replies are used up, for an ``error`` reply, and for a prompt longer than the context window; Cancelled when
        ``cancel`` is set.
        """
        request = Request(messages, **options)
        prompt_tokens = self.count_tokens(messages, request.prefill)
        if prompt_tokens + request.max_new_tokens > self.context_window:
            raise ModelError(
                f"prompt of {prompt_tokens} tokens + max_new_tokens {request.max_new_tokens} exceeds the context "
                f"window of {self.context_window}; shorten the prompt or raise the script's context_window"
            )
        replies = self._take(messages, request.prefill, request.n)
        return [_complete(reply, prompt_tokens, request) for reply in replies]

    def count_tokens(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> int:
        """Whitespace-separated words of all messages and the prefill; calls and tools are not counted."""
        return sum(len(message["content"].split()) for message in messages) + len(prefill.split())

    def describe(self) -> dict[str, Any]:
        """For the manifest; ``revision`` is the SHA-256 of the replies."""
        text = json.dumps(self._table, sort_keys=True, ensure_ascii=False)
        return {
            "backend": "scripted",
            "name": self.name,
            "revision": hashlib.sha256(text.encode()).hexdigest(),
            "context_window": self.context_window,
            "on_exhausted": self.on_exhausted,
        }

    def close(self) -> None:
        """Nothing to release."""

    def _take(self, messages: Sequence[Message], prefill: str, n: int) -> list[Mapping[str, Any]]:
        if self._episode is not None:
            asked, controller = self._episode
            question = asked if asked in self._table else ANY
        else:
            question, controller = self._find_question(messages, prefill), ANY
            asked = question
        by_controller = self._table.get(question)
        if by_controller is None:
            raise ModelError(f"scripted model {self.name!r} has no replies for {_short(asked)}; add it or a '*' entry")
        key = controller if controller in by_controller else ANY
        if key not in by_controller:
            raise ModelError(
                f"scripted model {self.name!r} has no replies for controller {controller!r} on {_short(asked)}; "
                f"known: {', '.join(by_controller)}"
            )
        replies = by_controller[key]
        with self._lock:
            start = self._cursors.get((question, key), 0)
            if start + n > len(replies) and not (self.on_exhausted == "repeat" and replies):
                raise ModelError(
                    f"scripted model {self.name!r} has no reply left: {_short(asked)} has {len(replies)} replies and "
                    f"reply {len(replies) + 1} was asked for"
                )
            self._cursors[(question, key)] = start + n
        return [replies[min(i, len(replies) - 1)] for i in range(start, start + n)]

    def _find_question(self, messages: Sequence[Message], prefill: str) -> str:
        text = "\n".join([*(message["content"] for message in messages), prefill])
        keys = [key for key in self._table if key != ANY and key in text]
        return max(keys, key=len, default=ANY)


def _complete(reply: Mapping[str, Any], prompt_tokens: int, request: Request) -> Completion:
    started = time.perf_counter()
    if (request.cancel or threading.Event()).wait(float(reply.get("delay_s", 0.0))):
        raise Cancelled("cancelled while the scripted model answered")
    if "error" in reply:
        raise ModelError(str(reply["error"]))
    text: str = reply["text"]
    finish: Literal["stop", "length", "cancelled"] = reply.get("finish_reason", "stop")
    text, cut = cut_at(text, request.stop)
    finish = "stop" if cut else finish
    shortened = _first_words(text, request.max_new_tokens)
    if shortened is not None:
        text, finish = shortened, "length"
    words = len(text.split())
    return Completion(text, finish, Usage(prompt_tokens, prompt_tokens, words, 1, time.perf_counter() - started))


def _first_words(text: str, limit: int) -> str | None:
    """``text`` up to its ``limit``-th word, or None when it has no more words than that."""
    position = 0
    for count, word in enumerate(text.split()):
        if count == limit:
            return text[:position]
        position = text.index(word, position) + len(word)
    return None


def _short(question: str) -> str:
    name = "any other question ('*')" if question == ANY else f"question {question[:80]!r}"
    return name if len(question) <= 80 else name + "..."


# ------------------------------------------------------------------------------- reading and checking scripts


def _table(replies: object) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Every accepted shape as question -> controller -> replies in long form."""
    by_question = replies if isinstance(replies, Mapping) else {ANY: replies}
    table: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for question, value in by_question.items():
        if not isinstance(question, str):
            raise UsageError(f"question {question!r} is not text; put it in quotes")
        by_controller = value if isinstance(value, Mapping) else {ANY: value}
        table[question] = {}
        for controller, items in by_controller.items():
            if isinstance(items, str) or not isinstance(items, Sequence):
                what = f"replies of {_short(question)} are {type(items).__name__}"
                raise UsageError(f'{what}; expected a list of replies, e.g. ["SELECT 1"]')
            table[question][str(controller)] = [_reply(item, question) for item in items]
    return table


def _reply(item: object, question: str) -> dict[str, Any]:
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, Mapping):
        what = f"a reply of {_short(question)} is {item!r}"
        raise UsageError(f"{what}; expected text (in quotes) or a mapping with 'text' or 'error'")
    if unknown := {str(key) for key in item} - _REPLY_KEYS:
        raise UsageError(f"unknown key {min(unknown)!r} in a reply of {_short(question)}; known: text, error, ...")
    if ("text" in item) == ("error" in item):
        raise UsageError(f"a reply of {_short(question)} needs exactly one of 'text' and 'error'")
    if "text" in item and not isinstance(item["text"], str):
        raise UsageError(f"text {item['text']!r} in a reply of {_short(question)} is not text; put it in quotes")
    if item.get("finish_reason", "stop") not in ("stop", "length", "cancelled"):
        raise UsageError(f"finish_reason {item['finish_reason']!r}; expected stop, length or cancelled")
    delay = item.get("delay_s", 0)
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay < 3600:
        raise UsageError(f"delay_s {delay!r} in a reply of {_short(question)}; expected seconds between 0 and 3600")
    return dict(item)


def _read_script(path: Path) -> dict[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        data = from_json(text) if path.suffix.lower() == ".json" else from_yaml(text)
    except FileNotFoundError:
        raise UsageError(
            f"script {str(path)!r} does not exist; give a YAML or JSON file: --model scripted:FILE"
        ) from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"script {path} cannot be read: {one_line(error, 200)}") from None
    if not isinstance(data, Mapping) or "replies" not in data:
        raise UsageError(f"script {path} has no 'replies'; expected replies: {{'*': [\"SELECT 1\"]}} (docs/models.md)")
    if unknown := {str(key) for key in data} - _FILE_KEYS:
        raise UsageError(f"script {path}: unknown key {min(unknown)!r}; known: {', '.join(sorted(_FILE_KEYS))}")
    return dict(data)
