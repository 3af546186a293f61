"""The grammars of constrained decoding, as text: one turn of the loop, and one SELECT over a schema.

Two levels, cumulative (``Config.constrain``). ``action``: a turn is ``Thought: <one line>`` and ``Action: tool[json]``
with a tool that exists and the arguments that it reads, and ends at the closing bracket; or, with
``react.native_tools``, ``<tool_call>JSON</tool_call>``. ``sql``: generated SQL is one
SELECT whose identifiers are the schema's tables and columns (see ``select_grammar``, and docs/grammars.md for what it
accepts). A grammar describes the text after the open turn's prefill; ``nl2sql.models.rows`` compiles it.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from itertools import combinations, permutations
from typing import Any

from nl2sql.agents.context.linking import joinable_tables
from nl2sql.databases.schema import PLAIN_NAME, RESERVED, Schema, Table
from nl2sql.interfaces import Grammar
from nl2sql.sql.text import words

# ------------------------------------------------------------------------------------------------ one turn

Parameters = Mapping[str, Any]  # a JSON Schema of a tool's arguments
_TEXT = r"[^\x00-\x1f\x7f]"
OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"  # of a native call
_MARKERS = r"/(?s:.*)(Observation|Action):(?s:.*)/"  # "Observation:" ends the turn, "Action:" is the parser's


@functools.lru_cache(maxsize=256)
def action_grammar(tools: tuple[tuple[str, str], ...], thought_characters: int) -> Grammar:
    """One turn of the loop, written after a line break.

    tools: names and what may stand between their brackets, as ``tool_arguments`` writes it. thought_characters: the
    longest thought; it has at least one character and neither line breaks nor the transcript's own markers.
    """
    start = '"Thought: " THOUGHT "\\nAction: "'
    thought = f"/{_TEXT}{{1,{thought_characters}}}/ & ~{_MARKERS}"
    return _turn(start, thought, "", [(name + "[", inside + ' "]"') for name, inside in tools])


@functools.lru_cache(maxsize=256)
def tool_call_grammar(tools: tuple[tuple[str, str], ...], thought_characters: int) -> Grammar:
    """One turn in the native form: at most one line of thought without ``<``, then ``<tool_call>JSON</tool_call>``."""
    start = '(THOUGHT "\\n")? ' + json.dumps(OPENING + '{"name": "')
    thought = f"/[^\\x00-\\x1f\\x7f<]{{1,{thought_characters}}}/ & ~{_MARKERS}"
    calls = [(f'{name}", "arguments": ', inside) for name, inside in tools]
    return _turn(start, thought, json.dumps("}" + CLOSING), calls)


def _turn(start: str, thought: str, end: str, calls: Sequence[tuple[str, str]]) -> Grammar:
    """calls: the literal text before a call's arguments, and the rest of it as Lark."""
    lines = [
        f"start: {start} ({' | '.join(f'call_{i}' for i in range(len(calls)))}) {end}".rstrip(),
        f"THOUGHT: {thought}",
        f'STRING: "\\"" (/([^\\x00-\\x1f\\x7f"\\\\]|\\\\["\\\\\\/bfnrt]){{0,100}}/ & ~{_MARKERS}) "\\""',
        "NUMBER: /-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?/",
        'value: STRING | NUMBER | "true" | "false" | "null"',
        'object: "{" (STRING ": " value (", " STRING ": " value){0,7})? "}"',
    ]
    lines += [f"call_{i}: {json.dumps(before)} {inside}" for i, (before, inside) in enumerate(calls)]
    return Grammar("lark", "\n".join(lines) + "\n")


def no_arguments(tables: Sequence[str]) -> str:
    """The arguments of a tool that reads none."""
    return '"{}"'


def sample_arguments(tables: Sequence[str]) -> str:
    """A table by name and, if wanted, a number of rows."""
    named = " | ".join(json.dumps(json.dumps(table, ensure_ascii=False), ensure_ascii=True) for table in tables)
    return f'"{{\\"table\\": " ({named}) (", \\"n\\": " /[1-9]|10/)? "}}"'


