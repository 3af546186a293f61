"""ClickHouse in the child process (chdb), with nothing in reach but the database's folder.

Its read-only mode closes table functions such as ``file()`` and ``url()``, but not the function ``file()`` nor ``INTO
OUTFILE``: those are closed by Landlock, which has to be in force before the engine starts its threads. Where the kernel
has no Landlock the database is not opened. The engine writes a status file, so it gets a folder of its own in which the
database's parts are links; the real folder is read-only for the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nl2sql.databases.engines.confine import confine
from nl2sql.databases.engines.statement import Refused, described, one_query

FORMAT = "JSONCompactEachRowWithNamesAndTypes"
PARTS = ("data", "metadata", "store")
SETTINGS = {
    "mode": "ro",
    "readonly": "1",
    "max_threads": "1",
    "max_memory_usage": str(2**30),
    "max_result_bytes": str(64 * 2**20),
    "output_format_json_quote_denormals": "1",  # else nan and inf come as null
}


class ClickHouse:
    """A folder that chdb (or clickhouse-local --path) made; tables are those of the database ``default``."""

    dialect = "clickhouse"

    def __init__(self, target: str, scratch: str) -> None:
        from chdb import session

        missing = [part for part in ("metadata", "store") if not (Path(target) / part).is_dir()]
        if missing:
            raise Refused("other", f"{target} is no ClickHouse folder: it has no {missing[0]}")
        for part in PARTS:
            if (Path(target) / part).exists():
                Path(scratch, part).symlink_to(Path(target, part))
        if not confine([target], [scratch]):
            raise Refused("denied", "ClickHouse can be opened safely only where the kernel has Landlock (Linux 5.13)")
        settings = "&".join(f"{name}={value}" for name, value in SETTINGS.items())
        self.session = session.Session(f"{scratch}?{settings}")
        self.version = str(self._rows("SELECT version()")[0][0])

    def query(self, sql: str, timeout_s: float, explain: bool) -> tuple[list[str], Iterator[tuple]]:
        sql = one_query(sql, self.dialect)
        try:
            lines = self._lines(f"EXPLAIN {sql}" if explain else sql)
        except Exception:
            self.session.query("SELECT 1")  # chdb puts what a failed query had written before the next result
            raise
        names = next(lines, None)
        types = next(lines, None)
        if not isinstance(names, list) or not isinstance(types, list):
            raise Refused("denied", "not a SELECT, or one with a FORMAT of its own: leave FORMAT out")
        return [str(name) for name in names], (tuple(map(_value, row)) for row in lines)

    def tables(self) -> list[dict[str, Any]]:
        columns = self._rows(
            "SELECT table, name, type, 1, is_in_primary_key FROM system.columns WHERE database = 'default'"
            " AND NOT startsWith(table, '.inner') ORDER BY table, position"
        )
        if not columns:
            raise Refused("other", "its database default has no tables, and only those of default are read")
        views = self._rows("SELECT name FROM system.tables WHERE database = 'default' AND engine LIKE '%View'")
        primary: dict[str, list[str]] = {}
        for table, name, *_, key in columns:
            primary.setdefault(table, []).extend([name] if key else [])
        rows = [
            [t, c, kind, not kind.startswith(("Nullable(", "LowCardinality(Nullable("))] for t, c, kind, *_ in columns
        ]
        return described(rows, primary, [], {row[0] for row in views})

    def _rows(self, sql: str) -> list[list[Any]]:
        return list(self._lines(sql))[2:]

    def _lines(self, sql: str) -> Iterator[Any]:
        text = self.session.query(sql, FORMAT).bytes().decode("utf-8", "replace")
        try:
            lines = text.split("\n")  # not splitlines: a text may hold U+0085 or U+2028 as it is
            return iter([json.loads(line) for line in lines if line])
        except ValueError:
            raise Refused("denied", "a FORMAT of its own: leave FORMAT out, rows are returned as they are") from None


def _value(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value, ensure_ascii=False)
