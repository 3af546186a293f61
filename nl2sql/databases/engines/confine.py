"""The reach of a child process: its database and what its libraries need, nothing else (Linux, Landlock).

Landlock (kernel 5.13; TCP from 6.7) lets a process give up rights for good, without privileges of its own. It stands
behind the engines' own settings, which already forbid files and addresses; where the kernel has none, they stand alone.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
VERSION_ONLY = 1  # this and the numbers below: linux/landlock.h and linux/prctl.h
RULE_PATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
READ = EXECUTE | READ_FILE | READ_DIR
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE
RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}  # how many of the file system rights a version knows
TCP = 0b11  # bind and connect
SCOPES = 0b11  # abstract sockets and signals to outside
NO_NEW_PRIVILEGES = 38
SYSTEM = (
    "/usr/share/zoneinfo",
    "/usr/lib",
    "/lib",
    "/lib64",
    "/sys/fs/cgroup",
    "/sys/devices",
    "/dev/urandom",
)


def confine(readable: Iterable[str] = (), writable: Iterable[str] = ()) -> bool:
    """Give up every file but ``readable`` and ``writable`` (folders with all that is in them) and what the system's
    libraries need, and all TCP. False where the kernel cannot; nothing is given up then."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(CREATE_RULESET, None, 0, VERSION_ONLY)
    if abi < 1:
        return False
    count = max(number for least, number in RIGHTS_BY_ABI.items() if abi >= least)
    everything = (1 << count) - 1
    fields = [everything, TCP if abi >= 4 else 0, SCOPES if abi >= 6 else 0]
    attributes = struct.pack("=QQQ", *fields)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = libc.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        libraries = [*SYSTEM, sys.prefix, sys.base_prefix]
        for path in (*libraries, *readable):
            _allow(libc, ruleset, path, READ)
        for path in (*writable, "/dev/null"):
            _allow(libc, ruleset, path, everything)
        if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there need not be allowed
    try:
        if not os.path.isdir(path):  # noqa: PTH112 - runs in the child, before anything else is imported
            rights &= FILE_RIGHTS
        libc.syscall(ADD_RULE, ruleset, RULE_PATH, struct.pack("=QI", rights, handle), 0)
    finally:
        os.close(handle)