def json_arguments(parameters: Parameters | None) -> Callable[[Sequence[str]], str]:
    """The arguments that the JSON Schema ``parameters`` allows, or any flat object."""
    if parameters is None:
        return lambda tables: "object"
    text = "%json " + json.dumps({"x-guidance": _ONE_SPELLING, **parameters}, ensure_ascii=True)
    return lambda tables: text


_ONE_SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# ------------------------------------------------------------------------------------------------------ select

MOST_TABLES = 40  # in a larger schema the tables of one-table queries are not told apart (it would compile slowly)
MOST_ALIKE = 6  # a column name in more tables than this says nothing about the table
MOST_ALIASES = 6  # T1..T6
MOST_AT_ONCE = 16  # own scopes followed behind a query's first column; a bare one may be in many

# What people call the columns and tables that a query itself makes. They are named before their definition is read.
_COMPUTED = """
    count cnt num number nb n total sum avg average mean max maximum min minimum ratio rate percentage percent pct diff
    difference most least highest lowest largest smallest latest earliest cumulative running previous prev next"""
_ALONE = """
    rank rn row result value amount top first last c freq frequency share growth change gap increase decrease field val
    year month day week quarter decade date hour period age length size score points place position orders units
    quantity qty revenue sales profit cost price spending balance budget income turnover derived_field"""
_JOINING = "of per by in the and for to at with without from derived new"
_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NAMING = "sub subquery derived derived_table temp tmp inner_query res data"


@functools.lru_cache(maxsize=256)
def select_grammar(schema: Schema, prefill: str = "SELECT") -> Grammar:
    """One SELECT over ``schema``, continuing ``prefill``."""
    template = _template()
    begun = re.search(r"\bSELECT(\s*)\Z", prefill, re.IGNORECASE)
    start = f"{'' if begun[1] else 'BLANK '}select" if begun else "(SELECT select | with)"
    parts = [f"start: {start} SEMICOLON?", template["once"]]
    terminals = _terminals(schema.tables)
    scopes = ["e", "i", "j", "k"]
    if len(schema.tables) <= MOST_TABLES:
        scopes += ["d", "g", "m", "t", *(f"t{n}" for n in range(1, MOST_ALIASES + 1))]
        parts += _own_scopes(schema, terminals)
    else:
        columns = " | ".join(f'TABLE_{i} "." COLUMN_{i}' for i in range(len(schema.tables)))
        terminals["QUALIFIED"] = columns
        parts += [template["large"], "column: COLUMN | QUALIFIED", "beside_aliases: column"]
    if not begun:
        parts.append(template["with"])
        scopes.append("w")
    for scope in scopes:
        lists = not re.fullmatch("e|t[2-9]", scope)  # those are reached behind FROM only
        parts.append(f"ref_{scope}: {_REFERENCES[scope[0]].replace('@', scope.upper())}")
        parts += [f"stars_{scope}: STAR_{scope.upper()}", f"shared_{scope}: COLUMN", *_scope(scope, lists=lists)]
        if lists:
            parts.append(template["items"].replace("@", scope))
    parts += [template["terminals"], *(f"{name}: {definition}" for name, definition in terminals.items())]
    return Grammar("lark", "\n\n".join(parts) + "\n")


# What stands for a column in the scopes that are not a table's or a join's.
_REFERENCES = {
    **dict.fromkeys("et", "REF_@"),
    **dict.fromkeys("ij", "beside_aliases | ALIASED"),
    **dict.fromkeys("dk", "column | ALIASED | COMPUTED"),
    "g": "column",
    "m": "beside_aliases | NAMED_COLUMN",
    "w": "REF_E",
}


# The marks in those sections of ``sqlite_select.lark`` that are written several times. One character each and replaced
# as text: str.format would want every brace of the grammar doubled, and names would hide the rules that they are in.
#   @  a scope (e, t2, 0_1)          ~  the kind of an expression (n, s), or the way to go on (_WAYS)
#   #  an own scope (0, 0_1)         &  the kind of an expression behind a way, or how a query ends (clauses, named)
#   %  a table (0)                   ^  "_w" where subqueries may read CTEs, else nothing
#   !  a query's first column        $...$  the same once for each #, % or ! in it, as alternatives


