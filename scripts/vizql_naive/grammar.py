"""Formulas drawn from templates by type, for rows and for aggregates.

>>> sales = FieldMetadata(fieldCaption="Sales", dataType="REAL")
>>> Grammar(random.Random(6), [sales], lambda known: 1.5).of_kind("REAL", "aggregate", depth=1)
'(SUM([Sales])) + (VAR([Sales]))'

In a template ``<NUMBER>`` is a formula of the same level, ``<row NUMBER>`` one of rows. Not covered: formulas that mix
rows and aggregates, which are refused.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

from nl2sql.vizql.source import FieldMetadata

_ANY = {  # for rows and aggregates alike
    "REAL": (
        "<NUMBER> / <NUMBER>",
        "<REAL> + <NUMBER>",
        "<NUMBER> - <REAL>",
        "<REAL> * <NUMBER>",
        "-<REAL>",
        "ABS(<REAL>)",
        "ZN(<REAL>)",
        "IFNULL(<REAL>, <NUMBER>)",
        "ROUND(<EVEN>, 1)",
        "ROUND(<EVEN>)",
        "IF <BOOLEAN> THEN <NUMBER> ELSE <REAL> END",
        "IIF(<BOOLEAN>, <REAL>, <NUMBER>)",
    ),
    "INTEGER": (
        "<INTEGER> + <INTEGER>",
        "<INTEGER> * <SMALL>",
        "(<INTEGER>) % (<INTEGER>)",
        "-<INTEGER>",
        "FLOOR(<EVEN>)",
        "CEILING(<EVEN> / 4)",
        "LEN(<STRING>)",
        "ZN(<INTEGER>)",
        "ABS(<INTEGER>)",
        "YEAR(<DATE>)",
        "QUARTER(<DATE>) + MONTH(<DATE>)",
        "WEEK(<DATE>) - DAY(<DATE>)",
        "CASE <STRING> WHEN <STRING> THEN <INTEGER> WHEN <STRING> THEN <SMALL> END",
        "IF <BOOLEAN> THEN <INTEGER> ELSEIF <BOOLEAN> THEN <SMALL> END",
    ),
    "STRING": (
        "UPPER(<STRING>)",
        "LOWER(<STRING>)",
        "TRIM(<STRING>)",
        "<STRING> + <STRING>",
        "IFNULL(<STRING>, <STRING>)",
        "IF <BOOLEAN> THEN <STRING> ELSE <STRING> END",
    ),
    "BOOLEAN": (
        "<NUMBER> > <NUMBER>",
        "<EVEN> <= <SMALL>",
        "<EVEN> >= <EVEN>",
        "<INTEGER> != <SMALL>",
        "<STRING> = <STRING>",
        "<STRING> < <STRING>",
        "<DATE> >= <DATE>",
        "<DATE> <> <DATE>",
        "CONTAINS(<STRING>, <STRING>)",
        "STARTSWITH(<STRING>, <STRING>)",
        "ENDSWITH(<STRING>, <STRING>)",
        "ISNULL(<NUMBER>)",
        "NOT <BOOLEAN>",
        "<BOOLEAN> AND <BOOLEAN>",
        "<BOOLEAN> OR <BOOLEAN>",
    ),
    "DATE": ("IFNULL(<DATE>, <DATE>)", "IF <BOOLEAN> THEN <DATE> END"),
}
_AGGREGATES = {
    "REAL": ("SUM(<row REAL>)", "AVG(<row NUMBER>)", "MEDIAN(<row EVEN>)", "VAR(<row EVEN>)", "STDEV(<row EVEN>)"),
    "INTEGER": (
        "SUM(<row INTEGER>)",
        "COUNT(<row ANY>)",
        "COUNTD(<row ANY>)",
        "MAX(<row INTEGER>)",
        "COUNT([Orders])",
    ),
    "STRING": ("MIN(<row STRING>)", "MAX(<row STRING>)"),
    "BOOLEAN": ("MAX(<row BOOLEAN>)",),
    "DATE": ("MIN(<row DATE>)", "MAX(<row DATE>)"),
    "EVEN": ("SUM(<row EVEN>)", "MIN(<row EVEN>)", "MAX(<row EVEN>)"),
}
_CONSTANTS = {
    "REAL": ("0.5", "2.25", "[Churn Rate]", "1e3", "0.1"),
    "EVEN": ("0.5", "12.25"),
    "INTEGER": ("0", "3", "[Parameters].[Profit Bin Size]", "7", "100000"),
    "SMALL": ("0", "1", "2", "5"),
    "STRING": ("'a'", "''", '"b c"', "'a''b'", "[Top Segment]"),
    "BOOLEAN": ("TRUE", "FALSE", "NULL > 1", "[With Gifts]"),
    "DATE": ("#2022-01-01#", "#2021-01-03#", "[Start]"),
}
_EVEN = ("<EVEN> + <SMALL>", "<EVEN> - <EVEN>", "<EVEN> * 0.5", "ABS(<EVEN>)", "<INTEGER>", "ZN(<EVEN>)")
_WIDER = {"NUMBER": ("REAL", "INTEGER", "EVEN"), "ANY": ("REAL", "STRING", "DATE", "BOOLEAN", "INTEGER")}
_PLACE = re.compile(r"<(row )?([A-Z]+)>")


class Grammar:
    """Draws formulas over fields; EVEN are numbers that floats hold exactly, however they are summed up."""

    def __init__(
        self, draw: random.Random, fields: Sequence[FieldMetadata], member: Callable[[FieldMetadata], Any]
    ) -> None:
        self.draw, self.fields, self.member = draw, fields, member

    def formula(self, level: str) -> str:
        """A formula of any type."""
        return self.of_kind(self.draw.choice(_WIDER["ANY"]), level)

    def of_kind(self, kind: str, level: str, depth: int = 2) -> str:
        """A formula of a type; ``level`` is row or aggregate, ``depth`` how deep it may be nested."""
        kind = self.draw.choice(_WIDER[kind]) if kind in _WIDER else kind
        if kind == "SMALL":
            return self.draw.choice(_CONSTANTS[kind])
        plain = self.draw.random() < 0.3
        if depth > 0 and not plain:
            return self.filled(self.draw.choice(_EVEN if kind == "EVEN" else _ANY[kind]), level, depth - 1)
        if level == "row":
            return self.leaf(kind)
        return self.filled(self.draw.choice(_AGGREGATES[kind]), level, min(depth, 1))

    def filled(self, template: str, level: str, depth: int) -> str:
        """A template with formulas in its places; in parentheses, or bare, where binding decides."""

        def fill(place: re.Match[str]) -> str:
            inner = "row" if place[1] else level
            if level == "aggregate" and inner == "aggregate" and self.draw.random() < 0.3 and place[2] in _CONSTANTS:
                return self.constant(place[2])
            text = self.of_kind(place[2], inner, depth)
            closed = self.draw.random() < 0.6 or place[2] in ("BOOLEAN", "STRING", "EVEN", "DATE")
            return f"({text})" if closed and not text.startswith(("[", "'")) else text

        return _PLACE.sub(fill, template)

    def leaf(self, kind: str) -> str:
        """A field, or now and then a constant."""
        kinds = {"EVEN": ("REAL", "INTEGER"), "DATE": ("DATE",)}.get(kind, (kind,))
        fields = [known for known in self.fields if known.dataType in kinds]
        if fields and self.draw.random() < 0.93:
            return f"[{self.draw.choice(fields).fieldCaption}]"
        return self.constant(kind)

    def constant(self, kind: str) -> str:
        fields = [known for known in self.fields if known.dataType == kind]
        if kind in ("STRING", "DATE") and fields and self.draw.random() < 0.6:
            member = self.member(self.draw.choice(fields))
            if isinstance(member, datetime.date):
                return f"#{member.isoformat()}#"
            quoted = member.replace("'", "''")
            return f"'{quoted}'"
        return self.draw.choice(_CONSTANTS[kind])
