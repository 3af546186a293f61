"""What a rewritten question must not lose: numbers, quoted values and schema words that the user wrote, and the values
of the query that it says.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("city"),)),))
>>> lost_words("and by city, above 50?", "How many customers are there above 50?", schema)
['city']

Not covered: comparisons ("more than"), whose words have too many equals; negations but for ``<>`` and ``NOT IN``.
"""

from __future__ import annotations

import re

from sqlglot import exp
from sqlglot.errors import SqlglotError

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Schema
from nl2sql.sql.parse import parse_bounded
from nl2sql.sql.words import QUOTED, words

_NUMBER = re.compile(r"(?<![^\W_])[A-Za-z]{0,3}\d+(?:[.,:/-]\d+)*")
_DATE = re.compile(r"(\d{4})-\d{2}-\d{2}.*", re.DOTALL)
_EXCLUDED = re.compile(
    r"\b(?:not|no|never|except|excluding|other than|outside|without|apart from"
    r"|(?:all|any\w*|every\w*)(?: \w+){0,2} but)\b|n't\b|<>|!="
)


def unsaid_values(sql: str, text: str, dialect: str) -> list[str]:
    """The values that ``sql`` compares with and ``text``, which says it, lacks; of a date its year must be there.

    >>> unsaid_values("SELECT name FROM t WHERE city = 'Bern' AND d > '2023-05-01'", "Who came in May 2023?", "sqlite")
    ['Bern']

    A value or a subquery that is excluded (``<>``, ``NOT IN``) asks for a word of exclusion.

    >>> unsaid_values("SELECT name FROM t WHERE city <> 'Bern'", "Who is in Bern?", "sqlite")
    ['not']
    """
    said = text.casefold()
    try:
        tree = parse_bounded(sql, dialect)
    except SqlglotError:
        return []
    limits = [limit.expression for limit in tree.find_all(exp.Limit)]
    literals = [node for node in tree.find_all(exp.Literal) if not any(node is limit for limit in limits)]
    values = [_DATE.sub(r"\1", node.this) for node in literals if node.this not in ("0", "1")]
    unsaid = [value for value in values if value.casefold() not in said]
    excluded = any(node.find(exp.Literal) for node in tree.find_all(exp.NEQ))
    excluded |= any(isinstance(node.this, exp.In) for node in tree.find_all(exp.Not))
    return list(dict.fromkeys([*unsaid, *(["not"] if excluded and not _EXCLUDED.search(said) else [])]))


def lost_words(asked: str, resolved: str, schema: Schema) -> list[str]:
    """The numbers, quoted values and schema words of ``asked`` that ``resolved`` lacks, in their order.

    Words are compared by their stems; a number also counts where it is part of a longer one ("2023" in "2023-05-01").
    """
    kept_text, kept_stems = resolved.casefold(), {stem(word) for word in words(resolved)}
    named = {stem(w) for table in schema.tables for w in words(table.name)}
    named |= {stem(w) for table in schema.tables for column in table.columns for w in words(column.name)}
    lost = [number for number in _NUMBER.findall(asked) if number.casefold() not in kept_text]
    quoted = [text[1:-1] for text in QUOTED.findall(asked)]
    lost += [value for value in quoted if value.casefold() not in kept_text]
    plain = [word for word in words(asked) if word not in STOP_WORDS and not word.isdigit()]
    lost += [word for word in plain if stem(word) in named - kept_stems]
    return list(dict.fromkeys(lost))
