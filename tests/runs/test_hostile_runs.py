"""A stranger's run folder: nothing elsewhere changes, no code runs, no key leaves, nothing hangs; one line each."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import hostile_runs
import pytest
import typer
from click.testing import CliRunner

import nl2sql
from nl2sql.cli import app
from nl2sql.config import build_config
from nl2sql.errors import Nl2SqlError, one_line
from nl2sql.runs.listing import entries
from nl2sql.runs.viewer import Pages

LINE = typer.main.get_command(app)  # once: it takes longer than most commands
KEY = "sk-a-strangers-dream"
COMMANDS = {
    "runs": ["runs", "list", "IT"],
    "report": ["report", "IT", "--out", "OUT/report.html", "--force", "-q"],
    "check-run": ["runs", "check", "IT"],
    "compare": ["runs", "compare", "IT", "HONEST"],
    "export": ["runs", "export", "IT", "--to", "otel", "--out", "OUT/spans.jsonl", "-q"],
    "export-failures": ["runs", "failures", "IT", "--out", "OUT/failures.csv"],
    "replay": ["runs", "replay", "IT", "-q"],
    "eval --resume": ["eval", "--resume", "IT", "-q"],
    "eval --resume --trust": ["eval", "--resume", "IT", "-q", "--trust"],  # not in the tests of names
}
EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef f(*a, **k): raise SystemExit(77)\n"


class Place:
    """An honest run, somebody's files beside it, and a server that notes who comes."""

    def __init__(self, root: Path, port: int, visits: list[bytes]) -> None:
        self.root, self.port, self.visits = root, port, visits
        self.outside, self.out, self.honest = root / "outside", root / "out", root / "runs" / "honest"
        self.outside.mkdir()
        self.out.mkdir()
        (self.outside / "victim").write_text("mine\n")
        (self.outside / "evil.py").write_text(EVIL)
        (self.outside / "script.json").write_text('{"replies": {"*": ["SELECT 1 AS one"]}, "on_exhausted": "repeat"}')
        nl2sql.evaluate(
            model=f"scripted:{self.outside / 'script.json'}", split="quick", limit=2, out=self.honest, progress=False,
            config=build_config({"eval": {"replicas": 0}}),
        )  # fmt: skip
        self.before = self.state()

    def state(self) -> dict[str, object]:
        return {
            path.name: (path.read_bytes(), path.stat().st_nlink) for path in self.outside.iterdir() if path.is_file()
        }

    def copy(self) -> Path:
        folder = self.root / "stranger" / "runs" / "theirs"
        shutil.rmtree(folder.parent, ignore_errors=True)
        shutil.copytree(self.honest, folder)
        return folder

    def tried(self, folder: Path, trust: bool = True) -> dict[str, str]:
        """What each page of the viewer and each command says of a folder: "" where it did it."""
        pages, chosen = Pages(folder.parent), {"run": ["theirs"]}
        said = {}
        for page in ("", "rows", "report", "progress", "sql"):
            answer = pages.answer(page, chosen if page else {}, {})
            said[f"view {page}"] = "" if answer.status == 200 else answer.text
        pages.answer("note", chosen, {"at": ["0"], "db": ["x"], "id": ["y"], "tags": [""], "note": ["z"]})
        return said | {
            name: self._command(words, folder) for name, words in COMMANDS.items() if trust or "--trust" not in words
        }

    def _command(self, words: list[str], folder: Path) -> str:
        places = {"IT": str(folder), "HONEST": str(self.honest)}
        typed = [places.get(word, word.replace("OUT", str(self.out))) for word in words]
        (self.out / "failures.csv").unlink(missing_ok=True)
        (self.out / "spans.jsonl").unlink(missing_ok=True)
        done = CliRunner().invoke(LINE, typed)
        error = done.exception
        assert error is None or isinstance(error, (Nl2SqlError, OSError, SystemExit)), (words, repr(error))
        assert not isinstance(error, SystemExit) or error.code in (0, 1, 2), (words, error)
        return one_line(error) if isinstance(error, (Nl2SqlError, OSError)) else ""

    def check(self, folder: Path) -> None:
        shutil.rmtree(folder)  # a second name of a file counts as long as it is there
        assert self.state() == self.before, "something elsewhere has changed"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        visits: list[bytes] = []

        def listen() -> None:
            while True:
                try:
                    visitor, _ = server.accept()
                except OSError:
                    return
                with visitor:
                    visitor.settimeout(1)
                    visits.append(visitor.recv(10_000))

        threading.Thread(target=listen, daemon=True).start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NL2SQL_API_KEY", KEY)
            patch.setenv("OPENAI_API_KEY", KEY)
            root = tmp_path_factory.mktemp("hostile")
            patch.syspath_prepend(str(root / "outside"))
            yield Place(root, server.getsockname()[1], visits)


def some(kinds: Iterable[str], every: int) -> list[str]:
    """Every so many kinds; all of them where ``NL2SQL_ALL_KINDS`` is set."""
    return list(kinds)[:: 1 if os.environ.get("NL2SQL_ALL_KINDS") else every]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("spoils", "every"),
    [
        (lambda place: hostile_runs.files(place.outside), 17),
        (lambda place: hostile_runs.fields(place.honest), 61),
    ],
    ids=["something else in the place of a file", "fields of another type"],
)
def test_a_spoiled_folder_is_one_line_and_changes_nothing(
    place: Place, spoils: Callable[[Place], dict[str, hostile_runs.Spoil]], every: int
) -> None:
    kinds = spoils(place)
    for kind in some(kinds, every):
        folder = place.copy()
        kinds[kind](folder)
        said = place.tried(folder)
        assert not said["view "] and not said["view rows"] and not said["runs"], (kind, said)
        place.check(folder)


def test_one_bad_folder_among_many_stops_nothing(place: Place) -> None:
    root = place.root / "many"
    honest = shutil.copytree(place.honest, root / "honest")
    kinds = hostile_runs.files(place.outside) | hostile_runs.fields(place.honest)
    chosen = some(kinds, 8)
    for number, kind in enumerate(chosen):
        kinds[kind](Path(shutil.copytree(place.honest, root / str(number))))
    (root / "elsewhere").symlink_to(place.outside.parent)
    (root / "link").symlink_to(honest)
    listed = entries(root)
    assert len(listed) == len(chosen) + 2
    assert [entry.state for entry in listed if entry.path == str(honest)] == ["done"]
    place.check(root)


@pytest.mark.parametrize("kind", hostile_runs.names(Path(), 0))
def test_what_a_manifest_names_is_not_opened(place: Place, kind: str) -> None:
    folder = place.copy()
    hostile_runs.name_in(
        folder, {"plan.model": "smollm2-135m"} | dict(hostile_runs.names(place.outside, place.port)[kind])
    )
    said = place.tried(folder, trust=False)
    assert "add --" in said["eval --resume"], said
    assert not (place.outside / "ran").exists() and not place.visits and place.state() == place.before
