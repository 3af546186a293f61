"""The machine the process runs on: its cores, its memory, its cache folder, and users' files on its disk.

The cache folder (converted weights, built databases, replicas) is ``NL2SQL_CACHE``, else ``~/.cache/nl2sql``.
Users' JSON and YAML are read with every error a plain one: Python's own readers have more than one way to fail, since
a number of ten thousand digits, ten thousand brackets, and a date that is none raise what no caller expects.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from nl2sql.errors import Nl2SqlError, UsageError

T = TypeVar("T")
KEY_VARIABLE = "NL2SQL_API_KEY"
KEY_VARIABLES = (  # each server's usual one; what any of them holds is masked wherever something is written
    *(KEY_VARIABLE, "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OLLAMA_API_KEY", "VLLM_API_KEY"),
    *("LLAMA_API_KEY", "NL2SQL_VDS_TOKEN", "NL2SQL_VDS_PAT_SECRET", "MLFLOW_TRACKING_TOKEN"),
    *("MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY"),
)
SHORTEST_KEY = 8  # characters; shorter ones ("EMPTY") are no secret, and their letters occur everywhere
PATIENCE_S = 0.5  # for the threads of what was interrupted, whose workers are being killed
MAX_TIMEOUT_S = 1e6  # of a timeout: more overflows the system's timers
MOST_DIGITS = 300  # of a whole number: longer ones are no float's, and no count of anything
_DEEP = "it is nested too deeply"
_DISK_FULL = ("no space left", "errno 28", "os error 28", "file too large", "os error 27", "disk quota")
BFLOAT16 = {"avx512_bf16", "amx_bf16"}  # instructions, as Linux and torch name them
PARTS = {  # optional package -> the extra that installs it
    **dict.fromkeys(("accelerate", "gguf", "safetensors", "tokenizers", "torch", "transformers"), "local"),
    "xllamacpp": "llamacpp",
    **dict.fromkeys(("datasets", "huggingface_hub", "matplotlib", "numpy", "pandas", "pyarrow"), "data"),
}


def multiplies_bfloat16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the processor has instructions for bfloat16 (AMX, AVX-512); False where nothing tells."""
    try:
        return not BFLOAT16.isdisjoint(Path(cpuinfo).read_text(encoding="utf-8").split())
    except OSError:
        return False


def missing_part(*packages: str) -> str:
    """One line that says which of the optional ``packages`` is not installed, and the command; "" where all are.

    Example: ``torch is not installed: pip install 'nl2sql-harness[local]'``.
    """
    for package in packages:
        if package in PARTS and importlib.util.find_spec(package) is None:
            return f"{package} is not installed: {install_command(PARTS[package])}"
    return ""


def install_command(*extras: str) -> str:
    """The command that adds optional parts to this installation: a checkout's in its folder, else the package's.

    Example: ``pip install -c constraints.txt -e '.[mcp]'`` where the package is used from a checkout.
    """
    root, names = Path(__file__).resolve().parent.parent, ",".join(extras)
    if not (root / "pyproject.toml").is_file() or not (root / "constraints.txt").is_file():
        return f"pip install 'nl2sql-harness[{names}]'"
    if root == Path.cwd():
        return f"pip install -c constraints.txt -e '.[{names}]'"
    return f"pip install -c {shlex.quote(str(root / 'constraints.txt'))} -e {shlex.quote(f'{root}[{names}]')}"


def api_key(variable: str = KEY_VARIABLE) -> str:
    """The key of the model's server, as an environment variable holds it; "" without one."""
    return os.environ.get(variable, "").strip()


def masked(text: str, key: str | None = None) -> str:
    """``text`` without a key, or any end of it of eight characters or more.

    key: default, every key that ``KEY_VARIABLES`` of the environment hold.
    """
    for secret in map(api_key, KEY_VARIABLES) if key is None else (key,):
        if len(secret) >= SHORTEST_KEY and secret[-SHORTEST_KEY:] in text:
            text = _ends(secret).sub("***", text)
    return text


