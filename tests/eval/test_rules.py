"""The named rules: what holds for all pairs of results, and what each published rule is known for."""

import json
import random
import sqlite3
import time
from collections import Counter
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql.errors import UsageError
from nl2sql.eval.rules import RULES, get_rule, order_keys
from nl2sql.eval.rules.published import soft_f1
from nl2sql.interfaces import RunResult

FIXTURES = Path(__file__).parent.parent / "fixtures"
PREPARED = [
    tuple(part.encode().decode("unicode_escape") for part in line.split(" => "))
    for line in (FIXTURES / "rules_prepared.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
PUBLISHED = [json.loads(line) for line in (FIXTURES / "rules_verdicts.jsonl").read_text(encoding="utf-8").splitlines()]
SELECT = {"gold_sql": "SELECT a", "predicted_sql": "SELECT b"}
ORDERED = {"gold_sql": "SELECT a FROM t ORDER BY hidden", "predicted_sql": "SELECT a"}
EVERY = [*RULES, "bag~1e-3"]


def result(rows, width=None):
    width = width if width is not None else len(rows[0])
    return RunResult(True, tuple(f"c{i}" for i in range(width)), tuple(map(tuple, rows)))


def judge(name, gold, predicted, **about):
    about = about or SELECT
    return get_rule(name).judge([gold], [predicted], **about)


cells = st.one_of(
    st.none(), st.integers(-2, 2), st.sampled_from([0.5, 1.0, 1 / 3]), st.sampled_from("ab"), st.just(b"a")
)
tables = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[cells] * width), min_size=1, max_size=6))
pairs = st.integers(1, 3).flatmap(lambda width: st.tuples(*[st.lists(st.tuples(*[cells] * width), max_size=4)] * 2))


def shuffled(rows, rng, *, columns, order):
    places, rows = list(range(len(rows[0]))), list(rows)
    if columns:
        rng.shuffle(places)
    if order:
        rng.shuffle(rows)
    return result([tuple(row[place] for place in places) for row in rows])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("about", [SELECT, ORDERED], ids=["any order", "ordered"])
@settings(deadline=None)
@given(rows=tables)
def test_every_result_equals_itself(name, about, rows):
    assert judge(name, result(rows), result(rows), **about)


@pytest.mark.parametrize("name", ["bag", "bag~1e-3", "spider", "bird-set"])
@pytest.mark.parametrize("about", [SELECT, ORDERED], ids=["any order", "ordered"])
@settings(deadline=None)
@given(pair=pairs)
def test_a_match_is_symmetric(name, about, pair):
    one, other = (result(rows, width=3) for rows in pair)
    assert judge(name, one, other, **about) == judge(name, other, one, **about)


@pytest.mark.parametrize(("name", "columns"), [("bag", 1), ("bag~1e-3", 1), ("bird-set", 0), ("defog-subset", 1)])
@settings(deadline=None)
@given(rows=tables, rng=st.randoms(use_true_random=False))
def test_the_order_of_rows_and_of_columns_is_free_where_the_rule_says_so(name, columns, rows, rng):
    if name == "defog-subset":  # goes by names: the columns move with them
        places = rng.sample(range(len(rows[0])), len(rows[0]))
        moved = RunResult(
            True, tuple(f"c{p}" for p in places), tuple(tuple(row[p] for p in places) for row in reversed(rows))
        )
    else:
        moved = shuffled(rows, rng, columns=columns, order=True)
    assert judge(name, result(rows), moved)


@settings(deadline=None)
@given(rows=tables, rng=st.randoms(use_true_random=False))
def test_spider_frees_the_order_of_rows_and_of_columns(rows, rng):
    assert judge("spider", result(rows), shuffled(rows, rng, columns=True, order=True))
    assert judge("spider", result(rows), shuffled(rows, rng, columns=True, order=False), **ORDERED)


def brute_force_spider(gold, predicted, ordered):
    if not gold and not predicted:
        return True
    if len(gold) != len(predicted) or len(gold[0]) != len(predicted[0]):
        return False

    def unordered(rows):
        return [tuple(sorted(row, key=lambda x: str(x) + str(type(x)))) for row in rows]

    ours, theirs = unordered(gold), unordered(predicted)
    if (ours != theirs) if ordered else (set(ours) != set(theirs)):
        return False
    moved = ([tuple(row[c] for c in order) for row in predicted] for order in permutations(range(len(gold[0]))))
    return any(rows == gold if ordered else Counter(rows) == Counter(gold) for rows in moved)


@settings(deadline=None)
@given(pair=pairs, ordered=st.booleans(), rng=st.randoms(use_true_random=False), alike=st.booleans())
def test_spider_finds_what_trying_all_orders_of_columns_finds(pair, ordered, rng, alike):
    gold, predicted = pair
    if alike and gold:
        predicted = list(shuffled(gold, rng, columns=True, order=not ordered).rows)
        row = rng.randrange(len(gold))
        predicted[row] = tuple(reversed(predicted[row]))
    about = ORDERED if ordered else SELECT
    width = len(gold[0]) if gold else 1
    found = judge("spider", result(gold, width), result(predicted, width), **about)
    assert found == brute_force_spider(gold, predicted, ordered)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("width", [9, 14, 40])
