"""Run folders: a manifest, append-only predictions and traces, and what is still owed.

``manifest.json`` says what was run (resolved config, model, benchmark, code), ``predictions.jsonl`` has one line
per question and ``traces.jsonl`` one line per episode (``trace_format``). Each line carries a content key of
question, config, controller and model; on resume, lines of another key do not count. What a killed process or a full
disk left half-done (a torn last line, a trace without its prediction) is dropped and its question is done again.

A folder may be a stranger's: its files are opened by ``nl2sql.safe_files``, its manifest has the types of ``MANIFEST``,
and what else breaks on its content is said of the folder (``as_a_run_leaves``). What its manifest names is opened by
``nl2sql.runs.plan``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import secrets
import shlex
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import IO, Any, TypeAlias

from nl2sql import __version__
from nl2sql.agents.record import TRACE_FORMAT, Episode, episode_to_dict, json_text
from nl2sql.errors import Nl2SqlError, UsageError, one_line, typed
from nl2sql.machine import from_json, masked
from nl2sql.safe_files import MEGABYTE, NotOpened, open_regular, read_bytes

FORMAT = 1  # of run folders; another number is another version's
TICK_S = 10.0
LOCK_TRIES = 4
MOST_BYTES = {"manifest.json": 16 * MEGABYTE, "report.json": 64 * MEGABYTE, "traces.jsonl": 8192 * MEGABYTE}
OTHER_BYTES = 1024 * MEGABYTE  # of another file
LONGEST_LINE = 32 * MEGABYTE
MOST_LINES = 300_000  # of a file: the shortest that pass take 5 s and 400 MB, which no bound of bytes would hold
MOST_VALUES = 2_000_000  # in one document or line of JSON: a list of nothing takes thirty times its text in memory
MOST_SEEDS = 1000
FOLDERS = {"single_shot": "control", "equal_tokens": "control_equal_tokens"}  # of a run's controls
TABLE = "ablation.json"  # in the folder of an ablation's cells
QuestionKey: TypeAlias = tuple[str, str, str]  # benchmark, database, id
_TEXTS: Any = {...: str}
MANIFEST: Any = {  # the types of what a manifest has; a key may be missing, and others may be there
    "key": str,
    "plan": {
        **dict.fromkeys(("benchmark", "controller", "model", "engine_url", "history", "adapter", "device"), str),
        **{"split": (str, type(None)), "seeds": [int], "objects": [str], "tools": [str], "gates": [str]},
    },
    "config": dict,
    "controller": _TEXTS,
    "controls": [str],
    "model": dict,
    "prompts": _TEXTS,
    "members": _TEXTS,
    "questions": [str],
    "left_out": {...: int},
    "fingerprints": _TEXTS,
    "environment": dict,
    "turns": dict,
}
BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError, StopIteration)
PACKAGES = ("llguidance", "sqlglot", "torch", "transformers", "xllamacpp")  # whose versions decide answers or scores
PREDICTION_KEYS = (
    *("id", "db_id", "question", "sql", "raw_sql", "prefill"),
    *("error", "steps", "usage", "seconds", "finish"),
)


def new_folder(out: str | Path | None, name: str) -> Path:
    """The folder for a new run: ``out``, or ``runs/<time>-<name>``. Raises UsageError as ``check_free`` does."""
    check_free(out)
    stamped = Path("runs") / f"{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{name}"
    folder, number = stamped if out is None else Path(out).expanduser(), 1
    while out is None and folder.exists():
        number += 1
        folder = stamped.with_name(f"{stamped.name}-{number}")
    return made(folder)


def made(folder: Path) -> Path:
    """The folder of ``--out``, made where it is not there. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be created: {error.strerror}") from None
    return folder


def check_free(out: str | Path | None) -> None:
    """Raises UsageError where ``out`` is a file, or a folder that holds files; None is free."""
    if out is None:
        return
    folder = Path(out).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; expected a new or empty folder")
    if holds_files(folder):
        again = f"nl2sql eval --resume {typed(folder)}"
        raise UsageError(f"--out {folder} is not empty; continue that run with: {again}, or name another")


def seed_folder(seed: int) -> str:
    """The name of the folder of one seed, in that of its run."""
    return f"seed-{seed}"


