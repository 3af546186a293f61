"""Schema, Table, Column; introspection; and the schema text that models read.

>>> schema = Schema((Table("customers", (Column("id", "INTEGER", True), Column("city", "TEXT"))),))
>>> schema_to_text(schema)
'customers(id INTEGER PK, city TEXT)'
"""

from __future__ import annotations

import logging
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nl2sql.errors import DatabaseError, UsageError

if TYPE_CHECKING:
    from nl2sql.interfaces import Database

log = logging.getLogger(__name__)

Form: TypeAlias = Literal["compact", "ddl"]
Samples: TypeAlias = Mapping[str, Mapping[str, Sequence[Any]]]  # table -> column -> example values
Descriptions: TypeAlias = Mapping[tuple[str, str], str]  # (table, column), lower case -> what it holds

MAX_VALUE_CHARS = 40  # an example shows how a value looks; more only fills the prompt


@dataclass(frozen=True)
class ForeignKey:
    """``columns`` of the owning table reference ``ref_columns`` of ``ref_table``."""

    columns: tuple[str, ...]
    ref_table: str
    ref_columns: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    name: str
    type: str = ""  # as declared, upper case where case means nothing; "" when undeclared
    primary_key: bool = False
    not_null: bool = False
    # what a benchmark's own files say of it; no part of a file's hash
    description: str = field(default="", repr=False)


@dataclass(frozen=True)
class Table:
    name: str
    columns: tuple[Column, ...]
    foreign_keys: tuple[ForeignKey, ...] = ()
    is_view: bool = False

    def column(self, name: str) -> Column | None:
        """The column called so in any case, as for ``Schema.table``."""
        wanted = name.lower()
        return next((c for c in self.columns if c.name.lower() == wanted), None)

    @property
    def key(self) -> str:
        """The column that tells rows apart by itself; "" where the primary key is not one column."""
        keys = [column.name for column in self.columns if column.primary_key]
        return keys[0] if len(keys) == 1 else ""


@dataclass(frozen=True)
class Schema:
    """Tables in creation order. Look-ups by name ignore case, as SQLite does."""

    tables: tuple[Table, ...]
    dialect: str = "sqlite"

    def table(self, name: str) -> Table | None:
        wanted = name.lower()
        return next((t for t in self.tables if t.name.lower() == wanted), None)


def described(schema: Schema, descriptions: Descriptions) -> Schema:
    """The schema with what is said of its columns."""
    tables = (
        replace(
            table,
            columns=tuple(
                replace(column, description=descriptions.get((table.name.lower(), column.name.lower()), ""))
                for column in table.columns
            ),
        )
        for table in schema.tables
    )
    return replace(schema, tables=tuple(tables))


# ------------------------------------------------------------------------------------------------- identifiers

# SQLite's keywords that cannot stand unquoted as a table or column name, and the few that models trip over.
_RESERVED = """
    add all alter and as autoincrement between case cast check collate commit constraint create cross current_date
    current_time current_timestamp default deferrable delete desc asc distinct drop else end escape except exists
    for foreign from full group having if in index inner insert intersect into is isnull join left limit natural not
    notnull nothing null offset on or order outer over partition primary raise references returning right rows select
    set table then to transaction trigger union unique update using values view when where window with"""
RESERVED = frozenset(_RESERVED.split())
_OF_POSTGRES_AND_DUCKDB = """
    analyse analyze any array asymmetric authorization binary both collation column concurrently do false fetch freeze
    ilike initially lateral leading like only overlaps placing similar some symmetric tablesample trailing true
    variadic verbose"""
_POSTGRES = """
    current_catalog current_role current_schema current_user grant localtime localtimestamp session_user user"""
_DUCKDB = """
    anti asof at by describe glob lambda pivot pivot_longer pivot_wider positional qualify semi show summarize unpack
    unpivot"""
