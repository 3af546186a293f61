"""The official client of the VizQL Data Service, quiet and bounded. Imported where a service is opened, and only there:
it needs ``pip install 'nl2sql-harness[vizql-service]'``.

``OfficialClient(address, token).send("query_datasource", request, timeout_s=30)`` gives the body of the answer.

- The constructor of its ``VizQLDataServiceClient`` prints the address. What that would make is made here: its
  functions use no more of it than ``client`` and ``raise_on_unexpected_status``.
- Its HTTP client has no time limit, and a limit on each read would not end an answer that comes byte by byte. So its
  ``asyncio_detailed`` functions (``sync_detailed``, to be awaited) run in one background thread, until the limit.
- An answer is read up to ``MAX_BODY_BYTES``. Redirects are not followed, so that a token goes nowhere else.

Not covered: a limit on the whole of the sign-in. There, each read has one.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import AsyncIterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import httpx
import requests
import tableauserverclient
import vizql_data_service_py as vds
from pydantic import ValidationError
from tableauserverclient.server.endpoint.exceptions import RedirectError, TableauError
from vizql_data_service_py.api.client import API_SUBDOMAIN, X_TABLEAU_AUTH, AuthenticatedClient

from nl2sql.errors import Nl2SqlError, one_line
from nl2sql.machine import from_json, masked
from nl2sql.vizql.querying import ServiceError, error_inside, error_of

logging.getLogger("httpcore").setLevel(logging.INFO)  # DEBUG shows headers, and the token is in one

CONNECT_S = 10.0
LONGEST = 2000  # characters of an error's text
MAX_BODY_BYTES = 64 * 2**20  # as much as the SQLite worker sends
REST_VERSION = "3.25"  # of the first Tableau Server that has the service, 2025.1
REQUESTS = {
    "query_datasource": vds.QueryRequest,
    "read_metadata": vds.ReadMetadataRequest,
    "get_datasource_model": vds.GetDatasourceModelRequest,
}


class OfficialClient:
    """The client of the service at ``address``, signed in with ``token``. Thread-safe; ``close`` hangs up."""

    def __init__(self, address: str, token: str) -> None:
        self._token = token
        authenticated = AuthenticatedClient(
            base_url=address + API_SUBDOMAIN,
            token=token,
            prefix="",
            auth_header_name=X_TABLEAU_AUTH,
            headers={"User-Agent": "nl2sql", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            httpx_args={"event_hooks": {"response": [_bound]}},
        )
        self._client: Any = SimpleNamespace(client=authenticated, raise_on_unexpected_status=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vizql-service", daemon=True)
        self._thread.start()

    def send(self, endpoint: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        """The JSON that an endpoint answers. Raises ServiceError; a limit that passed is of kind ``timeout``."""
        answering = self._answer(endpoint, self._request(endpoint, body), timeout_s)
        try:
            return asyncio.run_coroutine_threadsafe(answering, self._loop).result()
        except TimeoutError:
            raise ServiceError("timeout", f"no complete answer within {timeout_s:.3g} s") from None
        except UnicodeEncodeError:
            raise ServiceError("invalid", "it has half a character, which no request can carry") from None
        except httpx.TransportError as error:
            raise ServiceError("unreachable", self._clean(str(error) or type(error).__name__)) from None
        except httpx.HTTPError as error:
            raise ServiceError("unreadable", self._clean(str(error))) from None
        except ServiceError as error:
            raise ServiceError(error.kind, self._clean(str(error))) from None

    def close(self) -> None:
        """Hang up."""
        if self._loop.is_closed():
            return
        hanging_up = self._client.client.get_async_httpx_client().aclose()
        asyncio.run_coroutine_threadsafe(hanging_up, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, endpoint: str, request: Any, timeout_s: float) -> Any:
        async with asyncio.timeout(timeout_s):
            try:
                response = await getattr(vds, endpoint).asyncio_detailed(client=self._client, body=request)
            except ValidationError as error:
                raise ServiceError("unreadable", f"the answer is not as expected: {_first(error)}") from None
        if response.status_code != HTTPStatus.OK:
            raise error_of(int(response.status_code), response.content)
        try:
            answer = from_json(response.content)
        except ValueError as error:
            raise ServiceError("unreadable", f"the answer is not as expected: {error}") from None
        if inside := error_inside(answer):
            raise inside
        return answer

    def _request(self, endpoint: str, body: dict[str, Any]) -> Any:
        """The official model of a request. Raises ServiceError where it is none, or where the model drops a part."""
        try:
            request = REQUESTS[endpoint].model_validate(_with_filter_types(body))
        except ValidationError as error:
            raise ServiceError("invalid", f"the official client refuses it: {_first(error)}") from None
        if lost := _lost(body, request.model_dump(mode="json", exclude_none=True)):
            raise ServiceError("invalid", f"the official client cannot send {lost}")
        return request

    def _clean(self, text: str) -> str:
        """What is said of an error: one line, without the token and without any secret of the environment."""
        return one_line(masked(masked(text, self._token)), LONGEST)


async def _bound(response: httpx.Response) -> None:
    """Called for each answer before its body is read."""
    if response.status_code not in {status.value for status in HTTPStatus}:  # the client knows no other numbers
        raise ServiceError(str(response.status_code), f"HTTP {response.status_code}")
    if response.is_redirect:
        where = response.headers.get("location")
        raise ServiceError(str(response.status_code), f"it redirects to {where}; give that address instead")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServiceError("unreadable", "the answer is compressed, and nobody asked for that")
    response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx.AsyncByteStream):
    """A body, up to ``MAX_BODY_BYTES``."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MAX_BODY_BYTES:
                limit = f"{MAX_BODY_BYTES / 2**20:.3g} MiB"
                raise ServiceError("too_large", f"the answer is longer than {limit}; ask for fewer rows")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def _with_filter_types(body: dict[str, Any]) -> dict[str, Any]:
    """A request as the official models read it: they take no ``filterType`` from JSON, only their own enumeration."""
    body = copy.deepcopy(body)
    for part in body.get("query", {}).get("filters") or ():
        part["filterType"] = vds.FilterType[part["filterType"]]
    return body


