"""Tests of whether two texts are the same SQL: one function for each question that is asked.

>>> same_sql("SELECT name FROM customers;", "select name FROM  customers")
True

| asked by | function | what may differ |
|---|---|---|
| reflection: was it tried? | ``same_sql``, ``same_tokens`` | layout, comments, case outside strings |
| repair: is anything repaired? | ``same_words`` | also quotes round names; reads what does not lex |
| candidates: one candidate? | ``query_key`` | what the parser drops (``AS``); case of plain names; not quotes |
| corpus: stored already? | ``tree_key`` | the same, with the case and the quotes of all names |
| EM, few-shot, leaks | ``exact_match``, ``normalise_sql`` | habits of writing; also names of aliases |

``same_sql`` and ``same_words`` keep what a parser mends (a comma too many), so that a repair of it counts.
``query_key`` keeps whatever could change the rows: to SQLite ``= "Oslo"`` is a string and ``= Oslo`` a column.
Pairs with all answers: tests/fixtures/same_sql.txt. Not covered: whether two statements do the same work.

EM [9.1 of the specification] is diagnostic only. Taken away: case (outside strings), white space, comments,
identifier quotes, the names of table aliases, column aliases nobody refers to, ``INNER``/``ASC``/``AS``, ``<>`` for
``!=``, double quotes round a compared string. Kept: the order of conditions, columns and tables, and every choice of
construct. No schema is looked at, so a qualified column differs from the same column unqualified, except in a query
over one table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import expressions as exp
from sqlglot.errors import SqlglotError
from sqlglot.expressions import Expr
from sqlglot.tokens import Token, TokenType

from nl2sql.sql.parse import SLIPS, parse_bounded, past_limits, remember_short
from nl2sql.sql.text import keep_types, statement_words, tokens

FOLDS_CASE = ("sqlite", "duckdb", "postgres")  # of names that are not quoted
TOKEN = re.compile(  # what every writing of a query shares; DESC only where it can be nothing but a direction
    r"(?P<text>'(?:[^']|'')*')|(?P<name>\"[^\"]*\"|`[^`]*`|\[[^\]]*\])"
    r"|(?<![\w.])(?P<number>\d+(?:\.\d+)?)(?![\w.])"
    r"|\b(?:(?P<word>select|where|group|having|union|intersect|except|limit|distinct|between|like|exists|order"
    r"|and|or|(?:count|sum|avg|min|max)(?=\s?\()"
    r"|(?<=[\w)'\"`\]]\s)(?<!\bby\s)(?<!select\s)(?<!distinct\s)desc(?=\s*(?:[,;)]|$|limit\b)))\b"
    r"|(?<!distinct )(?:from|join) [\"`\[]?(?P<table>\w+))",
    re.IGNORECASE,
)
TEXT = re.compile(r"'(?:[^']|'')*'")
QUOTED = re.compile(r'"[^"]*"')
PIECE = re.compile(r"\w+|[^\w\s]")
VARYING = ("as", "inner", "outer", "asc", "isnull", "notnull", "offset", "true", "false")
ENDS = (")", '"', "'", "`", "]")  # what an alias may follow
NO_ALIAS_AFTER = frozenset(
    "select distinct all from join where and or not on by having in like between union except intersect".split()  # noqa: SIM905
)


# ------------------------------------------------------------------------------------------ the same tokens or words


def same_tokens(left: Sequence[Token], right: Sequence[Token]) -> bool:
    """Whether two token streams say the same; whitespace, comments and the case outside strings aside."""

    def said(stream: Sequence[Token]) -> list[tuple[TokenType, str]]:
        return [(t.token_type, t.text if t.token_type == TokenType.STRING else t.text.lower()) for t in stream]

    return said(left) == said(right)


def same_sql(left: str, right: str) -> bool:
    """Whether two statements have the same tokens, a last semicolon aside; text that does not lex is itself only."""
    if past_limits(left) or past_limits(right):
        return left == right
    left, right = left.strip().rstrip("; \n"), right.strip().rstrip("; \n")
    if left == right:
        return True
    left_tokens, right_tokens = tokens(left), tokens(right)
    return left_tokens is not None and right_tokens is not None and same_tokens(left_tokens, right_tokens)


def same_words(first: str, second: str, dialect: str = "sqlite") -> bool:
    """Whether two statements differ at most in layout, comments, letter case and quotes round names."""
    ours, theirs = (" ".join(statement_words(sql, dialect)).lower() for sql in (first, second))
    return ours.strip("; ") == theirs.strip("; ") and texts_of(first) == texts_of(second)


def texts_of(sql: str) -> list[str]:
    """The texts in single quotes, in order."""
    return TEXT.findall(sql)


# ------------------------------------------------------------------------------------------------------ the same tree


def query_key(sql: str, dialect: str = "sqlite") -> str:
    """A text that two writings of one query share: layout, comments, keywords and the case of plain names differ.

    Nothing is taken away that could change what is returned: quotes, aliases and qualifiers stay. What cannot be
    parsed is compared by its words.
    """

    def fold_plain_names(tree: Expr) -> None:
        for name in tree.find_all(exp.Identifier):
            if dialect in FOLDS_CASE and not name.args.get("quoted"):
                name.set("this", name.name.lower())

    if past_limits(sql):
        return sql
    text = _as_tree(sql, dialect, fold_plain_names)
    return " ".join(sql.rstrip("; \n\t").split()) if text is None else text


def tree_key(sql: str, dialect: str = "sqlite") -> str:
    """A text for all ways to write a statement: layout, comments, the case and the quotes of names differ; names of
    aliases stay. What cannot be parsed: its words."""
    if past_limits(sql):
        return sql
    text = _as_tree(sql, dialect, _unquote_names)
    return " ".join(statement_words(sql, dialect)).lower() if text is None else text


def _as_tree(sql: str, dialect: str, change: Callable[[Expr], object], **options: Any) -> str | None:
    """A statement's parsed tree, changed and written again without comments; None for what cannot be parsed."""
    try:
        tree = parse_bounded(sql, dialect)
        change(tree)
        keep_types(tree, dialect)
        return str(tree.sql(dialect=dialect, comments=False, copy=False, **options))
    except (SqlglotError, *SLIPS):
        return None


