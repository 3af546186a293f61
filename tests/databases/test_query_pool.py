"""Worker processes and pools of them: one that dies or hangs loses its query alone, threads and forks get their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from people import make_database

from nl2sql.databases.sqlite import process
from nl2sql.databases.sqlite.batch import ROWS, run_pairs
from nl2sql.databases.sqlite.database import QueryPool, default_pool
from nl2sql.errors import UsageError

HANG_S = 10.0  # generous: the machine may be busy; a hang is minutes


def test_killing_a_worker_loses_only_its_query(people: Path) -> None:
    slow = "SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d"
    with QueryPool(workers=2) as pool, ThreadPoolExecutor(3) as threads:
        doomed = threads.submit(pool.run, people, slow, timeout_s=60)
        while not pool._all:
            time.sleep(0.01)
        (victim,) = pool._all
        others = threads.submit(lambda: [pool.run(people, "SELECT 1").rows for _ in range(50)])
        time.sleep(0.2)
        os.kill(victim.process.pid, signal.SIGKILL)
        assert doomed.result(HANG_S).error_kind == "worker_died"
        assert others.result(HANG_S) == [((1,),)] * 50
        assert pool.run(people, "SELECT 2").rows == ((2,),)


def test_a_worker_killed_while_idle_is_replaced_unnoticed(people: Path) -> None:
    with QueryPool(workers=1) as pool:
        assert pool.run(people, "SELECT 1").success
        (worker,) = pool._all
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        assert pool.run(people, "SELECT 1").success


def test_a_worker_that_does_not_answer_is_killed_and_replaced(people: Path) -> None:
    with QueryPool(workers=1) as pool:
        assert pool.run(people, "SELECT 1").success
        (worker,) = pool._all
        os.kill(worker.process.pid, signal.SIGSTOP)
        started = time.monotonic()
        assert pool.run(people, "SELECT 1", timeout_s=0.2).error_kind == "timeout"
        assert time.monotonic() - started < HANG_S
        assert worker.process.poll() == -signal.SIGKILL
        assert pool.run(people, "SELECT 1").success


def test_eight_threads_get_their_own_answers(people: Path, tmp_path: Path) -> None:
    paths = [
        make_database(tmp_path / f"{k}.sqlite", f"CREATE TABLE t (x); INSERT INTO t VALUES ({k});") for k in range(40)
    ]
    with QueryPool(workers=2) as pool, ThreadPoolExecutor(8) as threads:
        jobs = [(paths[i % 40], i) for i in range(400)]
        results = threads.map(lambda job: pool.run(job[0], f"SELECT x, {job[1]} FROM t").rows, jobs)
        assert list(results) == [((i % 40, i),) for _, i in jobs]
        assert len(pool._all) <= 2


def test_a_closed_pool_says_so_and_closing_twice_is_fine(people: Path) -> None:
    pool = QueryPool(workers=1)
    assert pool.run(people, "SELECT 1").success
    (worker,) = pool._all
    pool.close()
    pool.close()
    assert worker.process.poll() is not None
    with pytest.raises(UsageError, match="closed"):
        pool.run(people, "SELECT 1")


def test_closing_a_pool_ends_a_running_statement(people: Path) -> None:
    pool = QueryPool(workers=1)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, people, "SELECT count(*) FROM numbers a, numbers b, numbers c, numbers d")
        while not pool._all:
            time.sleep(0.01)
        time.sleep(0.1)
        pool.close()
        assert running.result(HANG_S).error_kind == "worker_died"


@pytest.mark.parametrize("arguments", [{"timeout_s": 0}, {"timeout_s": -1}, {"max_rows": -1}])
def test_impossible_bounds_are_usage_errors(arguments: dict, people: Path, pool: QueryPool) -> None:
    with pytest.raises(UsageError):
        pool.run(people, "SELECT 1", **arguments)
    with pytest.raises(UsageError, match="at least 1"):
        QueryPool(workers=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_workers_of_its_own(people: Path) -> None:
    code = f"""
import os
from nl2sql.databases.sqlite.database import default_pool, QueryPool
path = {str(people)!r}
own = QueryPool(1)
pids = lambda pool: {{w.process.pid for w in pool._all}}
assert default_pool().run(path, "SELECT 1").success and own.run(path, "SELECT 1").success
parents = pids(default_pool()) | pids(own)
child = os.fork()
ok = default_pool().run(path, "SELECT 2").rows == ((2,),) and own.run(path, "SELECT 2").rows == ((2,),)
mine = pids(default_pool()) | pids(own)
if child == 0:
    own.close()
    os._exit(0 if ok and not (mine & parents) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert ok and mine == parents
assert default_pool().run(path, "SELECT 3").success
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_end_when_their_parent_is_killed(people: Path) -> None:
    code = f"""
import sys, time
from nl2sql.databases.sqlite.database import default_pool
pool = default_pool()
pool.run({str(people)!r}, "SELECT 1")
print(*(w.process.pid for w in pool._all), flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.kill()
    give_up = time.monotonic() + HANG_S
    while time.monotonic() < give_up and _running(pid):
        time.sleep(0.02)
    assert not _running(pid)


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_the_worker_imports_nothing_of_the_package() -> None:
    program = process.WORKER.read_text(encoding="utf-8")
    program = program[: program.index("\nelse:\n    from nl2sql")] + program[program.index("\n__all__ = ") :]
    for sibling in ("sandbox.py", "worker_batch.py"):
        program += process.WORKER.with_name(sibling).read_text(encoding="utf-8")
    allowed = (
        "__future__ collections gc hashlib itertools json mmap os re resource signal sqlite3 struct sys time typing"
    )
    found = set(re.findall(r"^\s*(?:import|from) (\w+)", program, re.MULTILINE))
    assert found <= {*allowed.split(), "urllib", "sandbox", "worker_batch"}


def test_threads_may_share_a_default_pool_from_the_start(people: Path) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(default_pool())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_rows_of_later_files_come_without_the_time_that_they_took(shop: Path, pool: QueryPool) -> None:
    sql = ["SELECT count(*) FROM orders", "SELECT 4 FROM orders LIMIT 1"]
    found = run_pairs(pool, [shop, shop, shop.with_name("gone")], sql, [(0, 1, ROWS)], timeout_s=5.0, max_rows=9)
    assert found.results[1, 0].rows == ((4,),) == found.results[0, 1].rows and found.results[1, 0].seconds == 0.0
    assert found.rows_sent == {(0, 0), (0, 1), (1, 0), (1, 1)} and found.executed == 4
    assert found.verdict(2, 0) == 2 and found.results[2, 0].error_kind == "other"
