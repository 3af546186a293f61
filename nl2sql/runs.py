"""Run folders: a manifest, append-only predictions and traces, and what is still owed.

``manifest.json`` says what was run (resolved config, model, benchmark, code), ``predictions.jsonl`` has one line
per question and ``traces.jsonl`` one line per episode (``trace_format``). Each line carries a content key of
question, config, controller and model; on resume, lines of another key do not count. A torn last line (a killed
process, a full disk) is dropped and its question is done again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nl2sql import __version__
from nl2sql.errors import Nl2SqlError, UsageError
from nl2sql.interfaces import Episode, Question
from nl2sql.stats import mcnemar
from nl2sql.trace import TRACE_FORMAT, episode_to_dict, json_text

if TYPE_CHECKING:
    import pandas as pd

PREDICTION_KEYS = ("id", "db_id", "question", "sql", "raw_sql", "error", "steps", "usage", "seconds", "finish")


def item_field(metric: str) -> str:
    """The field of a report's items that holds a metric's verdict."""
    return {"VA": "va", "EM": "em", "EX[bag]": "ex"}.get(metric, "ts")


def content_key(*parts: Any) -> str:
    """SHA-256 of the parts' sorted JSON, 24 hex digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def question_key(question: Question) -> str:
    return content_key(question.id, question.db_id, question.text, question.evidence, list(question.history))


