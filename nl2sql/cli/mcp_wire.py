"""An MCP server that answers every request under its id, also one that the protocol's library cannot read as JSON.

Half a surrogate pair becomes U+FFFD, and the request is carried out; what is nested too deeply, broken in another way,
or JSON that is no message of the protocol, is answered with an error under the id that stands in it, or under null.

>>> mended(r'{"jsonrpc": "2.0", "id": 1, "method": "a\\ud800b"}')
'{"jsonrpc": "2.0", "id": 1, "method": "a\\ufffdb"}'
>>> mended('{"params": {"id": 2}, "id": "x", "q": [[[').id, mended('{"q": "\\\\"id\\\\": 3"').id
('x', None)
>>> [(mended(text).error.code, mended(text).id) for text in ('{"id": 7}', "[[1]]", '{"id": 1.5}')]
[(-32600, 7), (-32600, None), (-32600, None)]

Not covered: a method under an id that is neither number nor text, which the library takes for a notification.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server import MCPServer
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE, RequestBodyLimitMiddleware
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json as read_by_library

from nl2sql.machine import from_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

_HALF = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # texts, closed or not, and brackets
_ID = re.compile(r'\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")(?![\d.eE])')


class AnsweringServer(MCPServer):
    """The library's server behind a reader of its own."""

    async def run_stdio_async(self) -> None:
        """Serve standard input and output."""
        sent, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with stdio_server() as (read, write), anyio.create_task_group() as tasks:

            async def pass_on() -> None:
                async with sent:
                    async for item in read:
                        message = _meant(item)
                        if isinstance(message, JSONRPCError):
                            await write.send(SessionMessage(message))
                        else:
                            await sent.send(message)

            tasks.start_soon(pass_on)
            server = self._lowlevel_server
            await server.run(received, write, server.create_initialization_options())

    def streamable_http_app(self, **options: Any) -> Starlette:
        """The application that serves HTTP."""
        app = super().streamable_http_app(**options)
        app.add_middleware(_Bodies)
        app.add_middleware(RequestBodyLimitMiddleware, max_body_size=DEFAULT_MAX_REQUEST_BODY_SIZE)
        return app


class _Bodies:
    """The reader of HTTP requests, whose bodies are within the library's limit."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import Request
        from starlette.responses import Response

        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        meant = mended(body.decode("utf-8", "replace"))
        if isinstance(meant, JSONRPCError):
            answer = meant.model_dump_json(by_alias=True)
            await Response(answer, status_code=400, media_type="application/json")(scope, receive, send)
            return
        told = [{"type": "http.request", "body": body if meant is None else meant.encode(), "more_body": False}]

        async def again() -> Any:
            return told.pop() if told else await receive()

        await self._app(scope, again, send)


def _meant(item: SessionMessage | Exception) -> JSONRPCError | SessionMessage | Exception:
    """The refusal that answers a line, or what is passed on in place of it."""
    if not isinstance(item, ValidationError):
        return item
    whole: Any = None  # the line, as far as the library says what it was
    for error in item.errors(include_url=False):
        if error["type"] == "json_invalid":
            whole = error["input"]
        elif error["type"] == "missing" and len(error["loc"]) == 2:  # a field of the message itself
            whole = json.dumps(error["input"])
    meant = mended("null" if whole is None else whole)
    if isinstance(meant, str):
        return SessionMessage(jsonrpc_message_adapter.validate_json(meant, by_name=False))
    return meant or item


def mended(text: str) -> str | JSONRPCError | None:
    """A message as the library can read it; the refusal of one that it cannot; None for a blank line."""
    if not text.strip():
        return None
    try:
        read_by_library(text)
    except ValueError:
        try:
            text = _HALF.sub("\ufffd", json.dumps(from_json(text), ensure_ascii=False))
            read_by_library(text)
        except (ValueError, RecursionError) as error:
            return _refusal(text, PARSE_ERROR, f"the request cannot be read as JSON: {error}")
    try:
        jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValidationError:
        expected = 'expected an object with "jsonrpc": "2.0", a method and an id'
        return _refusal(text, INVALID_REQUEST, f"the request is JSON, but no message of JSON-RPC; {expected}")
    return text


def _refusal(text: str, code: int, said: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=_id_in(text), error=ErrorData(code=code, message=said))


def _id_in(text: str) -> int | str | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        value = _ID.match(text, token.end()) if depth == 1 and token[0] == '"id"' else None
        if value:
            return json.loads(value[1])
    return None
