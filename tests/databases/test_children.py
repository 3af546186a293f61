"""Children that misbehave, written down as programs or as what they say: what the process that asked makes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nl2sql.databases.sqlite import worker
from nl2sql.databases.sqlite.batch import ORDERED, ROWS, PairsResult, run_pairs
from nl2sql.databases.sqlite.database import QueryPool
from nl2sql.databases.sqlite.process import (
    MAX_REPLY_BYTES,
    FramedChild,
    Interrupted,
    Worker,
    WorkerGone,
    _processor_seconds,
    _TimeLeft,
)

# ------------------------------------------------------------------------------------------------- one worker process

HEAD = """
import json, mmap, os, sys, time
def framed(text): return len(text.encode()).to_bytes(8, "big") + text.encode()
def say(data):
    while data: data = data[os.write(0, data):]
def asked(): return os.read(0, int.from_bytes(os.read(0, 8), "big"))
say(framed("[]"))
"""
ENDED = [  # what a program does when it is asked, and what is told of it
    ("os._exit(3)", WorkerGone, "the connection closed"),
    ("say(framed('no JSON'))", WorkerGone, "an unintelligible reply"),
    ('say(framed(\'{"b": "no hex"}\'))', WorkerGone, "an unintelligible reply"),
    (f"say(({MAX_REPLY_BYTES} + 1).to_bytes(8, 'big'))", WorkerGone, f"a reply of {2**30 + 1} bytes"),
    ("time.sleep(60)", TimeoutError, "timed out"),
]


@pytest.fixture
def started() -> Iterator[Any]:
    running: list[Worker] = []

    def of(program: str) -> Worker:
        running.append(Worker(("-I", "-S", "-c", HEAD + program)))
        return running[-1]

    yield of
    assert {process.kill() for process in running} <= {0, 1, 3, -signal.SIGKILL}  # 1: nobody hears it any more


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def test_messages_are_told_apart_however_their_bytes_arrive(started: Any) -> None:
    spoken = """
asked()
say(framed('["one"]') + framed('["zwei é"]') + framed('["drei", {"b": "00ff"}]')[:5])
time.sleep(0.05); say(framed('["drei", {"b": "00ff"}]')[5:12])
time.sleep(0.05); say(framed('["drei", {"b": "00ff"}]')[12:])
say(framed(json.dumps(["x" * 3_000_000])))
say(framed(json.dumps(json.loads(asked()))))
"""
    child = started(spoken)
    assert child.alive() and child.ask(["go"], soon()) == ["one"]
    assert [child.hear(soon()) for _ in range(2)] == [["zwei é"], ["drei", b"\0\xff"]]
    assert child.hear(soon()) == ["x" * 3_000_000]
    assert child.ask(["ü", 2**60, {"a": None}], soon()) == ["ü", 2**60, {"a": None}]


@pytest.mark.parametrize(("program", "error", "told"), ENDED)
def test_a_worker_without_an_answer_is_told(program: str, error: type[Exception], told: str, started: Any) -> None:
    child = started(f"asked()\n{program}\ntime.sleep(60)")
    with pytest.raises(error, match=told):
        child.ask(["go"], soon(0.1 if error is TimeoutError else 60.0))


def test_a_worker_that_has_ended_is_gone_and_nobody_waits_for_it(started: Any) -> None:
    child = started("")
    child.process.wait()
    assert not child.alive()
    with pytest.raises(WorkerGone):
        child.ask(["x" * 1_000_000], soon())
        child.hear(soon())


def test_a_caller_may_stop_listening_and_else_waits_for_the_deadline(started: Any) -> None:
    stop, child = threading.Event(), started("time.sleep(60)")
    with pytest.raises(TimeoutError):
        child.hear(soon(0.3), stop)
    stop.set()
    with pytest.raises(Interrupted):
        child.hear(soon(), stop)


def test_a_worker_notes_the_statement_that_it_executes(started: Any) -> None:
    child = started("""
place = mmap.mmap(int(sys.argv[1]), 16)
for noted in (3, 0), (-1, -1):
    asked()
    place[:] = b"".join(n.to_bytes(8, sys.byteorder, signed=True) for n in noted)
    say(framed("[]"))