def new_folder(out: str | Path | None, name: str) -> Path:
    """The folder for a new run: ``out``, or ``runs/<time>-<name>``. Raises UsageError when ``out`` holds anything."""
    if out is None:
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        folder = Path("runs") / f"{stamp}-{name}"
        number = 1
        while folder.exists():
            number += 1
            folder = Path("runs") / f"{stamp}-{name}-{number}"
    else:
        folder = Path(out).expanduser()
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file; expected a new or empty folder")
        if folder.exists() and any(folder.iterdir()):
            raise UsageError(
                f"--out {folder} is not empty; continue that run with: nl2sql eval --resume {folder}, or name another"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be created: {error.strerror}") from None
    return folder


def write_json(path: Path, data: Any) -> None:
    """Write JSON by way of a temporary file, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json_text(data, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Nl2SqlError(f"cannot write {path}: {error.strerror}") from None


def environment() -> dict[str, Any]:
    """Code and machine of a run, for the manifest."""
    try:
        root = Path(__file__).resolve().parent.parent
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10
        )
        commit = found.stdout.strip() if found.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        commit = None
    return {
        "nl2sql": __version__,
        "commit": commit,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
    }


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The whole lines of an append-only file, which may be growing; a torn last line does not count yet."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    rows = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise Nl2SqlError(f"{path} line {number} is not JSON; remove that line and resume the run") from None
    return rows


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Only one process runs in a folder. Cuts the torn last lines that a killed one left. Raises UsageError."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"another process is running in {folder}; wait for it, or name another --out") from None
        for path in folder.rglob("*.jsonl"):
            data = path.read_bytes()
            if not data.endswith(b"\n"):
                os.truncate(path, data.rfind(b"\n") + 1)
        yield


@dataclass
class RunFolder:
    """Appends finished episodes of one controller to ``folder``; thread-safe. ``key`` is the run's content key.

    ``top`` is the folder that ``nl2sql eval --resume`` takes. Only the process that holds ``exclusive`` appends.
    """

    folder: Path
    key: str
    top: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _files: dict[str, IO[str]] = field(default_factory=dict, repr=False)

    def done(self) -> set[str]:
        """Ids of the questions that need no second run."""
        rows = read_jsonl(self.folder / "predictions.jsonl")
        traced = {row["id"] for row in read_jsonl(self.folder / "traces.jsonl") if row.get("key") == self.key}
        return {row["id"] for row in rows if row.get("key") == self.key and row["id"] in traced}

    def add(self, episode: Episode) -> None:
        """Append one episode: trace first, then prediction, each flushed as one line."""
        full = {**episode_to_dict(episode), "key": self.key, "trace_format": TRACE_FORMAT}
        full |= {"messages": episode.messages, "transcript": episode.transcript, "calls": episode.calls}
        prediction = {name: full[name] for name in PREDICTION_KEYS} | {"key": self.key}
        with self._lock:
            self._append("traces.jsonl", full)
            self._append("predictions.jsonl", prediction)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        if name not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.folder / name).open("a", encoding="utf-8")
        try:
            self._files[name].write(json_text(row) + "\n")
            self._files[name].flush()
        except OSError as error:
            raise Nl2SqlError(
                f"cannot write {self.folder / name}: {error.strerror}; make room, then: nl2sql eval --resume {self.top}"
            ) from None

    def add_seconds(self, seconds: float) -> None:
        """Record how long a (part of a) run took, wall clock; ``seconds()`` sums them over resumes."""
        self._append("phases.jsonl", {"key": self.key, "seconds": round(seconds, 3)})

    def seconds(self) -> float:
        rows = read_jsonl(self.folder / "phases.jsonl")
        return round(sum(row["seconds"] for row in rows if row.get("key") == self.key), 3)

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # a full disk was reported when the line was written
                file.close()
        self._files.clear()

    def predictions(self) -> list[dict[str, Any]]:
        """The last prediction of each question under this key, in the order they finished."""
        return _latest(read_jsonl(self.folder / "predictions.jsonl"), self.key)

    def traces(self) -> list[dict[str, Any]]:
        return _latest(read_jsonl(self.folder / "traces.jsonl"), self.key)


def _latest(rows: Iterable[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return list({row["id"]: row for row in rows if row.get("key") == key}.values())


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run as notebooks read it."""

    folder: Path
    manifest: dict[str, Any]
    report: dict[str, Any]

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Raises UsageError when the folder holds no finished run."""
        path = Path(folder)
        try:
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
            report = json.loads((path / "report.json").read_text(encoding="utf-8"))
        except OSError as error:
            missing = Path(error.filename or "manifest.json").name
            hint = f"; continue it with: nl2sql eval --resume {path}" if missing == "report.json" else ""
            raise UsageError(f"{path} holds no finished run ({missing} is missing){hint}") from None
        except ValueError:
            raise UsageError(f"{path} holds a manifest or report that is not JSON") from None
        return cls(path, manifest, report)

    def predictions(self) -> list[dict[str, Any]]:
        return _latest(read_jsonl(self.folder / "predictions.jsonl"), self.manifest["key"])

    def traces(self) -> list[dict[str, Any]]:
        return _latest(read_jsonl(self.folder / "traces.jsonl"), self.manifest["key"])

    def paired(self, other: Run) -> dict[str, dict[str, Any]]:
        """Exact McNemar of this run against another on the questions of both, per metric: wins, losses, n, p."""
        theirs = {item["id"]: item for item in other.report["items"]}
        both = [(item, theirs[item["id"]]) for item in self.report["items"] if item["id"] in theirs]
        names = {name: item_field(name) for name in self.report["metrics"] if name in other.report["metrics"]}
        return {
            name: mcnemar((bool(a[field]), bool(b[field])) for a, b in both).to_dict() for name, field in names.items()
        }

    def __repr__(self) -> str:
        return f"<run {self.folder.name}: {self.report['controller']}, {self.report['n']} questions>"

    def to_dataframe(self) -> pd.DataFrame:
        """One row per question, in the benchmark's order: prediction joined with its scores."""
        import pandas as pd

        items = pd.DataFrame(self.report["items"]).drop(columns=["sql", "error", "db_id", "seconds"], errors="ignore")
        return items[["id"]].merge(pd.DataFrame(self.predictions()).drop(columns=["key"])).merge(items, on="id")

    def _repr_html_(self) -> str:
        from nl2sql.summary import summary_html

        return summary_html(self.report)