def _unquote_names(tree: Expr) -> None:
    """Write all identifiers in lower case and without quotes."""
    for name in tree.find_all(exp.Identifier):
        name.set("this", name.name.lower())
        name.set("quoted", False)


# ------------------------------------------------------------------------------------- the same text but for habits: EM


def exact_match(gold: str, predicted: str) -> bool:
    """Whether the two normalised texts are equal; of texts past the limits (``sql.bounds``), whether they are one."""
    if past_limits(gold) or past_limits(predicted):
        return gold == predicted
    return normalise_sql(gold) == normalise_sql(predicted)


@remember_short(8192)
def normalise_sql(sql: str, dialect: str = "sqlite") -> str:
    """The normalised text; for SQL that sqlglot cannot parse, lower case with single spaces."""
    if past_limits(sql):
        return sql
    text = _as_tree(sql, dialect, _drop_habits, normalize_functions="upper")
    return " ".join(sql.rstrip("; \n\t").lower().split()) if text is None else text


def _drop_habits(tree: Expr) -> None:
    read_double_quoted_values(tree)
    _name_tables_plainly(tree)
    _drop_column_aliases(tree)
    _unquote_names(tree)
    _leave_defaults_out(tree)


def read_double_quoted_values(tree: Expr) -> None:
    """``x = "France"``: SQLite takes a double-quoted name that is no column for a string."""
    for node in list(tree.find_all(exp.Binary, exp.In, exp.Between)):
        if isinstance(node, (exp.Dot, exp.Connector)):
            continue
        values = [
            node.args.get("expression"),
            node.args.get("low"),
            node.args.get("high"),
            *node.args.get("expressions", ()),
        ]
        for value in values:
            if isinstance(value, exp.Column) and not value.table and getattr(value.this, "quoted", False):
                value.replace(exp.Literal.string(value.name))


