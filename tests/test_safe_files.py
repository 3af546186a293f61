"""Files that a stranger may have laid: regular ones are opened, and nothing else."""

import os
import socket
from pathlib import Path

import pytest

from nl2sql.safe_files import NotOpened, open_regular, read_bytes


@pytest.fixture
def laid(tmp_path, monkeypatch):
    """A folder with one of each kind of thing beside ``victim``."""
    (tmp_path / "victim").write_bytes(b"mine")
    folder = tmp_path / "laid"
    folder.mkdir()
    monkeypatch.chdir(folder)  # the path of a socket has at most a hundred characters
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("link").symlink_to("../victim")
    Path("dangling").symlink_to("../new")
    Path("device").symlink_to("/dev/zero")
    Path("hard").hardlink_to("../victim")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    return folder


@pytest.mark.parametrize("mode", ["rb", "rb+", "ab"])
@pytest.mark.parametrize("name", ["pipe", "folder", "link", "dangling", "device", "socket"])
def test_only_regular_files_are_opened(laid, name, mode):
    with pytest.raises(NotOpened, match="is not opened"):
        open_regular(laid / name, mode)
    assert (laid.parent / "victim").read_bytes() == b"mine"
    assert not (laid.parent / "new").exists()


@pytest.mark.parametrize("mode", ["rb+", "ab"])
def test_what_has_a_second_name_is_read_and_not_written(laid, mode):
    assert read_bytes(laid / "hard", 4) == b"mine"
    with pytest.raises(NotOpened, match="2 names"):
        open_regular(laid / "hard", mode)


def test_bytes_are_bounded(laid):
    (laid / "sparse").touch()
    os.truncate(laid / "sparse", 2**40)
    with pytest.raises(NotOpened, match="1,099,511,627,776 bytes; expected at most 1,000"):
        read_bytes(laid / "sparse", 1000)


def test_what_is_there_is_never_made_anew(laid):
    for name in ("link", "dangling", "hard"):
        with pytest.raises(FileExistsError):
            open_regular(laid / name, "xb")
    with open_regular(laid / "new", "xb") as file:
        file.write(b"x")
    assert read_bytes(laid / "new", 1) == b"x"
