"""Messages to token ids: the chat template with an open assistant turn, and where a turn ends.

Thread-safe (fast tokenizers raise "Already borrowed" when two threads share one). A special token written inside
a message's text is tokenised as that special token; nothing is escaped here.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from typing import Any

from nl2sql.interfaces import Message

# Tokens that end a turn or open another one in common chat formats; a model's own EOS is added to them.
_TURN_TOKENS = (
    "<|im_end|>",
    "<|im_start|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<end_of_turn>",
    "<start_of_turn>",
    "<|end|>",
    "<|user|>",
    "<|return|>",
)
_PLAIN_ROLES = {"system": "", "user": "User: ", "assistant": "Assistant: "}


class Chat:
    """A tokenizer behind a lock: rendering, counting, decoding."""

    def __init__(self, tokenizer: Any, generation_eos: int | Sequence[int] | None) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        # Of its own, so that the engine's decoding does not wait while a caller's long prompt is tokenised.
        self._decoding_tokenizer = copy.deepcopy(tokenizer)
        self._decoding_lock = threading.Lock()
        self.has_template = bool(getattr(tokenizer, "chat_template", None))
        self.stop_ids = _stop_ids(tokenizer, generation_eos)
        self.bos_token = str(tokenizer.bos_token or "")

    def prompt_ids(self, messages: Sequence[Message], prefill: str = "") -> list[int]:
        """Token ids of the messages and the open assistant turn that starts with ``prefill``."""
        with self._lock:
            if self.has_template:
                text = self._render(messages) + prefill
                return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
            return list(self._tokenizer(plain_prompt(messages) + prefill)["input_ids"])

    def prompt_text(self, messages: Sequence[Message], prefill: str = "") -> str:
        """The same prompt as text, for a server that tokenises it."""
        with self._lock:
            return (self._render(messages) if self.has_template else plain_prompt(messages)) + prefill

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` without special tokens, spaces exactly as the model wrote them."""
        with self._decoding_lock:
            text: str = self._decoding_tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text

    def _render(self, messages: Sequence[Message]) -> str:
        from jinja2.exceptions import TemplateError

        # enable_thinking=False: models that think aloud by default (Qwen3) answer directly; others ignore it.
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
        chat = [dict(message) for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(chat, **options)
        except TemplateError:
            text = self._tokenizer.apply_chat_template(without_system(chat), **options)
        return text


def plain_prompt(messages: Sequence[Message]) -> str:
    """The prompt of a model without chat template: system text, then ``User:`` / ``Assistant:`` turns."""
    turns = [f"{_PLAIN_ROLES.get(m['role'], '')}{m['content']}" for m in messages]
    return "\n\n".join([*turns, "Assistant:"]) + "\n"


def without_system(messages: list[dict[str, str]]) -> list[dict[str, str]]:
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
