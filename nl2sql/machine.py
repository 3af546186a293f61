"""What this machine lets the process use now: processor cores and memory."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """Processor cores that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def free_bytes() -> int | None:
    """Memory that can still be taken, of the machine and of the control group; None where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        available = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        group = Path("/sys/fs/cgroup")
        return min(available, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no group, or one without a limit
        return available