def _scope(scope: str, *, lists: bool = True) -> list[str]:
    """The rules of one scope; lists: also those of what is in front of FROM."""
    template = _template()
    parts = [template["scope"], *(template["expression"].replace("~", kind) for kind in "ns")]
    if lists:
        after = "e" if scope in ("d", "k") else scope
        parts.append(template["list"])
        for named, ending in (("", "clauses"), ("named_", "named")):
            sources = f"sources_and_{ending}" if scope == "t" else f"sources_@ {ending}_{after}"
            parts.append(f"from_{named}@: {sources}")
    return [part.replace("@", scope).replace("^", "_w" if scope == "w" else "") for part in parts]


def _own_scopes(schema: Schema, terminals: dict[str, str]) -> list[str]:
    """The rules of the own scopes and of what chooses among them; the terminals of their columns into ``terminals``."""
    template = _template()
    count, joined = len(schema.tables), joined_sets(schema)
    # A reference to a column is qualified (those of table i are number i) or bare (then by the tables that have it).
    groups = column_groups(schema)
    homes = [*(frozenset({i}) for i in range(count)), *groups]
    for i, names in enumerate(groups.values(), count):
        terminals[f"REFERENCE_{i}"] = _names(names)
    for i in range(count):
        columns = [name for having, names in groups.items() if i in having for name in names]
        terminals[f"REFERENCE_{i}"] = f'TABLE_{i} "." ({_names(columns)})'
        terminals[f"STAR_{i}"] = f'TABLE_{i} ".*"'

    def references(chosen: Iterable[bool]) -> str:
        return " | ".join(f"REFERENCE_{i}" for i, is_chosen in enumerate(chosen) if is_chosen) or _NEVER

    qualified = references(i < count for i in range(len(homes)))
    rules = {"column": references(bool(having) for having in homes), "outer": f"{qualified} | ALIASED"}
    # No table's own name stands before a column where tables have aliases: it would escape the check.
    rules["beside_aliases"] = references(i >= count for i in range(len(homes)))
    rules["common"] = references(len(having) > MOST_ALIKE for having in homes)
    rules |= other_joins(count, joined)
    own = {scope_name(tables): frozenset(tables) for tables in [*((i,) for i in range(count)), *joined]}
    for scope, tables in own.items():
        rules[f"sources_{scope}"] = sources(sorted(tables))
        rules[f"stars_{scope}"] = " | ".join(f"STAR_{i}" for i in sorted(tables))
        rules[f"ref_{scope}"] = references(len(having & tables) == 1 for having in homes)
        rules[f"shared_{scope}"] = references(len(having & tables) > 1 for having in homes)
    first = [i for i, having in enumerate(homes) if len(having) <= MOST_ALIKE]
    alone = [str(i) for i in range(count)]
    for way in (*_WAYS, *(f"{way}_grouped" for way in _OPENED)):
        for i in first:
            most = 1 if way in ("outward", "closed") else 3
            reading = [s for s, tables in own.items() if len(tables) <= most and len(homes[i] & tables) == 1]
            rules[f"{way}_of_{i}"] = " | ".join(f"{way}_{scope}" for scope in reading[:MOST_AT_ONCE])

    def alternatives(text: re.Match[str]) -> str:
        mark, names = next((m, n) for m, n in (("#", list(own)), ("%", alone), ("!", first)) if m in text[1])
        return " | ".join(text[1].replace(mark, str(name)) for name in names)

    choices = [template["top"], *(_way(template["opened"], way) for way in _OPENED)]
    parts = [re.sub(r"\$(.*?)\$", alternatives, part) for part in choices]
    if "sources_g" not in rules:
        parts = [part.replace(" | items_g", "").replace(" | sources_g", "") for part in parts]
        rules["sources_g"] = _NEVER
    parts += [template["numbered"].replace("&", ending) for ending in ("clauses", "named")]
    parts += [template["outward"].replace("#", scope) for scope in alone]
    for scope in own:
        parts += [template["own"].replace("#", scope), *_scope(scope)]
        parts += [_way(template["grouped"], way).replace("#", scope) for way in _OPENED]
    return parts + [f"{name}: {definition}" for name, definition in rules.items()]


