"""Facts of a schema about the names in a failed statement: did-you-mean, owners of a column, foreign keys.

The statement is broken, so it is read by its tokens alone: which tables it names, and under which aliases. Where it
can be parsed all the same, its WITH parts and subqueries count as tables.

>>> similar_names("custmers", ["orders", "customers"])
['customers']
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.expressions import Expr

from nl2sql.databases.schema import Column, ForeignKey, Schema, Table, quote_name
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.text import statement_words, words

MAX_SUGGESTIONS = 3
MAX_TABLES, MAX_COLUMNS, MAX_KEYS = 20, 30, 8  # named in one text, which goes into a prompt
CUTOFF = 0.6  # difflib's ratio from which on a name counts as a misspelling of another
SURE = 0.75  # the same for a name from a table that the statement does not name, and for a repair without a model
SHORT, SURE_IF_SHORT = 4, 0.85  # letters of a short name, and the ratio above which it is a misspelling
SWAPPED = 0.9  # the ratio that two letters in each other's place count for
MAX_NAME = 200  # characters; engines take up to 128
WORD = re.compile(r"\w+")
NOT_AN_ALIAS = """
    on join where inner left right cross full natural using group order limit set having union except intersect as
    outer qualify window and or asof any all semi anti global final sample prewhere array settings format
    select fetch offset for lateral tablesample with desc asc by"""
NO_ALIAS = frozenset(NOT_AN_ALIAS.split())
BEHIND_FROM = frozenset(
    "select where group having order limit union except intersect window qualify prewhere settings".split()  # noqa: SIM905
)
BEFORE_TABLE = frozenset((".", "lateral", "only"))  # between FROM and the table
CALLS_WITH_FROM = frozenset(("extract", "substring", "substr", "trim", "overlay"))


class SchemaNames:
    """Facts for the texts of a pattern, each computed when a placeholder asks for it (``get``)."""

    def __init__(self, schema: Schema, sql: str, dialect: str, captured: Mapping[str, str]) -> None:
        self.schema = with_derived(schema, sql, dialect)
        self.sql, self.dialect, self.captured = sql, dialect, captured

    def get(self, name: str, default: str = "") -> str:
        """The fact ``name`` of ``FACTS``; ``default`` where there is none or the schema has nothing to say."""
        fact = FACTS.get(name)
        return (fact(self) if fact else "") or default

    @property
    def column(self) -> str:
        """The captured column, without what stands before its dot."""
        return bare(self.captured.get("column", ""))

    @property
    def qualifier(self) -> str:
        """What stands before the dot of the captured column; "" where none does."""
        return bare(self.captured.get("column", "").rpartition(".")[0])

    @property
    def wrong(self) -> str:
        """The captured column as the statement has it, without quotes."""
        return f"{self.qualifier}.{self.column}" if self.qualifier else self.column

    @cached_property
    def words(self) -> list[str]:
        return statement_words(self.sql, self.dialect)

    @cached_property
    def used(self) -> list[Table]:
        """The schema's tables that stand in a FROM clause; where it has none, those that the statement names."""
        named = {table.name.lower() for table in self.aliases.values()} or {word.lower() for word in self.words}
        return [table for table in self.schema.tables if table.name.lower() in named]

    @cached_property
    def aliases(self) -> dict[str, Table]:
        """Alias or table name in lower case -> table, as the FROM clauses of the statement have them."""
        tables: dict[str, Table] = {}
        for name, alias in from_items(self.words):
            if (table := self.schema.table(name or alias)) is not None:
                tables[(alias or name).lower()] = table
        return tables

    def did_you_mean(self) -> str:
        """Names of the schema that may have been meant by the captured column or table, most likely first."""
        if self.captured.get("column"):
            own = self.aliases.get(self.qualifier.lower())
            columns = similar_columns(self.column, self.schema, own, self.used)
            return ", ".join(f"{self.written(table)}.{self.written(column)}" for table, column in columns)
        if wanted := self.captured.get("table"):
            return ", ".join(map(self.written, similar_names(bare(wanted), (t.name for t in self.schema.tables))))
        return ""

    def written(self, name: str) -> str:
        """``name`` as it has to be written in the dialect: quoted where it is a keyword or no plain word."""
        return quote_name(name, self.dialect)

    def owners(self) -> str:
        """The captured column with each table (alias) of the statement that has it."""
        columns = [
            f"{self.written(alias)}.{self.written(own.name)}"
            for alias, table in self.aliases.items()
            if (own := table.column(self.column)) is not None
        ]
        return " or ".join(columns[:4])

    def columns(self) -> str:
        """``table(column, ...)`` of the tables that the statement names."""
        return "; ".join(
            f"{self.written(table.name)}({', '.join(self.written(c.name) for c in table.columns[:MAX_COLUMNS])})"
            for table in self.used[:MAX_SUGGESTIONS]
        )

    def tables(self) -> str:
        """All tables of the schema."""
        return ", ".join(self.written(table.name) for table in self.schema.tables[:MAX_TABLES])

    def foreign_keys(self) -> str:
        """``child.column = parent.column`` between tables that the statement names (or all, if it names none)."""
        named = {table.name.lower() for table in self.used or self.schema.tables}
        conditions = [
            key_condition(key, table.name, key.ref_table, self.dialect)
            for table in self.schema.tables
            for key in table.foreign_keys
            if table.name.lower() in named and key.ref_table.lower() in named
        ]
        return "; ".join(conditions[:MAX_KEYS])

    def parentheses(self) -> str:
        """The numbers of opened and of closed parentheses, where they are not the same."""
        opened, closed = self.words.count("("), self.words.count(")")
        more = "close one more" if opened > closed else "take one away"
        return f"{opened} are opened and {closed} closed: {more}." if opened != closed else ""


