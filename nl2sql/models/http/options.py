"""The settings of an HTTP server: its address, ``--server KEY=VALUE`` options, a tokenizer of the same model.

>>> split_address("http://localhost:8000/v1#qwen")
('http://localhost:8000/v1', 'qwen')
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.machine import KEY_VARIABLE
from nl2sql.models.chat import Chat
from nl2sql.models.embedded import pull
from nl2sql.models.spec import resolve_spec


class ServerOptions(BaseModel):
    """The settings of a server: ``--server KEY=VALUE``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokenizer: str = ""  # an embedded name or a folder: renders and counts prompts as the server's model does
    context_window: int | None = Field(None, ge=64)
    timeout_s: float = Field(600.0, gt=0)  # for one request, all of it
    retries: int = Field(4, ge=0, le=100)
    price_in: float = Field(0.0, ge=0)  # per million prompt tokens
    price_out: float = Field(0.0, ge=0)  # per million completion tokens

    @classmethod
    def parse(cls, items: Iterable[str]) -> ServerOptions:
        """Read ``KEY=VALUE`` items. Raises UsageError for an unknown key or a value of another kind."""
        values: dict[str, str] = {}
        for item in items:
            key, sep, value = item.partition("=")
            if not sep or key.strip() not in cls.model_fields:
                raise UsageError(f"--server {item!r}: expected KEY=VALUE with KEY one of {', '.join(cls.model_fields)}")
            values[key.strip()] = value.strip()
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"--server {first['loc'][0]}={first['input']}: {first['msg']}") from None


def split_address(spec: str) -> tuple[str, str]:
    """``http://HOST/v1#NAME`` as (address, name; "" when missing). Raises UsageError for what may hold a secret."""
    address, _, name = spec.partition("#")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"model address {address!r}: {error}; example: http://localhost:8000/v1#NAME") from None
    if not parts.hostname or port == 0:
        raise UsageError(f"model address {address!r} names no host; example: http://localhost:8000/v1#NAME")
    if parts.username or parts.password or parts.query:
        raise UsageError(
            f"the address of {parts.hostname} holds a user name, password or query, which a run would write down; "
            f"give a key in the environment variable {KEY_VARIABLE} instead"
        )
    return address.rstrip("/"), name.strip()


def load_tokenizer(setting: str, name: str) -> Chat | None:
    """The tokenizer given for a server, or that of the local folder which the served name is."""
    spec = setting or (name if (Path(name).is_absolute() and (Path(name) / "tokenizer_config.json").is_file()) else "")
    if not spec:
        return None
    source = resolve_spec(spec)
    if source.kind not in ("embedded", "folder", "hub"):
        raise UsageError(f"--server tokenizer={spec}: expected an embedded name, a folder or a hub id")
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
