"""Repairs without a model that concern clauses and punctuation: conditions in WHERE that belong into HAVING and the
other way round, columns missing from GROUP BY, commas and parentheses. Candidates only: the engine decides.

``SELECT a FROM t WHERE count(*) > 2 GROUP BY a`` gives ``SELECT a FROM t GROUP BY a HAVING COUNT(*) > 2``,
``SELECT a, FROM t`` gives ``SELECT a FROM t``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nl2sql.sql.same import texts_of
from nl2sql.sql.writing import written

if TYPE_CHECKING:
    from nl2sql.repair.schema_names import SchemaNames

ORDER = ("WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT")
ENDS = ("UNION", "EXCEPT", "INTERSECT", "WINDOW", "QUALIFY")
# White space is read once: possessive, and from the beginning of a run. A model may write megabytes of it.
CLAUSE = re.compile(r"(?<!\s)\s++(?:FROM|WHERE|GROUP\s++BY|HAVING|ORDER\s++BY|LIMIT)\b", re.IGNORECASE)
SIGN = re.compile(r"(?<!\s)\s*+(?:,|[<>=]+)|(?<!\s)\s++(?:AS|AND|OR|THEN|DESC|ASC)\b", re.IGNORECASE)
DOUBLED = re.compile(r"\b(SELECT|FROM|WHERE|BY|JOIN|ON|AND|OR|HAVING|LIMIT)(?:\s++\1\b)+", re.IGNORECASE)
# The empty group: what matched is replaced by \1, which is nothing here.
DANGLING = re.compile(r"()(?:(?<!\s)\s++(?:AND|OR|WHERE|ON|HAVING)|,)\s*+;?\s*+$", re.IGNORECASE)
COMMA_BEFORE_CLAUSE = re.compile(r",(\s*+)(?=(?:FROM|WHERE|GROUP|ORDER|HAVING|LIMIT)\b)", re.IGNORECASE)


def moved_conditions(sql: str, names: SchemaNames) -> Iterator[str]:
    """Conditions on aggregates (or on their aliases) from WHERE to HAVING; HAVING without groups to WHERE."""
    tree = _select(sql, names.dialect)
    if tree is None:
        return
    from sqlglot import exp

    aliases = {a.alias.lower() for a in tree.expressions if isinstance(a, exp.Alias) and a.this.find(exp.AggFunc)}
    where, having = _conjuncts(tree, "where"), _conjuncts(tree, "having")
    late = [c for c in where if _aggregates(c, aliases)]
    if late:
        yield written(_with(tree, [c for c in where if c not in late], [*having, *late]), names.dialect)
    elif having and not tree.args.get("group") and not any(_aggregates(c, aliases) for c in having):
        yield written(_with(tree, [*where, *having], []), names.dialect)


def grouped_columns(sql: str, names: SchemaNames) -> Iterator[str]:
    """Every plain column of the SELECT list into GROUP BY, beside an aggregate."""
    tree = _select(sql, names.dialect)
    if tree is None:
        return
    from sqlglot import exp

    shown = [e.this if isinstance(e, exp.Alias) else e for e in tree.expressions]
    group = tree.args.get("group")
    there = {e.sql() for e in group.expressions} if group is not None else set()
    missing = [e for e in shown if isinstance(e, exp.Column) and e.sql() not in there]
    if missing and (group is not None or any(e.find(exp.AggFunc) for e in shown)):
        yield written(tree.copy().group_by(*(e.copy() for e in missing)), names.dialect)


def ordered_clauses(sql: str, names: SchemaNames) -> Iterator[str]:
    """The clauses of the outermost SELECT, each once, in SQL's order."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        tokens = list(sqlglot.tokenize(sql, dialect=names.dialect))
    except (SqlglotError, ValueError):
        return
    starts: list[tuple[int, int]] = []  # (place in ORDER, offset)
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        word = " ".join(token.text.upper().split())
        if depth == 0 and word in ENDS:
            return  # each side of a set operation has clauses of its own
        if depth == 0 and word in ORDER:
            starts.append((ORDER.index(word), token.start))
    places = [place for place, _ in starts]
    if places == sorted(places) or len(set(places)) < len(places):
        return
    text = sql.rstrip().rstrip(";")
    ends = [*(offset for _, offset in starts[1:]), len(text)]
    clauses = sorted((place, text[offset:end].strip()) for (place, offset), end in zip(starts, ends, strict=True))
    yield " ".join([text[: starts[0][1]].strip(), *(clause for _, clause in clauses)])


def punctuated(sql: str, names: SchemaNames) -> Iterator[str]:
    """Without a keyword written twice, one left over at the end, or a comma before a clause; with the parenthesis that
    is missing, at the end, before a clause or before a comma; or without one that is too many, the last first."""
    for form in (DOUBLED, DANGLING):
        repaired = form.sub(r"\1", sql)
        if repaired != sql and texts_of(repaired) == texts_of(sql):
            yield repaired
    if (repaired := COMMA_BEFORE_CLAUSE.sub(r"\1", sql)) != sql:
        yield repaired
    text = sql.rstrip().rstrip(";").rstrip()
    depth = sum({"(": 1, ")": -1}.get(word, 0) for word in names.words)
    if depth > 0:
        yield text + ")" * depth
        if depth == 1:
            for form in (CLAUSE, SIGN):
                yield from (f"{text[: place.start()]}){text[place.start() :]}" for place in form.finditer(text))
    elif depth == -1:
        for at in [at for at, sign in enumerate(text) if sign == ")"][::-1]:
            yield text[:at] + text[at + 1 :]


def _select(sql: str, dialect: str) -> Any:
    """The tree of a plain SELECT; None for anything else."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    from nl2sql.sql.parse import parse_bounded

    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return None
    return tree if isinstance(tree, exp.Select) else None


def _conjuncts(tree: Any, clause: str) -> list[Any]:
    node = tree.args.get(clause)
    return list(node.this.flatten()) if node is not None and node.this.key == "and" else [node.this] if node else []


def _aggregates(condition: Any, aliases: set[str]) -> bool:
    """Whether a condition holds an aggregate of this SELECT (not one of a subquery), or the alias of one."""
    from sqlglot import exp

    for node in condition.walk(prune=lambda n: isinstance(n, exp.Query)):
        if isinstance(node, exp.AggFunc):
            return True
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            return True
    return False


def _with(tree: Any, where: list[Any], having: list[Any]) -> Any:
    from sqlglot import exp

    made = tree.copy()
    for clause, kind, conditions in (("where", exp.Where, where), ("having", exp.Having, having)):
        joined = exp.and_(*(condition.copy() for condition in conditions)) if conditions else None
        made.set(clause, kind(this=joined) if joined is not None else None)
    return made