_MYSQL = """
    accessible analyze before binary blob both by call cascade change char character column condition continue convert
    cube current_role current_user cursor databases dec decimal declare delayed dense_rank describe div double dual each
    elseif empty enclosed escaped exit explain false fetch float force fulltext function grant grouping groups ignore
    infile inout int integer interval iterate json_table key keys kill lag lateral lead leading leave like linear lines
    load localtime localtimestamp lock long loop match maxvalue mediumint mod modifies ntile numeric of optimize
    optionally out outfile percent_rank precision procedure purge range rank read reads real recursive regexp release
    rename repeat replace require restrict return revoke rlike row_number schemas separator show signal smallint spatial
    specific sql sqlexception sqlstate sqlwarning ssl starting stored straight_join system terminated tinyint trailing
    true undo unlock unsigned usage use utc_date utc_time utc_timestamp varchar varying virtual while write xor
    year_month zerofill"""
RESERVED_BY = {  # what their servers refuse, or take for something else (``user``), beside RESERVED
    "postgres": RESERVED.union(_OF_POSTGRES_AND_DUCKDB.split(), _POSTGRES.split()),
    "duckdb": RESERVED.union(_OF_POSTGRES_AND_DUCKDB.split(), _DUCKDB.split()),
    "mysql": RESERVED.union(_MYSQL.split()),
}
PLAIN_NAME = re.compile(r"[^\W\d]\w*")