def _way(text: str, way: str) -> str:
    return text.replace("~", way).replace("&", _WAYS[way])


# The ways to go on behind a query's first column, and the kind of expression there (the template's "own", "opened").
_WAYS = {"rest": "s", "called": "s", "inside": "n", "nested": "n", "outward": "s", "closed": "n"}
_OPENED = ("rest", "called", "inside", "nested")
_NEVER = '"\\u0001"'


def _terminals(tables: Sequence[Table]) -> dict[str, str]:
    """The terminals that hold names; a scope for every ``REF_<scope>``, the references to columns in it."""
    terminals = {"BLANK": "/[ \\n]/", "RESERVED": f"/(?i:{'|'.join(sorted(RESERVED))})/", "AS": "/ ((as|AS|As) )?/"}
    for i, table in enumerate(tables):
        terminals[f"TABLE_{i}"] = _names([table.name])
        terminals[f"COLUMN_{i}"] = _names([column.name for column in table.columns])
    terminals["TABLE"] = _names([table.name for table in tables])
    terminals["COLUMN"] = _names([column.name for table in tables for column in table.columns])
    terminals["COMPUTED"] = f"{_computed(tables)} & ~RESERVED"
    terminals["NUMBERED"] = "/[tT][1-9]/"
    terminals["NAMED"] = f"{_alias(tables)} & ~RESERVED & ~NUMBERED & ~TABLE"
    terminals["ALIAS"], terminals["ALIAS_ANY"] = "AS NAMED", "AS (NAMED | NUMBERED)"
    terminals["NAMED_COLUMN"] = 'NAMED "." (COLUMN | COMPUTED)'
    terminals["ALIASED"] = '(NAMED | NUMBERED) "." (COLUMN | COMPUTED)'
    terminals["FREE"] = "/[A-Za-z_][A-Za-z0-9_]{0,39}/ & ~RESERVED"
    terminals["ALIAS_FREE"] = "AS FREE"
    terminals["STAR_G"], terminals["STAR_M"] = 'TABLE ".*"', 'NAMED ".*"'
    terminals["STAR_I"] = terminals["STAR_D"] = terminals["STAR_J"] = terminals["STAR_K"] = (
        '(TABLE | NAMED | NUMBERED) ".*"'
    )
    terminals["REF_E"], terminals["STAR_E"] = '((FREE | TABLE) ".")? (COLUMN | FREE)', '(FREE | TABLE) ".*"'
    terminals["STAR_W"] = terminals["STAR_E"]
    terminals["REF_T"], terminals["STAR_T"] = '(/[tT][1-6]/ ".")? COLUMN', '/[tT][1-6]/ ".*"'
    for n in range(1, MOST_ALIASES + 1):
        terminals[f"T{n}"] = f"AS /[tT]{n}/"
        terminals[f"REF_T{n}"] = f'(/[tT][1-{n}]/ "."){"?" if n > 1 else ""} COLUMN'
        terminals[f"STAR_T{n}"] = f'/[tT][1-{n}]/ ".*"'
    return terminals


@functools.cache
def _template() -> dict[str, str]:
    parts = sections("sqlite_select.lark")
    cased = re.sub(r"\(\?i:([^()]*(\([^()]*\)[^()]*)*)\)", lambda m: f"({_cased(m[1])})", parts["terminals"])
    return {**parts, "terminals": cased}