def server_parts(address: str, what: str) -> SplitResult:
    """The parts of a server's address; ``what`` is said of it in errors. Raises UsageError for one that cannot be read,
    without its text: half of a password may stand in any part of it.

    >>> server_parts("postgresql://ada:hun/ter2@box/shop", "a database")
    Traceback (most recent call last):
        ...
    nl2sql.errors.UsageError: the address of a database cannot be read; expected FORM://USER:PASSWORD@HOST:PORT/NAME; \
write / # @ in a password as %2F %23 %40
    """
    try:
        parts = urlsplit(address)
        several = "," in parts.netloc  # hosts, of PostgreSQL, which ends a password at the first @
        readable = "@" not in parts.path + parts.fragment and (several or parts.port != 0)
        readable = readable and (not parts.scheme.startswith("postgres") or parts.netloc.count("@") <= 1)
    except ValueError:
        readable = False
    if not readable:
        expected = "expected FORM://USER:PASSWORD@HOST:PORT/NAME; write / # @ in a password as %2F %23 %40"
        raise UsageError(f"the address of {what} cannot be read; {expected}")
    return parts


def with_password(address: str) -> str:
    """A server's address with the variables in its password read from the environment, and no others.

    >>> with_password("mysql://$HOME@box/$HOME")
    'mysql://$HOME@box/$HOME'
    """
    head, colon, rest = address.partition("://")
    account, at, place = rest.rpartition("@")
    user, between, password = account.partition(":")
    if not (colon and at and between and "$" in password):
        return address
    return f"{head}://{user}:{quote(os.path.expandvars(password), safe='%')}@{place}"


def masked_data(value: Any, key: str) -> Any:
    """What was read from JSON, with every text in it ``masked``."""
    if isinstance(value, str):
        return masked(value, key)
    if isinstance(value, list):
        return [masked_data(item, key) for item in value]
    if isinstance(value, dict):
        return {masked(name, key): masked_data(item, key) for name, item in value.items()}
    return value


@cache
def _ends(key: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(key[at:]) for at in range(len(key) - SHORTEST_KEY + 1)))


def cores() -> int:
    """Processor cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def threads() -> int:
    """Threads to compute with: NL2SQL_THREADS, else one per core. Raises UsageError for another text."""
    text = os.environ.get("NL2SQL_THREADS", "")
    if text and not (text.isdigit() and int(text) > 0):
        raise UsageError(f"NL2SQL_THREADS={text!r} is not a positive whole number; example: NL2SQL_THREADS=2")
    return int(text) if text else cores()


def all_bytes() -> int | None:
    """Memory of the machine, or of the control group; None where the system does not say."""
    whole = _meminfo("MemTotal")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no group, or one without a limit
        return whole
    return limit if whole is None else min(whole, limit)


def free_bytes(group: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that can still be taken, of the machine and of the control group; None where the system does not say.

    What the group keeps of files that were read counts as free: the system gives it back when memory is asked for.
    """
    available = _meminfo("MemAvailable")
    if available is None:
        return None
    try:
        told = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        taken = int((group / "memory.current").read_text()) - int(told["inactive_file"])
        return min(available, int((group / "memory.max").read_text()) - taken)
    except (OSError, ValueError, KeyError):  # no group, or one without a limit
        return available


def _meminfo(key: str) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines[key].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def cache_dir(*parts: str) -> Path:
    """The cache folder (or a folder inside it), created when missing."""
    base = os.environ.get("NL2SQL_CACHE")
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "nl2sql"
    path = (Path(base) if base else usual).expanduser().joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "set NL2SQL_CACHE to a folder you can write"
        raise Nl2SqlError(f"cache folder {path} cannot be created ({error.strerror}); {hint}") from None
    return path


def is_disk_full(text: str) -> bool:
    """Does the text of an error, a program's or an exception's, say that a disk is full?"""
    return any(sign in text.lower() for sign in _DISK_FULL)


def from_json(text: str | bytes, *, pairs: bool = False, once: bool = False) -> Any:
    """What ``text`` holds; ``pairs``: objects as lists of pairs; ``once``: an object with a key twice is refused.

    Raises ValueError, with one line, and nothing else.
    """
    try:
        hook = list if pairs else _keys_once if once else None
        return json.loads(text, parse_int=_whole_number, object_pairs_hook=hook)
    except RecursionError:
        raise ValueError(_DEEP) from None


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise ValueError(f"{key!r} is given twice")
        made[key] = value
    return made


