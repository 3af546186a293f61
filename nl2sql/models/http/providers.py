"""Servers that go by a name (``openai/NAME``, ``ollama/NAME``, ...), and the settings of a server.

>>> place_of("ollama/qwen3:8b", {"OLLAMA_HOST": "gpu-box"})
Place(url='http://gpu-box:11434/v1', name='qwen3:8b', provider='ollama', key_variable='OLLAMA_API_KEY')

Address and key come from the environment variables that the server's own tools read. A key goes to its own server
only: ``NL2SQL_API_KEY`` belongs to plain addresses ``http://HOST/v1#NAME`` and to no provider.

>>> ServerOptions.parse(["retries=2", "body.chat_template_kwargs.enable_thinking=true"]).body
{'chat_template_kwargs': {'enable_thinking': True}}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nl2sql.errors import ModelError, UsageError, one_line
from nl2sql.machine import KEY_VARIABLE, from_json, missing_part
from nl2sql.models.chat import Chat
from nl2sql.models.embedded import pull
from nl2sql.models.load import resolve_spec


@dataclass(frozen=True)
class Provider:
    """A server known by name.

    address, address_variable: where it answers by default, and what says otherwise. key_needed: at ``address``
    nobody is answered without a key. window: tokens that its present models take at least, 0 where that depends on
    how it was started. continues: its documentation says that it goes on with an open turn, unasked.
    """

    address: str
    address_variable: str
    key_variable: str
    key_needed: bool = False
    port: int | None = None  # where the variable may be a host alone
    rooted: bool = False  # the variable names the server, and its tools add the interface's path
    window: int = 0
    continues: bool = False


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(
        "https://api.openai.com/v1", "OPENAI_BASE_URL", "OPENAI_API_KEY", key_needed=True, window=128_000
    ),
    "anthropic": Provider(
        "https://api.anthropic.com/v1",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        key_needed=True,
        window=200_000,
        rooted=True,
        continues=True,
    ),
    "ollama": Provider("http://localhost:11434/v1", "OLLAMA_HOST", "OLLAMA_API_KEY", port=11434, rooted=True),
    "vllm": Provider("http://localhost:8000/v1", "VLLM_BASE_URL", "VLLM_API_KEY"),
    "llamacpp": Provider("http://localhost:8080/v1", "LLAMACPP_BASE_URL", "LLAMA_API_KEY"),
}


OWN = "own"


@dataclass(frozen=True)
class Place:
    """The place that a served model is found at, and the key that opens it."""

    url: str
    name: str
    provider: str = ""  # "": a plain address; OWN: a child process of ours
    key: str = field(default="", repr=False)
    key_variable: str = KEY_VARIABLE


def place_of(spec: str, environment: Mapping[str, str] = os.environ) -> Place:
    """The place that ``PROVIDER/NAME`` or ``http://HOST/v1#NAME`` names (name "" when missing).

    Raises UsageError for an address that may hold a secret or names no host, and where a key is missing or cannot be
    sent.
    """

    def value(variable: str) -> str:
        return environment.get(variable, "").strip()

    def key(variable: str) -> str:
        text = value(variable)
        if not (text.isascii() and text.isprintable()):  # no header can hold it, and an error about one would show it
            raise UsageError(
                f"the environment variable {variable} holds a line break or another character that no key has (curly "
                f"quotes?); type: export {variable}=YOUR_KEY, the key alone, on one line"
            )
        return text

    head, _, name = spec.partition("/")
    provider = PROVIDERS.get(head)
    if provider is None:
        url, name = split_address(spec)
        return Place(url, name, key=key(KEY_VARIABLE))
    named, variable = value(provider.address_variable), provider.key_variable
    url = _address(provider, named) if named else provider.address
    if provider.key_needed and not named and not value(variable):
        raise UsageError(
            f"{spec} needs a key, and the environment variable {variable} is not set; "
            f"type: export {variable}=YOUR_KEY (it is sent to {url} and written nowhere). A model of that name on the "
            "Hugging Face hub: give its folder"
        )
    return Place(url, name.strip(), head, key(variable), variable)


def key_headers(place: Place) -> dict[str, str]:
    """The headers that carry the key, as the server's interface wants them."""
    if place.provider == "anthropic":
        return {"anthropic-version": "2023-06-01"} | ({"x-api-key": place.key} if place.key else {})
    return {"Authorization": f"Bearer {place.key}"} if place.key else {}


def split_address(spec: str, key_variable: str = KEY_VARIABLE) -> tuple[str, str]:
    """``http://HOST/v1#NAME`` as (address, name; "" when missing). Raises UsageError for what may hold a secret."""
    address, _, name = spec.partition("#")
    shown = "" if re.search("[@?]", spec) else f" {address!r}"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        said = f"{shown}: {error}" if shown else " cannot be read"  # the error may quote half of a password
        raise UsageError(f"model address{said}; example: http://localhost:8000/v1#NAME") from None
    if not parts.hostname or port == 0:
        raise UsageError(f"model address{shown} names no host; example: http://localhost:8000/v1#NAME")
    if parts.username or parts.password or parts.query:
        raise UsageError(
            f"the address of {parts.hostname} holds a user name, password or query, which a run would write down; "
            f"give a key in the environment variable {key_variable} instead"
        )
    return address.rstrip("/"), name.strip()


def _address(provider: Provider, named: str) -> str:
    """What a provider's variable says as the address of its API: a host alone is enough where it is for its tools."""
    if not re.match(r"https?://", named, re.IGNORECASE):
        if provider.port is None:
            shown = "" if re.search("[@?]", named) else f"={named!r}"
            raise UsageError(
                f"{provider.address_variable}{shown} is no address; example: "
                f"export {provider.address_variable}={provider.address}"
            )
        named = f"http://{named}"
        if not re.search(r":\d+(/|$)", named):
            head, slash, path = named[7:].partition("/")
            named = f"http://{head}:{provider.port}{slash}{path}"
    url, _ = split_address(named, provider.key_variable)
    url = re.sub(r"//(0\.0\.0\.0|\[::\])(?=[:/]|$)", "//127.0.0.1", url)  # where it listens, not where it is found
    whole = url.endswith("/v1") if provider.rooted else urlsplit(url).path  # a proxy's path is the interface's own
    return url if whole else f"{url}/v1"


# ----------------------------------------------------------- ``--server KEY=VALUE`` and a tokenizer

# What every request is about.
FIXED_FIELDS = ("model", "messages", "prompt", "stop", "n", "stream", "stream_options", "tools")
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
    if not all(path) or path[0] in FIXED_FIELDS:
        raise UsageError(
            f"--server {item!r}: expected body.FIELD=VALUE, FIELD none of {', '.join(FIXED_FIELDS)}; "
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
