"""Follow-ups of a word or two that turn one condition of the previous query round, or drop it.

Behind ``SELECT COUNT(*) FROM bookings WHERE status = 'confirmed'``: "the rest?" has ``status <> 'confirmed'``, "and
cancelled?" ``status = 'cancelled'`` where a cell holds this (also where ``cancelled_at`` is a column), "all statuses"
no condition. Behind ``paid_on IS NULL`` "the paid ones" has its opposite.

Not covered: the rest of what two conditions let through (LookupError).
"""

from __future__ import annotations

import re
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.sessions import members
from nl2sql.sessions.cells import cell_called, has_nulls
from nl2sql.sessions.compared import excluding
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import edit_words, named_column
from nl2sql.sessions.reading import adjectives, is_left_out, is_negated
from nl2sql.sessions.statement import identifier
from nl2sql.sessions.where import Where
from nl2sql.sql.words import words

_OPENING = r"(?:and|but|now|then|only|just|show|list|give|me|us|what about|how about|include|in|of|from|how many are)"
_ENDING = r"(?: (?:then|now|please|instead|too|only|together))*[?.! ]*"
_REST = re.compile(
    rf"(?:{_OPENING} )*(?:all )?(?:of )?(?:the )?(?:rest|others|other ones|remaining(?: ones)?|remainder){_ENDING}"
)
_ALL = re.compile(rf"(?:{_OPENING} )*(?:all|both)(?: of)?(?: the)? (?P<what>[a-z]+(?: [a-z]+)?){_ENDING}")
_DONE = re.compile(
    rf"(?:(?:{_OPENING}|the|those|these|ones|all|that|which|who|were|was|are|is|have|has|been|already) )*"
    rf"(?P<what>(?!un)[a-z]+ed|paid|sold|sent)(?: ones)?{_ENDING}"
)
_OPPOSITES: dict[type[exp.Expr], type[exp.Binary]] = {
    exp.NEQ: exp.EQ,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
}


def the_rest(where: Where) -> bool:
    """ "the rest?": the opposite of the one condition. Whether it was asked; LookupError behind several."""
    if not _REST.fullmatch(where.reading.text.strip()):
        return False
    statement = where.statement
    joins = [each for each in statement.conditions() if statement.is_join(each)]
    others = [each for each in statement.conditions() if not statement.is_join(each)]
    parts = (statement.tree.args.get(part) for part in ("having", "limit"))
    if len(others) != 1 or not statement.column_compared(others[0]) or any(parts):
        raise LookupError("the rest of what")
    opposite = _OPPOSITES.get(type(others[0]))
    if where.kinds.get(statement.column_compared(others[0]) or ("", "")) == "flag" and isinstance(others[0], exp.EQ):
        no = others[0].expression.name == "1"
        opposite = exp.EQ
        others[0].set("expression", exp.Literal.number(int(not no)))
    turned = opposite(this=others[0].this, expression=others[0].expression) if opposite else _denied(others[0])
    statement.set_conditions([*joins, turned])
    where.made.append("replace rest")
    return True


def _denied(condition: exp.Expr) -> exp.Expr:
    return condition.this.unnest() if isinstance(condition, exp.Not) else excluding(condition)


def all_of(where: Where) -> None:
    """ "all topics" behind one topic."""
    match = _ALL.fullmatch(where.reading.text.strip())
    named = named_column(words(match["what"]), where.statement) if match else None
    if named and members.drop_conditions_on(where.statement, named.table, [named.column]):
        where.made.append(f"drop {named.table}.{named.column}")


def another_cell(where: Where) -> None:
    """ "and closed?" behind open ones, where ``closed_at`` is a column too: a cell of the column that was compared."""
    own = {stem(word) for table in where.statement.tables() for word in words(table)}
    said = [match for match in re.finditer(r"[a-z]+", where.reading.text) if match[0] not in known_words()]
    said = [match for match in said if stem(match[0]) not in own]
    if len(said) != 1 or where.made or where.used:
        return
    [word] = said
    for condition, (table, column) in list(members.compared_columns(where.statement)):
        named = where.spelled(table, column)
        if not named or where.kind_of(named) != "text" or not condition.find(exp.Literal):
            continue
        cell = cell_called(word[0], named, where.database)
        if cell:
            new = exp.EQ(this=exp.column(identifier(named.column)), expression=exp.Literal.string(cell))
            where.replace_by(named, new, left_out=is_left_out(where.reading.text, *word.span()))
            where.used.append(word.span())
            return


def done_after_all(where: Where) -> None:
    """ "the paid ones": those that have a date of it."""
    match = _DONE.fullmatch(where.reading.text.strip()) if not where.made else None
    named = named_column([match["what"]], where.statement) if match else None
    if match and is_negated(where.reading.text, where.reading.text.index(match["what"])):
        return  # "all but cancelled"
    if named is None or where.kind_of(named) not in ("date", "datetime") or where.statement.away(named.table) >= 1:
        return
    before = where.compared(named)
    if before or has_nulls(named, where.database):
        known = exp.Not(this=exp.Is(this=exp.column(identifier(named.column)), expression=exp.Null()))
        where.replace_by(named, known)


@cache
def known_words() -> frozenset[str]:
    """Words beside a value that are no value themselves: "Norway, and descending"."""
    cues, edits = cue_words(), edit_words()
    listed = (word for name in ("openings", "endings", "pronouns", "edit_verbs", "heads") for word in cues[name])
    orders = (word for name in ("ascending", "descending") for word in edits[name])
    others = ("too", "only", "please", "thanks", "again", "instead", "both", "together", "combined", "separately")
    words_of_people = (word for cells in edits["sexes"].values() for word in cells)
    return frozenset([*STOP_WORDS, *listed, *orders, *others, *edits["months"], *adjectives(), *words_of_people])
