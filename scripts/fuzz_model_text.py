"""Model texts that nobody would want, through everything that reads a model's text: no crash, no hang, no hunger.

    python scripts/fuzz_model_text.py --cases 20000 [--seed 0] [--json] [--resume FILE]
    python scripts/fuzz_model_text.py --case 1234 [--seed 0]      # one case again, with the time of every reader

Texts of 1 byte to 8 MiB are made by a grammar, by repeating what opens something, by mutating sound answers, or of
noise; case ``n`` of a seed is the same text every time. A child reads them, so that a crash is told with the case that
caused it; every second case runs under a recursion limit of 50,000, as a program that uses nl2sql may have set it. A
violation is a crash, an exception, ``LIMIT_S`` seconds of computing in one reader, or ``LIMIT_MB`` of memory above the
start (what the C library keeps free of earlier texts is given back first).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

LIMIT_S = 2.0  # of computing, for one text in one reader
LIMIT_MB = 100.0  # of memory above the start
STUCK_S = 60.0  # of waiting for the child
LARGEST = 8 * 2**20
RECURSION = (1000, 50_000)
QUESTION = "How many customers of each city ordered more than 3 times, and which are the top 2?"

# ------------------------------------------------------------------------------------------------------- texts

# A dot in the middle is a blank, ␀ NUL, ␛ a terminal's escape, ⌁ a lone surrogate.
_OPENERS = r"""
( [ { ` ' " /* -- < <think> ```sql\n <sql> <tool_call> Action: Action:·x[ Action:·run_sql[{ SQL:· (]( [) ')
{"a": [" \ \" 0 1 1+ 1|| a.b. x, ~ -· NOT· CASE· CASE·WHEN·1·THEN· (SELECT· (SELECT·*·FROM·SELECT· f( abs(
cast( IN·( BETWEEN· IS·NOT· EXISTS·( UNION·SELECT·1· UNION·ALL·(SELECT·1· JOIN·a· a·JOIN· ,a LATERAL·
a·JOIN·( array< a·AND· a·OR·( NOT·( WITH·a·AS·( WITH·a·AS· OVER·(ORDER·BY· FILTER·(WHERE·
group_concat(DISTINCT· INTERVAL· COLLATE·a· LIKE·1·ESCAPE· a·->· x[ :a ? @ $ ; ;SELECT·1 SELECT·1; &lt; ␀ ␛ ⌁
é 🎉 · \n \t ＿ [table [column ... insert·or·a· drop·temp· create·table· <|a </s> </think> ]} )) select``
select·* from· a=b· x'00 %s \u0041 WITH·RECURSIVE·c·AS·(SELECT·1·UNION·ALL· ROW( VALUES( (VALUES· DISTINCT·
EXPLAIN· IF( ANY· PIVOT( UNNEST( trim(
DATE( CHAR(a, STRUCT( a·->·ENUM( INT· ARRAY( json(
"""
OPENERS = tuple(_OPENERS.split())
_BEFORE = r"""
·SELECT··
SELECT * FROM·
SELECT a FROM t WHERE·
Thought: so\nAction:·
Action: generate_sql[
Action: run_sql[{"a":·
```sql\nSELECT·
{"sql": "SELECT·
<tool_call>{"name": "finish", "arguments":·
(SELECT 1 FROM·
SQL: WITH a AS (
The answer is ```
<think>
SELECT count(*) FROM customers ORDER BY·
/*
'
"
[
"""
BEFORE = ("", *_BEFORE.strip("\n").split("\n"))
AFTER = ("", "", "]", "}]", ")", " FROM customers", "' FROM t;", "*/ 1", "```", "\n]\nAction: finish[{}]", "</think>")
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
SOUND = (
    "Thought: I need the tables.\nAction: get_schema[{}]",
    'Action: get_table_samples[{"table": "customers", "n": 3}]',
    "Action: generate_sql[{}]\nObservation: ...\nThought: good\nAction: validate_sql[]",
    '<tool_call>\n{"name": "run_sql", "arguments": {"a": [1, {"b": "c"}]}}\n</tool_call>',
    '[{"name": "finish", "parameters": "{}"}]',
    "SELECT c.city, count(*) AS n FROM customers AS c JOIN orders AS o ON o.customer_id = c.id GROUP BY c.city "
    "HAVING count(*) > 3 ORDER BY n DESC LIMIT 2;",
    "```sql\nWITH big AS (SELECT customer_id FROM orders GROUP BY 1) SELECT name FROM customers WHERE id IN big;\n```",
    "The query is: SELECT name FROM customers WHERE city = 'O''Slo' -- of Norway\nIt counts them.",
    '{"sql": "SELECT DISTINCT city FROM customers WHERE name LIKE \'%a%\' UNION SELECT city FROM shops"}',
    "<think>They ask for cities.</think> SELECT city, sum(total) OVER (PARTITION BY city) FROM orders;",
    "SELECT CASE WHEN total > 5 THEN 'x' ELSE NULL END, cast(a AS int), [b], `c`, \"d\" FROM orders "
    "WHERE a BETWEEN 1 AND 2",
)


FORMS = (
    "({0})", "NOT {0}", "- {0}", "({0} + {1})", "f({0}, a)", "CASE WHEN {0} THEN {1} ELSE 1 END", "cast({0} AS int)",
    "({2})", "{0} IN ({2})", "{0} BETWEEN 1 AND {1}", "EXISTS ({2})", "{0} LIKE 'a%' ESCAPE 'x'",
    "sum({0}) OVER (PARTITION BY {1} ORDER BY 1)",
)  # fmt: skip


def decoded(text: str) -> str:
    """A mark of the lists above as the text that it stands for."""
    for sign, meaning in (("·", " "), ("\\n", "\n"), ("\\t", "\t"), ("␀", "\0"), ("␛", "\x1b[31m"), ("⌁", "\ud800")):
        text = text.replace(sign, meaning)
    return text


def target(rng: random.Random) -> int:
    """A size in characters: mostly small, now and then up to 8 MiB."""
    top = rng.choices((2_000, 20_000, 120_000, LARGEST), (50, 32, 15, 3))[0]
    return max(1, int(top ** rng.random()) if rng.random() < 0.5 else int(top * rng.random()))


def repeated(rng: random.Random, size: int) -> str:
    units = [decoded(rng.choice(OPENERS)) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    unit = "".join(units)
    times = max(1, size // len(unit))
    closing = "".join(CLOSING.get(sign, "") for sign in reversed(unit))
    middle = rng.choice(("", "1", "t", "x FROM t", '"'))
    behind = closing * times if closing and rng.random() < 0.5 else decoded(rng.choice(AFTER))
    return (decoded(rng.choice(BEFORE)) + unit * times + middle + behind)[:LARGEST]


def query(rng: random.Random, depth: int) -> str:
    """A query by a small grammar, ``depth`` levels deep at most, of a few hundred parts."""
    parts = iter(range(400))

    def value(left: int) -> str:
        if left <= 0 or next(parts, None) is None or rng.random() < 0.3:
            return rng.choice(("1", "a", "t.b", "'x'", "NULL", "-1.5e3", '"q"', "[r]", "*", "x'00'", "?", "count(*)"))
        inner = value(left - 1)
        form = rng.choice(FORMS)
        return form.format(inner, value(left - 2) if "{1}" in form else "", select_(left - 1) if "{2}" in form else "")

    def source(left: int) -> str:
        if left <= 0 or next(parts, None) is None or rng.random() < 0.5:
            return rng.choice(("customers", "orders AS o", "nowhere", '"t"', "c"))
        form = rng.choice(("({2}) AS s", "{0} JOIN {1} ON a = b", "{0}, {1}", "({0})"))
        return form.format(source(left - 1), source(left - 2), select_(left - 1) if "{2}" in form else "")

    def select_(left: int) -> str:
        text = f"SELECT {value(left)} FROM {source(left)}"
        if rng.random() < 0.4:
            text += f" WHERE {value(left - 1)} AND {value(left - 2)}"
        if rng.random() < 0.2:
            text += f" GROUP BY 1 HAVING {value(left - 2)}"
        if rng.random() < 0.2:
            text += f" ORDER BY {value(left - 2)} DESC LIMIT 3"
        if left > 0 and rng.random() < 0.15:
            text += f" {rng.choice(('UNION', 'EXCEPT', 'UNION ALL'))} {select_(left - 2)}"
        return text

    return select_(depth)


def doubling(rng: random.Random, size: int) -> str:
    """CTEs or subqueries each of which names the one before twice: 2^n for whoever follows them."""
    levels = rng.randint(2, min(60, 3 + size // 60))
    step = rng.choice(
        ("SELECT * FROM c{0}, c{0} AS y", "SELECT x FROM c{0} UNION ALL SELECT x FROM c{0}",
         "SELECT x FROM c{0} WHERE x IN (SELECT x FROM c{0})",
         "SELECT (SELECT x FROM c{0}) + (SELECT x FROM c{0}) AS x",
         "SELECT a.x FROM c{0} a JOIN c{0} b ON a.x = b.x", "SELECT * FROM c{0} NATURAL JOIN c{0}")
    )  # fmt: skip
    parts = ", ".join(f"c{n + 1} AS ({step.format(n)})" for n in range(levels))
    return f"WITH c0 AS (SELECT id AS x FROM customers), {parts} SELECT x FROM c{levels}"


def noise(rng: random.Random, size: int) -> str:
    alphabet = rng.choice(
        (
            "()[]{}",
            "'\"`\\",
            "()' ",
            '[]"{}:,1',
            "aA: []{}\n",
            "\0\x01\x1b\x7f\n ",
            "\ud800\udfffé🎉",
            "SELECT FROM,()*1",
        )
    )
    block = "".join(rng.choices(alphabet, k=min(size, 5000)))
    return (block * (size // len(block) + 1))[:size]


def mutated(rng: random.Random, size: int) -> str:
    text = rng.choice(SOUND)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(text) + 1)
        upto = min(len(text), at + rng.choice((1, 2, 5, 20, 80)))
        match rng.randrange(6):
            case 0:
                text = text[:at] + text[upto:]
            case 1:
                text = text[:at] + text[at:upto] * rng.choice((2, 30, max(2, size // max(1, upto - at)))) + text[upto:]
            case 2:
                text = text[:at] + decoded(rng.choice(OPENERS)) * rng.choice((1, 3, 300)) + text[at:]
            case 3:
                text = text[:at] + rng.choice(SOUND) + text[at:]
            case 4:
                text = text[:at] + noise(rng, min(size, 300)) + text[at:]
            case 5:
                text = (
                    text[:at]
                    + chr(rng.choice((0, 9, 27, 0x85, 0xFEFF, 0xD800, 0x2028, rng.randrange(0x10FFFF))))
                    + text[upto:]
                )
        text = text[:LARGEST]
    return text


def model_text(seed: int, number: int) -> str:
    """Case ``number`` of a seed."""
    rng = random.Random(f"{seed}:{number}")
    size = target(rng)
    kind = rng.choices((repeated, noise, mutated, doubling, None), (50, 8, 25, 5, 12))[0]
    text = query(rng, rng.choice((2, 4, 8, 14))) if kind is None else kind(rng, size)
    if rng.random() < 0.15:
        text += decoded(rng.choice(AFTER)) + rng.choice(SOUND)
    if len(text.encode("utf-8", "surrogatepass")) > LARGEST:
        text = text[: LARGEST // 4]
    return text or "("


# ----------------------------------------------------------------------------------------------------- readers


@cache
def readers() -> dict[str, Callable[[str], object]]:
    """Everything that reads a model's text, by name. Nothing here may raise."""
    from nl2sql.agents.checks.candidate import behind_prefill
    from nl2sql.agents.checks.constraints import extract_constraints, intent_constraints, validate_constraints
    from nl2sql.agents.checks.guardrails import apply_guardrails, canonicalize_table_casing
    from nl2sql.agents.native_tools import as_action
    from nl2sql.agents.turns import parse_action
    from nl2sql.benchmarks import load_benchmark
    from nl2sql.databases.validation import validate_sql
    from nl2sql.eval.rules import RULES, order_keys, order_matters
    from nl2sql.repair.analyzer import ErrorAnalyzer
    from nl2sql.repair.deterministic import mend
    from nl2sql.sql.bounds import bounded
    from nl2sql.sql.facets import differing
    from nl2sql.sql.features import features
    from nl2sql.sql.hardness import hardness
    from nl2sql.sql.same import exact_match, query_key, same_sql, same_text, tree_key
    from nl2sql.vizql.from_sql import structured
    from nl2sql.vizql.infer import infer

    benchmark = load_benchmark("packaged")
    asked = benchmark.questions[0]
    database = benchmark.database(asked.db_id)
    schema, source, gold = database.schema(), infer(database), asked.gold[0]
    demanded = extract_constraints(QUESTION)
    analyzer = ErrorAnalyzer()

    def through_guardrails(text: str) -> object:
        return apply_guardrails(behind_prefill("SELECT", bounded(text)), QUESTION, schema)

    return {
        "door": bounded,
        "parse_action": parse_action,
        "native": lambda text: parse_action(as_action(text)[0]),
        "guardrails": through_guardrails,
        "guardrails, undoored": lambda text: apply_guardrails(text, QUESTION, schema),
        "casing": lambda text: canonicalize_table_casing(text, schema),
        "validation": lambda text: validate_sql(text, schema),
        "constraints": lambda text: validate_constraints(text, demanded, schema),
        "intent": lambda text: intent_constraints(QUESTION, text, schema),
        "repair": lambda text: mend(text, "no such column: nowhere", database, schema),
        "guidance": lambda text: analyzer.analyze_error(f"near {text[:200]!r}: syntax error", text, schema),
        "EM": lambda text: (exact_match(gold, text), same_text(gold, text), same_sql(gold, text)),
        "keys": lambda text: (query_key(text), tree_key(text)),
        "features": lambda text: (features(text), hardness(text)),
        "order": lambda text: (order_matters(text), order_keys(text, ("a", "b"))),
        "rules": lambda text: [rule.prepare(text) for rule in RULES.values()],
        "facets": lambda text: differing(gold, text, schema),
        "structured": lambda text: structured(text, source),
    }


# ------------------------------------------------------------------------------------------------------- the child


def memory_mb(name: str) -> float:
    """``VmRSS`` or ``VmHWM`` of this process; 0 where there is no /proc."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return 0.0


def read_text(text: str, start_mb: float) -> dict[str, Any]:
    """What reading ``text`` cost, by reader; what was raised."""
    from nl2sql.models.memory import give_back_free_memory

    give_back_free_memory()  # after a text of 32 MB the C library keeps up to 64 MB free for the next one
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    seconds, raised = {}, {}
    for name, reader in readers().items():
        print(f"> {name}", flush=True)
        began = time.thread_time()
        try:
            reader(text)
        except Exception as error:  # noqa: BLE001 - whatever escapes is a finding
            raised[name] = f"{type(error).__name__}: {error}"[:300]
        seconds[name] = round(time.thread_time() - began, 3)
    return {"characters": len(text), "seconds": seconds, "raised": raised, "mb": round(memory_mb("VmHWM") - start_mb)}


def child() -> int:
    """Read the texts that come on stdin; one line of JSON for each, ``> reader`` before each reader."""
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    read_text("SELECT 1", 0.0)
    start_mb = memory_mb("VmRSS")
    print("ready", flush=True)
    while header := sys.stdin.buffer.readline():
        number, size = map(int, header.split())
        sys.setrecursionlimit(RECURSION[number % len(RECURSION)])
        text = sys.stdin.buffer.read(size).decode("utf-8", "surrogatepass")
        print(json.dumps(read_text(text, start_mb)), flush=True)
    return 0


# ------------------------------------------------------------------------------------------------------ the parent


@dataclass
class Fuzz:
    """A run over the cases of one seed."""

    seed: int
    slack: float = 1.0
    violations: list[dict[str, Any]] = field(default_factory=list)
    slowest: tuple[float, str, int] = (0.0, "", -1)
    most_mb: float = 0.0
    sizes: Counter[str] = field(default_factory=Counter)
    _child: subprocess.Popen[bytes] | None = None
    _held: str = ""  # what the child has written of its next lines

    def read(self, number: int) -> None:
        """One case, in the child; a new child after a crash."""
        said = self._ask(number)
        if isinstance(said, str):
            self.violation(number, said)
            return
        for name, error in said["raised"].items():
            self.violation(number, f"{name} raised {error}")
        name, seconds = max(said["seconds"].items(), key=lambda entry: entry[1])
        self.slowest = max(self.slowest, (seconds, name, number))
        if seconds > LIMIT_S * self.slack:
            self.violation(number, f"{name} computed for {seconds:.1f} s")
        self.most_mb = max(self.most_mb, said["mb"])
        if said["mb"] > LIMIT_MB:
            self.violation(number, f"{said['mb']:.0f} MB above the start")
            self.close()
        self.sizes[f"1e{len(str(said['characters'])) - 1}"] += 1

    def violation(self, number: int, what: str) -> None:
        text = model_text(self.seed, number)
        self.violations.append({"case": number, "what": what, "characters": len(text), "text": text[:200]})
        again = f"python scripts/fuzz_model_text.py --seed {self.seed} --case {number}"
        print(f"VIOLATION case {number}: {what} | {text[:80]!r} | {again}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child, self._held = None, ""

    def _ask(self, number: int) -> dict[str, Any] | str:
        if self._child is None:
            command = [sys.executable, __file__, "--child"]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            while self._line() not in ("ready", None):
                pass
        assert self._child.stdin is not None
        reading = "the pipe"
        content = model_text(self.seed, number).encode("utf-8", "surrogatepass")
        try:
            self._child.stdin.write(f"{number} {len(content)}\n".encode() + content)
            self._child.stdin.flush()
            while (line := self._line()) is not None:
                if not line.startswith("> "):
                    said: dict[str, Any] = json.loads(line)
                    return said
                reading = line[2:]
        except (BrokenPipeError, TimeoutError) as error:
            self.close()
            return f"{reading}: stuck for {STUCK_S:g} s" if isinstance(error, TimeoutError) else f"{reading}: pipe"
        code = self._child.wait()
        self._child = None
        return f"{reading}: the process ended with exit code {code}"

    def _line(self) -> str | None:
        """The child's next line; None at its end. Raises TimeoutError."""
        assert self._child is not None and self._child.stdout is not None
        while "\n" not in self._held:
            if not select.select([self._child.stdout], [], [], STUCK_S)[0]:
                raise TimeoutError
            piece = os.read(self._child.stdout.fileno(), 65536)
            if not piece:
                return None
            self._held += piece.decode()
        line, _, self._held = self._held.partition("\n")
        return line

    def report(self, cases: int) -> dict[str, Any]:
        seconds, name, number = self.slowest
        return {
            "cases": cases,
            "seed": self.seed,
            "violations": self.violations,
            "slowest": {"seconds": seconds, "reader": name, "case": number},
            "most_mb_above_start": self.most_mb,
            "parent_mb": round(memory_mb("VmHWM")),
            "characters": dict(sorted(self.sizes.items())),
        }


def numbers(first: int, cases: int) -> Iterator[int]:
    """The case numbers, with a line of progress now and then."""
    began, told = time.monotonic(), time.monotonic()
    for number in range(first, cases):
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{number}/{cases} cases, {told - began:.0f} s", file=sys.stderr, flush=True)
        yield number


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the 2 s, for busy machines")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--case", type=int, help="read this case here, and say what each reader took")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the progress in FILE, and go on from it")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return child()
    if options.case is not None:
        text = model_text(options.seed, options.case)
        sys.setrecursionlimit(RECURSION[options.case % len(RECURSION)])
        print(f"{text[:300]!r}", flush=True)
        print(json.dumps(read_text(text, memory_mb("VmRSS")), indent=1))
        return 0
    fuzz, first = Fuzz(options.seed, options.slack), 0
    if options.resume and options.resume.exists():
        kept = json.loads(options.resume.read_text(encoding="utf-8"))
        if kept["seed"] != options.seed:
            parser.error(f"{options.resume} is of seed {kept['seed']}; give --seed {kept['seed']}, or another file")
        first, fuzz.violations, fuzz.most_mb = kept["cases"], kept["violations"], kept["most_mb_above_start"]
        slow = kept["slowest"]
        fuzz.slowest = (slow["seconds"], slow["reader"], slow["case"])
        fuzz.sizes.update(kept["characters"])
    try:
        for number in numbers(first, options.cases):
            fuzz.read(number)
            if options.resume and number % 50 == 49:
                keep(options.resume, fuzz.report(number + 1))
    finally:
        fuzz.close()
    report = fuzz.report(options.cases)
    if options.resume:
        keep(options.resume, report)
    print(json.dumps(report, indent=1) if options.json else told(report))
    return 1 if fuzz.violations else 0


def keep(path: Path, report: dict[str, Any]) -> None:
    """Write the progress beside the file, then rename."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(json.dumps(report), encoding="utf-8")
    beside.replace(path)


def told(report: dict[str, Any]) -> str:
    slow = report["slowest"]
    return (
        f"{report['cases']} cases, {len(report['violations'])} violations; "
        f"slowest {slow['seconds']:.2f} s ({slow['reader']}, case {slow['case']}); "
        f"{report['most_mb_above_start']:.0f} MB above the start at most; characters {report['characters']}"
    )


if __name__ == "__main__":
    sys.exit(main())
