r"""The answers of an OpenAI-compatible server, read whole or streamed, trusting nothing; thoughts told from answers.

>>> read_answers({"choices": [{"text": "SELECT 1; -- done", "finish_reason": "stop"}]}, stop=[";"])
[Answer(text='SELECT 1', finish='stop', logprob=None, thinking='')]

Whatever is missing or of another type than the protocol says is a ModelError with one line that names the field.

>>> set_aside("<think>\nThe table is orders.\n</think>\n\nSELECT 1")
('The table is orders.', 'SELECT 1')
>>> set_aside("SELECT 1")
('', 'SELECT 1')
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from nl2sql.errors import ModelError, one_line
from nl2sql.models.chat import cut_at
from nl2sql.sql.parse import load_json

# ------------------------------------------------------------ what a model thinks before it answers
# Servers give it in a field of its own (``reasoning_content``: vLLM, llama.cpp; ``reasoning``:
# Ollama; blocks of type ``thinking``: Anthropic), or inside the text: between ``<think>`` and
# ``</think>``, in marks of the same kind (``[THINK]``, ``<seed:think>``, ``<|START_THINKING|>``),
# in a channel before the final one, or, where the chat template has opened the mark, up to its end.

DEFAULT_BUDGET = 2048  # tokens to think with, beside those of the answer
_FIELDS = ("reasoning_content", "reasoning")
# What a mark of thoughts is called: <think>, <|end_of_thought|>, <seed:think>
_ABOUT = r"[\w:-]{0,20}?(?:think|thought|reason|analy[sz]|reflect|scratch|commentary)\w{0,20}"
_CHANNEL = r"<\|?channel\|?>\s*"
_MESSAGE = r"(?:[^<\n]*<\|message\|>)?"
_ENDS = (
    rf"(?:[<◁]\|?(?:/|end_){_ABOUT}\|?[>▷]|(?-i:\[/THINK\w*\])|<channel\|>|{_CHANNEL}final{_MESSAGE}"
    r"|assistantfinal)"
)
_BEGINS = rf"(?!{_ENDS})(?:[<◁]\|?{_ABOUT}\|?[>▷]|(?-i:\[THINK\w*\])|{_CHANNEL}{_ABOUT}{_MESSAGE})"
SIGNS = ("<", "◁", "[", "analysis")  # without any there is no mark
OPENING = re.compile(_BEGINS, re.I)
CLOSING = re.compile(_ENDS, re.I)
_OPENED = re.compile(rf"\s*(?:{_BEGINS}|analysis(?=.*assistantfinal))", re.I | re.S)


def begun(text: str) -> re.Match[str] | None:
    """The mark of thoughts that ``text`` begins with."""
    return _OPENED.match(text)


def set_aside(text: str, opened: bool = False) -> tuple[str, str]:
    """The thoughts in ``text`` and the answer behind them. opened: the chat template has written the opening mark."""
    if not opened and not any(sign in text for sign in SIGNS):
        return "", text
    opening, closed = begun(text), CLOSING.search(text)
    if not (opening or closed or opened):
        return "", text
    thought = text[opening.end() if opening else 0 : closed.start() if closed else len(text)]
    return thought.strip(), text[closed.end() :].lstrip() if closed else ""


def thought_in(message: Mapping[str, Any]) -> str:
    """The thoughts that a message, or a piece of a stream, carries in a field of their own."""
    return next((message[name] for name in _FIELDS if isinstance(message.get(name), str) and message[name]), "")


# ------------------------------------------------------------------------------------------ answers

MOST = 10**9  # tokens or milliseconds that a server may report for one answer
MOST_PIECES = 128  # choices of a streamed answer, tool calls of a choice: as many as the protocol's author takes
ABSURD = "the server counts more tokens in one answer than a number can hold"
Finish = Literal["stop", "length", "cancelled"]
_CUT = ("length", "model_length", "max_tokens", "MAX_TOKENS")  # Mistral's and Google's words among them


@dataclass(frozen=True)
class Answer:
    """One choice of an answer, cut at the first stop string; what the model thought before it stands apart."""

    text: str
    finish: Finish
    logprob: float | None = None
    thinking: str = ""


@dataclass(frozen=True)
class Counts:
    """The tokens that a server says it used; None where it does not say."""

    prompt: int | None = None
    completion: int | None = None
    reused: int = 0
    compute_seconds: float = 0.0
    thought: int = 0  # of the completion's tokens


def read_answers(data: Any, stop: Sequence[str], echo: str = "", *, opened: bool = False) -> list[Answer]:
    """The choices of a (chat) completion, without the ``echo`` each begins with. Raises ModelError.

    opened: the chat template has opened the thoughts (``set_aside``).
    """
    choices = _field(data, "choices", list)
    if not choices:
        raise ModelError("the server's answer has no choices")
    return [_answer(choice, stop, echo, opened) for choice in choices]


def _answer(choice: Any, stop: Sequence[str], echo: str, opened: bool) -> Answer:
    aside = ""
    if isinstance(choice, Mapping) and "message" in choice:
        message = _field(choice, "message", dict)
        text, thoughts = said_in(message.get("content"))
        calls, aside = _calls(message.get("tool_calls")), thought_in(message) or thoughts
        if isinstance(refusal := message.get("refusal"), str) and refusal and not text:
            raise ModelError(f"the model refuses to answer: {one_line(refusal, 200)}")
        if "content" not in message and not calls and not aside:
            raise ModelError("the server's answer has no 'content' in its message")
        if calls:
            text = "\n".join([*([text] if text.strip() else []), *calls])
    else:
        text = _field(choice, "text", str)
    if not text.startswith(echo):
        raise ModelError("the server's answer does not begin with the open turn, as its answers did before")
    thinking, said = set_aside(text.removeprefix(echo), opened and not aside)
    before_stop, cut = cut_at(said, stop)
    finish, alone = finish_of(choice.get("finish_reason")), not cut and not thinking and not aside
    logprob = _logprob(choice.get("logprobs")) if alone else None  # else it counts other tokens too
    return Answer(before_stop, "stop" if cut else finish, logprob, aside or thinking)


def said_in(content: Any) -> tuple[str, str]:
    """A message's content as text, and the thoughts in it. Raises ModelError, for a part of type ``refusal`` too.

    >>> said_in([{"type": "thinking", "thinking": "ages?"}, {"type": "text", "text": "SELECT 1"}])
    ('SELECT 1', 'ages?')
    """
    if content is None or isinstance(content, str):
        return content or "", ""
    if not isinstance(content, list) or not all(isinstance(part, Mapping | str) for part in content):
        raise ModelError(f"the server's answer has a {type(content).__name__} as content; expected text")
    texts, thoughts = [], []
    for part in content:
        kind = str(part.get("type", "text")) if isinstance(part, Mapping) else "text"
        inner = next((part[key] for key in ("text", kind) if key in part), None) if isinstance(part, Mapping) else part
        said, aside = said_in(inner) if inner is None or isinstance(inner, str | list) else ("", "")
        if kind == "refusal":
            raise ModelError(f"the model refuses to answer: {one_line(said, 200)}")
        if kind.endswith("text"):
            texts.append(said)
            thoughts.append(aside)
        elif kind.startswith(("think", "reason")):
            thoughts += [said, aside]
    return "".join(texts), "".join(thoughts)


def _calls(calls: Any) -> list[str]:
    """Tool calls as a model with the commonest form writes them: ``<tool_call>JSON</tool_call>``."""
    if calls is not None and not isinstance(calls, list):
        raise ModelError(f"the server's answer has a {type(calls).__name__} as 'tool_calls'")
    texts = []
    for call in calls or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ModelError("the server's answer has a tool call without a function's name")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError):  # no JSON: the loop's to judge
                arguments = load_json(arguments or "{}")
        told = {"name": function["name"], "arguments": {} if arguments is None else arguments}
        texts.append(f"<tool_call>\n{json.dumps(told, ensure_ascii=False)}\n</tool_call>")
    return texts


def finish_of(reason: Any) -> Finish:
    """Our name for a server's finish reason. Raises ModelError for one that means the answer was withheld."""
    if reason in ("abort", "error", "content_filter"):
        raise ModelError(f"the server broke off its answer: {reason}")
    return "length" if reason in _CUT else "stop"