asked()
""")
    assert child.place() is None
    assert (child.ask([], soon()), child.place()) == ([], (3, 0))
    assert (child.ask([], soon()), child.place()) == ([], None)
    assert child.kill() == -signal.SIGKILL
    child.__init__(("-I", "-S", "-c", HEAD))  # so that the fixture has one to end


# ------------------------------------------------------------------------------------------ how long one is waited for


def test_a_process_is_waited_for_by_its_own_time_on_the_processor() -> None:
    pid, hours = os.getpid(), 10_000.0
    left = _TimeLeft(pid, hours, 8.0)
    assert hours - 60 < left.seconds() <= hours
    left.extend()
    assert hours - 60 < left.seconds() <= hours, "what it has not had yet, from now on"
    left = _TimeLeft(pid, hours, 0.5)
    left.extend()
    assert hours / 2 - 60 < left.seconds() <= hours / 2, "so many times as long, no longer"
    with pytest.raises(TimeoutError):
        _TimeLeft(pid, hours, 0.0).extend()
    assert _TimeLeft(pid, -5.0, 1.0).seconds() == 0.001


def test_who_had_the_time_or_sleeps_is_not_waited_for() -> None:
    mine = sum(os.times()[:2])
    had = _TimeLeft(os.getpid(), 0.05, 10_000.0)
    while sum(os.times()[:2]) < mine + 0.2:
        pass
    with pytest.raises(TimeoutError):
        had.extend()
    ours = _TimeLeft(os.getpid(), 0.6 * mine, 10_000.0)  # what was used before does not count
    ours.extend()
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]) as sleeper:
        while _processor_seconds(sleeper.pid)[1]:
            time.sleep(0.05)
        with pytest.raises(TimeoutError):
            _TimeLeft(sleeper.pid, 10_000.0, 8.0).extend()
        sleeper.kill()
    assert _processor_seconds(sleeper.pid) == (0.0, False)


def test_the_seconds_of_a_process_are_those_of_the_system() -> None:
    before, (used, working), after = os.times(), _processor_seconds(os.getpid()), os.times()
    assert sum(before[:2]) - 0.03 <= used <= sum(after[:2]) + 0.03 and working


def test_a_child_that_cannot_start_says_its_last_words() -> None:
    child = FramedChild("nl2sql.no_such_module", last_words=True)
    with pytest.raises(ConnectionError, match=r"No module named 'nl2sql\.no_such_module'"):
        child.ask({"ready": True}, 60.0)
    child.close()
    quiet = FramedChild("nl2sql.no_such_module")
    with pytest.raises(ConnectionError, match=r"^$"):
        quiet.ask({"ready": True}, 60.0)
    quiet.close()
    assert quiet.closed and quiet.process.returncode is not None


# ---------------------------------------------------------------------------------------------------- the last resort


def test_an_orphan_is_ended_some_seconds_past_its_deadline_and_the_alarm_is_set_once_a_second() -> None:
    def left() -> float:
        return signal.getitimer(signal.ITIMER_REAL)[0]

    alarm = worker.Alarm(1000.0)
    try:
        alarm.off()
        alarm.on(50.0)
        assert 950 < left() <= 1005.0
        signal.setitimer(signal.ITIMER_REAL, 400.0)
        alarm.on(51.0)
        assert left() <= 400.0
        alarm.on(51.1)
        assert left() > 950
        alarm.off()
        assert left() == 0.0
        signal.setitimer(signal.ITIMER_REAL, 400.0)
        alarm.off()
        assert left() > 300, "another's is left alone"
        alarm.on(51.2)
        assert left() > 950, "set anew after it was off"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# ------------------------------------------------------------------------------------------- a batch over lost workers


class Scripted:
    """A pool whose workers say what is written down, one list each; an exception is what a worker ends by."""

    def __init__(self, *talks: list[Any]) -> None:
        self.talks, self.requests, self.silences = list(talks), [], []  # type: ignore[var-annotated]

    def readable(self, path: str) -> tuple[str, str]:
        if path == "gone":
            raise FileNotFoundError(2, "No such file or directory")
        return f"file:{path}", "v"

    def converse(self, request: dict[str, Any], silence: Any, stop: Any = None) -> Iterator[list[Any]]:
        self.requests.append(request)
        self.silences = [silence(None), silence(["busy"]), silence(["parts"])]
        for message in self.talks.pop(0):
            if isinstance(message, Exception):
                raise message
            yield message


def ended(place: tuple[int, int] | None, error: type[Exception] = WorkerGone) -> Exception:
    made = error("gone")
    made.place = place  # type: ignore[attr-defined]
    return made


def judged(pool: Scripted, files: str, sql: list[str], pairs: list[tuple[int, int, int]], **bounds: Any) -> PairsResult:
    return run_pairs(pool, files.split(), sql, pairs, **({"timeout_s": 2.5, "max_rows": 9} | bounds))  # type: ignore[arg-type]


def test_what_a_lost_worker_had_not_reported_is_asked_of_the_next() -> None:
    pool = Scripted(
        [
            ["busy"],
            ["parts", [0, 2, {"right": [0], "verdicts": {"1": None}, "outcomes": {"0": [0.5, 2, 3, False]}}],
             [1, 1, {"right": [0]}]],
            ended((1, 2)),
        ],
        [["parts", [0, 2, {"verdicts": {"1": 2}, "rows": {"2": [["n"], [[7]], True]}}], [1, 0, {}]],
         ended((1, 1), TimeoutError)],
        [["parts", [0, 2, {"verdicts": {"0": 0, "1": None}}]], ["end", 7]],
    )  # fmt: skip
    found = judged(pool, "a b c", ["g", "p", "q"], [(0, 1, 0), (0, 2, ROWS)], mode="bag")
    assert (found.executed, found.restarts, found.right) == (7, 2, {0: {0}, 1: {0}})
    assert found.verdicts == {(0, 1): None, (1, 1): 2, (2, 0): 0, (2, 1): None} and found.times_right == {0: 2}
    assert found.rows_sent == {(1, 2)} and found.results[1, 2].rows == ((7,),) and found.results[1, 2].truncated
    assert (found.results[0, 0].columns, found.results[0, 0].seconds) == (("", ""), 0.5)
    wanted = [
        (["file:a", "file:b", "file:c"], 0, 0, [], []),
        (["file:b", "file:c"], 1, -1, [], []),
        (["file:c"], 0, -2, [(0, 1, "timeout", "no result within 2.5 s")], []),
    ]
    keys = ("start", "report", "failed", "dead")
    assert [([uri for uri, _ in r["files"]], *(r[key] for key in keys)) for r in pool.requests] == wanted
    assert pool.requests[0]["sql"] == ["g", "p", "q"] and pool.requests[0]["mode"] == "bag"
    assert pool.silences == [pytest.approx(2.85), 30.0, pytest.approx(2.85)]


def test_a_statement_that_two_workers_died_of_has_failed() -> None:
    pool = Scripted([ended((0, 1))], [ended((0, 1))], [["parts", [0, 1, {"verdicts": {"0": 0}}]], ["end", 1]])
    found = judged(pool, "a", ["g", "p"], [(0, 1, ORDERED)])
    assert found.restarts == 2 and pool.requests[1]["failed"] == []
    died = "the process that executed the statement died (gone), twice"
    assert pool.requests[2]["failed"] == [(0, 1, "worker_died", died)]


def test_a_pair_that_three_workers_died_beside_is_given_up() -> None:
    talk = [["parts", [0, 1, {"right": [0]}]], ended(None)]
    pool = Scripted(talk, [ended(None)], [ended(None)], [["parts", [0, 2, {"verdicts": {"1": 0}}]], ["end", 0]])
    found = judged(pool, "a", ["g", "p", "q"], [(0, 1, 0), (0, 2, 0)])
    assert found.restarts == 3 and [request["failed"] for request in pool.requests[:3]] == [[], [], []]
    why = ("worker_died", "the process that compared the results died")
    assert pool.requests[3]["failed"] == [(0, 0, *why), (0, 2, *why)] and pool.requests[3]["start"] == 1


def test_a_batch_ends_where_nothing_is_left_to_try() -> None:
    wrong = ["parts", [0, 2, {"verdicts": {"0": 0, "1": 0}}]]
    found = judged(Scripted([wrong, ended((1, 0))]), "a b", ["g", "p"], [(0, 1, 0), (1, 0, 0)])
    assert found.verdicts == {(0, 0): 0, (0, 1): 0} and found.restarts == 1
    done = ["parts", [0, 1, {"right": [0]}], [1, 1, {"right": [0]}]]
    assert judged(Scripted([done, ended(None)]), "a b", ["g"], [(0, 0, 0)]).right == {0: {0}, 1: {0}}


def test_what_cannot_be_sent_has_failed_before() -> None:
    pool = Scripted([["end", 0]])
    judged(pool, "a gone", ["x" * 100_001, "y" * 100_000], [(0, 1, 0)])
    (request,) = pool.requests
    assert request["sql"] == ["", "y" * 100_000] and request["files"] == [("file:a", "v"), ("", "")]
    told = {(file, index): (kind, message) for file, index, kind, message in request["failed"]}
    large = ("too_large", "the SQL has 100001 characters; at most 100000 are allowed")
    gone = ("other", "database gone cannot be read: No such file or directory")
    assert told == {(0, 0): large, (1, 0): large, (1, 1): gone}


def test_a_lengthy_comparison_takes_no_worker_and_no_second_try(people: Path, pool: QueryPool) -> None:
    many = "SELECT a.i, b.i FROM numbers a, numbers b WHERE b.i <= 6"
    found = run_pairs(pool, [people, people], [many, f"{many} ORDER BY 2"], [(0, 1, 0), (1, 1, ROWS)], timeout_s=30.0,
                      max_rows=20_000, mode="bag")  # fmt: skip
    assert found.restarts == 0 and found.right == {0: {0}, 1: {0}}
    assert found.executed == 4 and len(found.results[1, 1].rows) == 12_000
