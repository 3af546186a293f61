"""The door for a model's texts: what it lets through, what it refuses, and that no reader crashes or hangs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from model_texts import MODEL_TEXTS
from sqlglot.errors import SqlglotError

from nl2sql.agents.checks.candidate import behind_prefill
from nl2sql.agents.checks.constraints import extract_constraints, intent_constraints, validate_constraints
from nl2sql.agents.checks.guardrails import apply_guardrails, clean_candidate_with_reason
from nl2sql.agents.forms import as_action
from nl2sql.agents.turns import parse_action
from nl2sql.benchmarks import load_benchmark
from nl2sql.databases.validation import validate_sql
from nl2sql.eval.rules import RULES, order_keys, order_matters
from nl2sql.repair.analyzer import ErrorAnalyzer
from nl2sql.repair.clause_repairs import DANGLING, DOUBLED, SIGN
from nl2sql.repair.deterministic import autofix
from nl2sql.sql.facets import differing
from nl2sql.sql.features import features, hardness
from nl2sql.sql.parse import (
    MAX_CHARS,
    MAX_NESTING,
    REFUSED,
    bounded,
    decode_json,
    load_json,
    parse_bounded,
    past_limits,
)
from nl2sql.sql.same import exact_match, query_key, same_sql, same_text, tree_key
from nl2sql.sql.text import parse, syntax_error
from nl2sql.vizql.from_sql import structured
from nl2sql.vizql.infer import infer

ASKED = "How many customers of each city ordered more than 3 times, and which are the top 2?"
LIMIT_S = 6.0  # of computing, for one text in one reader
CRASHES = {
    "brackets": "SELECT " + "(" * 6000,
    "closed brackets": "SELECT * FROM " + "(" * 19_000 + "t" + ")" * 19_000,
    "types": "SELECT cast(1 AS " + "array<" * 5_600 + "int" + ">" * 5_600,
    "words": "SELECT " + "CASE " * 7_900,
    "not": "SELECT " + "NOT " * 9_900 + "1",
    "joins": "SELECT * FROM " + "(a JOIN " * 4_900,
}


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", "Action: x[{}]" * 50, "(" * MAX_NESTING, "()" * (MAX_CHARS // 2), "a" * MAX_CHARS]
)
def test_what_is_within_the_limits_stays_as_it_is(text: str) -> None:
    assert past_limits(text) == "" and bounded(text) is text


@pytest.mark.parametrize(
    "text", ["a" * (MAX_CHARS + 1), *("x" + sign * (MAX_NESTING + 1) for sign in "([{"), "(]" * 300]
)
def test_what_is_past_the_limits_is_one_short_line(text: str) -> None:
    assert past_limits(text) and bounded(text).startswith(REFUSED) and len(bounded(text)) < 100
    assert past_limits(bounded(text)) == "" and parse_action(bounded(text))[0] == ""


@pytest.mark.parametrize("text", CRASHES.values(), ids=CRASHES)
def test_no_text_ends_the_process(text: str) -> None:
    """In a child, under the recursion limit that a host program may have set."""
    code = "import sys; sys.setrecursionlimit(10**6); from nl2sql.sql import parse, text, features, same\n"
    code += "t = sys.stdin.read(); print(text.parse(t), features.features(t)['joins'], same.exact_match('SELECT 1', t))"
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, ["None", "unknown", "False"]), done.stderr[-300:]


def test_the_parser_itself_counts_what_nests() -> None:
    with pytest.raises(SqlglotError, match="brackets or"):
        parse_bounded("SELECT ')' || (" + "'(' || (" * 300 + "1" + ")" * 301)
    with pytest.raises(SqlglotError, match="words that may nest"):
        parse_bounded("SELECT " + "NOT " * 2000 + "1")
    with pytest.raises(SqlglotError, match="tokens; at most"):
        parse_bounded("SELECT 1" + ", 1" * 6_000)
    assert len(parse_bounded("SELECT 1" + ", '('" * 900).expressions) == 901


def test_many_broken_actions_take_linear_time() -> None:
    started = time.thread_time()
    for text in ("Action: x[" * 9000, "Action: x[[" * 190, 'Action: x["' * 9000, "Action:" + " " * 90_000, "x" * 2**23):
        assert parse_action(text)[0] == "" and as_action(text) == (text, 0)
    assert time.thread_time() - started < 2
    assert parse_action("Action: x[" * 150 + '{"a": 1}]') == ("x", {"a": 1}, "")
    assert parse_action("[" * 300)[2].startswith("past_limits: 300 [ open at once")


def test_json_is_counted_as_json_counts() -> None:
    deep = "[" * 201 + "]" * 201
    for text in (deep, '["]",' * 201 + "1" + "]" * 201, '{"a":' * 201 + "1" + "}" * 201):
        with pytest.raises(ValueError, match="more than 200"):
            decode_json(text)
    wide = [["["] * 300, '"\\"['] * 3
    assert load_json(f" {json.dumps(wide)}\n") == wide
    with pytest.raises(ValueError, match="behind"):
        load_json("{} {}")


def test_a_query_that_doubles_is_read_and_not_planned() -> None:
    ctes = ", ".join(f"c{n + 1} AS (SELECT 1 FROM c{n} UNION ALL SELECT 1 FROM c{n})" for n in range(40))
    started = time.thread_time()
    assert syntax_error(f"WITH c0 AS (SELECT 1), {ctes} SELECT * FROM c40") is None
    assert syntax_error("SELECT * FORM t") == 'near "FORM": syntax error'
    assert time.thread_time() - started < 1


def test_scoring_reads_hostile_texts_as_other_texts() -> None:
    started = time.thread_time()
    for text in ("[" * 90_000, "/*" * 45_000, "(" * 45_000 + ")" * 45_000, "a " * 2**21):
        assert not exact_match("SELECT 1", text) and not same_text("SELECT 1", text)
        order_matters("SELECT ORDER BY " + text)  # in time
        assert features(text)["joins"] == "unknown"
    assert time.thread_time() - started < 4


def test_guardrails_call_it_junk() -> None:
    assert clean_candidate_with_reason("SELECT " + "(" * 300 + "1 FROM t") == (None, "junk")
    assert clean_candidate_with_reason(bounded("x" * 2**23)) == (None, "junk")


def test_blanks_do_not_slow_repairs_down() -> None:
    started = time.thread_time()
    for form in (SIGN, DOUBLED, DANGLING):
        assert form.search("SELECT a" + " " * 20_000 + "b") is None
    assert time.thread_time() - started < 1
    assert SIGN.findall("a , b  AS c") == [" ,", "  AS"]


@pytest.fixture(scope="module")
def readers() -> dict[str, Callable[[str], object]]:
    """Everything that reads a model's text, by name."""
    benchmark = load_benchmark("packaged")
    asked = benchmark.questions[0]
    database, gold = benchmark.database(asked.db_id), asked.gold[0]
    schema, source, demanded = database.schema(), infer(database), extract_constraints(ASKED)
    return {
        "parse_action": parse_action,
        "native": lambda text: parse_action(as_action(text)[0]),
        "guardrails": lambda text: apply_guardrails(behind_prefill("SELECT", text), ASKED, schema),
        "validation": lambda text: validate_sql(text, schema),
        "constraints": lambda text: validate_constraints(text, demanded, schema),
        "intent": lambda text: intent_constraints(ASKED, text, schema),
        "repair": lambda text: autofix(text, "no such column: nowhere", database, schema),
        "guidance": lambda text: ErrorAnalyzer().analyze_error(f"near {text[:200]!r}: syntax error", text, schema),
        "EM": lambda text: (exact_match(gold, text), same_text(gold, text), same_sql(gold, text)),
        "keys": lambda text: (query_key(text), tree_key(text)),
        "features": lambda text: (features(text), hardness(text)),
        "order": lambda text: (order_matters(text), order_keys(text, ("a", "b"))),
        "rules": lambda text: [rule.prepare(text) for rule in RULES.values()],
        "facets": lambda text: differing(gold, text, schema),
        "structured": lambda text: structured(text, source),
    }


