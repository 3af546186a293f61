"""Which columns a follow-up wants to see: "Which ones? Title and pages.", "What classes do they belong to?", "Who?".

A list of columns may be a clause of its own, follow "list", "show" and the like, or be what a question word stands
before. Where rows are asked for and no column is named, they are shown by their name or title (``naming.label_of``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from sqlglot import exp

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Table
from nl2sql.sessions.conditions import Conditions
from nl2sql.sessions.detection import cue_words
from nl2sql.sessions.naming import Kinds, Named, edit_words, label_of, named_column, named_group, named_table
from nl2sql.sessions.reading import Phrase, Reading, listed_phrases
from nl2sql.sessions.statement import Statement
from nl2sql.sessions.tables import key_columns, label_column, refers
from nl2sql.sql.words import words

_VERB = re.compile(
    r"^(?:and |now |then |just |only |please |also |can you |could you )*"
    r"(?:show|list|give|tell|display|return|print|name(?= the| all| them| these| those)|get|see|need|want)\b"
    r"(?: me| us)?(?: only| just)?(?: all)?"
)
_OBJECT = re.compile(
    r"\b(?:what|which|whose) (?P<what>[a-z_ ]+?) (?:do|does|did|are|is|were|was|have|has|had|can|will)\b"
    r"(?: it| they| these| those| he| she| there| this| that)\b"
)
_BARE = re.compile(
    r"^(?:and |so )?(?:of|in|for|from|by|to|at|on|with|under)? ?(?:what|which|whose) (?!about )"
    r"(?P<what>[a-z_]+(?: [a-z_]+)?)$"
)
_OWN = re.compile(r"\b(?:what|who|which)(?: is| are| was| were|s)(?: the| their| its| his| her)+ (?P<what>[a-z_ ]+?)$")
_WHO = re.compile(
    r"(?<!those )(?<!ones )(?<!people )(?<!all )\bwho\b|\bby whom\b|\bcalled\b|\bwhich (?:ones|one|are they)\b"
    r"|\bwhich (?:\w+ ){1,2}ones\b|\bwhat are they\b"
    r"|\b(?:list|show|name|see|give) (?:me )?(?:them|those|these|all of them|the ones|(?:the )?(?:full )?list$)"
)
_WHO_DOES = re.compile(r"\bwho (?P<what>[a-z]+) (?:it|them|this|that|these|those)\b")
_WHO_THERE = re.compile(r"\bwho (?:got |was |were |is |are )?(?P<what>[a-z]+) (?:there|here)\b")
_WHEN = re.compile(
    r"\bwhen (?:is|are|was|were|did|do|does|has|have|had) (?:it|they|these|those|he|she|each)"
    r" (?P<what>[a-z]+)"
)
_WHICH_OF = re.compile(r"\bwhich (?:of|ones|one)\b|^(?:and )?which\b")
_FILLER_WORDS = """please only just too also instead with together and then thanks as well their its his her all"""
_FILLER = frozenset(_FILLER_WORDS.split())
_DATE = (("date",), ("dates",), ("day",), ("days",), ("when",), ("time",))
_GIVEN = re.compile(r"(?:first|given|fore)_?name$|fname$", re.IGNORECASE)
_FAMILY = re.compile(r"(?:last|family|sur)_?name$|lname$", re.IGNORECASE)
_END = re.compile(r"\b(?:of (?:the|those|these|them|that|all)|for|that|which|who|with|where|whose|in|on|at|from)\b")


@dataclass(frozen=True)
class Shown:
    """The columns to show; ``explicit`` where the user names them, ``distinct`` where each is meant once."""

    columns: tuple[Named, ...] = ()
    explicit: bool = False
    distinct: bool = False


def what_is_shown(conditions: Conditions) -> Shown:
    """What the follow-up wants to see; no columns where it leaves them as they are."""
    reading, statement = conditions.reading, conditions.statement
    used, kinds = conditions.used, conditions.kinds
    for columns in _listed_columns(reading, statement, used, kinds):
        return Shown(columns, explicit=True)
    if reading.groupings or reading.aggregate or reading.count:
        return Shown()
    if (asked := _property(reading, statement)) and not reading.comparisons:
        return Shown((asked,), explicit=True)
    first = reading.text[slice(*reading.clauses[0])].strip() if reading.clauses else ""
    clauses = [reading.text[start:end].strip() for start, end in reading.clauses]
    for clause in clauses:
        if (match := _WHEN.search(clause)) and (named := _date_of(words(match["what"]), statement, kinds)):
            return Shown((named,), explicit=True)
        doer = named_group(words(match["what"]), statement) if (match := _WHO_DOES.search(clause)) else None
        if doer and kinds[doer.table.lower(), doer.column.lower()] == "text":
            return Shown(_whole_name(doer, statement), explicit=True, distinct=_repeats(doer, statement))
        match = _OBJECT.search(clause) or _BARE.search(clause)
        if match and not _verbs() & set(words(match["what"])):
            phrase = tuple(words(match["what"]))
            named = _date_of(phrase, statement, kinds) if phrase in _DATE else None
            named = named or named_group(phrase, statement)
            if named:
                return Shown((named,), explicit=True, distinct=_repeats(named, statement))
        if (match := _OWN.search(clause)) and not reading.adjective:
            phrase = tuple(words(match["what"]))
            asks_who = match[0].startswith("who")
            named = named_group(phrase, statement) if asks_who else named_column(phrase, statement)
            own = statement.schema.table(named.table) if named else None
            if named and asks_who and own and refers(own, named.column):  # a key is nobody's name
                raise LookupError(f"who the {' '.join(phrase)} is")
            if named:
                once = asks_who and named.table != statement.main.name
                columns = _whole_name(named, statement) if asks_who else (named,)
                return Shown(columns, explicit=True, distinct=once)
    rows_before = not statement.grouped and not statement.aggregates()
    which = _WHICH_OF.search(first) if not rows_before else None
    alone = which and which[0] in ("which", "and which") and not named_table(words(first), statement.schema)
    known = which and (conditions.made or not alone)
    asks = _WHO.search(reading.text) or known
    called = re.search(r"\bcalled\b|\bwhat are they\b", reading.text)
    who = re.search(r"\bwho\b", reading.text)
    did = _WHO_THERE.search(reading.text)
    done = named_column(words(did["what"]), statement) if did else None
    if did and not (done and statement.away(done.table) < 1):
        raise LookupError(f"who {did['what']}")
    if asks and (called or who or not rows_before):
        table = named_table(words(first), statement.schema)
        target = table if table and statement.away(table.name) <= 1 and not rows_before else statement.main
        columns = _called(target, statement, by_others=bool(who or called))
        person = any("name" in words(each.column) or _GIVEN.search(each.column) for each in columns)
        if not called and _WHO_DOES.search(reading.text) and columns and columns[0].table == target.name:
            raise LookupError("who does it")  # "who supplies them?" behind products
        return Shown(columns if called or person or not who else ())
    return Shown()


def _property(reading: Reading, statement: Statement) -> Named | None:
    """ "how old are they?": the column of the main table that the question is about."""
    for asked, parts in edit_words()["properties"].items():
        if re.search(rf"\b{asked}\b", reading.text):
            names = [(part, c.name) for part in parts for c in statement.main.columns if part in words(c.name)]
            return Named(statement.main.name, names[0][1]) if names else None
    return None


def _called(table: Table, statement: Statement, by_others: bool) -> tuple[Named, ...]:
    """The columns that rows are called by: a label, of people with a name in two parts both.

    by_others: rather another table's label than a key, "who are they?" behind a count of orders. Raises LookupError
    where several tables may tell who.
    """
    label, keys = label_of(table, statement), key_columns(table)
    fixed = {column[0] for c in statement.conditions() if (column := statement.column_compared(c))}
    others = {key.ref_table.lower() for key in table.foreign_keys} - {table.name.lower(), *fixed}
    called = [other for name in others if (other := statement.schema.table(name)) and _has_a_name(other)]
    if by_others and label and label.table != table.name and len(called) > 1:
        raise LookupError(f"who of {', '.join(other.name for other in called)}")
    if label and label.table != table.name and len(keys) == 1 and not refers(table, keys[0]) and not by_others:
        return (Named(table.name, keys[0]),)
    return _whole_name(label, statement) if label else ()


def _has_a_name(table: Table) -> bool:
    label = label_column(table)
    return label is not None and words(label)[-1] not in ("title", "label")


def _whole_name(named: Named, statement: Statement) -> tuple[Named, ...]:
    """Both parts of a person's name, where ``named`` is one of them."""
    table = statement.schema.table(named.table)
    columns = [c.name for c in table.columns] if table else []
    parts = [next((name for name in columns if part.search(name)), "") for part in (_GIVEN, _FAMILY)]
    return tuple(Named(named.table, part) for part in parts) if all(parts) and named.column in parts else (named,)