FACTS: dict[str, Callable[[SchemaNames], str]] = {
    "did_you_mean": SchemaNames.did_you_mean,
    "owners": SchemaNames.owners,
    "columns": SchemaNames.columns,
    "tables": SchemaNames.tables,
    "foreign_keys": SchemaNames.foreign_keys,
    "parentheses": SchemaNames.parentheses,
}


def key_condition(key: ForeignKey, child: str, parent: str, dialect: str) -> str:
    """``child.column = parent.column`` of a foreign key, with its tables under these names."""
    pairs = zip(key.columns, key.ref_columns, strict=True)
    return " AND ".join(
        f"{quote_name(child, dialect)}.{quote_name(own, dialect)} = "
        f"{quote_name(parent, dialect)}.{quote_name(other, dialect)}"
        for own, other in pairs
    )


def links(table: Table, near: Table, alias: str, dialect: str) -> Iterator[str]:
    """Join conditions between ``table`` and ``near`` (known as ``alias``) by foreign keys in either direction."""
    for key in table.foreign_keys:
        if key.ref_table.lower() == near.name.lower():
            yield key_condition(key, table.name, alias, dialect)
    for key in near.foreign_keys:
        if key.ref_table.lower() == table.name.lower():
            yield key_condition(key, alias, table.name, dialect)


