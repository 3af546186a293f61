"""One SELECT that edits are made on: its tables by alias, its conditions, and joins made where a column needs one.

>>> from nl2sql.databases.schema import Column, ForeignKey, Schema, Table
>>> customers = Table("customers", (Column("id", "INTEGER", True), Column("city")))
>>> keys = (ForeignKey(("customer_id",), "customers", ("id",)),)
>>> orders = Table("orders", (Column("id", "INTEGER", True), Column("customer_id")), keys)
>>> statement = read_statement("SELECT COUNT(*) FROM orders", Schema((customers, orders)))
>>> statement.add_condition(exp.EQ(this=statement.column("customers", "city"), expression=exp.Literal.string("Bern")))
>>> statement.sql().partition(" JOIN ")[2]
"customers ON orders.customer_id = customers.id WHERE customers.city = 'Bern'"

Not covered: set operations, WITH, derived tables (``read_statement`` gives None).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.databases.schema import Schema, Table, quote_name
from nl2sql.sessions.tables import FARTHEST, Step, column_of, key_columns, path_to
from nl2sql.sql.canonical import is_aggregate
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.same import read_double_quoted_values
from nl2sql.sql.writing import written


@dataclass
class Statement:
    """A SELECT over tables of ``schema``. Edits change ``tree`` in place; ``copy`` before alternatives are tried."""

    tree: exp.Select
    schema: Schema

    def copy(self) -> Statement:
        return Statement(self.tree.copy(), self.schema)

    def sql(self) -> str:
        return written(self.tree, self.schema.dialect)

    # ---------------------------------------------------------------------------------------------------- tables

    def sources(self) -> dict[str, Table]:
        """Alias in lower case -> table, the FROM clause's first."""
        from_ = self.tree.args["from_"].this
        nodes = [from_, *(join.this for join in self.tree.args.get("joins") or ())]
        found = ((node.alias_or_name.lower(), self.schema.table(node.name)) for node in nodes)
        return {alias: table for alias, table in found if table is not None}

    @property
    def main(self) -> Table:
        return next(iter(self.sources().values()))

    def tables(self) -> set[str]:
        """The names of the tables that are read."""
        return {table.name for table in self.sources().values()}

    def table_of(self, column: exp.Column) -> Table | None:
        """The table of a column of this SELECT; None where it cannot be told."""
        return self.sources().get(self._alias_of(column))

    def _alias_of(self, column: exp.Column) -> str:
        if column.table:
            return column.table.lower()
        return next((alias for alias, table in self.sources().items() if column_of(table, column.name)), "")

    def distance(self, table: str) -> int:
        """Joins between the statement and ``table``: 0 for one that it reads; ``FARTHEST + 1`` for none."""
        path = self._path(table)
        return FARTHEST + 1 if path is None else len(path)

    def away(self, table: str) -> float:
        """``distance``, but half a join for a table that a condition asks about by ``IN (SELECT ...)``."""
        inner = [select for _, select, negated in self.selects_within() if not negated]
        asked = {source.name.lower() for select in inner for source in select.sources().values()}
        return min(self.distance(table), 0.5) if table.lower() in asked else self.distance(table)

    def column(self, table: str, name: str) -> exp.Column:
        """The column, with joins to its table where the statement does not read it yet. Raises LookupError."""
        alias = next((alias for alias, source in self.sources().items() if source.name.lower() == table.lower()), None)
        if alias is None:
            alias = self._join(table)
        return self._column(alias, name)

    def column_at(self, alias: str, name: str) -> exp.Column:
        """A column of the table where a step starts: one that is read, by its alias, or one to join, by its name."""
        return self._column(alias, name) if alias in self.sources() else self.column(alias, name)

    def over(self, table: str, condition: exp.Expr, alias: str = "") -> exp.Expr:
        """A copy of ``condition`` on columns of ``table``, as this statement writes it. Raises LookupError.

        alias: the one that is meant, where the statement reads the table twice.
        """
        copy, source = condition.copy(), self.sources().get(alias)
        for column in list(copy.find_all(exp.Column)):
            own = source is not None and source.name.lower() == table.lower()
            column.replace(self._column(alias, column.name) if own else self.column(table, column.name))
        return copy

    def alias_of(self, condition: exp.Expr) -> str:
        """The alias, in lower case, of the first column of a condition; "" where it has none of this SELECT."""
        column = condition.find(exp.Column)
        return self._alias_of(column) if column is not None else ""

    def step_to_many(self, table: str) -> Step | None:
        """The first of the joins to ``table`` that may repeat the statement's rows; None where none does."""
        return next((step for step in self._path(table) or () if step.many), None)

    def _column(self, alias: str, name: str) -> exp.Column:
        if len(self.sources()) == 1 and not self._prefixes():
            return exp.column(self._identifier(name))
        return exp.column(self._identifier(name), table=self._spelled(alias))

    def _identifier(self, name: str) -> exp.Identifier:
        return identifier(name, self.schema.dialect)

    def _spelled(self, alias: str) -> exp.Identifier:
        """The alias as the statement writes it: another engine may take it for another name in quotes."""
        from_ = self.tree.args["from_"].this
        nodes = [from_, *(join.this for join in self.tree.args.get("joins") or ())]
        return next(_called(node) for node in nodes if node.alias_or_name.lower() == alias)

    def _prefixes(self) -> bool:
        return any(column.table for column in self.tree.find_all(exp.Column))

    def _join(self, table: str) -> str:
        """Joins along the shortest path of keys; the alias of ``table``."""
        path = self._path(table)
        if path is None:
            raise LookupError(table)
        self._qualify()
        for alias, link, target, _ in path:
            new = self._free_alias(target)
            on = [
                exp.EQ(
                    this=exp.column(self._identifier(mine), table=self._spelled(alias)),
                    expression=exp.column(self._identifier(theirs), table=self._identifier(new)),
                )
                for mine, theirs in link
            ]
            source = exp.Table(this=self._identifier(target))
            if new != target:
                source.set("alias", exp.TableAlias(this=self._identifier(new)))
            self.tree.append("joins", exp.Join(this=source, on=exp.and_(*on)))
        return new.lower()

    def _free_alias(self, table: str) -> str:
        taken = set(self.sources())
        return next(name for name in (table, *(f"{table}_{n}" for n in range(2, 20))) if name.lower() not in taken)

    def _qualify(self) -> None:
        """Put the table's alias before every column that has none, so that a join makes none ambiguous."""
        for column in list(self.tree.find_all(exp.Column)):
            if column.table or column.find_ancestor(exp.Select) is not self.tree:
                continue
            for alias, table in self.sources().items():
                if column_of(table, column.name):
                    column.set("table", self._spelled(alias))
                    break

    def _path(self, table: str) -> list[Step] | None:
        return path_to(table, self.sources(), self.schema)

    def without_aliases(self) -> None:
        """Call each table by its own name, as small models write it; nothing changes where a table is read twice."""
        names: dict[str, exp.Identifier] = {}
        aliases: dict[str, str] = {}  # a subquery may compare its own row of a table with one outside
        for table in self.tree.find_all(exp.Table):
            own, alias = table.name, table.alias_or_name.lower()
            if names.setdefault(alias, table.this).name != own or aliases.setdefault(own.lower(), alias) != alias:
                return
        several = len({name.name for name in names.values()}) > 1
        for column in self.tree.find_all(exp.Column):
            if column.table:
                name = names.get(column.table.lower())
                column.set("table", name.copy() if name and several else None)
        for table in self.tree.find_all(exp.Table):
            table.set("alias", None)

    # ------------------------------------------------------------------------------------------------ conditions

    def conditions(self) -> list[exp.Expr]:
        """The conditions of WHERE that AND joins."""
        where = self.tree.args.get("where")
        if where is None:
            return []
        return parts_of(where.this)

    def set_conditions(self, conditions: Sequence[exp.Expr]) -> None:
        kept = [condition.copy() for condition in conditions]
        self.tree.set("where", exp.Where(this=exp.and_(*kept)) if kept else None)

    def add_condition(self, condition: exp.Expr) -> None:
        self.set_conditions([*self.conditions(), condition])

    def conditions_on(self, table: str, column: str) -> list[exp.Expr]:
        """The conditions that compare this column with constants."""
        return [c for c in self.conditions() if self.column_compared(c) == (table.lower(), column.lower())]

    def column_compared(self, condition: exp.Expr) -> tuple[str, str] | None:
        """(table, column) in lower case of a condition over one column; None for any other, subqueries too."""
        if condition.find(exp.Query):
            return None
        columns = list(condition.find_all(exp.Column))
        if len({(self._alias_of(column), column.name.lower()) for column in columns}) != 1:
            return None
        table = self.table_of(columns[0])
        return (table.name.lower(), columns[0].name.lower()) if table else None

    def replace_conditions(self, old: Sequence[exp.Expr], new: exp.Expr) -> None:
        """``new`` in the place of the first of ``old``, the others dropped."""
        kept: list[exp.Expr] = []
        for condition in self.conditions():
            if condition is old[0]:
                kept.append(new)
            elif not any(condition is other for other in old):
                kept.append(condition)
        self.set_conditions(kept)

    def selects_within(self) -> Iterator[tuple[exp.Expr, Statement, bool]]:
        """(the condition, the SELECT within it, whether it is negated) for each ``key IN (SELECT ...)`` of WHERE."""
        for condition in self.conditions():
            negated = isinstance(condition, exp.Not)
            among = condition.this.unnest() if negated else condition
            query = among.args.get("query") if isinstance(among, exp.In) else None
            select = query.unnest() if query is not None else None
            if not isinstance(select, exp.Select) or any(select.args.get(part) for part in ("group", "limit", "with_")):
                continue
            inner = Statement(select, self.schema)
            if select.args.get("from_") is not None and inner.sources() and not inner.aggregates():
                yield condition, inner, negated

    def drop_conditions_on(self, table: str, columns: Iterable[str]) -> bool:
        """Whether there was any."""
        named = {(table.lower(), column.lower()) for column in columns}
        kept = [c for c in self.conditions() if self.column_compared(c) not in named]
        dropped = len(kept) < len(self.conditions())
        if dropped:
            self.set_conditions(kept)
        return dropped

    # ---------------------------------------------------------------------------------------- what is selected

    def order_by(self, keys: Sequence[tuple[exp.Expr, bool]]) -> None:
        """Keys and whether each is descending; NULLs stand where the engine puts them."""
        ordered = []
        for key, desc in keys:
            text = "SELECT 1 ORDER BY x DESC" if desc else "SELECT 1 ORDER BY x"
            template = parse_bounded(text, self.schema.dialect).args["order"].expressions[0]
            template.set("this", key.copy())
            ordered.append(template)
        self.tree.set("order", exp.Order(expressions=ordered))

    def limit(self, count: int, skipped: int = 0) -> None:
        self.tree.set("limit", exp.Limit(expression=exp.Literal.number(count)))
        self.tree.set("offset", exp.Offset(expression=exp.Literal.number(skipped)) if skipped else None)

    def aggregates(self) -> list[exp.Expr]:
        """The selected expressions that hold an aggregate."""
        return [e for e in self.tree.expressions if any(is_aggregate(a) for a in e.find_all(exp.AggFunc))]

    @property
    def grouped(self) -> bool:
        return self.tree.args.get("group") is not None

    def one_per_group(self, table: str, column: str) -> bool:
        """Has each group one value of the column: is it, or its table's key, grouped by? True without groups."""
        group = self.tree.args.get("group")
        if group is None:
            return True
        columns = [(self.table_of(key), key.name.lower()) for key in group.expressions if isinstance(key, exp.Column)]
        grouped = {name for source, name in columns if source and source.name.lower() == table.lower()}
        known = self.schema.table(table)
        key = {c.name.lower() for c in known.columns if c.primary_key} if known else set()
        return column.lower() in grouped or (bool(key) and key <= grouped)

    @property
    def counts_only(self) -> bool:
        return not self.grouped and len(self.aggregates()) == len(self.tree.expressions)

    def select(self, expressions: Sequence[exp.Expr]) -> None:
        self.tree.set("expressions", [expression.copy() for expression in expressions])

    def clear(self, *clauses: str) -> None:
        """Drop clauses: group, having, order, limit, distinct."""
        for clause in (*clauses, *(["offset"] if "limit" in clauses else [])):
            self.tree.set(clause, None)

    def among_few(self) -> None:
        """The rows that LIMIT leaves as ``key IN (SELECT key ... LIMIT n)``, so that a join repeats none of them away.

        Raises LookupError where no one key tells them, or the dialect has no LIMIT there.
        """
        keys, main = key_columns(self.main), self.main.name
        repeated = any(self.alone().step_to_many(table.name) for table in list(self.sources().values())[1:])
        if len(keys) != 1 or repeated or self.grouped or self.aggregates() or self.schema.dialect == "mysql":
            raise LookupError(f"a key of the rows of {main}")
        inner = self.copy()
        inner.select([inner.column(main, keys[0])])
        inner.clear("distinct")
        self.tree.set("joins", None)
        self.tree.set("from_", exp.From(this=exp.Table(this=self._identifier(main))))
        self.clear("order", "limit", "distinct")
        among = exp.In(this=exp.column(self._identifier(keys[0])), query=exp.Subquery(this=inner.tree))
        self.set_conditions([among])
        self.select([exp.column(self._identifier(keys[0]))])

    def alone(self) -> Statement:
        """The main table without the others."""
        return Statement(exp.select("1").from_(exp.Table(this=self._identifier(self.main.name))), self.schema)


def parts_of(condition: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND joins."""
    return list(condition.flatten()) if isinstance(condition, exp.And) else [condition]


def read_statement(sql: str, schema: Schema) -> Statement | None:
    """``sql`` as a Statement; None where it is no plain SELECT over tables of ``schema``."""
    try:
        tree = parse_bounded(sql, schema.dialect)
    except SqlglotError:
        return None
    if not isinstance(tree, exp.Select) or tree.args.get("from_") is None or tree.args.get("with_") is not None:
        return None
    nodes = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or ())]
    if not all(isinstance(node, exp.Table) and schema.table(node.name) for node in nodes):
        return None
    if schema.dialect == "sqlite":
        read_double_quoted_values(tree)
    return Statement(tree, schema)


def _called(node: exp.Expr) -> exp.Identifier:
    alias = node.args.get("alias")
    called: exp.Identifier = (alias or node).this.copy()
    return called


def identifier(name: str, dialect: str = "sqlite") -> exp.Identifier:
    """Quoted only where the dialect needs it; ``Statement.over`` writes the columns of a condition anew."""
    return exp.to_identifier(name, quoted=quote_name(name, dialect) != name)