@pytest.mark.parametrize("same", [True, False])
def test_look_alike_columns_take_no_time(name, width, same):
    rng = random.Random(width)
    rows = [tuple(rng.choices((0, 1), k=width)) for _ in range(50)]
    other = shuffled(rows, rng, columns=True, order=True).rows
    if not same:  # every column and, by its cells, every row is kept
        i, j = next(
            (i, j) for i, a in enumerate(other) for j, b in enumerate(other) if a[:2] == (0, 1) and b[:2] == (1, 0)
        )
        other = list(other)
        other[i], other[j] = (1, 0, *other[i][2:]), (0, 1, *other[j][2:])
    began = time.perf_counter()
    verdict = judge(name, result(rows), result(other))
    assert time.perf_counter() - began < 10
    if name in ("bag", "bag~1e-3", "spider"):
        assert verdict is same


@pytest.mark.parametrize("name", EVERY)
def test_identical_columns_take_no_time(name):
    rows = [(n % 2,) * 12 for n in range(400)]
    began = time.perf_counter()
    assert judge(name, result(rows), result(rows))
    assert judge(name, result(rows), result(rows[::-1])) or name == "bird-soft-f1"
    assert time.perf_counter() - began < 5


# ------------------------------------------------------------------------------------------------- the tolerance


@settings(deadline=None)
@given(rows=tables, rng=st.randoms(use_true_random=False))
def test_a_tolerance_only_adds_matches(rows, rng):
    moved = shuffled(rows, rng, columns=True, order=True)
    near = [tuple(c * (1 + rng.uniform(-4e-4, 4e-4)) if isinstance(c, float) else c for c in row) for row in moved.rows]
    assert judge("bag~1e-3", result(rows), moved)
    assert judge("bag~1e-3", result(rows), result(near))


@pytest.mark.parametrize(
    ("gold", "predicted", "close"),
    [
        ([(3.14159,)], [(3.14,)], True),
        ([(3.14159,)], [(3.1,)], False),
        ([(1000,)], [(1001,)], False),
        ([(1000,)], [(1000.5,)], True),
        ([("3.14159",)], [("3.14",)], False),
        ([(None,)], [(0.0001,)], False),
        ([(float("inf"),)], [(1.5,)], False),
        ([(n / 1000 + 0.5,) for n in range(1000)], [(n / 1000 + 0.9,) for n in range(1000)], False),
        ([(0.5, "a"), (0.5001, "b")], [("b", 0.5), ("a", 0.5001)], True),
        ([(1.0005, 2.5), (1.0001, 9.5)], [(1.0002, 2.5), (1.0004, 9.5)], True),
    ],
)
def test_what_is_close_under_a_stated_tolerance(gold, predicted, close):
    assert judge("bag~1e-3", result(gold), result(predicted)) is close


@pytest.mark.parametrize("name", ["bags", "bag~", "bag~0", "bag~2", "bag~x", ""])
def test_an_unknown_rule_is_one_clear_line(name):
    with pytest.raises(UsageError, match=r"choose bag, spider, bird-set, .* livesqlbench, or bag~REL"):
        get_rule(name)


# ------------------------------------------------------------------------------------- what published rules do


@pytest.mark.parametrize(("given_sql", "executed"), PREPARED, ids=[line[0] for line in PREPARED])
def test_spider_executes(given_sql, executed):
    assert RULES["spider"].prepare(given_sql) == executed


@settings(deadline=None)
@given(st.text(alphabet="SELECT distinct'\"`;()[]-/*\\ \nend", max_size=60))
def test_no_text_breaks_what_is_done_before_execution(sql):
    for rule in RULES.values():
        assert isinstance(rule.prepare(sql), str) and rule.accepts(sql)


@pytest.mark.parametrize("piece", ["/*", "'", "YEAR(", "(", "[", "\\'", "; ", "{a,", "-- "])
def test_preparing_takes_linear_time(piece):
    began = time.perf_counter()
    for rule in RULES.values():
        rule.prepare(piece * 30_000)
        rule.accepts(piece * 30_000)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("case", PUBLISHED, ids=[case["why"] for case in PUBLISHED])
def test_published_rule(case):
    connection = sqlite3.connect(":memory:")

    def run(sql):
        cursor = connection.execute(sql)
        return RunResult(True, tuple(column[0] for column in cursor.description), tuple(cursor.fetchall()))

    rule = RULES[case["rule"]]
    executed = [[run(rule.prepare(case[side]))] for side in ("gold", "pred")]
    assert rule.judge(*executed, gold_sql=case["gold"]) is case["match"]


def test_defog_accepts_every_choice_of_columns_in_braces():
    gold = "SELECT {a, b} FROM t GROUP BY {}; SELECT ';', '{a, b}' FROM u; -- done"
    accepted = RULES["defog-subset"].accepts(gold)
    assert accepted == (
        "SELECT a FROM t GROUP BY a",
        "SELECT  b FROM t GROUP BY  b",
        "SELECT a,  b FROM t GROUP BY a,  b",
        "SELECT ';', '{a, b}' FROM u",
    )