def quote_text(text: str) -> str:
    """A text as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_always(name: str, dialect: str = "sqlite") -> str:
    """``name`` as a quoted identifier of a dialect: in double quotes, or in backticks."""
    sign = "`" if dialect in ("mysql", "clickhouse") else '"'
    return sign + name.replace(sign, sign * 2) + sign


def quote_name(name: str, dialect: str = "sqlite") -> str:
    """``name`` as it must be written in SQL: quoted only where it has to be."""
    plain = PLAIN_NAME.fullmatch(name) and name.lower() not in RESERVED_BY.get(dialect, RESERVED)
    if dialect == "postgres":
        plain = plain and name == name.lower()  # which folds what is not quoted
    elif dialect == "clickhouse":
        plain = plain and name.isascii()
    return name if plain else quote_always(name, dialect)


# ----------------------------------------------------------------------------------------------- introspection


def introspect(connection: sqlite3.Connection) -> Schema:
    """The schema of a SQLite database: tables and views in creation order.

    Foreign keys that name no columns refer to the other table's primary key; those to a missing table or with a
    wrong number of columns are left out, as are ``sqlite_%`` tables, shadow tables of virtual tables, and whatever
    SQLite itself cannot open (a view over a dropped table, a virtual table of an unknown module).
    Raises sqlite3.DatabaseError when the schema as a whole cannot be read.
    """
    factory = connection.text_factory
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        relations = connection.execute(
            "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid"
        ).fetchall()
        shadows = _shadow_tables(connection)
        described = [
            (name, kind, _describe_columns(connection, name))
            for name, kind in relations
            if not name.lower().startswith("sqlite_") and name not in shadows
        ]
        columns = {name.lower(): (name, rows) for name, _, rows in described if rows}
        return Schema(
            tuple(
                Table(
                    name,
                    tuple(Column(n, t.upper(), pk > 0, bool(not_null)) for n, t, not_null, pk in rows),
                    _foreign_keys(connection, name, columns) if kind == "table" else (),
                    is_view=kind == "view",
                )
                for name, kind, rows in described
                if rows
            )
        )
    finally:
        connection.text_factory = factory


_ColumnRow: TypeAlias = tuple[str, str, int, int]  # name, type, not null, position in the primary key


def _shadow_tables(connection: sqlite3.Connection) -> set[str]:
    try:
        listed = connection.execute("PRAGMA main.table_list").fetchall()
    except sqlite3.DatabaseError as error:
        log.warning("shadow tables not recognised: %s", error)
        return set()
    return {row[1] for row in listed if row[2] == "shadow"}


def _describe_columns(connection: sqlite3.Connection, table: str) -> list[_ColumnRow]:
    try:
        rows = connection.execute(f"PRAGMA main.table_xinfo({quote_always(table)})").fetchall()
    except sqlite3.DatabaseError as error:
        log.warning("table %r left out of the schema: %s", table, error)
        return []
    return [
        (name, (type_ or "").removesuffix("GENERATED ALWAYS").rstrip(), not_null, pk)
        for _, name, type_, not_null, _, pk, hidden in rows
        if hidden != 1  # the hidden columns of a virtual table; generated columns are 2 and 3
    ]


def _foreign_keys(
    connection: sqlite3.Connection, table: str, columns: Mapping[str, tuple[str, list[_ColumnRow]]]
) -> tuple[ForeignKey, ...]:
    grouped: dict[int, list[tuple[Any, ...]]] = {}
    for row in connection.execute(f"PRAGMA main.foreign_key_list({quote_always(table)})").fetchall():
        grouped.setdefault(row[0], []).append(row)
    keys = []
    for _, rows in sorted(grouped.items(), reverse=True):  # SQLite numbers them from the last declared
        rows.sort(key=lambda row: row[1])
        ref = columns.get(rows[0][2].lower())
        if ref is None:
            continue
        ref_name, ref_rows = ref
        own = _canonical((row[3] for row in rows), columns[table.lower()][1])
        implicit = [name for name, _, _, pk in sorted(ref_rows, key=lambda r: r[3]) if pk]
        theirs = _canonical((row[4] for row in rows), ref_rows) if rows[0][4] is not None else implicit
        if own and theirs and len(own) == len(theirs):
            keys.append(ForeignKey(tuple(own), ref_name, tuple(theirs)))
    return tuple(dict.fromkeys(keys))


def _canonical(names: Iterable[str], columns: list[_ColumnRow]) -> list[str]:
    """``names`` in the letter case of the table that has them; empty when one is missing."""
    spelled = {row[0].lower(): row[0] for row in columns}
    spellings = [spelled.get((name or "").lower()) for name in names]
    return [name for name in spellings if name is not None] if None not in spellings else []


# ------------------------------------------------------------------------------------------------------- text


def schema_to_dict(schema: Schema) -> dict[str, Any]:
    """Tables, columns and foreign keys as ``get_schema`` gives them."""
    return {
        "tables": [
            {
                "name": t.name,
                "columns": [{"name": c.name, "type": c.type, "primary_key": c.primary_key} for c in t.columns],
                "foreign_keys": [
                    {"columns": list(k.columns), "table": k.ref_table, "ref_columns": list(k.ref_columns)}
                    for k in t.foreign_keys
                ],
            }
            for t in schema.tables
        ]
    }


def schema_to_text(schema: Schema, *, form: Form = "compact", samples: Samples | None = None) -> str:
    """The schema as a prompt shows it.

    compact: a line per table, ``customers(customer_id INTEGER PK, name TEXT)``, then a line per foreign key,
    ``orders.customer_id -> customers.customer_id``. ddl: CREATE TABLE statements. Names that SQL needs quoted are
    quoted. ``samples`` adds example values as SQL literals in comments.
    """
    write = _ddl if form == "ddl" else _compact
    lines = [write(table, _notes(table, samples or {}), schema.dialect) for table in schema.tables]
    if form == "ddl":
        return "\n".join(lines)
    lines += [_arrow(table, key, schema.dialect) for table in schema.tables for key in table.foreign_keys]
    return "\n".join(lines)


def _notes(table: Table, samples: Samples) -> dict[str, str]:
    """Column -> its example values, of those that have any."""
    values = next((of for name, of in samples.items() if name.lower() == table.name.lower()), {})
    return {c.name: _literals(values[c.name]) for c in table.columns if values.get(c.name)}


def _compact(table: Table, noted: Mapping[str, str], dialect: str) -> str:
    quote = partial(quote_name, dialect=dialect)
    columns = ", ".join(
        " ".join(filter(None, (quote(c.name), c.type, "PK" if c.primary_key else ""))) for c in table.columns
    )
    shown = "; ".join(f"{quote(name)}: {note}" for name, note in noted.items())
    notes = [note for note in ("view" if table.is_view else "", shown) if note]
    return f"{quote(table.name)}({columns})" + (f" -- {'; '.join(notes)}" if notes else "")


def _arrow(table: Table, key: ForeignKey, dialect: str) -> str:
    quote = partial(quote_name, dialect=dialect)

    def side(name: str, columns: tuple[str, ...]) -> str:
        listed = ", ".join(map(quote, columns))
        return f"{quote(name)}.{listed if len(columns) == 1 else f'({listed})'}"

    return f"{side(table.name, key.columns)} -> {side(key.ref_table, key.ref_columns)}"


def _ddl(table: Table, noted: Mapping[str, str], dialect: str) -> str:
    quote = partial(quote_name, dialect=dialect)
    keys = [c.name for c in table.columns if c.primary_key]
    entries: list[tuple[str, str]] = []
    for column in table.columns:
        words = [quote(column.name), column.type]
        words += ["PRIMARY KEY"] if keys == [column.name] else ["NOT NULL"] if column.not_null else []
        note = noted.get(column.name)
        entries.append((" ".join(filter(None, words)), f" -- {note}" if note else ""))
    if len(keys) > 1:
        entries.append((f"PRIMARY KEY ({', '.join(map(quote, keys))})", ""))
    for key in table.foreign_keys:
        own, theirs = (", ".join(map(quote, names)) for names in (key.columns, key.ref_columns))
        entries.append((f"FOREIGN KEY ({own}) REFERENCES {quote(key.ref_table)} ({theirs})", ""))
    body = [f"  {text}{',' if i < len(entries) - 1 else ''}{note}" for i, (text, note) in enumerate(entries)]
    head = f"CREATE TABLE {quote(table.name)} (" + (" -- a view" if table.is_view else "")
    return "\n".join([head, *body, ");"])


def _literals(values: Sequence[Any]) -> str:
    return ", ".join(map(_literal, values))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"<blob of {len(value)} bytes>"
    if not isinstance(value, str):
        return repr(value)
    return quote_text(_cut(value, MAX_VALUE_CHARS))


def _cut(value: str, most: int) -> str:
    """The text on one line, of at most ``most`` characters."""
    text = " ".join(value.split())
    return text if len(text) <= most else text[: most - 3] + "..."


def focus(schema: Schema, tables: Sequence[str]) -> Schema:
    """Only ``tables`` (names, any case), in the schema's order, with the foreign keys among them."""
    wanted = {name.lower() for name in tables}
    kept = (
        replace(table, foreign_keys=tuple(k for k in table.foreign_keys if k.ref_table.lower() in wanted))
        for table in schema.tables
        if table.name.lower() in wanted
    )
    return replace(schema, tables=tuple(kept))