def _name_tables_plainly(tree: Expr) -> None:
    """Replace table aliases by the table's own name, numbered where a table is used more than once.

    An alias is looked up in the SELECT that uses it, then in those around it: parts of a UNION may use the same one.
    """
    tables = list(tree.find_all(exp.Table, bfs=False))
    uses = Counter(table.name.lower() for table in tables)
    seen: Counter[str] = Counter()
    names: dict[tuple[int, str], str] = {}  # by the SELECT whose FROM it stands in, and alias

    def rename(node: Expr, alias: str, name: str, shown: bool) -> None:
        names.setdefault((id(node.find_ancestor(exp.Select)), alias.lower()), name)
        node.set("alias", exp.TableAlias(this=exp.to_identifier(name)) if shown else None)

    for table in tables:
        name = table.name.lower()
        seen[name] += 1
        several = uses[name] > 1
        rename(table, table.alias or name, f"{name}__{seen[name]}" if several else name, several)
    derived = [node for node in tree.find_all(exp.Subquery, bfs=False) if node.alias]
    for number, node in enumerate(derived, 1):
        rename(node, node.alias, f"derived__{number}", True)
    for column in tree.find_all(exp.Column):
        if column.table:
            single = len(tables) == 1 and not derived
            column.set("table", None if single else exp.to_identifier(_plain_name(column, names)))


def _plain_name(column: Expr, names: Mapping[tuple[int, str], str]) -> str:
    select, alias = column.find_ancestor(exp.Select), column.args["table"].name
    while select is not None:
        if name := names.get((id(select), alias.lower())):
            return name
        select = select.find_ancestor(exp.Select)
    return str(alias)


def _drop_column_aliases(tree: Expr) -> None:
    """Drop aliases of result columns that nothing refers to; number the others."""
    referred = {column.name.lower() for column in tree.find_all(exp.Column) if not column.table}
    names: dict[str, str] = {}
    for alias in list(tree.find_all(exp.Alias)):
        name = alias.alias.lower()
        if name in referred:
            names.setdefault(name, f"alias__{len(names) + 1}")
            alias.set("alias", exp.to_identifier(names[name]))
        else:
            alias.replace(alias.this)
    for column in tree.find_all(exp.Column):
        if not column.table and column.name.lower() in names:
            column.this.set("this", names[column.name.lower()])


def _leave_defaults_out(tree: Expr) -> None:
    """No INNER; ASC as the default it is."""
    for node in tree.find_all(exp.Join, exp.Ordered):
        if isinstance(node, exp.Join):
            if node.args.get("kind") == "INNER":
                node.set("kind", None)
        elif not node.args.get("desc"):
            node.set("desc", None)


def same_text(gold: str, predicted: str) -> bool:
    """``exact_match(gold, predicted)``, with a look at keywords and literals first: of many pairs few are parsed."""
    if gold == predicted:
        return True
    if past_limits(gold) or past_limits(predicted):
        return False
    if any(mark in sql for sql in (gold, predicted) for mark in ("--", "/*")):
        return exact_match(gold, predicted)
    words, texts = _written(gold)
    other_words, other_texts = _written(predicted)
    if words != other_words or (texts is not None and other_texts is not None and texts != other_texts):
        return False
    (names, aliases), (other_names, other_aliases) = _names(gold), _names(predicted)
    if names - other_names - aliases or other_names - names - other_aliases:
        return False
    return exact_match(gold, predicted)


@remember_short(1024)
def _names(sql: str) -> tuple[frozenset[str], frozenset[str]]:
    """(all words outside strings, those that may be an alias or otherwise have another writing)."""
    sql = TEXT.sub("''", sql.lower())
    quoted = {word for text in QUOTED.findall(sql) for word in re.findall(r"\w+", text)}  # a name, or a string
    names, may_vary = set(quoted), quoted.union(VARYING)
    previous = ""
    for piece in PIECE.findall(sql):
        if piece == "(":
            may_vary.add(previous)  # functions have synonyms
        elif piece[0] == "_" or piece[0].isalpha():
            names.add(piece)
            if previous in ENDS or (previous.isidentifier() and previous not in NO_ALIAS_AFTER):
                may_vary.add(piece)
        previous = piece
    return frozenset(names), frozenset(may_vary)


@remember_short(1024)
def _written(sql: str) -> tuple[list[str], list[str] | None]:
    """(keywords, numbers and tables, strings); None where double quotes may stand for a name or a string."""
    words: list[str] = []
    texts: list[str] = []
    unclear = False
    for text, name, number, word, table in TOKEN.findall(" ".join(sql.split())):
        unclear = unclear or name.startswith('"')
        if text:
            texts.append(text)
        elif not name:
            words.append(number or (word or f"table {table}").lower())
    return sorted(words), None if unclear else sorted(texts)
