"""The settings of an HTTP server: ``--server KEY=VALUE`` options, and a tokenizer of the same model.

>>> ServerOptions.parse(["retries=2", "body.chat_template_kwargs.enable_thinking=true"]).body
{'chat_template_kwargs': {'enable_thinking': True}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.machine import from_json, missing_part
from nl2sql.models.chat import Chat
from nl2sql.models.embedded import pull
from nl2sql.models.spec import resolve_spec

OWN = ("model", "messages", "prompt", "stop", "n", "stream", "stream_options", "tools")  # what every request is about
_SECRET = re.compile(r"(api_?)?key|authorization|password|secret|token", re.IGNORECASE)


class ServerOptions(BaseModel):
    """The settings of a server: ``--server KEY=VALUE``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str = ""  # an embedded name or a folder: renders and counts prompts as the server's model does
    context_window: int | None = Field(None, ge=64)
    timeout_s: float = Field(600.0, gt=0)  # for one request, all of it
    retries: int = Field(4, ge=0, le=100)
    price_in: float = Field(0.0, ge=0)  # per million prompt tokens
    price_out: float = Field(0.0, ge=0)  # per million completion tokens
    # tokens for thinking, beside those of the answer. None: as found by asking; 0: the model is asked not to think
    thinking: int | None = Field(None, ge=0)
    body: dict[str, Any] = {}  # further fields of every request: body.KEY=VALUE

    @classmethod
    def parse(cls, items: Iterable[str]) -> ServerOptions:
        """Read ``KEY=VALUE`` items. Raises UsageError for an unknown key or a value of another kind."""
        values: dict[str, Any] = {}
        for item in items:
            key, sep, value = item.partition("=")
            key = key.strip()
            if sep and key.startswith("body."):
                _put(values.setdefault("body", {}), item, key.split(".")[1:], value.strip())
            elif sep and key in cls.model_fields and key != "body":
                values[key] = value.strip()
            else:
                known = ", ".join(name for name in cls.model_fields if name != "body")
                raise UsageError(f"--server {item!r}: expected KEY=VALUE with KEY one of {known}, body.FIELD")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"--server {first['loc'][0]}={first['input']}: {first['msg']}") from None


def _put(body: dict[str, Any], item: str, path: list[str], text: str) -> None:
    """Put a field's value into ``body``: JSON where it is some, else the text itself."""
    if not all(path) or path[0] in OWN:
        raise UsageError(
            f"--server {item!r}: expected body.FIELD=VALUE, FIELD none of {', '.join(OWN)}; "
            "example: --server body.top_k=20"
        )
    if any(map(_SECRET.fullmatch, path)):
        raise UsageError(
            f"--server body.{'.'.join(path)}=...: a run would write it down; keys go into environment variables "
            "(docs/models.md)"
        )
    for name in path[:-1]:
        body = body.setdefault(name, {})
        if not isinstance(body, dict):
            raise UsageError(f"--server {item!r}: body.{name} was given a value already")
    try:
        body[path[-1]] = from_json(text)
    except ValueError:
        body[path[-1]] = text


def load_tokenizer(setting: str, name: str) -> Chat | None:
    """The tokenizer given for a server, or that of the local folder which the served name is."""
    spec = setting or (name if (Path(name).is_absolute() and (Path(name) / "tokenizer_config.json").is_file()) else "")
    if not spec:
        return None
    source = resolve_spec(spec)
    if source.kind not in ("embedded", "folder", "hub"):
        raise UsageError(f"--server tokenizer={spec}: expected an embedded name, a folder or a hub id")
    if missing := missing_part("transformers"):
        raise UsageError(f"--server tokenizer={spec}: {missing}")
    from transformers import AutoTokenizer

    where = str(pull(source.value)) if source.kind == "embedded" else source.value
    try:
        return Chat(AutoTokenizer.from_pretrained(where), None)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, TypeError, AttributeError) as error:
        raise ModelError(f"--server tokenizer={spec} cannot be loaded ({one_line(error, 200)})") from None


def window_of(name: str) -> int | None:
    """The context window that a served local folder's own config states."""
    try:
        window = json.loads((Path(name) / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return None
    return window if isinstance(window, int) else None