def parts_of(folder: Path, seeds: Sequence[int] | None = None) -> dict[str, Path]:
    """The folders of a run's seeds by their names; of a run without, its own under "". seeds: None: as its manifest
    says."""
    seeds = read_manifest(folder)["plan"].get("seeds") or () if seeds is None else seeds
    return {name: folder / name for name in map(seed_folder, seeds)} or {"": folder}


def top_of(folder: Path) -> Path:
    """The folder that ``nl2sql eval --resume`` takes: of a seed's, its run's; of any other, itself."""
    with suppress(Nl2SqlError):
        if folder.name in parts_of(folder.parent):
            return folder.parent
    return folder


def write_json(path: Path, data: Any) -> None:
    """Write JSON by way of a temporary file, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open_regular(temporary, "xb") as file:
            file.write((json_text(data, indent=2) + "\n").encode())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Nl2SqlError(f"cannot write {path}: {error.strerror}") from None


def holds_files(folder: Path) -> bool:
    """Whether a run would overwrite something in ``folder``: more than a lock, or what an interrupted write left."""
    return folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir())


def read_manifest(folder: Path) -> dict[str, Any]:
    """``manifest.json`` of a run folder. Raises UsageError where there is none, or that of another version."""
    path = folder / "manifest.json"
    try:
        manifest = read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        there = holds_files(folder)
        hint = "the runs below it" if there else "start one with"
        command = f"nl2sql {'runs list' if there else 'eval --out'} {typed(folder)}"
        raise UsageError(f"{folder} holds no run (no manifest.json); {hint}: {command}") from None
    except (OSError, ValueError) as error:
        others = f"the runs that can: nl2sql runs list {typed(folder.parent)}"
        raise UsageError(f"{path} cannot be read as JSON: {one_line(error, 200)}; {others}") from None
    if not _fits(manifest, MANIFEST) or "plan" not in manifest or len(manifest["plan"].get("seeds", ())) > MOST_SEEDS:
        raise UsageError(f"{path} is not a manifest of this version; start a new run with another --out")
    if manifest.get("format") != FORMAT:
        writer = manifest.get("environment", {}).get("nl2sql", "another version")
        raise UsageError(
            f"{folder} has run format {manifest.get('format')!r} of nl2sql {writer}; version {__version__} reads "
            f"format {FORMAT}: use that version, or start a new run with another --out"
        )
    for name in (*FOLDERS.values(), *map(seed_folder, manifest["plan"].get("seeds", ()))):
        inside(folder, name)
    return manifest


def inside(folder: Path, name: str) -> Path:
    """The folder ``name`` in ``folder``, there or not. Raises NotOpened for a link, a file, or a place elsewhere."""
    path = folder / name
    plain = name not in ("", ".", "..") and path.parent == folder and "\0" not in name
    if not plain or (os.path.lexists(path) and not stat.S_ISDIR(path.lstat().st_mode)):
        raise NotOpened(f"{one_line(path, 300)} is no folder of the run's own, and is not opened; expected one")
    return path


def own_file(folder: Path, name: str) -> Path:
    """The file ``name`` in ``folder``, there or not. Raises NotOpened where it is a link or no file at all."""
    path = folder / name
    if os.path.lexists(path):
        open_regular(path, "ab").close()
    return path


def _fits(value: Any, shape: Any) -> bool:
    """Whether ``value`` has the types of ``shape``: a type, several, a list of one, or a mapping (``...``: any key)."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        inside = value.items() if isinstance(value, dict) else ()
        known = ((item, shape.get(name, shape.get(...))) for name, item in inside)
        return isinstance(value, dict) and all(form is None or _fits(item, form) for item, form in known)
    return isinstance(value, shape) and not (shape is int and isinstance(value, bool))


def read_json(path: Path) -> Any:
    """A JSON file of a run folder, within its bounds. Raises OSError, ValueError and NotOpened."""
    return _bounded_json(read_bytes(path, MOST_BYTES.get(path.name, OTHER_BYTES)))


def _bounded_json(text: bytes) -> Any:
    if len(text) > MOST_VALUES and sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    return from_json(text)


@contextmanager
def as_a_run_leaves(folder: object) -> Iterator[None]:
    """What breaks in the block on the content of a run folder is said of that folder. Raises UsageError."""
    try:
        yield
    except BROKEN as error:
        what = one_line(f"{type(error).__name__}: {error}", 200)
        look = f"look through it with: nl2sql runs check {typed(folder)} (NL2SQL_DEBUG=1 shows the traceback)"
        raise UsageError(f"{folder} is not what a run leaves ({what}); {look}") from error


