"""One call of a model: its arguments, and its messages as token ids by the chat template, with an open assistant turn.

>>> plain_prompt([{"role": "user", "content": "How many?"}]).splitlines()
['User: How many?', '', 'Assistant:']

A special token written inside a message's text is tokenised as that special token; nothing is escaped here.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nl2sql.errors import ModelError, UsageError
from nl2sql.interfaces import Grammar, Message, Sampling, ToolDefinition

# Tokens that end a turn or open another one in common chat formats; a model's own EOS is added to them.
_TURN_TOKENS = (
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|start_header_id|>"),
    *("<end_of_turn>", "<start_of_turn>", "<|end|>", "<|user|>", "<|return|>"),
)
_CALL = {"name": "zq_name", "arguments": {"zq_key": "zq_value"}}
_CALLED: tuple[Message, ...] = (  # what the loop's tool-calling form asks of a template
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function", "function": _CALL}]},
    {"role": "tool", "tool_call_id": "call00000", "name": "zq_name", "content": "zq_answer"},
)
OFFERED: tuple[ToolDefinition, ...] = (
    {
        "type": "function",
        "function": {"name": "zq_name", "description": "zq_about", "parameters": {"type": "object", "properties": {}}},
    },
)
_PLAIN_ROLES = {"system": "", "user": "User: ", "assistant": "Assistant: "}


@dataclass(frozen=True)
class Request:
    """The arguments of ``Model.generate``; empty stop strings are left out.

    Raises UsageError for no completions, no tokens, or a text in place of the list of stop strings.
    """

    messages: Sequence[Message]
    _: KW_ONLY
    max_new_tokens: int
    prefill: str = ""
    stop: Sequence[str] = ()
    grammar: Grammar | None = None
    sampling: Sampling | None = None
    n: int = 1
    seed: int | None = None
    cancel: threading.Event | None = None
    tools: Sequence[ToolDefinition] = ()

    def __post_init__(self) -> None:
        if self.n < 1 or self.max_new_tokens < 1:
            raise UsageError(f"n={self.n}, max_new_tokens={self.max_new_tokens}: both must be at least 1")
        if isinstance(self.stop, str):  # else each of its letters would end the answer
            raise UsageError(f"stop={self.stop!r} is one text; expected a list of them: stop=[{self.stop!r}]")
        object.__setattr__(self, "stop", tuple(text for text in self.stop if text))

    def check_sampling(self) -> None:
        """Raises UsageError for a temperature or a share of the probability that nothing can be drawn at."""
        sampling = self.sampling
        if sampling is not None and not (sampling.temperature > 0 and 0 < sampling.top_p <= 1):
            raise UsageError(f"{sampling}: expected both above 0, and top_p at most 1; sampling=None decodes greedily")

    def check_room(self, prompt_tokens: int, window: int, name: str, more: str = "") -> None:
        """Raises ModelError where prompt and completion exceed the context window; ``more``: what else helps."""
        if prompt_tokens + self.max_new_tokens > window:
            raise ModelError(
                f"prompt of {prompt_tokens} tokens + max_new_tokens {self.max_new_tokens} exceeds the context window "
                f"of {window} tokens of {name}; shorten the question or the schema text "
                f"(-c schema_text.max_tokens=...){more}"
            )


class Chat:
    """A tokenizer behind a lock: rendering, counting, decoding. Thread-safe: fast tokenizers by themselves are not."""

    def __init__(self, tokenizer: Any, generation_eos: int | Sequence[int] | None) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        # Of its own, so that the engine's decoding does not wait while a caller's long prompt is tokenised.
        self._decoding_tokenizer = copy.deepcopy(tokenizer)
        self._decoding_lock = threading.Lock()
        self.has_template = bool(getattr(tokenizer, "chat_template", None))
        self.stop_ids = _stop_ids(tokenizer, generation_eos)
        self.bos_token = str(tokenizer.bos_token or "")
        self._tool_form: str | None = None
        self._shows_system: bool | None = None

    def prompt_ids(
        self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()
    ) -> list[int]:
        """Token ids of the messages and the open assistant turn that starts with ``prefill``.

        Raises ModelError for ``tools`` that the template does not take.
        """
        with self._lock:
            if self.has_template or tools:
                text = self._render(messages, tools) + prefill
                return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
            return list(self._tokenizer(plain_prompt(messages) + prefill)["input_ids"])

    def prompt_text(self, messages: Sequence[Message], prefill: str = "", tools: Sequence[ToolDefinition] = ()) -> str:
        """The same prompt as text, for a server that tokenises it."""
        with self._lock:
            rendered = self.has_template or tools
            return (self._render(messages, tools) if rendered else plain_prompt(messages)) + prefill

    @property
    def form(self) -> str:
        """All that decides how ``prompt_text`` writes a conversation."""
        tokenizer = self._tokenizer
        return repr([getattr(tokenizer, "chat_template", None), getattr(tokenizer, "special_tokens_map", None)])

    def check_tools(self, *, grammar: bool = False) -> None:
        """Raises ModelError when the template shows no tools, or, for ``grammar``, writes calls in another form."""
        with self._lock:
            self._check_tools(grammar=grammar)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens, spaces exactly as the model wrote them."""
        with self._decoding_lock:
            text: str = self._decoding_tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def _check_tools(self, *, grammar: bool) -> None:
        if self._tool_form is None:
            self._tool_form = self._apply(_CALLED, OFFERED) if self.has_template else ""
        shown = [word in self._tool_form for word in ("zq_about", "zq_key", "zq_value", "zq_answer")]
        if not all(shown):
            missing = "shows no tools" if not shown[0] else "shows tools, but not their calls and answers"
            what = f"the chat template {missing}" if self.has_template else "there is no chat template"
            raise ModelError(f"{what}: this model has no native tool calls; leave react.native_tools at false")
        if grammar and "<tool_call>" not in self._tool_form:
            raise ModelError(
                "the chat template writes tool calls in another form than <tool_call>JSON</tool_call>, the only one "
                "that --constrain knows; leave --constrain at none, or react.native_tools at false"
            )

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> str:
        if tools:
            self._check_tools(grammar=False)
        return self._apply(messages, tools)

    def _apply(self, messages: Sequence[Message], tools: Sequence[ToolDefinition]) -> str:
        # enable_thinking=False: models that think aloud by default (Qwen3) answer directly; others ignore it.
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        if tools:
            options["tools"] = [dict(tool) for tool in tools]
        chat = [dict(message) for message in messages]
        if any(message["role"] == "system" for message in chat) and not self._system_is_shown():
            chat = without_system(chat)
        try:
            text: str = self._tokenizer.apply_chat_template(chat, **options)
        except TemplateError:
            try:
                text = self._tokenizer.apply_chat_template(without_system(chat), **options)
            except TemplateError as error:
                raise ModelError(f"the chat template refuses the conversation: {error}") from None
        return text

    def _system_is_shown(self) -> bool:
        """Whether the template writes a system text; some pass over one without a word (Phi-3's first)."""
        if self._shows_system is None:
            asked = [{"role": "system", "content": "zq_system"}, {"role": "user", "content": "U"}]
            try:
                self._shows_system = "zq_system" in self._tokenizer.apply_chat_template(asked, tokenize=False)
            except TemplateError:  # told, or tried without one, at the conversation itself
                self._shows_system = True
        return self._shows_system


