"""The tables that a question is about: a deterministic lexical ranking, and the part of the schema it selects [17].

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> two = Schema((Table("customers", (Column("city"),)), Table("orders", (Column("shipped"),))))
>>> [table.name for table in link_schema("How many orders were shipped?", two, max_tables=1).tables]
['orders']

Not covered: synonyms ("staff" for ``employees``) and values ("in Oslo" for ``city``): a table that shares no word
with the question is reached only through the tables it is joined to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from nl2sql.databases.schema import Schema, Table, focus
from nl2sql.sql.text import stem, words

NAME_WEIGHT = 3.0  # a word of the question in a table's name counts this many times one in a column's name
COMPLETE_NAME = 1.5  # bonus for a table whose whole name is in the question
NEIGHBOUR = 0.3  # share of its best neighbour's score that a table gets by a foreign key
SECOND_NEIGHBOUR = 0.2  # and this share of its second best neighbour's
PRIOR = 0.1  # of the logarithm of a table's size and connections: decides only where words do not
RELEVANT = 0.2  # tables below this share of the best score are not worth a path to them
PARTIAL = 0.6  # a match of stems that only share their beginning

# Words that say nothing about tables. Verbs and nouns that may well be column names are not here.
_STOP = """a about above all also an and any are as at be been being below between both but by can could did do does
each either every find for from get give had has have having he her his how i if in into is it its least list many me
more most much my no not number of on only or other our out over please retrieve return s same several she show so
some tell than that the their them then there these they this those through to under up us using was we were what
whats when where whether which while who whom whose why will with without would you your"""
STOP_WORDS = frozenset(_STOP.split())
_STRUCTURE = """total sum average mean maximum minimum max min highest lowest largest smallest biggest greatest best
worst longest shortest oldest youngest latest earliest newest count number different distinct unique common frequent
order ordered sort sorted alphabetical alphabetically descending ascending top first last least most fewer greater less
higher lower older younger after before since until than without together"""
STRUCTURE = frozenset(_STRUCTURE.split())  # words that ask for a form of the query, and name nothing in a database


def similarity(left: str, right: str) -> float:
    """1 for equal stems, less for stems of which one begins with the other (abbreviations, compounds), else 0."""
    if left == right:
        return 1.0
    short, long = sorted((left, right), key=len)
    if len(short) >= 4 and long.startswith(short):
        return PARTIAL
    if len(short) == 3 and long.startswith(short) and len(long) <= 6:
        return PARTIAL / 2
    return 0.0


def rank_tables(nlq: str, schema: Schema) -> list[tuple[str, float]]:
    """Every table with its score (0 or more), best first; ties keep the schema's order.

    A word of the question scores for a table by its best match among the words of the table's name, or (less) of
    its columns' names, weighted by how few tables match it. A table also gets a share of its two best neighbours'
    scores, and a little for its size and connections, which decides only where words do not. Without any matching
    word all scores are 0.
    """
    asked = question_stems(nlq)
    own = _own_scores(asked, schema.tables)
    matched = any(own)
    near = joinable_tables(schema)
    scores = []
    for i, table in enumerate(schema.tables):
        first, *others = sorted((own[j] for j in near[i]), reverse=True) or [0.0]
        around = NEIGHBOUR * first + SECOND_NEIGHBOUR * sum(others[:1])
        prior = PRIOR * math.log1p(len(near[i]) + len(table.columns) / 4)
        scores.append(own[i] + around + (prior if matched else 0.0))
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return [(schema.tables[i].name, round(scores[i], 6)) for i in order]


def question_stems(nlq: str) -> list[str]:
    """The stems of the words of a question that may name a table or a column, and of two words written as one."""
    plain = words(nlq)
    kept = [stem(word) for word in plain if word not in STOP_WORDS]
    joined = [stem(a + b) for a, b in pairwise(plain) if not {a, b} & STOP_WORDS]
    return list(dict.fromkeys(kept + joined))  # "order details" also asks for ``orderdetails``


def _own_scores(asked: Sequence[str], tables: Sequence[Table]) -> list[float]:
    names = [[stem(word) for word in words(table.name)] for table in tables]
    columns = [{stem(word) for column in table.columns for word in words(column.name)} for table in tables]
    covered = [sum(_best(part, asked) for part in parts) / max(len(parts), 1) for parts in names]
    scores = [0.0] * len(tables)
    for word in asked:
        matches = []
        for i in range(len(tables)):
            in_name = _best(word, names[i])
            matches.append(max(in_name * NAME_WEIGHT * (0.5 + covered[i] / 2), _best(word, columns[i])))
        count = sum(match > 0 for match in matches)
        if count:
            rarity = math.log(1 + len(tables) / count)
            scores = [score + match * rarity for score, match in zip(scores, matches, strict=True)]
    for i, parts in enumerate(names):
        if parts and all(_best(part, asked) == 1.0 for part in parts):
            scores[i] += COMPLETE_NAME * math.sqrt(len(parts))
    return scores


def _best(word: str, among: Iterable[str]) -> float:
    return max((similarity(word, other) for other in among), default=0.0)


def joinable_tables(schema: Schema) -> list[set[int]]:
    """For each table the positions of those it is joined to: by foreign keys, and by a primary key's name.

    Many real databases declare no foreign keys; there a column named like another table's one-column primary key
    (and not just ``id``, ``name`` or ``code``) counts as a reference to it.
    """
    position = {table.name.lower(): i for i, table in enumerate(schema.tables)}
    near: list[set[int]] = [set() for _ in schema.tables]
    keys: dict[str, set[int]] = {}
    for i, table in enumerate(schema.tables):
        if (key := table.key.lower()) not in ("", "id", "name", "code"):
            keys.setdefault(key, set()).add(i)
    for i, table in enumerate(schema.tables):
        linked = {position[k.ref_table.lower()] for k in table.foreign_keys if k.ref_table.lower() in position}
        for column in table.columns:
            linked |= keys.get(column.name.lower(), set())
        for j in linked - {i}:
            near[i].add(j)
            near[j].add(i)
    return near


def link_schema(nlq: str, schema: Schema, max_tables: int) -> Schema:
    """The part of ``schema`` that ``nlq`` is about, in the schema's order: at most ``max_tables`` tables.

    The best tables first, each with the tables on the shortest path to those already chosen where these still fit.
    0 switches linking off. Without any matching word the tables with the most neighbours, then columns, are kept.
    """
    if max_tables <= 0 or len(schema.tables) <= max_tables:
        return schema
    position = {table.name: i for i, table in enumerate(schema.tables)}
    near = joinable_tables(schema)
    ranking = rank_tables(nlq, schema)
    if ranking[0][1] == 0:
        connected = {table.name: (-len(near[i]), -len(table.columns), i) for i, table in enumerate(schema.tables)}
        ranking.sort(key=lambda ranked: connected[ranked[0]])
    best = ranking[0][1]
    chosen: list[int] = []
    for name, score in ranking:
        i = position[name]
        path = _path(i, chosen, near) if score >= RELEVANT * best else [i]
        new = [j for j in path if j not in chosen]
        if len(chosen) + len(new) > max_tables:
            new = [i] if i not in chosen else []
        chosen += new[: max_tables - len(chosen)]
        if len(chosen) >= max_tables:
            break
    return focus(schema, [schema.tables[i].name for i in chosen])


def _path(start: int, goals: Sequence[int], near: Sequence[set[int]], longest: int = 3) -> list[int]:
    """The tables on a shortest path from ``start`` to any of ``goals``; ``[start]`` when there is none that short."""
    paths, seen = [[start]], {start}
    for _ in range(longest + 1):
        shortest = next((path for path in paths if path[-1] in goals), None)
        if shortest:
            return shortest
        longer = []
        for path in paths:
            for j in sorted(near[path[-1]] - seen):
                seen.add(j)
                longer.append([*path, j])
        paths = longer
    return [start]


def uncovered_share(question: str, sql: str, schema: Schema) -> float:
    """The share of a question's telling words that neither a name of the schema nor the query stands for."""
    telling = [word for word in words(question) if word not in STOP_WORDS and word not in STRUCTURE]
    asked = list(dict.fromkeys(stem(word) for word in telling))
    if not asked:
        return 0.0
    named = {stem(word) for word in words(sql)}
    for table in schema.tables:
        named |= {stem(word) for name in (table.name, *(c.name for c in table.columns)) for word in words(name)}
    return sum(not any(similarity(word, other) for other in named) for word in asked) / len(asked)