@functools.cache
def sections(file: str) -> dict[str, str]:
    """The parts of a file of this folder: name -> text."""
    text = (resources.files("nl2sql.agents.grammars") / file).read_text(encoding="utf-8")
    parts = re.split(r"^%% (\w+)\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _cased(pattern: str) -> str:
    """``pattern`` with every word in lower case, in upper case or Capitalised.

    Not ``(?i:...)``: that also matches the long s and the Kelvin sign, and mixtures such as ``sELeCT``.
    """

    def forms(match: re.Match[str]) -> str:
        word = match[0]
        return word if word.startswith("[") else f"({word}|{word.upper()}|{word.capitalize()})"

    return re.sub(r"\[[^\]]*\]|[a-z][a-z_]*[a-z][0-9]*", forms, pattern)


def escaped(text: str) -> str:
    """``text`` as a regular expression of Lark; what is not a letter, a digit or beyond ASCII goes by its number."""
    return "".join(c if c.isalnum() or c == "_" or ord(c) > 127 else f"\\x{ord(c):02x}" for c in text)


def _any(texts: Iterable[str]) -> str:
    """One of ``texts``, each of its words as it is, in lower case, in upper case or Capitalised.

    Any mixture of cases would be the same name to SQLite, and more ways for a model to wander off within a name. Other
    cases of letters beyond ASCII would be another name.
    """
    return "/" + "|".join(dict.fromkeys(map(_spellings, texts))) + "/"


def _spellings(text: str) -> str:
    parts = []
    for part in re.findall(r"[^\W\d_]+|[\W\d_]+", _JOINT.sub("\0", text)):
        cased = (part, part.lower(), part.upper(), part.capitalize())
        forms = dict.fromkeys(escaped(form) for form in cased if form.encode().lower() == part.encode().lower())
        parts.append(f"({'|'.join(forms)})" if len(forms) > 1 else next(iter(forms)))
    return "".join(parts).replace("\\x00", "")


def _names(names: Sequence[str]) -> str:
    """A terminal for identifiers: bare where that is possible, or quoted in one of SQLite's ways."""
    unique = list(dict.fromkeys(names))
    bare = [name for name in unique if PLAIN_NAME.fullmatch(name) and name.lower() not in RESERVED]
    special = [name for name in unique if name not in bare]
    double, tick = ([name.replace(quote, quote * 2) for name in unique] for quote in '"`')
    forms = [_any(bare)] if bare else []
    forms += [f'"\\"" {_any(double)} "\\""', f'"`" {_any(tick)} "`"']
    if special:
        forms.append(f'"[" {_any(special)} "]"')
    return " | ".join(forms)


def _alias(tables: Sequence[Table]) -> str:
    """Names that people give a table: at most three letters, its initials, the beginning of one of its words."""
    short, long = {"[A-Za-z]{1,2}"}, set(_NAMING.split())
    for table in tables:
        pieces = [piece for piece in words(table.name) if piece.isalpha() and piece.isascii()]
        short |= {piece[:4] for piece in pieces} | {"".join(piece[0] for piece in pieces)}
        if PLAIN_NAME.fullmatch(table.name):
            long.add(escaped(table.name))
    short.discard("")
    beginnings, names = "|".join(sorted(short)), "|".join(sorted(long))
    return f"/(?i:({beginnings})[0-9]{{0,2}}|({names})(alias)?[0-9]?)/"


def _computed(tables: Sequence[Table]) -> str:
    """The names that people give a computed column: words of the schema, and at least one such as total, avg, count."""
    schema_words = {
        word for table in tables for name in [table.name, *(c.name for c in table.columns)] for word in words(name)
    }
    schema_words = {word for word in schema_words if word.isascii() and word.isalnum()}
    computed, word = (
        "|".join(sorted(_COMPUTED.split())),
        "|".join(sorted({*schema_words, *_JOINING.split(), *_ALONE.split()})),
    )
    alone = "|".join(sorted(_ALONE.split()))
    long = f"({computed})(_({word})){{1,3}}|({word})(_({word}))?_({computed})s?"
    return f"/(?i:(({computed})s?|{alone}|{long})(_?(alias)?[0-9])?|({computed})({word})|({word})({computed}))/"


MOST_JOINS = 30  # every set costs compile time
MOST_OF_A_TABLE = 12  # the sets with the query's first column are followed side by side
FEW_TABLES = 5  # up to so many tables all pairs are listed, linked or not; with one table less, all triples


def joined_sets(schema: Schema) -> list[tuple[int, ...]]:
    """Pairs and triples of tables that queries join, each in ascending order; at most ``MOST_JOINS``.

    Linked pairs first, then triples held together by links: those with the most links, and among these the ones whose
    tables have the fewest others to go to. In small schemas also tables that are not linked.
    """
    near = joinable_tables(schema)
    tables = range(len(schema.tables))

    def links(some: Iterable[int]) -> int:
        return sum(b in near[a] for a, b in combinations(some, 2))

    count = len(tables)
    pairs = [pair for pair in combinations(tables, 2) if links(pair) or count <= FEW_TABLES]
    triples = [some for some in combinations(tables, 3) if links(some) > 1 or count < FEW_TABLES]
    triples.sort(key=lambda some: (-links(some), sum(len(near[a]) for a in some)))
    sets: list[tuple[int, ...]] = []
    uses = Counter[int]()
    for some in (*pairs, *triples):
        if len(sets) < MOST_JOINS and all(uses[a] < MOST_OF_A_TABLE for a in some):
            sets.append(some)
            uses.update(some)
    return sets


def column_groups(schema: Schema) -> dict[frozenset[int], list[str]]:
    """The schema's column names, as they are written in it, by the tables that have them (in any case of letters)."""
    homes: dict[str, set[int]] = {}
    spellings: dict[str, dict[str, None]] = {}
    for i, table in enumerate(schema.tables):
        for column in table.columns:
            homes.setdefault(column.name.lower(), set()).add(i)
            spellings.setdefault(column.name.lower(), {})[column.name] = None
    groups: dict[frozenset[int], list[str]] = {}
    for name, tables in homes.items():
        groups.setdefault(frozenset(tables), []).extend(spellings[name])
    return groups


def sources(tables: Sequence[int]) -> str:
    """A FROM clause that reads exactly ``tables``, in any order, as Lark."""
    scope = scope_name(tables)
    orders = []
    for first, *others in permutations(tables):
        orders.append(f"TABLE_{first}" + "".join(f" JOIN TABLE_{i} on_{scope}?" for i in others))
    return " | ".join(orders)


def scope_name(tables: Sequence[int]) -> str:
    return "_".join(map(str, tables))


def other_joins(count: int, listed: Iterable[tuple[int, ...]]) -> dict[str, str]:
    """Rules of FROM clauses over ``count`` tables that read no listed set: ``sources_g`` and what it is made of.

    Two or three tables that are not listed (others may follow these), or a listed set and at least a fourth table.
    Empty when there are none.
    """
    sets = {frozenset(tables) for tables in listed}
    rules: dict[str, str] = {}
    for pair in sorted({pair for tables in sets for pair in combinations(sorted(tables), 2)}):
        others = {i: frozenset((*pair, i)) in sets for i in range(count) if i not in pair}
        ways = _joins([i for i, is_listed in others.items() if not is_listed], 3)
        for third in (i for i, is_listed in others.items() if is_listed):
            fourth = _joins([i for i in others if i != third], 2)
            ways += [f"JOIN TABLE_{third} on_g? {join}" for join in fourth]
        if ways:
            rules[f"beyond_{scope_name(pair)}"] = " | ".join(ways)
    starts = []
    for first in range(count):
        ways, apart = [], []
        for second in (i for i in range(count) if i != first):
            beyond = f"beyond_{scope_name(sorted((first, second)))}"
            is_listed = frozenset((first, second)) in sets
            if beyond in rules:
                ways.append(f"JOIN TABLE_{second} on_g? {beyond}{'' if is_listed else '?'}")
            elif not is_listed:
                apart.append(second)
        ways += _joins(apart, 4)
        if ways:
            starts.append(f"TABLE_{first} ({' | '.join(ways)})")
    return {**rules, "sources_g": " | ".join(starts)} if starts else {}


def _joins(choice: Sequence[int], more: int) -> list[str]:
    """A join with one of ``choice``, then with up to ``more`` of any tables; nothing without a choice."""
    tables = " | ".join(f"TABLE_{i}" for i in choice)
    return [f"JOIN ({tables}) on_g? (JOIN TABLE on_g?){{0,{more}}}"] if tables else []