def budget_schema(
    schema: Schema,
    count: Callable[[str], int],
    max_tokens: int,
    form: Form = "compact",
    samples: Samples | None = None,
) -> str:
    """The schema text within ``max_tokens`` as ``count`` (text -> tokens) measures it.

    The rule: whole tables from the first on while they fit (samples go before any table); a line
    ``-- 12 more tables, columns not shown: a, b, c`` names the others. When not even one table fits, the first is
    shown with its leading columns and a line that says how many are missing. Names themselves are cut, and the line
    says so, only when they alone exceed the budget.
    """
    names = [table.name for table in schema.tables]

    def text(tables: int, shown: Samples | None) -> str:
        return _join(
            schema_to_text(focus(schema, names[:tables]), form=form, samples=shown),
            _rest(names[tables:], schema.dialect),
        )

    for shown in (samples, None):
        whole = text(len(names), shown)
        if count(whole) <= max_tokens:
            return whole
    fitting = bisect_right(range(1, len(names)), max_tokens, key=lambda n: count(text(n, None)))
    if fitting:
        return text(fitting, None)
    return _part_of_first_table(schema, count, max_tokens, form)


def _join(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _rest(names: Sequence[str], dialect: str, shown: int | None = None) -> str:
    if not names:
        return ""
    listed = ", ".join(quote_name(name, dialect) for name in names[:shown])
    cut = f" and {len(names) - shown} whose names are not shown" if shown is not None and shown < len(names) else ""
    return f"-- {len(names)} more table{'s' if len(names) > 1 else ''}, columns not shown: {listed}{cut}"


def _part_of_first_table(schema: Schema, count: Callable[[str], int], max_tokens: int, form: Form) -> str:
    first, others = schema.tables[0], [table.name for table in schema.tables[1:]]
    bare = replace(first, foreign_keys=())

    def text(columns: int, names: int) -> str:
        missing = len(first.columns) - columns
        note = f"-- {missing} more columns of {quote_name(first.name, schema.dialect)} not shown" if missing else ""
        part = replace(schema, tables=(replace(bare, columns=first.columns[:columns]),))
        return _join(schema_to_text(part, form=form), note, _rest(others, schema.dialect, names))

    names = bisect_right(range(1, len(others) + 1), max_tokens, key=lambda n: count(text(1, n)))
    columns = bisect_right(range(2, len(first.columns) + 1), max_tokens, key=lambda n: count(text(n, names)))
    return text(min(1 + columns, len(first.columns)), names)


def first_rows(database: Database, table: str, n: int, timeout_s: float) -> list[dict[str, Any]]:
    """The first ``n`` rows of ``table`` as dicts.

    Raises UsageError for an unknown table or a negative ``n``, DatabaseError where it cannot be read."""
    if n < 0:
        raise UsageError(f"cannot show {n} rows; give 0 or more")
    found = database.schema().table(table)
    if found is None:
        names = ", ".join(t.name for t in database.schema().tables[:20])
        raise UsageError(f"no table {table!r} in {database.name}; its tables: {names}")
    sql = f"SELECT * FROM {quote_always(found.name, database.dialect)} LIMIT {n}"
    result = database.run(sql, timeout_s=timeout_s, max_rows=n)
    if not result.success:
        raise DatabaseError(f"table {found.name!r} of {database.name} cannot be read: {result.error}")
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def column_samples(
    database: Database, schema: Schema, n: int, *, timeout_s: float = 2.0
) -> dict[str, dict[str, list[Any]]]:
    """Up to ``n`` distinct values per column, out of the first 10,000 rows; strings cut to 40 characters.

    They stand as they come in SQLite, elsewhere in an order of the engine's. NULLs, empty strings and blobs are no
    examples. Columns that cannot be read within ``timeout_s`` are left out.
    """
    samples: dict[str, dict[str, list[Any]]] = {}
    for table in schema.tables if n > 0 else ():
        for column in table.columns:
            sql = _distinct(table.name, column.name, n, schema.dialect)
            result = database.run(sql, timeout_s=timeout_s, max_rows=n + 1)
            if result.success:
                values = [row[0] for row in result.rows if row[0] != "" and not isinstance(row[0], bytes)][:n]
                shorter = [v[:MAX_VALUE_CHARS] if isinstance(v, str) else v for v in values]
                if shorter:
                    samples.setdefault(table.name, {})[column.name] = shorter
    return samples


def _distinct(table: str, column: str, n: int, dialect: str) -> str:
    """A query for distinct values; on other engines than SQLite one more, which may be empty."""
    name = quote_always(column, dialect)
    rows = f"SELECT DISTINCT {name} FROM (SELECT {name} FROM {quote_always(table, dialect)} LIMIT 10000)"
    if dialect != "sqlite":
        return f"{rows} AS first_rows WHERE {name} IS NOT NULL LIMIT {n + 1}"
    return f"{rows} WHERE {name} IS NOT NULL AND typeof({name}) <> 'blob' AND {name} <> '' LIMIT {int(n)}"
