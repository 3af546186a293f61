"""The runs of a folder in a browser, live: ``nl2sql runs view``, on 127.0.0.1, for the person who has started it.

The pages: the list of runs, the report of one run or of several beside one another, a run in progress, and a page that
executes SQL in the sandbox. Loads no model; writes nothing but notes.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

from nl2sql.errors import Nl2SqlError, UsageError, one_line, typed
from nl2sql.interfaces import Benchmark, RunResult
from nl2sql.runs.folder import BROKEN, iter_jsonl, line_files, parts_of
from nl2sql.runs.listing import Listing, RunEntry
from nl2sql.runs.plan import Trust, benchmark_of
from nl2sql.runs.report import escaping, report_html, style
from nl2sql.runs.report.episodes import shown_cell
from nl2sql.runs.run import FILE as NOTES_FILE
from nl2sql.runs.run import Run, add_note

# ---------------------------------------------------------------------------------------- the pages
#     ""          the runs of the folder; refreshes itself
#     rows        its table alone, for the refresh
#     report      one run, or several beside one another: the page of ``nl2sql report``
#     progress    a run that is not finished: how far it is, its last answers; refreshes itself
#     note        takes a note on an answer, and writes it into the run's folder
#     sql         executes a query on a database of a run's benchmark, in the sandbox
#
# A run is named by its path below the folder, and only a run that the list shows can be asked for.

Query = Mapping[str, Sequence[str]]
LAST_ANSWERS = 10
KEPT_REPORTS = 4  # of megabytes each
LONGEST_CELL = 5000  # characters of an answer
TIMEOUT_S, MAX_ROWS = 10.0, 200


@dataclass(frozen=True)
class Page:
    """An answer to the browser. own_policy: the page itself says what it may load."""

    text: str
    status: int = 200
    kind: str = "text/plain"
    own_policy: bool = False


class Pages:
    """The pages over the runs in ``folder``, for many threads. trust: see ``runs.plan``.

    What one run takes long over is waited for by its own pages alone.
    """

    def __init__(self, folder: Path, trust: Trust | bool = False) -> None:
        self.folder, self.trust = folder, trust
        self._listing = Listing(folder)
        self._lock = threading.Lock()  # of what follows
        self._locks: dict[object, threading.Lock] = {}  # one report, note or benchmark of the same runs at a time
        self._reports: OrderedDict[object, str] = OrderedDict()
        self._benchmarks: dict[str, Benchmark] = {}

    def answer(self, name: str, query: Query, form: Query) -> Page:
        """The page ``name``; an error is a page with its reason."""
        try:
            match name:
                case "refresh.js":
                    script = files("nl2sql.runs.viewer").joinpath("templates", name)
                    return Page(script.read_text(encoding="utf-8"), kind="text/javascript")
                case "" | "rows":
                    return _page(f"{name or 'list'}.html", folder=self.folder, runs=self._listed(), began=_began)
                case "report":
                    return self._report(query)
                case "progress":
                    return self._progress(query)
                case "note":
                    return self._note(query, form)
                case "sql":
                    return self._sql({**query, **form}, execute=bool(form))
            return _page("message.html", 404, message=f"there is no page {name!r}")
        except (Nl2SqlError, OSError) as error:
            return _page("message.html", 400, message=one_line(error))
        except BROKEN as error:  # a file that is not what a run leaves
            what = one_line(f"{type(error).__name__}: {error}")
            return _page("message.html", 400, message=f"this cannot be shown ({what}); nl2sql runs check RUN looks why")

    def _listed(self) -> dict[str, RunEntry]:
        found = self._listing.entries()
        return {Path(entry.path).relative_to(self.folder).as_posix(): entry for entry in found}

    def _chosen(self, query: Query) -> dict[str, RunEntry]:
        """The named runs, oldest first. Raises UsageError for none, and for one that is not listed."""
        listed, wanted = self._listed(), query.get("run", ())
        if not wanted:
            raise UsageError("no run is chosen; tick one or several in the list")
        if unknown := [name for name in wanted if name not in listed]:
            raise UsageError(f"there is no run {unknown[0]!r} in {self.folder}")
        return {name: entry for name, entry in reversed(listed.items()) if name in wanted}

    def _report(self, query: Query) -> Page:
        chosen = self._chosen(query)
        folders = [Path(entry.path) for entry in chosen.values()]
        if unfinished := [name for name, entry in chosen.items() if entry.state != "done"]:
            raise UsageError(f"{unfinished[0]} is not finished, so it has no report yet")
        stamps = tuple((str(file), file.stat().st_mtime_ns) for folder in folders for file in _read_by_report(folder))
        with self._lock_of(*chosen):
            if (page := self._reports.get(stamps)) is None:
                seeds = {name: Run.load(entry.path).parts() for name, entry in chosen.items()}  # each a run of the page
                sql = [f"sql?{_address({'run': [name]})}" for name, parts in seeds.items() for _ in parts]
                notes = f"note?{_address({'run': list(chosen)})}"
                live = {"runs": "./", "sql": json.dumps(sql), "notes": notes}
                page = report_html(folders, progress=False, live=live, trust=self.trust)
                with self._lock:
                    self._reports[stamps] = page
                    while len(self._reports) > KEPT_REPORTS:
                        self._reports.popitem(last=False)
            return Page(page, kind="text/html", own_policy=True)

    def _lock_of(self, *what: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(what, threading.Lock())

    def _note(self, query: Query, form: Query) -> Page:
        """Write a note on an answer of the run in column ``at`` of the report."""
        if not form:
            raise UsageError("a note is sent by the report's page")
        parts = [part for entry in self._chosen(query).values() for part in Run.load(entry.path).parts().values()]
        at, db, id_, tags, note = (form.get(key, [""])[0] for key in ("at", "db", "id", "tags", "note"))
        if not at.isdecimal() or int(at) >= len(parts):
            raise UsageError(f"the report has no run {at!r}")
        with self._lock_of("note"):
            add_note(parts[int(at)], db, id_, tags.split(","), note)
        return Page("saved")

    def _progress(self, query: Query) -> Page:
        name, entry = next(iter(self._chosen(query).items()))
        if entry.problem:
            raise UsageError(entry.problem)
        again = f"nl2sql runs replay {typed(entry.path)} --partial"
        return _page("progress.html", name=name, entry=entry, again=again, answers=_answers(Path(entry.path)))

    def _sql(self, query: Query, *, execute: bool) -> Page:
        name, entry = next(iter(self._chosen(query).items()))
        benchmark = self._benchmark(name, Path(entry.path))
        names = sorted({question.db_id for question in benchmark.questions})
        asked, sql = (query.get(key, [""])[0] for key in ("db", "sql"))
        result = None
        if execute and asked not in names:
            result = RunResult(False, error=f"the benchmark has no database {asked!r}")
        elif execute:
            result = benchmark.database(asked).run(sql, timeout_s=TIMEOUT_S, max_rows=MAX_ROWS)
        shown: dict[str, Any] = {"databases": names, "db": asked, "sql": sql, "result": result}
        return _page("sql.html", name=name, most=MAX_ROWS, cell=shown_cell, **shown)

    def _benchmark(self, name: str, folder: Path) -> Benchmark:
        with self._lock_of("benchmark", name):
            if name not in self._benchmarks:
                self._benchmarks[name] = benchmark_of(folder, self.trust)
            return self._benchmarks[name]


def _read_by_report(folder: Path) -> list[Path]:
    """The files of a run whose change makes another report."""
    notes = (file for part in parts_of(folder).values() for file in line_files(part) if file.name == NOTES_FILE)
    return [folder / "report.json", *notes]


def _address(query: Query) -> str:
    """A query as an address has it; the name of a folder may be no UTF-8."""
    return urlencode(query, doseq=True, errors="surrogateescape")


def _began(entry: RunEntry) -> str:
    seconds = (datetime.now(UTC) - entry.began).total_seconds()
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            number = int(seconds / size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def _answers(folder: Path) -> list[dict[str, str]]:
    """The last answers, the latest first."""
    parts = parts_of(folder).values()
    last = deque((row for part in parts for row in iter_jsonl(part / "predictions.jsonl")), LAST_ANSWERS)
    names = ("id", "sql", "error")
    return [{name: str(row.get(name) or "")[:LONGEST_CELL] for name in names} for row in reversed(last)]


def _page(template: str, status: int = 200, **values: Any) -> Page:
    text = _templates().get_template(template).render(style=style(), **values)
    return Page(text, status, "text/html")


@cache
def _templates() -> Any:
    import jinja2

    made = escaping(loader=jinja2.PackageLoader("nl2sql.runs.viewer", "templates"))
    made.filters["urlencode"] = partial(quote, errors="surrogateescape")  # Jinja's takes UTF-8 alone
    return made


# --------------------------------------------------------------------------------------- the server
# Every address begins with a random token, as a notebook server's does, and a request whose
# ``Host`` is not this machine is refused: a web page elsewhere cannot reach the runs, not even by a
# name of its own that leads here. Not covered: other users of this machine who can read the
# terminal; encryption.

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