def began(folder: Path) -> datetime:
    """When a run began: as its manifest says, else the time of that file. Raises UsageError where there is no run."""
    manifest = read_manifest(folder)
    with suppress(TypeError, ValueError, OverflowError):  # none, or none that this calendar has
        return datetime.fromisoformat(manifest.get("environment", {}).get("began")).astimezone(UTC)
    return written(folder)


def written(folder: Path) -> datetime:
    """When the manifest of a folder was written; the epoch where the system has no such time."""
    with suppress(OSError, ValueError, OverflowError):
        return datetime.fromtimestamp((folder / "manifest.json").lstat().st_mtime, UTC)
    return datetime.fromtimestamp(0, UTC)


def environment() -> dict[str, Any]:
    """Code, command, packages, machine and beginning of a run, for the manifest; keys in the command are masked."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[2]), "describe", "--always", "--dirty"]
    commit = None
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    started = Path(sys.argv[0]).name
    in_kernel = started.endswith("kernel_launcher.py")  # its path and file say nothing that can be typed again
    program = "nl2sql" if started in ("nl2sql", "__main__.py") else sys.argv[0]
    return {
        "nl2sql": __version__,
        "commit": commit,
        "command": "a notebook" if in_kernel else masked(shlex.join([program, *sys.argv[1:]])),
        "packages": {dist.name: dist.version for name in PACKAGES for dist in Distribution.discover(name=name)},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def iter_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of an append-only file, one at a time; a torn last line does not count yet.

    The file may be growing, and larger than memory. Raises Nl2SqlError for a line that is not a JSON object.
    """
    try:
        file = _open_lines(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
            if number > MOST_LINES or len(line) == LONGEST_LINE:
                raise NotOpened(f"{path} has more than {MOST_LINES:,} lines, or one of {LONGEST_LINE:,} bytes")
            if not line.endswith(b"\n"):
                return
            row: Any = None
            with suppress(ValueError):
                row = _bounded_json(line)
            if not _fits(row, {"id": str, "key": str}):
                raise Nl2SqlError(f"{path} line {number} is not a JSON object; remove that line and resume the run")
            yield row


def count_lines(path: Path) -> int:
    """The whole lines of an append-only file, which may be missing; none of them is read as JSON."""
    try:
        with _open_lines(path) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(MEGABYTE), b""))
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _open_lines(path: Path, mode: str = "rb") -> IO[bytes]:
    return open_regular(path, mode, most=MOST_BYTES.get(path.name, OTHER_BYTES))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All of ``iter_jsonl``."""
    return list(iter_jsonl(path))


@contextmanager
def locked(folder: Path, *, cut: bool = False) -> Iterator[None]:
    """Only one process runs in a folder. cut: what a killed process left half-done is cut off (``cut_torn_ends``).

    Raises UsageError where another process runs there.
    """
    with open_regular(folder / ".lock", "ab") as lock:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not tries_left:
                    said = f"another process is running in {folder}; wait for it, or name another --out"
                    raise UsageError(said) from None
                time.sleep(0.05)  # ``is_running`` holds it for a moment
        if cut:
            cut_torn_ends(folder)
        yield


def is_running(folder: Path) -> bool:
    """Whether a process of this machine runs in a folder now."""
    try:
        with open_regular(folder / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@contextmanager
def left_as_found(folder: Path, new: bool) -> Iterator[None]:
    """Take a ``new`` folder away again after an error that left nothing in it: a mistake leaves nothing behind."""
    try:
        yield
    except Nl2SqlError:
        if new and {path.name for path in folder.iterdir()} <= {".lock"}:
            (folder / ".lock").unlink(missing_ok=True)
            folder.rmdir()
        raise


def line_files(folder: Path) -> list[Path]:
    """The append-only files of one run and its controls, whatever lies under their names."""
    return [path for place in ("", *FOLDERS.values()) for path in sorted((folder / place).glob("*.jsonl"))]


def cut_torn_ends(folder: Path) -> None:
    """Cut torn last lines, and traces at the end whose predictions were not written: their questions are owed."""
    there = line_files(folder)
    for path in there:
        with _open_lines(path, "rb+") as file:
            file.truncate(_line_end(file, file.seek(0, os.SEEK_END)))
    for path in (path for path in there if path.name == "traces.jsonl"):
        finished = {(row.get("id"), row.get("key")) for row in iter_jsonl(path.with_name("predictions.jsonl"))}
        with _open_lines(path, "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = _line_end(file, end - 1)
                file.seek(start)
                with suppress(ValueError, AttributeError):  # no JSON object: what a power cut leaves
                    row = _bounded_json(file.read(end - start))
                    if (row.get("id"), row.get("key")) in finished:
                        break
                end = start
            file.truncate(end)


def _line_end(file: IO[bytes], before: int) -> int:
    """The position behind the last line break among the first ``before`` bytes; 0 where there is none."""
    least = before - LONGEST_LINE
    while before:
        if before < least:
            raise NotOpened(f"{file.name} has a line of more than {LONGEST_LINE:,} bytes; expected a file of a run")
        start = max(0, before - MEGABYTE)
        file.seek(start)
        at = file.read(before - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        before = start
    return 0


@dataclass
class RunFolder:
    """Appends finished episodes of one controller to ``folder``; thread-safe. ``key`` is the run's content key.

    ``top`` is the folder that ``nl2sql eval --resume`` takes. Only the process that holds ``exclusive`` appends.
    """

    folder: Path
    key: str
    top: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _files: dict[str, IO[bytes]] = field(default_factory=dict, repr=False)
    _ticked: float = field(default_factory=time.perf_counter, repr=False)

    def done(self) -> set[str]:
        """Ids of the questions that need no second run."""
        traced = {row.get("id") for row in self.lines("traces.jsonl")}
        return {row["id"] for row in self.lines("predictions.jsonl") if row.get("id") in traced}

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """The lines of a file under this key, one at a time: a large run's do not fit in memory."""
        return (row for row in iter_jsonl(self.folder / name) if row.get("key") == self.key)

    def add(self, episode: Episode) -> None:
        """Append one episode: trace first, then prediction, each as one line."""
        full = {**episode_to_dict(episode), "key": self.key, "trace_format": TRACE_FORMAT}
        full |= {"messages": episode.messages, "transcript": episode.transcript, "calls": episode.calls}
        prediction = {name: full[name] for name in PREDICTION_KEYS} | {"key": self.key}
        with self._lock:
            self._append("traces.jsonl", full)
            self._append("predictions.jsonl", prediction)
            self.tick(TICK_S)

    def _append(self, name: str, row: Mapping[str, Any]) -> None:
        """One line, whole or not at all: what did not fit on a full disk is cut again."""
        line = (json_text(row) + "\n").encode()
        try:
            if name not in self._files:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._files[name] = open_regular(self.folder / name, "ab", buffering=0)
            file = self._files[name]
            before = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                file.truncate(before)
                raise
        except OSError as error:
            told = f"cannot write {self.folder / name}: {error.strerror}"
            again = f"nl2sql eval --resume {typed(self.top)}"
            raise Nl2SqlError(f"{told}; make room, then: {again}") from None

    def start_clock(self) -> None:
        """Measure wall clock from now on; written every ``TICK_S``, so that a kill loses no more than that."""
        self._ticked = time.perf_counter()

    def tick(self, least: float = 0.0) -> None:
        """Record the seconds since the last record, where these are ``least`` or more; ``seconds()`` sums them."""
        now = time.perf_counter()
        if now - self._ticked >= least:
            self._append("phases.jsonl", {"key": self.key, "seconds": round(now - self._ticked, 3)})
            self._ticked = now

    def seconds(self) -> float:
        return round(sum(row["seconds"] for row in self.lines("phases.jsonl")), 3)

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # a full disk was reported when the line was written
                file.close()
        self._files.clear()

    def predictions(self) -> list[dict[str, Any]]:
        """The last prediction of each question under this key, in the order they finished."""
        return self._latest("predictions.jsonl")

    def traces(self, fields: Collection[str] = ()) -> list[dict[str, Any]]:
        """The last trace of each question under this key; of each only ``fields``, where any are named."""
        return self._latest("traces.jsonl", fields)

    def _latest(self, name: str, fields: Collection[str] = ()) -> list[dict[str, Any]]:
        rows = self.lines(name)
        if fields:
            wanted = {"id", *fields}
            rows = ({name: row[name] for name in row if name in wanted} for row in rows)
        return list({row["id"]: row for row in rows}.values())