def cut_at(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    r"""``text`` up to where the first stop string begins, and whether there is one.

    >>> cut_at("Action: finish[{}]\nObservation: I made this up", ["Observation:"])
    ('Action: finish[{}]\n', True)
    """
    places = [at for at in (text.find(string) for string in stop if string) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def plain_prompt(messages: Sequence[Message]) -> str:
    """The prompt of a model without chat template: system text, then ``User:`` / ``Assistant:`` turns."""
    turns = [f"{_PLAIN_ROLES.get(m['role'], '')}{m['content']}" for m in messages]
    return "\n\n".join([*turns, "Assistant:"]) + "\n"


def without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates that know no system role: its text moves to the head of the first user turn."""
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    rest = [m for m in messages if m["role"] != "system"]
    if system and rest:
        rest[0] = {**rest[0], "content": f"{system}\n\n{rest[0]['content']}"}
    return rest or [{"role": "user", "content": system}]


def _stop_ids(tokenizer: Any, generation_eos: int | Sequence[int] | None) -> frozenset[int]:
    ids: list[int | None] = [generation_eos] if isinstance(generation_eos, int) else list(generation_eos or ())
    ids.append(tokenizer.eos_token_id)
    special = {str(token.content): i for i, token in tokenizer.added_tokens_decoder.items()}
    ids += [special.get(token) for token in _TURN_TOKENS]
    return frozenset(i for i in ids if i is not None)


class ServedTokenizer:
    """What ``Chat`` asks of a tokenizer: the template of a GGUF file, rendered here, and llama.cpp's tokens.

    ask: sends a request to the child, ``(path, body)``; parsed JSON comes back.
    """

    special_tokens_map: Mapping[str, str] = MappingProxyType({})
    added_tokens_decoder: Mapping[int, Any] = MappingProxyType({})
    eos_token_id = None

    def __init__(self, template: str, ask: Callable[[str, dict[str, Any] | None], Any]) -> None:
        self.chat_template, self._ask = template, ask
        about = ask("props", None)
        self._special = {name: str(about.get(name) or "") for name in ("bos_token", "eos_token")}
        self.bos_token = self._special["bos_token"]
        self._ids = lru_cache(maxsize=256)(self._tokens)

    def __deepcopy__(self, _: Any) -> ServedTokenizer:
        return self  # it holds nothing that changes

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        return {"input_ids": self._ids(text, add_special_tokens)}

    def apply_chat_template(
        self, chat: Sequence[Message], *, tokenize: bool = False, add_generation_prompt: bool = False, **more: Any
    ) -> str:
        """The conversation as text. Raises jinja2's TemplateError."""
        settings = {**self._special, **more, "add_generation_prompt": add_generation_prompt}
        return _template(self.chat_template).render(messages=chat, **settings)

    def _tokens(self, text: str, special: bool) -> tuple[int, ...]:
        body = {"content": text, "add_special": special, "parse_special": True}
        return tuple(self._ask("tokenize", body)["tokens"])


@lru_cache(maxsize=8)
def _template(text: str) -> Any:
    """A chat template as transformers compiles it."""

    def refuse(message: str) -> str:
        raise TemplateError(message)

    def as_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    return made.from_string(text)
