"""The process in which another engine than SQLite runs: ``python -I child.py``, ended by its parent when it overstays.

Messages both ways as in ``worker.py``. The first request is ``["open", dialect, target, scratch folder]``,
answered with ``["ok", version]``; then ``[mode, sql, timeout_s, max_rows]`` with mode run or explain, answered with
``["ok", columns, rows, truncated]``, and ``["tables"]`` with ``["ok", tables]``; a failure is
``["error", exception, message]``. Values that JSON does not have are sent as text, blobs as ``{"b": hex}``.

The engines' own settings keep a statement inside its database (``adapters.py``). Behind them, where the engine runs in
this very process, Landlock takes away every file but the database, and TCP (``confine.py``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

if __name__ == "__main__":  # -I leaves the script's folder out; this copy of nl2sql is the one to load
    sys.path.insert(0, os.path.abspath(__file__).rsplit(os.sep, 4)[0])  # noqa: PTH100

from nl2sql.databases.engines.adapters import ADAPTERS, Refused
from nl2sql.databases.sqlite.worker import receive, send

RESULT_BYTES = 64 * 2**20  # as much as the SQLite worker sends; the parent holds it all
LAST_RESORT_SECONDS = 5.0  # past the deadline: the parent kills sooner, so only an orphan gets there
DATA_BYTES = 6 * 2**30  # memory of the process, whatever the engine's own limit says
FILE_BYTES = 2**20  # ClickHouse writes a status file


def plain(value: Any) -> Any:
    """A value of a result as SQLite would hold it: number, text, None or blob; dates as ISO text, lists as JSON."""
    if value is None or isinstance(value, (str, int)):
        return int(value) if isinstance(value, bool) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            return str(float(value))
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"b": bytes(value).hex()}
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, timedelta):
        return _interval(value)
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(_nested(value), ensure_ascii=False)
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _interval(value: timedelta) -> str:
    """``-01:00:00``, ``32 days``, ``1 day 02:03:04.500000``: as DuckDB writes it; Python says -1 day, 23:00:00."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    days = f"{sign}{value.days} day{'s' if value.days > 1 else ''}" if value.days else ""
    rest = value - timedelta(value.days)
    time_of_day = f"{sign}{(datetime.min + rest).time().isoformat()}" if rest or not days else ""
    return " ".join(part for part in (days, time_of_day) if part)


def _nested(value: Any) -> Any:
    """A value inside a list or a struct as JSON has it; blobs as hex."""
    if isinstance(value, dict):
        return {str(_nested(key)): _nested(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nested(part) for part in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return value if isinstance(value, bool) else plain(value)


def execute_request(adapter: Any, request: list[Any]) -> list[Any]:
    """Execute one request on an open engine. Raises whatever the engine does."""
    if request[0] == "tables":
        return ["ok", adapter.tables()]
    mode, sql, timeout_s, max_rows = request
    columns, fetched = adapter.query(sql, timeout_s, mode == "explain")
    rows: list[list[Any]] = []
    size = 0
    for row in fetched:
        if len(rows) == max_rows:
            return ["ok", columns, rows, True]
        rows.append([plain(value) for value in row])
        size += sum(len(value) if isinstance(value, str) else 16 for value in rows[-1])
        if size > RESULT_BYTES:
            raise Refused("too_large", f"the result is larger than {RESULT_BYTES >> 20} MB")
    return ["ok", columns, rows, False]


def error_reply(error: BaseException) -> list[Any]:
    kind = error.kind if isinstance(error, Refused) else type(error).__name__
    if isinstance(error, ImportError):
        kind = "missing"
    return ["error", kind, message_of(error)[:4000]]


def message_of(error: BaseException) -> str:
    """The engine's own words: a MySQL error is (number, text)."""
    if len(error.args) == 2 and isinstance(error.args[0], int):
        return f"({error.args[0]}) {error.args[1]}"
    return str(error)


def main() -> None:
    for name, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, DATA_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(name, (value, value))
    send(b"[]")
    adapter: Any = None
    while len(header := receive(8)) == 8:
        request = json.loads(receive(int.from_bytes(header, "big")))
        try:
            if request[0] == "open":
                adapter = ADAPTERS[request[1]](*request[2:])
                reply = ["ok", adapter.version]
            else:
                if len(request) > 2:
                    signal.setitimer(signal.ITIMER_REAL, request[2] + LAST_RESORT_SECONDS)
                reply = execute_request(adapter, request)
        except MemoryError:
            reply = ["error", "memory", "out of memory"]
        except Exception as error:  # noqa: BLE001 - whatever a driver raises is the statement's error
            reply = error_reply(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        send(json.dumps(reply).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
