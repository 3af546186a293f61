"""The shape of a query: the structures that the gates compare with a question, read from the sqlglot AST.

>>> sorted(read_shape("SELECT city, COUNT(*) FROM customers GROUP BY city").aggregates)
['COUNT']

A ``QueryShape`` is facts only. Columns are resolved through table aliases and, where a schema is given, to their
declared type and key. Not covered: views' base tables, and columns that come out of derived tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlglot import exp

from nl2sql.databases.schema import Column, Schema, Table
from nl2sql.sql.canonical import branches
from nl2sql.sql.parse import remember_short
from nl2sql.sql.text import is_plural, letter_words, parse, singular

_IDENTITY = frozenset({"id", "name", "title", "code", "key", "label", "ssn", "email"})
_RANKING = (exp.Rank, exp.DenseRank, exp.Ntile, exp.RowNumber, exp.PercentRank, exp.CumeDist, exp.Lag, exp.Lead,
            exp.FirstValue, exp.LastValue, exp.NthValue)  # fmt: skip
_NUMERIC = ("INT", "REAL", "FLOA", "DOUB", "NUM", "DEC", "NUMBER", "MONEY")


def name_words(name: str) -> frozenset[str]:
    """The words inside an identifier: ``numFloors``, ``num_floors`` -> {"num", "floors"}, also their singulars."""
    plain = set(letter_words(name))
    return frozenset(plain | {singular(w) for w in plain})


@dataclass(frozen=True)
class ColumnUse:
    """A column where a query uses it. ``column`` is None when no schema says more than the name."""

    name: str
    table: str
    qualifier: str = ""  # as written, lower case
    column: Column | None = None
    unique: bool = False  # the only primary-key column of its table
    foreign: bool = False
    derived: bool = False  # a schema is there and does not have it: the output of a derived table

    @property
    def words(self) -> frozenset[str]:
        return name_words(self.name)

    @property
    def identity(self) -> bool:
        """A column that names its row: a key, or called so (``name``, ``title``, the table's own name)."""
        name = self.name.lower()
        called_so = name == self.table or (not is_plural(name) and singular(name) == singular(self.table))
        return self.unique or bool(self.words & _IDENTITY) or called_so

    @property
    def plural(self) -> bool:
        """Named in the plural, as counts often are."""
        return not self.identity and any(map(is_plural, letter_words(self.name)))

    @property
    def id_like(self) -> bool:
        return bool(self.words & {"id", "code", "key"}) or self.name.lower().endswith("id")

    @property
    def measure(self) -> bool:
        """A number that is no key: it can be a stored count, total or average."""
        if self.column is None or self.unique or self.foreign or self.column.primary_key:
            return False
        return self.column.type.upper().startswith(_NUMERIC) and not self.id_like


@dataclass(frozen=True)
class QueryShape:
    """Structures of one parsed query. ``legs`` are the outermost SELECTs (several under a set operation)."""

    tree: exp.Expr
    legs: tuple[exp.Select, ...]
    aggregates: frozenset[str]  # names anywhere, window functions included
    projected_aggregates: frozenset[str]  # in the outermost SELECT lists, or in what they select from
    columns: tuple[ColumnUse, ...]
    projected: tuple[ColumnUse, ...]  # columns outside aggregates in the outermost SELECT lists
    joined: tuple[tuple[ColumnUse, ColumnUse], ...]  # columns set equal to each other
    tables: tuple[str, ...]
    star: bool
    window: bool
    ranked: bool
    group: bool
    order: bool
    has_limit: bool
    distinct: bool
    set_operation: str  # "", union, intersect, except
    subquery: bool
    correlated: bool
    negated: bool  # NOT IN, NOT EXISTS, EXCEPT, ALL: ways to say "none is greater"
    numbers: frozenset[float]
    strings: frozenset[str]
    arithmetic: bool  # in the outermost SELECT lists
    scaled: bool  # two given numbers are multiplied or divided, as in hypothetical questions
    derived_tables: int

    @cached_property
    def _uses(self) -> dict[tuple[str, str], ColumnUse]:
        return {(use.qualifier, use.name.lower()): use for use in self.columns}

    def use(self, column: exp.Column) -> ColumnUse | None:
        """What a column of the query is, as it is written there."""
        return self._uses.get((column.table.lower(), column.name.lower()))


def read_shape(sql: str, schema: Schema | None = None) -> QueryShape | None:
    """The shape of a SELECT, or None where sqlglot cannot parse it (the gates then abstain)."""
    tree = _query(sql)
    return None if tree is None else _shape(tree, schema)


@remember_short(256)
def _query(sql: str) -> exp.Query | None:
    tree = parse(sql)
    return tree if isinstance(tree, exp.Query) else None


def _sources(leg: exp.Select) -> Iterator[exp.Select]:
    """The SELECTs of derived tables and common table expressions inside a leg, or beside it."""
    for select in leg.root().find_all(exp.Select):
        holder = select.find_ancestor(exp.Subquery, exp.CTE)
        if isinstance(holder, exp.CTE) or (holder and isinstance(holder.parent, (exp.From, exp.Join))):
            yield select


def is_aggregate_call(node: exp.Expr) -> bool:
    """An aggregate function call (ranking window functions are not)."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).upper() == "TOTAL"
    return isinstance(node, exp.AggFunc) and not isinstance(node, _RANKING)


def aggregate_name(node: exp.Expr) -> str:
    return node.sql_name().upper() if isinstance(node, exp.Func) and not isinstance(node, exp.Anonymous) else "SUM"


def bare_columns(projection: exp.Expr) -> Iterator[exp.Column]:
    """Columns of a projection outside any aggregate, window or subquery."""
    stack = [projection]
    while stack:
        node = stack.pop()
        if is_aggregate_call(node) or isinstance(node, (exp.Window, exp.Query)):
            continue
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            yield node
        inside = [node.this] if isinstance(node, (exp.Filter, exp.WithinGroup)) else node.iter_expressions()
        stack += list(inside)


def _shape(tree: exp.Expr, schema: Schema | None) -> QueryShape:
    legs = tuple(branches(tree))
    aliases: dict[str, str] = {}
    tables: list[str] = []
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        tables.append(table.name.lower())
        aliases[table.alias_or_name.lower()] = table.name.lower()
    resolve = _resolver(schema, aliases, tables)

    shown = [projection for leg in legs for projection in leg.expressions]
    selected = [p for leg in legs for source in (leg, *_sources(leg)) for p in source.expressions]
    operation = tree.find(exp.SetOperation)
    subqueries = [s for s in tree.find_all(exp.Select) if s not in legs]
    literals = list(tree.find_all(exp.Literal))
    return QueryShape(
        tree=tree,
        legs=legs,
        aggregates=_aggregates([tree]),
        projected_aggregates=_aggregates(selected),
        columns=tuple(resolve(c) for c in tree.find_all(exp.Column)),
        projected=tuple(resolve(c) for projection in shown for c in bare_columns(projection)),
        joined=tuple(
            (resolve(e.left), resolve(e.right))
            for e in tree.find_all(exp.EQ)
            if isinstance(e.left, exp.Column) and isinstance(e.right, exp.Column)
        ),
        tables=tuple(t for t in tables if t not in ctes),
        star=any(p.is_star or isinstance(p, exp.Star) for p in shown),
        window=tree.find(exp.Window) is not None,
        ranked=any(isinstance(n, _RANKING) for n in tree.walk()),
        group=tree.find(exp.Group) is not None,
        order=tree.find(exp.Order) is not None,
        has_limit=tree.find(exp.Limit, exp.Fetch) is not None,
        distinct=tree.find(exp.Distinct) is not None,
        set_operation=type(operation).__name__.lower() if operation else "",
        subquery=bool(subqueries),
        correlated=any(_correlated(s) for s in subqueries),
        negated=_negated(tree),
        numbers=frozenset(float(x.this) for x in literals if not x.is_string and _is_number(x.this)),
        strings=frozenset([str(x.this).lower() for x in literals if x.is_string])
        | frozenset(c.name.lower() for c in tree.find_all(exp.Column) if c.this.args.get("quoted")),
        arithmetic=any(p.find(exp.Add, exp.Sub, exp.Mul, exp.Div) is not None for p in shown),
        scaled=any(
            isinstance(n.left, exp.Literal) and isinstance(n.right, exp.Literal)
            for n in tree.find_all(exp.Mul, exp.Div)
        ),
        derived_tables=sum(isinstance(s.parent, (exp.From, exp.Join)) for s in tree.find_all(exp.Subquery)),
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _aggregates(nodes: Sequence[exp.Expr]) -> frozenset[str]:
    return frozenset(aggregate_name(n) for node in nodes for n in node.walk() if is_aggregate_call(n))


def _correlated(select: exp.Select) -> bool:
    """Whether a subquery names a table of a query around it (unqualified columns are taken as its own)."""
    own = {t.alias_or_name.lower() for t in select.find_all(exp.Table)}
    own |= {s.alias.lower() for s in select.find_all(exp.Subquery) if s.alias}
    return any(c.table and c.table.lower() not in own for c in select.find_all(exp.Column))


def _negated(tree: exp.Expr) -> bool:
    if tree.find(exp.Except, exp.All, exp.Any) is not None:
        return True
    return any(isinstance(n.this, (exp.In, exp.Exists, exp.Paren)) for n in tree.find_all(exp.Not))


def _resolver(
    schema: Schema | None, aliases: Mapping[str, str], tables: Sequence[str]
) -> Callable[[exp.Column], ColumnUse]:
    """The facts of a column: looked up in the table that its qualifier names, else in all tables of the query."""
    tables_by_name: dict[str, Table] = {t.name.lower(): t for t in schema.tables} if schema else {}

    def resolve(node: exp.Column) -> ColumnUse:
        name = node.name
        qualifier = node.table.lower()
        candidates = [aliases.get(qualifier, qualifier)] if qualifier else tables
        for table_name in candidates:
            table = tables_by_name.get(table_name)
            column = table.column(name) if table else None
            if table and column:
                foreign = any(column.name.lower() in map(str.lower, fk.columns) for fk in table.foreign_keys)
                unique = column.name == table.key
                return ColumnUse(name, table_name, qualifier, column, unique=unique, foreign=foreign)
        return ColumnUse(name, candidates[0] if candidates else "", qualifier, derived=bool(tables_by_name))

    return resolve
