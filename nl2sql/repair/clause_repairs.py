"""Repairs without a model that concern clauses and punctuation: conditions in WHERE that belong into HAVING and the
other way round, columns missing from GROUP BY, commas and parentheses. Candidates only: the engine decides.

``SELECT a FROM t WHERE count(*) > 2 GROUP BY a`` gives ``SELECT a FROM t GROUP BY a HAVING COUNT(*) > 2``,
``SELECT a, FROM t`` gives ``SELECT a FROM t``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nl2sql.repair.readings import calls_of, is_name, is_text, tokens_of
from nl2sql.sql.parse import parse_query
from nl2sql.sql.text import written

if TYPE_CHECKING:
    from nl2sql.repair.schema_names import SchemaNames

ORDER = ("WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT")
ENDS = ("UNION", "EXCEPT", "INTERSECT", "WINDOW", "QUALIFY")
# White space is read once: possessive, and from the beginning of a run. A model may write megabytes of it.
CLAUSE = re.compile(r"(?<!\s)\s++(?:FROM|WHERE|GROUP\s++BY|HAVING|ORDER\s++BY|LIMIT)\b", re.IGNORECASE)
SIGN = re.compile(r"(?<!\s)\s*+(?:,|[<>=]+)|(?<!\s)\s++(?:AS|AND|OR|THEN|DESC|ASC)\b", re.IGNORECASE)
# Texts and names in quotes are read over: there the first group is none. Else it is what is left of the match.
QUOTED = r"'(?:[^']|'')*+'|\"[^\"]*+\"|`[^`]*+`"
DOUBLED = re.compile(rf"{QUOTED}|\b(SELECT|FROM|WHERE|BY|JOIN|ON|AND|OR|HAVING|LIMIT)(?:\s++\1\b)+", re.IGNORECASE)
DANGLING = re.compile(rf"{QUOTED}|()(?:(?<!\s)\s++(?:AND|OR|WHERE|ON|HAVING)|,)\s*+;?\s*+$", re.IGNORECASE)
STARTS = frozenset(("FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT"))  # of clauses before which no comma stands
LEAST_OR_MOST = re.compile(r"\b(?:MIN|MAX)\b", re.IGNORECASE)
SEVERAL = 12  # candidates that are put in order


def moved_conditions(sql: str, names: SchemaNames) -> Iterator[str]:
    """Conditions on aggregates (or on their aliases) from WHERE to HAVING; HAVING without groups to WHERE."""
    tree = _select(sql, names.dialect)
    if tree is None:
        return
    aliases = {a.alias.lower() for a in tree.expressions if isinstance(a, exp.Alias) and a.this.find(exp.AggFunc)}
    where, having = _conjuncts(tree, "where"), _conjuncts(tree, "having")
    late = [c for c in where if _aggregates(c, aliases)]
    if late and not all(_is_of_groups(c, tree, aliases) for c in late):
        return  # a value of one row against one of its group: another question
    if late:
        yield written(_with(tree, [c for c in where if c not in late], [*having, *late]), names.dialect)
    elif having and not tree.args.get("group") and not any(_aggregates(c, aliases) for c in having):
        yield written(_with(tree, [*where, *having], []), names.dialect)


def grouped_columns(sql: str, names: SchemaNames) -> Iterator[str]:
    """Every plain column of the SELECT list into GROUP BY, beside an aggregate there or in ORDER BY."""
    tree = _select(sql, names.dialect)
    if tree is None:
        return
    shown = [e.this if isinstance(e, exp.Alias) else e for e in tree.expressions]
    group = tree.args.get("group")
    there = {e.sql() for e in group.expressions} if group is not None else set()
    missing = [e for e in shown if isinstance(e, exp.Column) and e.sql() not in there]
    counted = [part for part in (*shown, tree.args.get("order")) if part is not None and part.find(exp.AggFunc)]
    if missing and (group is not None or counted):
        yield written(tree.copy().group_by(*(e.copy() for e in missing)), names.dialect)


def ordered_clauses(sql: str, names: SchemaNames) -> Iterator[str]:
    """The clauses of the outermost SELECT, each once, in SQL's order."""
    starts: list[tuple[int, int]] = []  # (place in ORDER, offset)
    depth = 0
    for token in tokens_of(sql, names.dialect):
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
        yield form.sub(lambda match: match[0] if match[1] is None else match[1], sql)
    yield _without_commas(sql, names.dialect)
    text = sql.rstrip().rstrip(";").rstrip()
    depth = sum({"(": 1, ")": -1}.get(word, 0) for word in names.words)
    if depth > 0:
        closed = itertools.chain([text + ")" * depth], _closed(text) if depth == 1 else ())
        if not LEAST_OR_MOST.search(text):
            yield from closed
            return
        first = list(itertools.islice(closed, SEVERAL))
        yield from sorted(first, key=lambda made: _of_several(made, names.dialect))
        yield from closed
    elif depth == -1:
        for at in [at for at, sign in enumerate(text) if sign == ")"][::-1]:
            yield text[:at] + text[at + 1 :]


