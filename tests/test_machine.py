"""What the machine lets a process use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nl2sql import machine
from nl2sql.machine import free_bytes, multiplies_bfloat16


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_are_those_that_the_process_may_run_on() -> None:
    code = "import os, nl2sql.machine as m; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(m.cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "1\n"


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the system does not say")
def test_free_memory_is_part_of_the_machines() -> None:
    free = free_bytes()
    assert free is not None and 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_a_group_keeps_of_files_counts_as_free(tmp_path: Path) -> None:
    for name, text in (
        ("memory.max", "9000"),
        ("memory.current", "8000"),
        ("memory.stat", "anon 1000\ninactive_file 7000\n"),
    ):
        (tmp_path / name).write_text(text)
    assert free_bytes(tmp_path) == 8000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) != 8000, "a group without a limit"


def test_the_advice_to_install_names_what_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(machine.__file__).parent.parent
    monkeypatch.chdir(root)
    assert machine.install_command("mcp", "ray") == "pip install -c constraints.txt -e '.[mcp,ray]'"
    monkeypatch.chdir(tmp_path)
    assert f"{root}[mcp]" in machine.install_command("mcp")
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "site-packages" / "nl2sql" / "machine.py"))
    assert machine.install_command("mcp") == "pip install 'nl2sql-harness[mcp]'"  # installed from a wheel


def test_a_processor_says_what_it_multiplies(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    for flags, known in (("avx2 avx512_bf16", True), ("avx2 amx_bf16 amx_tile", True), ("amx_bf16x avx512", False)):
        file.write_text(f"processor : 0\nflags : fpu {flags}\n", encoding="utf-8")
        assert multiplies_bfloat16(str(file)) is known
    assert not multiplies_bfloat16(str(tmp_path / "none"))