def from_yaml(text: str) -> Any:
    """What ``text`` holds. Raises yaml.YAMLError and nothing else, also for a key that is given twice in a mapping."""
    import yaml

    try:
        return yaml.load(text, _yaml_loader())
    except RecursionError:
        raise yaml.YAMLError(_DEEP) from None
    except ValueError as error:  # a date such as 2020-99-99, or a number that is too long
        long = "integer string conversion" in str(error)
        raise yaml.YAMLError("a number is too long" if long else str(error)) from None


@cache
def _yaml_loader() -> Any:
    """A safe loader that refuses a key given twice: the first value would be lost in silence."""
    import yaml

    class Once(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if (name := str(key.value)) in names:
                    raise yaml.YAMLError(f"{name!r} is given twice, again in line {key.start_mark.line + 1}")
                names.add(name)
            return super().construct_mapping(node, deep)

    return Once


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits; expected at most {MOST_DIGITS}")
    return int(digits)


JSON_READER = json.JSONDecoder(parse_int=_whole_number)  # for values one after another; RecursionError is its user's


def write_whole(path: Path, parts: str | Iterable[str], *, new: bool = False) -> None:
    """Write a text file as a whole or not at all: beside its place first. ``new``: never over one that is there.

    Raises OSError (FileExistsError among them); what was at ``path`` is there then as it was.
    """
    with written_whole(path, new=new) as file:
        for part in [parts] if isinstance(parts, str) else parts:
            file.write(part)


@contextlib.contextmanager
def written_whole(path: Path, *, new: bool = False, binary: bool = False) -> Iterator[IO[Any]]:
    """A file of text or bytes that appears at ``path`` when the block has ended well; see ``write_whole``."""
    form: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": ""}
    if not new and path.exists() and not path.is_file():  # /dev/stdout, a pipe: there is nothing to replace
        with path.open(**form) as file:
            yield file
        return
    if new and os.path.lexists(path):
        raise FileExistsError(f"{path} exists")
    real = path.resolve()  # a link stays one
    beside = real.with_name(f".{real.name[:100]}.{secrets.token_hex(8)}.tmp")
    place: Callable[[Path, Path], object] = _place_new if new else Path.replace
    try:
        with beside.open(**form | {"mode": form["mode"].replace("w", "x")}) as file:  # never over what lies there
            yield file
        place(beside, real)
    finally:
        beside.unlink(missing_ok=True)


def _place_new(beside: Path, path: Path) -> None:
    """Give a file its name where nobody else has taken it meanwhile."""
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        beside.replace(path)


def file_version(path: str | Path, missing: str) -> tuple[Path, tuple[int, int]]:
    """A file's absolute path, and its time of change and size in bytes: while these are the same, so is what was read.

    Raises UsageError, with ``missing``, for a file that is not there.
    """
    file = Path(path).expanduser().absolute()
    try:
        status = file.stat()
    except OSError:
        raise UsageError(missing) from None
    return file, (status.st_mtime_ns, status.st_size)


def as_path(text: str) -> Path | None:
    """``text`` as a path; None for one that no system takes: a plugin's long text, ~ of an unknown user.

    >>> as_path("~no user/model") is None and as_path("parrot:" + "x" * 300) is None
    True
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    return None if "\0" in text else path


def in_threads(jobs: Sequence[Callable[[], T]], threads: int, stop: threading.Event) -> Iterator[tuple[int, T]]:
    """(number, result) of every job as it is done. Whatever goes wrong, Ctrl-C included, sets ``stop`` and is raised.

    Daemon threads: what does not look at ``stop`` (a replica being built) must not keep an interrupted program alive.
    """
    waiting = iter(range(len(jobs)))
    lock = threading.Lock()
    done: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        while not stop.is_set():
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            try:
                done.put((number, jobs[number](), None))
            except BaseException as error:  # noqa: BLE001  raised again where the results are taken
                done.put((number, None, error))

    crew = [threading.Thread(target=work, name=f"job-{n}", daemon=True) for n in range(min(threads, len(jobs)))]
    try:
        for thread in crew:
            thread.start()
        for _ in jobs:
            number, result, error = done.get()
            if error is not None:
                raise error
            yield number, result  # type: ignore[misc]
    except BaseException:
        stop.set()
        give_up = time.monotonic() + PATIENCE_S
        for thread in crew:
            if thread.is_alive():  # Ctrl-C may come while they are being started
                thread.join(max(0.0, give_up - time.monotonic()))
        raise
