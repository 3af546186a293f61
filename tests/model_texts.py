"""Texts of a model that nobody would want: something that opens, repeated; sound answers, cut and mixed."""

from __future__ import annotations

from hypothesis import strategies as st

OPENERS = """
( [ { ` ' " /* -- < <think> ```sql <sql> <tool_call> Action: Action:_x[ Action:_run_sql[{ SQL:_ {"a": \\ 0 1+ 1||
a.b. ~ -_ NOT_ CASE_WHEN_1_THEN_ (SELECT_ (SELECT_*_FROM_ f( cast( IN_( BETWEEN_ EXISTS_( UNION_SELECT_1_ JOIN_a_
a_JOIN_( ,a array< a_AND_ NOT_( WITH_a_AS_( OVER_(ORDER_BY_ COLLATE_a_ a_->_ :a ? ; ;SELECT_1 é 🎉 DATE( STRUCT(a,
VALUES( PIVOT( ]} )) select_*_from_ a=b_ x'00 INTERVAL_ group_concat(DISTINCT_
""".split()  # noqa: SIM905
OPENERS += ["\0", "\x1b[31m", "\ud800"]
BEFORE = (
    "",
    "SELECT ",
    "SELECT * FROM ",
    "Thought: so\nAction: ",
    'Action: run_sql[{"a": ',
    "```sql\nSELECT ",
    "<think>",
)
AFTER = ("", "]", "}]", ")", " FROM customers", "' FROM t;", "*/ 1", "```", "\n]\nAction: finish[{}]", "</think>")
CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
SOUND = (
    'Thought: I need the tables.\nAction: get_table_samples[{"table": "customers", "n": 3}]',
    '<tool_call>\n{"name": "run_sql", "arguments": {"a": [1, {"b": "c"}]}}\n</tool_call>',
    "SELECT c.city, count(*) AS n FROM customers AS c JOIN orders AS o ON o.customer_id = c.id GROUP BY c.city "
    "HAVING count(*) > 3 ORDER BY n DESC LIMIT 2;",
    "```sql\nWITH big AS (SELECT customer_id FROM orders GROUP BY 1) SELECT name FROM customers WHERE id IN big;\n```",
    "The query is: SELECT name FROM customers WHERE city = 'O''Slo' -- of Norway\nIt counts them.",
    "SELECT CASE WHEN total > 5 THEN 'x' ELSE NULL END, cast(a AS int), [b], `c`, \"d\" FROM orders "
    "WHERE a BETWEEN 1 AND 2 UNION SELECT city, sum(total) OVER (PARTITION BY city), 1, 2, 3 FROM orders",
)
_units = st.sampled_from([opener.replace("_", " ") for opener in OPENERS])


def _repeated(before: str, unit: str, times: int, closed: bool, after: str) -> str:
    closing = "".join(CLOSING.get(sign, "") for sign in reversed(unit)) * times
    return f"{before}{unit * times}1{closing if closed else ''}{after}"


def _cut(text: str, start: int, end: int, other: str, times: int) -> str:
    return text[:start] + other * times + text[end:]


_repeats = st.builds(
    _repeated,
    st.sampled_from(BEFORE),
    st.lists(_units, min_size=1, max_size=3).map("".join),
    st.sampled_from((1, 3, 30, 300, 5_000, 50_000)),
    st.booleans(),
    st.sampled_from(AFTER),
)
_mixed = st.builds(
    _cut,
    st.sampled_from(SOUND),
    st.integers(0, 120),
    st.integers(0, 200),
    st.one_of(_units, st.sampled_from(SOUND), st.text(max_size=30)),
    st.sampled_from((0, 1, 2, 40)),
)
MODEL_TEXTS = st.one_of(_repeats, _mixed, st.text())