def read_counts(data: Any) -> Counts:
    """The token counts of an answer, as far as they are there and numbers. Raises ModelError for absurd ones."""
    usage = data.get("usage") if isinstance(data, Mapping) else None
    if not isinstance(usage, Mapping):
        return Counts()
    prompt, completion = _count(usage.get("prompt_tokens")) or None, _count(usage.get("completion_tokens"))
    if prompt is None:  # no prompt has 0 tokens: Ollama said so of one that it still held, some proxies of every one
        completion = completion or None
    reused = _detail(usage, "prompt_tokens_details", "cached_tokens")
    thought = _detail(usage, "completion_tokens_details", "reasoning_tokens") or 0
    seconds = 0.0
    timings = data.get("timings")  # llama.cpp
    if isinstance(timings, Mapping):
        reused = _count(timings.get("cache_n")) if reused is None else reused
        parts = [timings.get(name) for name in ("prompt_ms", "predicted_ms")]
        seconds = sum(p for p in parts if _is_number(p) and 0 < p < MOST) / 1000
    return Counts(prompt, completion, min(reused or 0, prompt or 0), seconds, thought)


def _detail(usage: Mapping[str, Any], part: str, name: str) -> int | None:
    details = usage.get(part)
    return _count(details.get(name)) if isinstance(details, Mapping) else None