def _closed(text: str) -> Iterator[str]:
    """``text`` with a parenthesis closed before a clause, then before a comma or another sign."""
    for form in (CLAUSE, SIGN):
        yield from (f"{text[: place.start()]}){text[place.start() :]}" for place in form.finditer(text))


def _of_several(sql: str, dialect: str) -> int:
    """How many MIN and MAX have several arguments: on SQLite these compare values of one row, and aggregate nothing."""
    return sum(len(call.arguments) > 1 for name in ("MIN", "MAX") for call in calls_of(sql, name, dialect))


def _without_commas(sql: str, dialect: str) -> str:
    """``sql`` without the commas that stand before a clause."""
    tokens = tokens_of(sql, dialect)
    parts, done = [], 0
    for comma, behind in itertools.pairwise(tokens):
        starts = behind.text.upper().partition(" ")[0] in STARTS and not is_text(behind) and not is_name(behind)
        if comma.text == "," and not is_text(comma) and starts:
            parts.append(sql[done : comma.start])
            done = comma.end + 1
    return "".join([*parts, sql[done:]])


def _select(sql: str, dialect: str) -> Any:
    """The tree of a plain SELECT; None for anything else."""
    tree = parse_query(sql, dialect)
    return tree if isinstance(tree, exp.Select) else None


def _conjuncts(tree: Any, clause: str) -> list[Any]:
    node = tree.args.get(clause)
    return list(node.this.flatten()) if node is not None and node.this.key == "and" else [node.this] if node else []


def _aggregates(condition: Any, aliases: set[str]) -> bool:
    """Whether a condition holds an aggregate of this SELECT (not one of a subquery), or the alias of one."""
    for node in condition.walk(prune=lambda n: isinstance(n, exp.Query)):
        if isinstance(node, exp.AggFunc):
            return True
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            return True
    return False


def _is_of_groups(condition: Any, tree: Any, aliases: set[str]) -> bool:
    """Whether a condition with an aggregate has one value for each group: each plain column of it is grouped."""
    group = tree.args.get("group")
    shown = {str(at): e.unalias() for at, e in enumerate(tree.expressions, 1)}
    shown |= {e.alias.lower(): e.this for e in tree.expressions if isinstance(e, exp.Alias)}
    keys = list(group.expressions) if group is not None else []
    keys += [shown[key.name.lower()] for key in keys if key.name.lower() in shown and not key.find(exp.Func)]
    texts = {key.sql().lower() for key in keys} | {key.name.lower() for key in keys if isinstance(key, exp.Column)}
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if node.sql().lower() in texts or isinstance(node, (exp.AggFunc, exp.Query)):
            continue
        if isinstance(node, exp.Column):
            known = shown.get(node.name.lower()) if not node.table else None
            if node.name.lower() in aliases and not node.table:
                continue
            if node.name.lower() not in texts and (known is None or known.sql().lower() not in texts):
                return False
        waiting += list(node.iter_expressions())
    return True


def _with(tree: Any, where: list[Any], having: list[Any]) -> Any:
    made = tree.copy()
    for clause, kind, conditions in (("where", exp.Where, where), ("having", exp.Having, having)):
        joined = exp.and_(*(condition.copy() for condition in conditions)) if conditions else None
        made.set(clause, kind(this=joined) if joined is not None else None)
    return made
