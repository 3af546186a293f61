"""The previous query, changed as a follow-up of a few words asks, where the words can mean one thing only.

After ``SELECT COUNT(*) FROM customers WHERE country = 'Germany'`` on ``scale_models``:

- "and Norway?", "only shipped": a value that a column of the query's tables holds, in the place of the value that the
  column is compared with, else as one more condition;
- "per status", "split it by city": a group for each, with the query's figures, else with a count;
- "how many is that?": a count of the rows; "make that the sum": another aggregate of the same column;
- "top 3 instead": another LIMIT; "price too": one more column.

A small model answers these worse than the rule does, and everything else better (docs/sessions.md). Every result
compiles on the database. Not covered: set operations, subqueries (but for a count), columns of tables that the query
does not join, negations ("not Norway").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.agents.context.grounding import Match, ground
from nl2sql.databases.schema import Schema
from nl2sql.databases.validation import validate_sql
from nl2sql.errors import Nl2SqlError
from nl2sql.interfaces import Database
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import as_digits, stem, words

MOST_WORDS = 4
_FILLER = frozenset(
    words(
        "and what about how only just now then but or so ok okay please the those these this ones one in for of from "
        "with at on that are is were was it them they i mean meant make show me instead though rather sorry again"
    )
)
_COUNT = re.compile(
    r"(?:and |so |ok )?(?:how many|(?:the )?(?:number|count) of|count)"
    r"(?: (?:is|are|that|there|they|them|those|these|it|rows))*"
)
_LIMIT = re.compile(r"(?:and |only |just |the |show )*(?:top|first) (\d+)(?: instead| only| please)?")
_GROUP = re.compile(
    r"(?:and |now |please |split |grouped? |broken |break |show )*(?:it |that |them |those )?(?:down |up )?"
    r"(?:by|per|for each|in each|of each) (.+)"
)
_BY = re.compile(r"(?:and |now |please )*by ")  # of a list of rows: their order, or a group?
_COLUMN = re.compile(r"(?:and )?(?:their |its |the )?(.+) (?:too|as well|also)|(?:and )?also (?:their |its |the )?(.+)")
_AGGREGATES: dict[str, type[exp.AggFunc]] = {
    **dict.fromkeys(("sum", "total"), exp.Sum),
    **dict.fromkeys(("average", "mean", "avg"), exp.Avg),
    **dict.fromkeys(("maximum", "max"), exp.Max),
    **dict.fromkeys(("minimum", "min"), exp.Min),
}


def edited(question: str, sql: str, database: Database) -> str:
    """``sql`` as ``question`` changes it; "" where the question has more than ``MOST_WORDS`` words, or says anything
    else. Raises nothing: a query that cannot be read is not edited."""
    phrase = as_digits(" ".join(words(question)))
    if not phrase or len(phrase.split()) > MOST_WORDS:
        return ""
    try:
        schema, before = database.schema(), parse_bounded(sql, database.dialect)
        if not isinstance(before, exp.Select):
            return ""
        query = _Query(before.copy(), schema)
        ways: list[Callable[[], bool]] = [lambda: bool(_COUNT.fullmatch(phrase)) and query.count()]
        if len(list(before.find_all(exp.Query))) == 1:
            ways += [
                lambda: (match := _LIMIT.fullmatch(phrase)) is not None and query.limit(int(match[1])),
                lambda: (
                    (match := _GROUP.fullmatch(phrase)) is not None
                    and query.group(match[1], ordered=_BY.match(phrase) is not None)
                ),
                lambda: query.aggregate([word for word in words(phrase) if word not in _FILLER]),
                lambda: (match := _COLUMN.fullmatch(phrase)) is not None and query.show(match[1] or match[2]),
                lambda: query.filter(question, ground(question, database, 6)),
            ]
        if not any(way() for way in ways) or query.tree == before:
            return ""
        changed = query.tree.sql(dialect=database.dialect)
        return changed if validate_sql(changed, schema, database)["valid"] else ""
    except (SqlglotError, Nl2SqlError):
        return ""


class _Query:
    """One SELECT that is edited in place; each method says whether it could."""

    def __init__(self, tree: exp.Select, schema: Schema) -> None:
        self.tree, self.schema = tree, schema
        self.aggregates = [each for each in tree.expressions if each.find(exp.AggFunc)]
        self.shaped = any(tree.args.get(part) for part in ("group", "having", "limit", "distinct"))

    def count(self) -> bool:
        if self.shaped or self.aggregates:
            return False
        self._clear_order([exp.Count(this=exp.Star())])
        return True

    def limit(self, rows: int) -> bool:
        if not (self.tree.args.get("limit") and self.tree.args.get("order")):
            return False
        self.tree.limit(rows, copy=False)
        return True

    def group(self, phrase: str, *, ordered: bool) -> bool:
        column = self.column(words(phrase))
        if self.shaped or column is None or (ordered and not self.aggregates):
            return False
        self._clear_order([column, *(self.aggregates or [exp.Count(this=exp.Star())])])
        self.tree.group_by(column.copy(), copy=False)
        return True

    def aggregate(self, phrase: Sequence[str]) -> bool:
        if len(phrase) != 1 or phrase[0] not in _AGGREGATES or len(self.aggregates) != 1:
            return False
        old = self.aggregates[0].find(exp.AggFunc)
        if not isinstance(old, exp.Sum | exp.Avg | exp.Max | exp.Min) or not isinstance(old.this, exp.Column):
            return False
        old.replace(_AGGREGATES[phrase[0]](this=old.this.copy()))
        return True

    def show(self, phrase: str) -> bool:
        column = self.column(words(phrase))
        if self.aggregates or self.tree.args.get("group") or column is None or column in self.tree.expressions:
            return False
        self.tree.select(column, copy=False)
        return True

    def filter(self, question: str, matches: Sequence[Match]) -> bool:
        """One value, which is all that the question says beside filler and the words of its column and table."""
        if not matches:
            return False
        start, end = matches[0].start, matches[0].end
        held = [(match, column) for match in matches if (match.start, match.end) == (start, end)
                if (column := self.place(match.table, match.column))]  # fmt: skip
        compared = [each for each in held if self._compared(each[1])]
        chosen = compared or held
        if len(chosen) != 1:
            return False
        match, column = chosen[0]
        named = {stem(word) for word in words(f"{match.table} {match.column}")}
        rest = words(f"{question[:start]} {question[end:]}")
        if any(word not in _FILLER and stem(word) not in named for word in rest):
            return False
        value = exp.Literal.string(match.value)
        if condition := self._compared(column):
            condition.set("expression", value)
        elif self._speaks_of(column):
            return False
        else:
            self.tree.where(exp.EQ(this=column, expression=value), copy=False)
        return True

    def column(self, phrase: Sequence[str]) -> exp.Column | None:
        """The one column of the query's tables that a phrase names: whole, with its table, or by a part of its name."""
        stems = {stem(word) for word in phrase}
        names = []
        for table in filter(None, (self.schema.table(each.name) for each in self.tree.find_all(exp.Table))):
            of = {stem(word) for word in words(table.name)}
            names += [(table.name, each.name, {stem(word) for word in words(each.name)}, of) for each in table.columns]
        whole = [(table, name) for table, name, own, of in names if stems == own or stems == own | of]
        found = whole or [(table, name) for table, name, own, _ in names if stems and stems <= own]
        return self.place(*found[0]) if len(found) == 1 else None

    def place(self, table: str, column: str) -> exp.Column | None:
        """A column as this query writes it; None for a table that it does not read, or reads twice."""
        tables = list(self.tree.find_all(exp.Table))
        mine = [each for each in tables if each.name.lower() == table.lower()]
        if len(mine) != 1:
            return None
        return exp.column(
            column, table=mine[0].alias_or_name if len(tables) > 1 else None, quoted=not column.isidentifier()
        )

    def _compared(self, column: exp.Column) -> exp.EQ | None:
        """The one comparison of ``column`` with a literal; None where there is none, or it stands below OR or NOT."""
        where = self.tree.args.get("where")
        if where is None:
            return None
        found = [each for each in where.find_all(exp.EQ) if isinstance(each.this, exp.Column)
                 and each.this.name.lower() == column.name.lower() and isinstance(each.expression, exp.Literal)
                 and each.this.table.lower() in ("", column.table.lower())]  # fmt: skip
        return found[0] if len(found) == 1 and not where.find(exp.Or, exp.Not) else None

    def _speaks_of(self, column: exp.Column) -> bool:
        where = self.tree.args.get("where")
        return where is not None and any(
            each.name.lower() == column.name.lower() for each in where.find_all(exp.Column)
        )

    def _clear_order(self, shown: Sequence[exp.Expr]) -> None:
        self.tree.set("order", None)
        self.tree.set("expressions", list(shown))
