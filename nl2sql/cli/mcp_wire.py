"""An MCP server that answers every request under its id, also one that the protocol's library cannot read as JSON.

Half a surrogate pair becomes U+FFFD, and the request is carried out; what is nested too deeply, or broken in another
way, is answered with an error under the id that stands in it.

>>> mended(r'{"id": 1, "q": "a\\ud800b"}')
'{"id": 1, "q": "a\\ufffdb"}'
>>> mended('{"params": {"id": 2}, "id": "x", "q": [[[').id, mended('{"q": "\\\\"id\\\\": 3"')
('x', None)

Not covered: JSON that is no message of the protocol.
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
from mcp.types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json as read_by_library

from nl2sql.machine import from_json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

_HALF = re.compile("[\ud800-\udfff]")
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # texts, closed or not, and brackets
_ID = re.compile(r'\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")')


class AnsweringServer(MCPServer):
    """The library's server behind a reader of its own."""

    async def run_stdio_async(self) -> None:
        """Serve standard input and output."""
        sent, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        async with stdio_server() as (read, write), anyio.create_task_group() as tasks:

            async def pass_on() -> None:
                async with sent:
                    async for item in read:
                        refused, message = _meant(item)
                        await (write.send(SessionMessage(refused)) if refused else sent.send(message))

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


def _meant(item: SessionMessage | Exception) -> tuple[JSONRPCError | None, SessionMessage | Exception]:
    """The refusal that answers a line, or what is passed on in place of it."""
    first: Any = item.errors(include_url=False)[0] if isinstance(item, ValidationError) else {"type": ""}
    meant = mended(first["input"]) if first["type"] == "json_invalid" else None
    if isinstance(meant, JSONRPCError):
        return meant, item
    try:
        return None, SessionMessage(jsonrpc_message_adapter.validate_json(meant, by_name=False)) if meant else item
    except ValidationError as error:
        return None, error


def mended(text: str) -> str | JSONRPCError | None:
    """A message as the library can read it; the refusal of one that it cannot; None where no id stands in that."""
    try:
        read_by_library(text)
        return text
    except ValueError:
        pass
    try:
        text = _HALF.sub("\ufffd", json.dumps(from_json(text), ensure_ascii=False))
        read_by_library(text)
        return text
    except (ValueError, RecursionError) as error:
        id = _id_in(text)
        said = f"the request cannot be read as JSON: {error}"
        return (
            None if id is None else JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=PARSE_ERROR, message=said))
        )


def _id_in(text: str) -> int | str | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        value = _ID.match(text, token.end()) if depth == 1 and token[0] == '"id"' else None
        if value:
            return json.loads(value[1])
    return None