class Stream:
    """A streamed answer put together as if it had come whole; complete as soon as it holds a stop string.

    A call with each line of the stream (None at its end) says whether the answer is complete. most: tokens of the
    answer itself, behind the thoughts; None: the server's business. opened: as for ``read_answers``.
    """

    def __init__(
        self, stop: Sequence[str] = (), echo: str = "", *, most: int | None = None, opened: bool = False
    ) -> None:
        self._stop, self._echo, self._most, self._opened = stop, echo, most, opened
        self.restart()

    def restart(self) -> None:
        """Forget what came: the request is made again."""
        self._data: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._done = False
        self.pieces = self._answered = self._length = 0  # about one a token; of them, behind the thoughts

    @property
    def data(self) -> dict[str, Any]:
        """The whole answer."""
        return self._data | {"choices": [self._choices[at] for at in sorted(self._choices)]}

    def __call__(self, line: str | None) -> bool:
        if line is None:
            return self._done or any(choice.get("finish_reason") for choice in self._choices.values())
        payload = line[5:].strip() if line.startswith("data:") else ""
        if payload == "[DONE]":
            self._done = True
        elif payload:
            data, choices = _event(payload)
            self._data |= {name: value for name, value in data.items() if value is not None}
            for choice in choices:
                whole = self._choices.setdefault(_index(choice), {})
                _grow(whole, {"message" if name == "delta" else name: value for name, value in choice.items()})
            if self._stop:
                self._look()
        return self._done or (bool(self._stop and self._finish) and self.counts.prompt is not None)

    def _look(self) -> None:
        """Is the answer complete by its text?"""
        choice = self._choices.get(0, {})
        message = choice.get("message")
        text, thoughts = said_in(message.get("content") if isinstance(message, Mapping) else choice.get("text"))
        aside = (thought_in(message) if isinstance(message, Mapping) else "") or thoughts
        if len(text) + len(aside) == self._length:
            return
        self.pieces, self._length = self.pieces + 1, len(text) + len(aside)
        if text.startswith(self._echo):
            said = set_aside(text.removeprefix(self._echo), self._opened and not aside)[1]
            self._answered += bool(said.strip())
            self._done = self._done or cut_at(said, self._stop)[1]
            if self._most is not None and self._answered >= self._most and not self._done:
                choice["finish_reason"], self._done = "length", True

    @property
    def _finish(self) -> Any:
        return self._choices.get(0, {}).get("finish_reason")

    @property
    def counts(self) -> Counts:
        return read_counts(self._data)

    @property
    def answer(self) -> Answer:
        if self.pieces:
            return read_answers(self.data, self._stop, self._echo, opened=self._opened)[0]
        if not self._finish:
            raise ModelError("the server's stream ended without an answer; its log may say why")
        return Answer("", finish_of(self._finish))


