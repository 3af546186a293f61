"""The server behind ``nl2sql runs view``: on 127.0.0.1, for the person who has started it and nobody else.

Every address begins with a random token, as a notebook server's does, and a request whose ``Host`` is not this machine
is refused: a web page elsewhere cannot reach the runs, not even by a name of its own that leads here. Not covered:
other users of this machine who can read the terminal; encryption.
"""

from __future__ import annotations

import secrets
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from nl2sql.errors import UsageError
from nl2sql.runs.viewer.pages import Page, Pages

ADDRESS = "127.0.0.1"
LONGEST_FORM = 1_000_000  # bytes
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)


class ViewServer(ThreadingHTTPServer):
    """``with ViewServer(pages) as server: server.serve_forever()``; ``server.url`` is the address to open.

    port: 0 for any free one. Raises UsageError where the port is taken.
    """

    daemon_threads = True

    def __init__(self, pages: Pages, port: int = 0) -> None:
        self.pages, self.token = pages, secrets.token_urlsafe(24)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(f"--port {port}: {why}; leave it out for a free one") from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes to another page before this one has arrived is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    server_version, sys_version = "nl2sql", ""
    timeout = 30  # seconds for a request to arrive

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_FORM:
            self._send(Page("a form of this length is not taken", 413))
            return
        self._answer(parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"), keep_blank_values=True))

    def _answer(self, form: dict[str, list[str]]) -> None:
        path, _, query = self.path.partition("?")
        token, _, name = path.removeprefix("/").partition("/")
        hosts = {f"{name}:{self.server.server_port}" for name in (ADDRESS, "localhost")}
        if self.headers.get("Host") not in hosts or not secrets.compare_digest(
            token.encode(), self.server.token.encode()
        ):
            self._send(Page("not found: open the address that nl2sql runs view has printed", 404))
            return
        asked = parse_qs(query, keep_blank_values=True, errors="surrogateescape")
        self._send(self.server.pages.answer(name, asked, form))

    def _send(self, page: Page) -> None:
        body = page.text.encode("utf-8", "replace")
        self.send_response(page.status)
        self.send_header("Content-Type", f"{page.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")  # the address holds the token
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'" if page.own_policy else POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is for the address."""
