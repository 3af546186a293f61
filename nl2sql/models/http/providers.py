"""Servers that go by a name: ``openai/NAME``, ``anthropic/NAME``, ``ollama/NAME``, ``vllm/NAME``, ``llamacpp/NAME``.

>>> place_of("ollama/qwen3:8b", {"OLLAMA_HOST": "gpu-box"})
Place(url='http://gpu-box:11434/v1', name='qwen3:8b', provider='ollama', key_variable='OLLAMA_API_KEY')

Address and key come from the environment variables that the server's own tools read. A key goes to its own server
only: ``NL2SQL_API_KEY`` belongs to plain addresses ``http://HOST/v1#NAME`` and to no provider.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from nl2sql.errors import UsageError
from nl2sql.machine import KEY_VARIABLE


@dataclass(frozen=True)
class Provider:
    """A server known by name.

    address, address_variable: where it answers by default, and what says otherwise. key_needed: at ``address``
    nobody is answered without a key. window: tokens that its present models take at least, 0 where that depends on
    how it was started.
    """

    address: str
    address_variable: str
    key_variable: str
    key_needed: bool = False
    port: int | None = None  # where the variable may be a host alone
    rooted: bool = False  # the variable names the server, and its tools add the interface's path
    window: int = 0


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