def _lost(ours: Any, theirs: Any, place: str = "") -> str:
    """The first key of ``ours`` that ``theirs`` has not; "" where all are there."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        parts = [(f"{place}.{key}".lstrip("."), value, theirs.get(key)) for key, value in ours.items()]
        missing = [where for where, _, other in parts if other is None]
        return next(iter(missing), "") or next(filter(None, (_lost(a, b, where) for where, a, b in parts)), "")
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip(ours, theirs, strict=False)
        return next(filter(None, (_lost(a, b, f"{place}[{i}]") for i, (a, b) in enumerate(pairs))), "")
    return ""


def _first(error: ValidationError) -> str:
    """The first of what pydantic minds, without the value."""
    first = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


# --------------------------------------------------------------------------------------------------------- sign-in


def signed_in(address: str, name: str, secret: str, site: str, *, timeout_s: float) -> Any:
    """The Tableau server, signed in with a personal access token; it has the ``auth_token``.

    Raises Nl2SqlError, with what the server said.
    """
    try:
        server = tableauserverclient.Server(address, http_options={"timeout": timeout_s}, session_factory=_session)
        server.version = REST_VERSION
        server.auth.sign_in(tableauserverclient.PersonalAccessTokenAuth(name, secret, site_id=site))
        return server
    except (RedirectError, requests.TooManyRedirects):
        raise Nl2SqlError(f"cannot sign in at {address}: it redirects; give the address that it leads to") from None
    except (TableauError, requests.RequestException, ValueError, SyntaxError, AttributeError) as error:
        # The last three: an answer that is no XML, or XML without a token.
        said = masked(masked(one_line(error, LONGEST), secret))
        hint = "check the address, NL2SQL_VDS_PAT_NAME, NL2SQL_VDS_PAT_SECRET and NL2SQL_VDS_SITE"
        raise Nl2SqlError(f"cannot sign in at {address}: {said}; {hint}") from None


def sign_out(server: Any) -> None:
    """End a sign-in. A server that does not answer ends it by itself, later."""
    try:
        server.auth.sign_out()
    except (TableauError, requests.RequestException, ValueError):
        logging.getLogger(__name__).info("the sign-in was not ended")


def _session() -> requests.Session:
    session = requests.Session()
    session.max_redirects = 0  # the secret is in the body, and goes nowhere else
    return session