@pytest.mark.parametrize("recursion", [1000, 50_000])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=MODEL_TEXTS)
def test_no_text_of_a_model_makes_a_reader_raise_or_hang(
    readers: dict[str, Callable[[str], object]], recursion: int, text: str
) -> None:
    """A program that uses the package may have set a higher recursion limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(recursion)
    try:
        for name, reader in readers.items():
            started = time.thread_time()
            reader(text)
            assert time.thread_time() - started < LIMIT_S, name
    finally:
        sys.setrecursionlimit(before)


def test_a_long_text_is_not_mended() -> None:
    database = load_benchmark("packaged").database("chess_league")
    started = time.thread_time()
    for text in ("SELECT " + ":a" * 45_000, "SELECT a" + " a=b" * 22_000):
        assert autofix(text, "no such column: a", database, database.schema()) is None
    assert time.thread_time() - started < 0.5


@pytest.mark.parametrize("unit", ["DATE(", "CHAR(a, ", "STRUCT(a, ", "a -> ENUM(", "INT (", "TIME/**/("])
@pytest.mark.parametrize("dialect", ["sqlite", "postgres", "clickhouse"])
def test_calls_of_types_in_one_another_are_counted(unit: str, dialect: str) -> None:
    started = time.thread_time()
    with pytest.raises(SqlglotError, match="calls of types"):
        parse_bounded("SELECT " + unit * 40 + "1" + ")" * 40, dialect)
    assert parse("SELECT " + unit * 40 + "1" + ")" * 40) is None
    assert time.thread_time() - started < 1
    assert parse_bounded("SELECT " + ", ".join(["DATE(DATE(a))"] * 40), dialect)
