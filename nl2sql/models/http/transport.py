"""Requests to an HTTP server: JSON in, JSON (or a stream of lines) out, bounded in time, size and number.

httpx2 speaks HTTP; one background thread runs an event loop; callers block in ``send_all`` and can be cancelled.
Connection errors, 408, 429 and 5xx (but 501) are retried with exponential back-off and jitter; ``Retry-After`` is
obeyed. Redirects are not followed, so that a key goes nowhere else. What a server says in an error is shown on one
line, without the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2 as httpx

from nl2sql.errors import Cancelled, ModelError, one_line
from nl2sql.machine import masked, masked_data
from nl2sql.models.http.providers import OWN, Place, key_headers
from nl2sql.models.http.wire import Stream
from nl2sql.sql.parse import load_json

logger = logging.getLogger(__name__)
logging.getLogger("httpcore2").setLevel(logging.INFO)  # DEBUG shows headers, and a server may quote the key in one

CONNECT_S = 10.0
MAX_BODY_BYTES = 8 * 2**20  # unpacked; as JSON it takes fifty times as much. The head's bound is the client's: 100 KiB
FIRST_WAIT_S, LONGEST_WAIT_S, LONGEST_RETRY_AFTER_S = 0.5, 20.0, 120.0
DOWN_S = 30.0  # after a call gave up on an unreachable server, others try once only, for so long
_POLL_S = 0.05  # how often a waiting caller looks at its cancel event
_ENVIRONMENT = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")  # that httpx reads
_RETRIED = {408, 429, *range(500, 600)} - {501}


Asked = tuple[str, str, Mapping[str, Any] | None, Stream | None]  # method, address, body, what takes a stream


class RequestRefused(ModelError):
    """The server understood the request and said no (4xx, 501): asking again is no use."""

    def __init__(self, message: str, status: int = 0, said: str = "", field: str = "") -> None:
        super().__init__(message)  # a worker on another machine sends it with this alone, and the rest as attributes
        self.status = status
        self.said = said
        self.field = field  # of the request, where the server says which one it minds


class Unanswered(ModelError):
    """No answer came, or only that the server is busy or broken: it says nothing of what the server does."""

    def __init__(self, message: str, status: int = 0, unreachable: bool = False) -> None:
        super().__init__(message)
        self.status, self.unreachable = status, unreachable


class TooLarge(ModelError):
    """The answer is longer than is read."""


@dataclass(frozen=True)
class Reply:
    """The reply of a server: parsed JSON, or None when ``lines`` took an event stream."""

    data: Any
    queue_seconds: float  # waited for one of our own slots
    seconds: float  # of the attempt that succeeded


class _Again(Exception):
    def __init__(self, why: str, *, unreachable: bool = False, after_s: float | None = None, status: int = 0) -> None:
        super().__init__(why)
        self.unreachable = unreachable
        self.after_s = after_s
        self.status = status


class Transport:
    """A client of the server at ``place``.

    ``concurrency`` requests at once, ``timeout_s`` for one, ``retries`` after the first.
    """

    most_bytes = MAX_BODY_BYTES

    def __init__(self, place: Place, *, timeout_s: float, retries: int, concurrency: int) -> None:
        self.place, self.base = place, place.url
        self._key, self._timeout_s, self._retries = place.key, timeout_s, retries
        self._loop = asyncio.new_event_loop()
        self._client: list[Any] = []  # made on first use, by the loop's thread; shared with the finalizer
        self._slots = asyncio.Semaphore(concurrency)
        self._down_until = 0.0
        self._thread = threading.Thread(target=self._loop.run_forever, name="http-model", daemon=True)
        self._thread.start()
        self._at_exit = weakref.finalize(self, _stop, self._loop, self._thread, self._client)

    def send_all(
        self,
        requests: Sequence[Asked],
        *,
        cancel: threading.Event | None = None,
        retries: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Reply]:
        """Several requests side by side; the first failure ends the others. retries, timeout_s: other than usual.

        Raises RequestRefused or another ModelError, each naming the server, and Cancelled.
        """
        if not self._at_exit.alive:
            raise ModelError(f"the connection to {self.base} is closed")
        tries = 1 + (self._retries if retries is None else retries)
        seconds = self._timeout_s if timeout_s is None else timeout_s
        futures: list[Future[Reply]] = [
            asyncio.run_coroutine_threadsafe(self._send(asked, tries, seconds), self._loop) for asked in requests
        ]
        try:
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=_POLL_S if cancel is not None else 1.0)
                for future in done:
                    future.result()
                if cancel is not None and cancel.is_set():
                    raise Cancelled("cancelled while waiting for the model")
        except CancelledError:
            raise Cancelled("the model was closed while it was answering") from None
        finally:
            for future in futures:
                future.cancel()
        return [future.result() for future in futures]

    def headers(self) -> dict[str, str]:
        """Those that carry the key."""
        return key_headers(self.place)

    def close(self) -> None:
        """Hang up; callers still waiting get Cancelled."""
        self._at_exit()

    # ------------------------------------------------------------------------------- on the loop's own thread

    async def _send(self, asked: Asked, tries: int, seconds: float) -> Reply:
        queued = 0.0
        if time.monotonic() < self._down_until:
            tries = 1
        for attempt in range(tries):
            began = time.perf_counter()
            try:
                async with self._slots:
                    queued += time.perf_counter() - began
                    began = time.perf_counter()
                    data = await self._attempt(asked, seconds)
                self._down_until = 0.0
                return Reply(data, queued, time.perf_counter() - began)
            except _Again as again:
                if attempt + 1 == tries or (again.after_s or 0) > LONGEST_RETRY_AFTER_S:
                    if again.unreachable:
                        self._down_until = time.monotonic() + DOWN_S
                    times = f" (tried {attempt + 1} times)" if attempt else ""
                    raise Unanswered(f"{self.base}: {again}{times}", again.status, again.unreachable) from None
                pause = random.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
                pause = max(pause, again.after_s or 0.0)
                logger.info("%s: %s; again in %.1f s", self.base, again, pause)
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _attempt(self, asked: Asked, seconds: float) -> Any:
        method, url, body, lines = asked
        if not self._client:
            self._client.append(self._opened())
        try:
            async with asyncio.timeout(seconds):
                content = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
                async with self._client[0].stream(method, url, content=content) as response:
                    stream = "text/event-stream" in response.headers.get("content-type", "")
                    if response.status_code == 200 and stream:
                        sink = Stream() if lines is None else lines  # some servers stream whatever they are asked
                        await self._stream(response, sink)
                        return masked_data(sink.data, self._key) if lines is None else None
                    raw = bytearray()
                    async for part in self._parts(response):
                        raw += part
                    return self._checked(response.status_code, response.headers, bytes(raw))
        except TimeoutError:
            raise Unanswered(
                f"{self.base}: no complete answer within {seconds:g} s; allow more with --server timeout_s=..."
            ) from None
        except httpx.LocalProtocolError as error:  # no request at all; its text may quote a header, the key's too
            raise ModelError(f"{self.base}: the request cannot be sent ({type(error).__name__})") from None
        except httpx.TransportError as error:
            what = self._clean(str(error)) or type(error).__name__
            raise _Again(f"cannot be reached ({what})", unreachable=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise ModelError(f"{self.base}: {type(error).__name__}: {self._clean(str(error))}") from None

    def _opened(self) -> Any:
        """The client. Raises ModelError where what the environment says of proxies or certificates is no use."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "nl2sql", "Content-Type": "application/json"}
        headers |= self.headers()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(None, connect=CONNECT_S)
        try:
            trusted = self.place.provider != OWN
            return httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=trusted)
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            named = [name for name in _ENVIRONMENT if os.environ.get(name) or os.environ.get(name.lower())]
            said = re.sub(r"//[^/@\s]*@", "//***@", self._clean(str(error)))  # a proxy's user, with a password
            what = f"{type(error).__name__}: {said}"
            raise ModelError(
                f"{self.base}: no connection can be set up as the environment wants it ({what}); see "
                f"{', '.join(named) or 'its proxies and certificates'} (NO_PROXY=HOST goes past a proxy)"
            ) from None

    async def _stream(self, response: Any, lines: Stream) -> None:
        lines.restart()
        held = bytearray()  # of a line that goes on
        try:
            async for part in self._parts(response):
                *ends, rest = part.split(b"\n")
                for end in ends:
                    line = (held + end).decode("utf-8", "replace").rstrip("\r")
                    held.clear()
                    if lines(line):
                        return
                held += rest
            lines(held.decode("utf-8", "replace"))
            if not lines(None):
                raise _Again("the stream ended in the middle", unreachable=True)
        except TooLarge:
            raise
        except ModelError as error:
            raise ModelError(f"{self.base}: {self._clean(str(error))}") from None

    async def _parts(self, response: Any) -> AsyncIterator[bytes]:
        size = 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self.most_bytes:
                raise TooLarge(f"{self.base}: the answer is longer than {self.most_bytes / 2**20:.3g} MiB")
            yield part

    def _checked(self, status: int, headers: Mapping[str, str], raw: bytes) -> Any:
        """The parsed body of a 200; else the fitting exception."""
        if status == 200:
            try:
                return masked_data(_parsed(raw), self._key)
            except ValueError:
                said = self._clean(raw[:2000].decode("utf-8", "replace"))
                raise ModelError(f"{self.base}: the answer is not JSON: {said!r}") from None
        said, field = _said(raw)
        said = self._clean(said)
        if status in _RETRIED:
            raise _Again(f"HTTP {status}: {said}", after_s=_retry_after(headers.get("retry-after")), status=status)
        if 300 <= status < 400:
            said = f"redirects to {self._clean(headers.get('location', 'nowhere'))}; give that address instead"
        elif status in (401, 403):
            said += f"; set {self.place.key_variable} to a key of this server"
        raise RequestRefused(f"{self.base}: HTTP {status}: {said}", status, said, field)

    def _clean(self, text: str) -> str:
        """What a server says, as an error shows it: one line, without the key."""
        line = one_line(self.without_key(text)).replace(self._key or "\0", "***")
        return "".join(c if c.isprintable() else "?" for c in line)[:300]

    def without_key(self, text: str) -> str:
        """``text`` without the key, or a long end of it."""
        return masked(text, self._key)


