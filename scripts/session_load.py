"""Write many conversations at once into one store, and check that nothing was lost, mixed or put out of order.

    python scripts/session_load.py --store sqlite --threads 64 --turns 100
    python scripts/session_load.py --store redis://127.0.0.1:6379/0 --threads 64 --turns 100

Each thread is one owner with one session, all sessions have the same name, and each has a store of its own, as a
process would have. After every turn the thread reads its session: the last ten turns, its own, in their order. At the
end every owner is read again, and the turns of the session ``shared``, which all threads write, are counted. ``sqlite``
is a new file in a temporary folder; a FILE or a server keeps nothing of it. Exit code 1 where anything is wrong.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from tqdm.auto import tqdm

from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Turn
from nl2sql.sessions.stores import SessionStore, open_store
from nl2sql.sessions.turns import KEPT

SESSION, SHARED = "load", "shared"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="sqlite", help="sqlite, memory, a FILE, or redis://HOST:PORT/NUMBER")
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--turns", type=int, default=100, help="of each thread")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        address = str(Path(folder) / "load.db") if options.store == "sqlite" else options.store
        try:
            return load(address, options.threads, options.turns)
        except Nl2SqlError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code


def load(address: str, threads: int, turns: int) -> int:
    """Write, check and report; the exit code."""
    said: list[str] = []
    memory = open_store(address) if address == "memory" else None  # of a process there is one

    def opened() -> SessionStore:
        return memory or open_store(address, say=said.append)

    mark = secrets.token_hex(4)  # of this load, so that a server may hold others
    owners = [f"load-{mark}-{number}" for number in range(threads)]
    problems: Counter[str] = Counter()
    began, lock = time.perf_counter(), threading.Lock()
    with tqdm(total=threads * turns, unit=" turns", disable=None) as bar, ThreadPoolExecutor(threads) as pool:

        def done() -> None:
            with lock:
                bar.update()

        for wrong in pool.map(lambda owner: write(opened(), owner, f"load-{mark}", turns, done), owners):
            problems.update(wrong)
    seconds = time.perf_counter() - began
    with closing(opened()) as store:
        for owner in owners:
            if numbers(store, owner, SESSION) != [(owner, number) for number in range(turns)][-KEPT:]:
                problems["sessions that are not as they were written"] += 1
            if store.sessions(owner) != [SESSION]:
                problems["owners with other sessions than their own"] += 1
            store.delete(owner, SESSION)
        last = numbers(store, f"load-{mark}", SHARED)
        by_writer = {owner: [number for of, number in last if of == owner] for owner in owners}
        if len(last) != min(KEPT, threads) or any(kept != sorted(kept) for kept in by_writer.values()):
            problems["shared sessions out of order"] += 1
        store.delete(f"load-{mark}", SHARED)
    for text in said[:1]:
        problems[f"{len(said)} stores gave up: {text}"] += 1
    print(f"{threads} threads, {threads * turns:,} turns in {seconds:.1f} s, {threads * turns / seconds:,.0f} a second")
    lines = [f"{count} x {what}" for what, count in problems.items()]
    print(*lines or ["none lost, order kept, no cross-talk"], sep="\n")
    return 1 if problems else 0


def write(store: SessionStore, owner: str, everybody: str, turns: int, done: Callable[[], None]) -> Counter[str]:
    """One thread: its own session, read after every turn, and one turn of the shared session."""
    problems: Counter[str] = Counter()
    for number in range(turns):
        store.add(owner, SESSION, Turn(f"{owner} {number}", sql=f"SELECT {number}"))
        if numbers(store, owner, SESSION) != [(owner, at) for at in range(number + 1)][-KEPT:]:
            problems["reads that miss, mix or reorder turns"] += 1
        done()
    store.add(everybody, SHARED, Turn(f"{owner} {turns}"))
    return problems


def numbers(store: SessionStore, owner: str, session_id: str) -> list[tuple[str, int]]:
    """Writer and number of each turn of a session."""
    words = [turn.user_query.split() for turn in store.history(owner, session_id)]
    return [(writer, int(number)) for writer, number in words]


if __name__ == "__main__":
    raise SystemExit(main())
