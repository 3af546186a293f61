"""A local server that answers as a VizQL Data Service does, over one database: the three endpoints, and the sign-in.

A request is held to our validator, and read by the official models where they are installed. A query is compiled and
executed. ``next_answer`` puts an answer of any kind before the ones to come, once for each call.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pydantic import ValidationError

from nl2sql.interfaces import Database
from nl2sql.vizql.compile import compiled
from nl2sql.vizql.query import Request
from nl2sql.vizql.source import DataSource, to_metadata
from nl2sql.vizql.validator import validate

try:
    import vizql_data_service_py as official
except ImportError:
    official = None
TOKEN = "kZ9x-token-of-a-sign-in|Wq7"
PAT = ("my-pat", "pat-secret-0123456789")
LUID = "0a1b2c3d-shop"
Answer = tuple[int, str, bytes]


def datasource_model(source: DataSource) -> dict[str, Any]:
    """What ``get-datasource-model`` answers for this data source."""
    data = source.model_dump(mode="json", exclude_unset=True)
    tables = [{k: v for k, v in table.items() if k not in ("table", "key")} for table in data["logicalTables"]]
    return {**{key: data[key] for key in data if key == "logicalTableRelationships"}, "logicalTables": tables}


class VdsServer:
    """What the server is told, and what it saw."""

    def __init__(self, source: DataSource, database: Database) -> None:
        self.source, self.database = source, database
        self.planned: deque[Callable[[BaseHTTPRequestHandler], None]] = deque()
        self.bodies: list[dict[str, Any]] = []  # of the requests for an endpoint
        self.headers: list[dict[str, str]] = []
        self.paths: Counter[str] = Counter()
        self.closing = threading.Event()
        self.url = ""

    def next_answer(self, status: int, body: bytes | str, kind: str = "application/json") -> None:
        """The next request is answered with this."""
        content = body.encode() if isinstance(body, str) else body
        self.planned.append(lambda handler: _send(handler, (status, kind, content)))

    def next_redirect(self, location: str) -> None:
        """The next request is sent elsewhere."""
        self.planned.append(lambda handler: _send(handler, (307, "text/plain", b""), Location=location))

    def next_error(self, code: str, message: str = "as planned", **more: Any) -> None:
        """The next request is answered with this ``errorCode``, once."""
        self.next_answer(int(code[:3]), json.dumps({"errorCode": code, "message": message} | more))

    def next_hangs(self, dripping: bytes = b"") -> None:
        """The next request gets no end: nothing at all, or these bytes again and again."""
        self.planned.append(lambda handler: self._hang(handler, dripping))

    def _hang(self, handler: BaseHTTPRequestHandler, dripping: bytes) -> None:
        while not self.closing.wait(0.05):
            try:
                handler.wfile.write(dripping)
            except OSError:
                return

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        endpoint = path.removeprefix("/api/v1/vizql-data-service/")
        if body.get("datasource") != {"datasourceLuid": LUID}:
            return _error("404950", "there is no such data source")
        if endpoint == "read-metadata":
            return _json(to_metadata(self.source))
        if endpoint == "get-datasource-model":
            return _json(datasource_model(self.source))
        return self._queried(body) if endpoint == "query-datasource" else _error("404950", "no such endpoint")

    def _queried(self, body: dict[str, Any]) -> Answer:
        if official is not None:
            read = json.loads(json.dumps(body))
            for part in read["query"].get("filters", ()):
                part["filterType"] = official.FilterType[part["filterType"]]
            try:
                official.QueryRequest.model_validate(read)
            except ValidationError as error:
                return _error("400802", str(error))
        errors = [error for error in validate(body, self.source).errors if error.kind != "measure"]  # it has a default
        if any(error.kind == "not_found" for error in errors):
            return _error("404934", "Unknown field", messages=[error.message for error in errors])
        if errors:
            return _error("400803", "Validation failed", messages=[error.message for error in errors])
        request = Request.model_validate(body)
        made = compiled(request, self.source, self.database.dialect)
        result = self.database.run(made.sql)
        if not result.success:
            return _error("500000", f"{made.not_executable} {result.error}")
        if request.options and request.options.returnFormat == "ARRAYS":
            return _json({"data": [list(row) for row in result.rows]})
        names = sorted(made.columns)  # the order of an object's keys says nothing
        return _json({"data": [{name: row[made.columns.index(name)] for name in names} for row in result.rows]})


def _json(body: Any, status: int = 200) -> Answer:
    return status, "application/json", json.dumps(body).encode()


def _error(code: str, message: str, **more: Any) -> Answer:
    return _json({"errorCode": code, "message": message} | more, int(code[:3]))


def _send(handler: BaseHTTPRequestHandler, answer: Answer, **headers: str) -> None:
    status, kind, content = answer
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _handler(server: VdsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.paths[self.path] += 1
            if server.planned:
                server.bodies.append({})
                server.planned.popleft()(self)
            elif self.path.startswith("/api/3.25/auth/"):
                _send(self, self._signing(content))
            elif self.headers.get("X-Tableau-Auth") != TOKEN:
                _send(self, _error("401002", f"not signed in: {self.headers.get('X-Tableau-Auth')}"))
            else:
                server.bodies.append(json.loads(content))
                server.headers.append(dict(self.headers))
                _send(self, server.answer(self.path, server.bodies[-1]))

        def _signing(self, content: bytes) -> Answer:
            if self.path.endswith("/signout"):
                return 204, "text/plain", b""
            asked = json.loads(content)["credentials"]
            if (asked["personalAccessTokenName"], asked["personalAccessTokenSecret"]) == PAT:
                site = {"id": "s", "contentUrl": asked["site"]["contentUrl"]}
                return _json({"credentials": {"site": site, "user": {"id": "u"}, "token": TOKEN}})
            said = {"summary": "Signin Error", "detail": f"Signin Error: {content.decode()}", "code": "401001"}
            return _json({"error": said}, 401)

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    return Handler


@contextmanager
def serving(source: DataSource, database: Database) -> Iterator[VdsServer]:
    """A server over ``source`` and its database, on a port of its own."""
    server = VdsServer(source, database)
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        server.closing.set()
        http.shutdown()
        http.server_close()
        thread.join()