def _parsed(raw: bytes) -> Any:
    """The JSON of a body. Raises ValueError for what is none, or nests too deep."""
    return load_json(raw.decode(json.detect_encoding(raw), "surrogatepass"))


def _said(raw: bytes) -> tuple[str, str]:
    """The message in an error body of any of the usual shapes, else the body's beginning; the field it names.

    The field is ``error.param``, as OpenAI names it; "" where none.
    """
    try:
        data = _parsed(raw)
    except ValueError:
        return raw[:2000].decode("utf-8", "replace") or "(no text)", ""
    field: Any = ""
    while isinstance(data, Mapping):
        inner = next((data[key] for key in ("error", "message", "detail") if data.get(key)), None)
        if inner is None:
            break
        field, data = data.get("param", field), inner
    return data if isinstance(data, str) else json.dumps(data), field if isinstance(field, str) else ""


def _retry_after(value: str | None) -> float | None:
    """Seconds that a ``Retry-After`` header (seconds or a date) asks for."""
    for read in (float, lambda text: parsedate_to_datetime(text).timestamp() - time.time()):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            return max(0.0, read(value or ""))
    return None


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, client: list[Any]) -> None:
    async def end() -> None:
        others = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for opened in client:
            await opened.aclose()
        loop.call_soon(loop.stop)

    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(end(), loop)
        thread.join(timeout=5)
        if not thread.is_alive():
            loop.close()