def from_items(said: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, alias) of each table behind FROM, JOIN or a comma of a FROM clause; ("", alias) of a subquery there.

    >>> list(from_items("SELECT city FROM address a ORDER BY city DESC".split()))
    [('address', 'a')]
    """
    around: list[tuple[bool, bool, str]] = []  # what held before each open bracket, and the word before it
    inside = wanted = False  # in a FROM clause; a table comes next
    for at, word in enumerate(said):
        kind, before = word.lower(), said[at - 1].lower() if at else ""
        first = kind.split()[0] if kind.strip() else ""
        if kind == "(":
            around.append((inside, wanted, before))
            inside = wanted
        elif kind == ")":
            inside, derived, _ = around.pop() if around else (False, False, "")
            wanted = False
            if derived and (alias := _alias_behind(said, at)):
                yield "", alias
        elif kind == "join" or (kind == "from" and before != "distinct" and not _is_argument(around)):
            inside = wanted = True
        elif kind == ",":
            wanted = inside
        elif first in BEHIND_FROM and not (wanted and kind == first != "select"):  # a table may be called order
            inside = wanted = False
        elif wanted and kind not in BEFORE_TABLE and said[at + 1 : at + 2] != ["."]:  # main.customers: the last part
            wanted = False
            yield word, _alias_behind(said, at)


def _is_argument(around: Sequence[tuple[bool, bool, str]]) -> bool:
    """Whether a FROM stands in EXTRACT(YEAR FROM d) or the like."""
    return bool(around) and around[-1][2] in CALLS_WITH_FROM


def _alias_behind(said: Sequence[str], at: int) -> str:
    behind = [word for word in said[at + 1 : at + 3] if word.lower() != "as"][:1]
    return next((word for word in behind if WORD.fullmatch(word) and word.lower() not in NO_ALIAS), "")


def with_derived(schema: Schema, sql: str, dialect: str) -> Schema:
    """The schema as the statement sees it: with its WITH parts and the subqueries of its FROM clauses as tables, which
    hide tables of the same name. The schema itself where the statement cannot be parsed."""
    if "select" not in sql[1:].lower():  # one SELECT alone derives nothing
        return schema
    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return schema
    named = [node for node in tree.find_all(exp.CTE, exp.Subquery) if node.alias and isinstance(node.this, exp.Query)]
    derived = [Table(node.alias, tuple(map(Column, _columns_of(node, schema)))) for node in named]
    hidden = {table.name.lower() for table in derived}
    real = [table for table in schema.tables if table.name.lower() not in hidden]
    return Schema((*derived, *real), schema.dialect) if derived else schema


def _columns_of(derived: Expr, schema: Schema) -> list[str]:
    """The columns that a WITH part or subquery gives: those it lists, and for a star those of its tables."""
    if listed := derived.args["alias"].columns:
        return [column.name for column in listed]
    names = [name for name in derived.this.named_selects if name and name != "*"]
    if derived.this.is_star:
        tables = [schema.table(table.name) for table in derived.this.find_all(exp.Table)]
        names += [column.name for table in tables if table is not None for column in table.columns]
    return list(dict.fromkeys(names))


def bare(name: str) -> str:
    """The last part of a possibly qualified and quoted name."""
    return name.rpartition(".")[2].strip("\"'`[] ")


def similar_names(
    name: str, candidates: Iterable[str], most: int = MAX_SUGGESTIONS, cutoff: float = CUTOFF
) -> list[str]:
    """Of ``candidates`` those that ``name`` may be a misspelling of, most likely first; order is deterministic.

    Case and underscores are ignored. A name counts as similar to one that holds it as whole words: date to order_date
    and OrderDate, but age not to manager_id. Names that agree but for a part of another meaning (customer_name,
    customer_id) and short ones that differ by more than a slip (rate, date) stay below ``SURE``.
    """
    wanted = _plain(name)
    if not wanted:
        return []

    def score(candidate: str) -> float:
        plain = _plain(candidate)
        ratio = max(_ratio(wanted, plain), SWAPPED if _swapped(wanted, plain) else 0.0)
        slip = _is_slip(wanted, plain, ratio) or _holds_words(name, plain)
        if _another_part(name, candidate) or not slip:
            ratio = min(ratio, SURE - 0.01)
        if len(wanted) > 2 and _holds_words(candidate, wanted) and not _another_part(name, candidate):
            return max(ratio, SURE)
        # of mentor_name, name says too little to be sure of; and nam may be the beginning of contact_name's name
        close = (len(plain) > 2 and _holds_words(name, plain)) or (len(wanted) > 2 and _begins_word(candidate, wanted))
        return max(ratio, SURE - 0.01) if close else ratio

    scored = [(-score(candidate), position, candidate) for position, candidate in enumerate(dict.fromkeys(candidates))]
    return [candidate for negative, _, candidate in sorted(scored) if -negative >= cutoff][:most]


def _is_slip(wanted: str, plain: str, ratio: float) -> bool:
    """Whether two names may be one, misspelled. Short names are close to many others that mean something else."""
    short = min(len(wanted), len(plain)) <= SHORT
    return not short or (ratio >= SURE_IF_SHORT and wanted[0] == plain[:1])


def _swapped(first: str, second: str) -> bool:
    """Whether two names differ in two neighbouring letters that changed places: nmae, name."""
    apart = [at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    return (
        len(first) == len(second)
        and len(apart) == 2
        and apart[1] == apart[0] + 1
        and first[apart[0]] == second[apart[1]]
        and first[apart[1]] == second[apart[0]]
    )


def _holds_words(name: str, part: str) -> bool:
    """Whether neighbouring words of ``name`` (between underscores, capitals and digits) make up ``part``, which may be
    its plural or singular."""
    wanted = part.removesuffix("s")
    return any(run.removesuffix("s") == wanted for run in _runs_of_words(name, len(part) + 1))


def _begins_word(name: str, part: str) -> bool:
    return any(run.startswith(part) for run in _runs_of_words(name, len(part)))


def _runs_of_words(name: str, length: int) -> Iterator[str]:
    """From each word of ``name`` on, that word and each run of it and the words behind it, as one word; up to and with
    the first that has ``length`` letters. None of a name that is too long for one: a model may write any."""
    inner = words(name) if len(name) <= MAX_NAME else []
    for first in range(len(inner)):
        for run in itertools.accumulate(inner[first : first + length]):
            yield run
            if len(run) >= length:
                break


def _ratio(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def _another_part(first: str, second: str) -> bool:
    """Whether two names have the same number of parts between underscores, and two parts that are not alike."""
    ours, theirs = first.lower().split("_"), second.lower().split("_")
    if len(ours) != len(theirs) or len(ours) == 1:
        return False
    return any(_ratio(a, b) < 0.5 for a, b in zip(ours, theirs, strict=True))


def similar_columns(
    name: str, schema: Schema, own: Table | None, used: list[Table], cutoff: float = CUTOFF
) -> list[tuple[str, str]]:
    """(table, column) for a column that is not there.

    First the very name (or the table's and the column's as one word) in a table that the statement names, then in any
    other; then misspellings, in the table before
    the dot (``own``), in those that the statement names, and in the rest, where they have to be closer (``SURE``).
    """
    wanted = name.lower()
    near = [own, *(table for table in used if table is not own)] if own else used
    rest = [table for table in schema.tables if table not in near]
    exact = [
        (t.name, c.name)
        for t in [*near, *rest]
        for c in t.columns
        if c.name.lower() == wanted or spelled_with_table(name, t, c.name)
    ]
    close = [pair for group in ([own] if own else [], used) for pair in _close_in(name, group, cutoff)]
    close += _close_in(name, rest, max(SURE, cutoff))
    return list(dict.fromkeys([*exact, *close]))[:MAX_SUGGESTIONS]


def spelled_with_table(name: str, table: Table, column: str) -> bool:
    """Whether ``name`` is the table's name (or its singular) and the column's as one word: customer_name."""
    plain = _plain(table.name)
    return _plain(name) in {f"{stem}{_plain(column)}" for stem in (plain, plain.removesuffix("s"))}


def _close_in(name: str, tables: list[Table], cutoff: float) -> list[tuple[str, str]]:
    by_column: dict[str, list[tuple[str, str]]] = {}
    for table in tables:
        for column in table.columns:
            by_column.setdefault(column.name, []).append((table.name, column.name))
    return [full for column in similar_names(name, by_column, cutoff=cutoff) for full in by_column[column]]


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(" ", "")