@cache
def _verbs() -> frozenset[str]:
    """Words that are no name of what is shown."""
    return frozenset([*cue_words()["auxiliaries"], "of", "one", "ones"])


def _repeats(named: Named, statement: Statement) -> bool:
    """Is it a property that many rows share, so that "which X are they in" means each X once?"""
    table = statement.schema.table(named.table)
    unique = table is not None and any(c.name == named.column and c.primary_key for c in table.columns)
    return not unique


def _listed_columns(
    reading: Reading, statement: Statement, used: Sequence[tuple[int, int]], kinds: Kinds
) -> Iterator[tuple[Named, ...]]:
    """The columns of a clause that is nothing but a list of them, and of one behind "list"."""
    for number, (start, end) in enumerate(reading.clauses):
        text = reading.text[start:end].strip()
        verb = _VERB.match(text)
        if verb:
            head = text[verb.end() :]
            cut = _END.search(head)
            columns = _all_named(head[: cut.start()] if cut else head, statement, kinds)
            if columns:
                yield columns
        if (number > 0 or verb) and not (verb and number == 0):
            columns = _all_named(text, statement, kinds)
            if columns and not _overlaps(start, end, used):
                yield columns
        only = re.match(
            r"^(?:and |just |only |now |please )*(?:the |their |its )(?P<what>[a-z_, ]+?)(?: only| please| too)*$", text
        )
        few = re.match(r"^(?:just |only )(?P<what>[a-z_]+(?: [a-z_]+)?s)$|^(?P<such>[a-z_]+(?: [a-z_]+)?s) only$", text)
        if number == 0 and few and not named_table(words(few["what"] or few["such"]), statement.schema):
            columns = _all_named(few["what"] or few["such"], statement, kinds)  # "only titles", not "only admins"
            if columns and not any(kinds[c.table.lower(), c.column.lower()] == "flag" for c in columns):
                yield columns
        if (
            number == 0
            and only
            and re.match(r"^(?:and |but )?(?:(?:just|only) the|(?:just |only )?(?:their|its))\b", text)
        ):
            columns = _all_named(only["what"], statement, kinds)
            if columns:
                yield columns