def test_defog_looks_at_the_order_only_where_the_question_asks_for_one():
    gold, other = result([(1,), (2,)]), result([(2,), (1,)])
    assert judge("defog-subset", gold, other, gold_sql="SELECT a ORDER BY a", question="List a.")
    assert not judge("defog-subset", gold, other, gold_sql="SELECT a ORDER BY a", question="Sort by a.")


def test_soft_f1_gives_points_for_cells():
    assert soft_f1([("a", 1), ("b", 2)], [("a", 1), ("b", 3)]) == pytest.approx(0.75)
    assert soft_f1([("a",)], [("a", 1)]) == pytest.approx(2 / 3)
    assert soft_f1([(1,)], []) == 0 and soft_f1([], [(1,)]) == 0 and soft_f1([], []) == 1
    rule = RULES["bird-soft-f1"]
    gold, half = result([("a", 1)]), result([("a", 2)])
    assert rule.points([gold, gold], [gold, half], gold_sql="") == pytest.approx(0.75)
    assert not rule.judge([gold, gold], [gold, half], gold_sql="")


@settings(deadline=None)
@given(one=tables, other=tables)
def test_soft_f1_lies_between_0_and_1(one, other):
    assert 0 <= soft_f1(one, other) <= 1


def test_a_failing_gold_has_no_verdict_except_for_bird_which_calls_it_wrong():
    failed, fine = RunResult(False, error="no", error_kind="other"), result([(1,)])
    verdicts = {name: rule.verdict([failed], [fine], **SELECT) for name, rule in RULES.items()}
    assert verdicts == {
        "bag": None,
        "spider": None,
        "bird-set": False,
        "bird-soft-f1": False,
        "defog-subset": None,
        "spider2": None,
        "spider2-rows": None,
        "livesqlbench": False,
    }
    assert not any(rule.verdict([fine], [failed], **SELECT) for rule in RULES.values())


def test_a_blank_statement_is_an_empty_result_only_to_those_that_take_it_for_one():
    blank, none = RunResult(False, error="blank", error_kind="empty"), result([], width=1)
    matching = {name for name, rule in RULES.items() if rule.judge([none], [blank], **SELECT)}
    assert matching == {"spider", "bird-set", "bird-soft-f1"}


def test_bag_asks_for_one_column_order_on_all_databases_and_spider_for_one_on_each():
    gold, predicted = [result([(1, 2)]), result([(3, 4)])], [result([(1, 2)]), result([(4, 3)])]
    assert not RULES["bag"].judge(gold, predicted, **SELECT)
    assert RULES["spider"].judge(gold, predicted, **SELECT)


@pytest.mark.parametrize(
    ("sql", "columns", "places"),
    [
        ("SELECT * FROM t ORDER BY name", ("id", "Name"), (1,)),
        ("SELECT name, id FROM t ORDER BY 2, 1", ("name", "id"), (1, 0)),
        ("SELECT count(*) FROM t GROUP BY c ORDER BY count(*) DESC", ("count(*)",), (0,)),
        ("SELECT b.x AS y, a.y FROM a, b ORDER BY a.y", ("y", "y"), (1,)),  # the qualified one, whatever it is called
        ("SELECT id, n FROM t ORDER BY n COLLATE NOCASE DESC, 1", ("id", "n"), (1, 0)),
        ("SELECT a.x, b.x FROM a, b ORDER BY x", ("x", "x"), None),  # which of the two?
        ("SELECT b, a AS b FROM t ORDER BY b", ("b", "b"), (1,)),  # the alias, before the column of that name
        ("SELECT a.x, b.x AS x FROM a, b ORDER BY x", ("x", "x"), (1,)),
        ("SELECT a FROM t ORDER BY b", ("a",), None),  # not in the result
        ("SELECT a FROM t ORDER BY 3", ("a",), None),
        ("SELECT a FROM t", ("a",), None),
        ("SELECT c.* FROM o JOIN c ON o.c = c.id ORDER BY c.day", ("id", "day"), (1,)),
        ("SELECT * FROM o JOIN c ON o.c = c.id ORDER BY c.day", ("id", "day"), (1,)),
        ("SELECT c.* FROM o JOIN c ON o.c = c.id ORDER BY o.day", ("id", "day"), None),  # c has a day, too
    ],
)
def test_where_the_sort_keys_stand_in_the_result(sql, columns, places):
    assert order_keys(sql, columns) == places


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('what?')", r"^rule \S*own\.py:compare: ValueError: what\?$"),
        ("return None", r"^rule \S*own\.py:compare: TypeError: "),
        ("return 2", r"^rule \S*own\.py:compare gave 2 points; expected 0 to 1$"),
        ("return float('nan')", r"gave nan points"),
    ],
)
def test_a_rule_of_ones_own_that_goes_wrong_is_named(body, says, tmp_path):
    (tmp_path / "own.py").write_text(f"def compare(gold, predicted, **texts):\n    {body}\n")
    with pytest.raises(UsageError, match=says):
        judge(f"{tmp_path}/own.py:compare", result([[1]]), result([[2]]))
