"""The settings of an HTTP server: ``--server KEY=VALUE`` options, and a tokenizer of the same model.

>>> ServerOptions.parse(["retries=2", "body.chat_template_kwargs.enable_thinking=true"]).body
{'chat_template_kwargs': {'enable_thinking': True}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.machine import from_json, missing_part
from nl2sql.models.chat import Chat
from nl2sql.models.embedded import pull
from nl2sql.models.spec import resolve_spec

OWN = ("model", "messages", "prompt", "stop", "n", "stream", "stream_options", "tools")  # what every request is about
_SECRET = re.compile(  # in a name as ``api_key``: not max_tokens, eos_token, stop_token_ids, prompt_cache_key
    r"api_?key|authorization|passw(or)?d|passphrase|secret|credential|bearer|(access|auth|refresh)_?token"
    r"|(^|_)(auth|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!mask_)(?<!stop_)(?<!start_)(?<!end_)(?<!per_)token)$"
    r"|(^|_)(?<!cache_)(?<!primary_)(?<!foreign_)(?<!sort_)keys?$"
)


class ServerOptions(BaseModel):
    """The settings of a server: ``--server KEY=VALUE``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str = ""  # an embedded name or a folder: renders and counts prompts as the server's model does
    context_window: int | None = Field(None, ge=64)
    timeout_s: float = Field(600.0, gt=0, allow_inf_nan=False)  # for one request, all of it
    retries: int = Field(4, ge=0, le=100)
    price_in: float = Field(0.0, ge=0, allow_inf_nan=False)  # per million prompt tokens
    price_out: float = Field(0.0, ge=0, allow_inf_nan=False)  # per million completion tokens
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
                _refuse_secret(key, [key])
                known = ", ".join(name for name in cls.model_fields if name != "body")
                raise UsageError(f"--server {item!r}: expected KEY=VALUE with KEY one of {known}, body.FIELD")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"--server {first['loc'][0]}={first['input']}: {first['msg']}") from None


def _put(body: dict[str, Any], item: str, path: list[str], text: str) -> None:
    """Put a field's value into ``body``: JSON where it is some, else the text itself."""
    try:
        value = from_json(text)
    except ValueError:
        value = text
    _refuse_secret(".".join(["body", *path]), [*path, *_names_in(value)])
    if not all(path) or path[0] in OWN:
        raise UsageError(
            f"--server {item!r}: expected body.FIELD=VALUE, FIELD none of {', '.join(OWN)}; "
            "example: --server body.top_k=20"
        )
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise UsageError(f"--server {item!r}: expected JSON, which has no infinite number and no NaN") from None
    for name in path[:-1]:
        body = body.setdefault(name, {})
        if not isinstance(body, dict):
            raise UsageError(f"--server {item!r}: body.{name} was given a value already")
    body[path[-1]] = value


def _refuse_secret(shown: str, names: Iterable[str]) -> None:
    """Raises UsageError, without the value, where one of ``names`` is that of a secret."""
    for name in names:
        if _SECRET.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()):
            inside = f" ({name} in it)" if name not in shown else ""
            raise UsageError(
                f"--server {shown}=...{inside}: a run would write it down; keys go into environment variables "
                "(docs/models.md)"
            )


def _names_in(value: Any) -> Iterator[str]:
    """The names in a JSON value at any depth, but for the properties of a JSON schema, which name no field."""
    if isinstance(value, list):
        for item in value:
            yield from _names_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _names_in(list(item.values()) if name == "properties" and isinstance(item, dict) else item)


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