def _overlaps(start: int, end: int, used: Sequence[tuple[int, int]]) -> bool:
    return any(start < other[1] and other[0] < end for other in used)


def _all_named(text: str, statement: Statement, kinds: Kinds) -> tuple[Named, ...]:
    """The columns of "title, price and the year", where every phrase means one; else none."""
    phrases = [_content(phrase) for phrase in listed_phrases(text)]
    phrases = [phrase for phrase in phrases if phrase]
    named = [_one(phrase, statement, kinds) for phrase in phrases]
    return tuple(each for each in named if each) if phrases and all(named) else ()


def _content(phrase: Phrase) -> Phrase:
    return tuple(
        word for word in phrase if word not in _FILLER and (word not in STOP_WORDS or word in ("no", "number"))
    )


def _date_of(phrase: Sequence[str], statement: Statement, kinds: Kinds) -> Named | None:
    """The date of the main table that the words name, or its first one; None where it has none."""
    wanted = ("time", "datetime") if phrase[0] == "time" else ("date", "datetime")
    named = named_column(phrase, statement, kinds, (*wanted, "year"))
    if named and statement.away(named.table) < 1:
        return named
    dates = [c for c in statement.main.columns if kinds[statement.main.name.lower(), c.name.lower()] in wanted]
    return Named(statement.main.name, dates[0].name) if dates and tuple(phrase) in _DATE else None


def _one(phrase: Phrase, statement: Statement, kinds: Kinds) -> Named | None:
    if phrase in _DATE and (dated := _date_of(phrase, statement, kinds)):
        return dated
    if phrase in (("name",), ("names",), ("title",), ("titles",), ("label",), ("labels",)):
        label = _shown_of_groups(phrase[0].removesuffix("s"), statement) or label_of(statement.main, statement)
        if label and words(label.column)[-1] == phrase[0].removesuffix("s"):
            return label
    table = named_table(phrase, statement.schema)
    if table and label_column(table) and all(_is_of(word, table) for word in phrase):
        return named_group(phrase, statement)
    named = named_column(phrase, statement)
    figures = {*edit_words()["aggregates"]["AVG"], *edit_words()["aggregates"]["SUM"]}
    return None if named and figures & set(phrase) - set(words(named.column)) else named  # "their average age"


def _shown_of_groups(word: str, statement: Statement) -> Named | None:
    """ "Only the names" of groups that are shown by their name."""
    columns = [e for e in statement.tree.expressions if isinstance(e, exp.Column)] if statement.grouped else []
    called = ((statement.table_of(c), c.name) for c in columns if words(c.name)[-1] == word)
    return next((Named(table.name, name) for table, name in called if table), None)


def _is_of(word: str, table: Table) -> bool:
    return stem(word) in {stem(part) for part in words(table.name)}


def column_to_add(phrase: Phrase, statement: Statement) -> Named | None:
    """ "The tariff too" is its name, where a table is called so."""
    table = named_table(phrase, statement.schema)
    content = [word for word in phrase if word not in STOP_WORDS]
    whole = table and label_column(table) and len(content) == len(words(table.name))
    return named_group(phrase, statement) if whole else named_column(phrase, statement)