def _event(payload: str) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """A piece of a stream, and its choices. Raises ModelError."""
    try:
        data = load_json(payload)
    except ValueError:
        raise ModelError(f"the server's stream holds a line that is not JSON: {payload[:200]!r}") from None
    if not isinstance(data, Mapping):
        raise ModelError(f"the server's stream holds a {type(data).__name__}; expected an object")
    if failure := data.get("error") or (data.get("object") == "error" and (data.get("message") or "an error")):
        raise ModelError(f"the server broke off its answer: {str(failure)[:200]}")
    choices = data.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, Mapping) for choice in choices):
        raise ModelError("the server's stream has choices of another shape than the protocol's")
    return data, choices


_ONCE = ("role", "id", "type", "name")  # fields of a stream that stand for themselves in each piece


def _grow(whole: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Add a piece of a stream to what came before it: texts and lists go on, objects grow field by field."""
    for name, value in piece.items():
        before = whole.get(name)
        if isinstance(value, Mapping):
            whole[name] = before if isinstance(before, dict) else {}
            _grow(whole[name], value)
        elif isinstance(value, list) and any(isinstance(item, Mapping) and "index" in item for item in value):
            rows = before if isinstance(before, list) else []  # tool calls
            rows = whole[name] = [row for row in rows if isinstance(row, dict) and "index" in row]
            for item in value:
                row = next((row for row in rows if row["index"] == _index(item)), None)
                if row is None:
                    rows.append(row := {"index": _index(item)})
                _grow(row, item)
        elif name not in _ONCE and isinstance(value, str | list) and isinstance(before, type(value)):
            whole[name] += value
        elif value is not None or before is None:
            whole[name] = value


def _index(piece: Any) -> int:
    """Which choice, or which tool call of one, a piece of a stream belongs to. Raises ModelError."""
    index = piece.get("index", 0) if isinstance(piece, Mapping) else None
    if not isinstance(index, int) or not 0 <= index < MOST_PIECES:
        shown = one_line(index, 40)
        raise ModelError(f"the server's stream has a piece with the index {shown}; expected 0 to {MOST_PIECES - 1}")
    return index


def _field(data: Any, name: str, kind: type) -> Any:
    if not isinstance(data, Mapping):
        raise ModelError(f"the server's answer holds a {type(data).__name__} where an object with {name!r} is expected")
    if data.get("error"):
        raise ModelError(f"the server answers with an error: {one_line(data['error'], 200)}")
    value = data.get(name)
    if not isinstance(value, kind):
        what = "no" if value is None else f"a {type(value).__name__} as"
        raise ModelError(f"the server's answer has {what} {name!r}; is this an OpenAI-compatible address (…/v1)?")
    return value


def _count(value: Any) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        return None
    if value > MOST:
        raise ModelError(f"the server counts {value:.1e} tokens in one answer" if value < 1e300 else ABSURD)
    return value


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _logprob(logprobs: Any) -> float | None:
    """The sum over tokens, in the shape of chat completions or of completions."""
    if not isinstance(logprobs, Mapping):
        return None
    values = logprobs.get("token_logprobs")
    if isinstance(logprobs.get("content"), list):
        values = [item.get("logprob") if isinstance(item, Mapping) else None for item in logprobs["content"]]
    if not isinstance(values, list) or not values:
        return None
    good = [v for v in values if _is_number(v) and -MOST < v < MOST]
    return float(sum(good)) if len(good) == len(values) else None
