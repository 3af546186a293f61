"""What a rewritten question must not lose: numbers, quoted values and schema words that the user wrote.

>>> from nl2sql.databases.schema import Column, Schema, Table
>>> schema = Schema((Table("customers", (Column("city"),)),))
>>> lost_words("and by city, above 50?", "How many customers are there above 50?", schema)
['city']

Not covered: comparisons ("more than"), whose words have too many equals, and negations.
"""

from __future__ import annotations

import re

from nl2sql.agents.context.linking import STOP_WORDS, stem
from nl2sql.databases.schema import Schema
from nl2sql.sql.words import QUOTED, words

_NUMBER = re.compile(r"(?<![^\W_])[A-Za-z]{0,3}\d+(?:[.,:/-]\d+)*")


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
