"""Tableau formulas as trees: numbers, texts, names in brackets, arithmetic, comparisons, IF, CASE, calls.

The one reader of formulas: what the validator accepts is what the compiler reads.

>>> parse_formula("SUM([Sales]) / 2")
Call(name='/', arguments=(Call(name='SUM', arguments=(Name(text='Sales', parameter=False),)), Constant(value=2)))
>>> parse_formula("SUM([Sales]")
Traceback (most recent call last):
    ...
nl2sql.vizql.formula_tree.FormulaError: an unclosed '('
>>> [name for name, _ in references("SUM([Sales]) / COUNTD([Order ID]) // per [x]")]
['Sales', 'Order ID']
>>> bracketed("Weight [kg]"), references("MAX([Weight [kg]]])")
('[Weight [kg]]]', [('Weight [kg]', (4, 18))])

Binding, loosest first: OR, AND, NOT, comparisons and IN, + and -, * and / and %, a leading -, ^. Not covered: what the
names mean (``scope``).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from nl2sql.machine import MOST_DIGITS

DEEPEST = 40  # expressions within expressions
LONGEST = 10_000  # characters
MOST_CHAINED = 200  # signs in one expression: each holds all that stands to its left
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<text>"(?:[^"]|"")*"|'(?:[^']|'')*')
    |(?P<name>\[(?:[^\]]|\]\])*\](?:\.\[(?:[^\]]|\]\])*\])?)
    |\#(?P<date>[^#]*)\#
    |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><>|!=|<=|>=|==|[-+*/%^=<>(),{}:])""",
    re.VERBOSE | re.DOTALL,
)
_BINDING = {"OR": 1, "AND": 2, "=": 4, "<>": 4, "<": 4, "<=": 4, ">": 4, ">=": 4, "IN": 4, "+": 5, "-": 5}
_BINDING |= {"*": 6, "/": 6, "%": 6, "^": 8}
_NOT, _MINUS = 3, 7
_SAME = {"==": "=", "!=": "<>"}
_PAIRS = {")": "(", "}": "{"}
_WORDS = frozenset({"AND", "OR", "NOT", "IN", "IF", "THEN", "ELSEIF", "ELSE", "END", "CASE", "WHEN"})


class NotExecutable(Exception):
    """A valid query, or a part of one, that is not executed here; the text names what."""


class FormulaError(NotExecutable):
    """A formula that nobody executes: it breaks the language's rules, or the limits here."""


@dataclass(frozen=True)
class Constant:
    """A number, a text, a truth value or NULL."""

    value: str | int | float | bool | None


@dataclass(frozen=True)
class Day:
    """A date between two #."""

    text: str


@dataclass(frozen=True)
class Name:
    """A name in brackets; ``parameter``: it stood behind ``[Parameters].``"""

    text: str
    parameter: bool = False


@dataclass(frozen=True)
class Call:
    """A function, or a sign with two parts or one (``-``, ``NOT``).

    IF and CASE are ``IF`` of condition, result, condition, result ..., and what else; the first condition that holds
    decides. Names of signs, IF and ``{FIXED ...}`` are no functions' names.
    """

    name: str
    arguments: tuple[Tree, ...]


Tree: TypeAlias = Constant | Day | Name | Call
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}


def parse_formula(text: str) -> Tree:
    """The tree of a formula. Raises FormulaError, which says what it has that cannot be read."""
    if len(text) > LONGEST:
        raise FormulaError(f"more than {LONGEST:,} characters")
    reader = _Reader(_tokens(text))
    tree = reader.expression(0)
    reader.expect("end", "")
    return tree


def references(formula: str) -> list[tuple[str, tuple[int, int]]]:
    """The names in brackets with where they stand, brackets included; of ``[Parameters].[X]`` the last."""
    return [(name_in(m["name"])[1], m.span()) for m in _TOKEN.finditer(formula) if m["name"]]


def called(formula: str) -> list[tuple[str, tuple[int, int]]]:
    """The names of functions that a formula calls, with where they stand."""
    tokens = [token for token in _TOKEN.finditer(formula) if token.lastgroup]
    words = [token for token, after in pairwise(tokens) if token["word"] and after[0] == "("]
    return [(word[0], word.span()) for word in words if word[0].upper() not in _WORDS]


def name_in(brackets: str) -> tuple[str, str]:
    """The owner and the name in brackets: ``[Parameters].[X]`` is Parameters and X, ``[X]`` has no owner."""
    owner, dot, last = brackets.rpartition("].[")
    return owner.removeprefix("["), (last[:-1] if dot else brackets[1:-1]).replace("]]", "]")


def bracketed(name: str) -> str:
    """A name as a formula writes it."""
    return "[" + name.replace("]", "]]") + "]"


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            sign = text[at]
            raise FormulaError(f"an unclosed {sign!r}" if sign in "\"'[" else f"the sign {sign!r}")
        at = match.end()
        if match.lastgroup:
            tokens.append((match.lastgroup, match[match.lastgroup]))
    return [*map(_with_words, tokens), ("end", "")]


def _with_words(token: tuple[str, str]) -> tuple[str, str]:
    kind, text = token
    if kind == "word" and text.upper() in _WORDS:
        return "sign", text.upper()
    return kind, _SAME.get(text, text) if kind == "sign" else text


def _number(text: str) -> int | float:
    whole = text.isdigit()
    if (whole and len(text) > MOST_DIGITS) or math.isinf(float(text)):
        raise FormulaError(f"a number past all limits ({text[:20]})")
    return int(text) if whole else float(text)


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def take(self) -> tuple[str, str]:
        token = self.tokens[self.at]
        self.at += token[0] != "end"
        return token

    def met(self, sign: str) -> bool:
        """Is ``sign`` next? Then it is passed."""
        there = self.tokens[self.at] == ("sign", sign)
        self.at += there
        return there

    def expect(self, kind: str, text: str) -> None:
        token = self.take()
        if token[0] == "end" and text in _PAIRS:
            raise FormulaError(f"an unclosed {_PAIRS[text]!r}")
        if token != (kind, text):
            raise FormulaError(f"{_shown(token[1])} where {_shown(text)} is expected")

    def expression(self, least: int) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise FormulaError(f"expressions that are nested more than {DEEPEST} deep")
        left, chained = self.operand(), 0
        while (sign := self.tokens[self.at])[0] == "sign" and _BINDING.get(sign[1], -1) > least:
            self.at += 1
            chained += 1
            if chained > MOST_CHAINED:
                raise FormulaError(f"more than {MOST_CHAINED} operations in one expression")
            if sign[1] == "IN":
                left = Call("IN", (left, *(self.arguments(")") if self.met("(") else [self.operand()])))
            else:
                left = Call(sign[1], (left, self.expression(_BINDING[sign[1]])))
        self.depth -= 1
        return left

    def operand(self) -> Tree:
        kind, text = self.take()
        if kind == "sign":
            return self.signed(text)
        if kind == "number":
            return Constant(_number(text))
        if kind == "text":
            return Constant(text[1:-1].replace(text[0] * 2, text[0]))
        if kind == "date":
            return Day(text.strip())
        if kind == "name":
            owner, name = name_in(text)
            return Name(name, owner.lower() == "parameters")
        if kind == "word":
            return self.word(text.upper())
        raise FormulaError(f"{_shown('')} where a value is expected")

    def signed(self, sign: str) -> Tree:
        if sign == "(":
            inner = self.expression(0)
            self.expect("sign", ")")
            return inner
        if sign in ("-", "NOT"):
            return Call(sign, (self.expression(_MINUS if sign == "-" else _NOT),))
        if sign == "IF":
            return self.choice(None)
        if sign == "CASE":
            subject = self.expression(0)
            self.expect("sign", "WHEN")
            return self.choice(subject)
        if sign == "{":
            return self.level_of_detail()
        raise FormulaError(f"{_shown(sign)} where a value is expected")

    def level_of_detail(self) -> Tree:
        kind, text = self.tokens[self.at]
        keyword = text.upper() if kind == "word" and text.upper() in ("FIXED", "INCLUDE", "EXCLUDE") else ""
        self.at += bool(keyword)
        dimensions = self.arguments(":") if keyword else []
        inner = self.expression(0)
        self.expect("sign", "}")
        return Call(f"{{{keyword} ...}}", (*dimensions, inner))

    def choice(self, subject: Tree | None) -> Tree:
        parts: list[Tree] = []
        more = True
        while more:
            test = self.expression(0)
            self.expect("sign", "THEN")
            parts += [test if subject is None else Call("=", (subject, test)), self.expression(0)]
            more = self.met("ELSEIF" if subject is None else "WHEN")
        parts.append(self.expression(0) if self.met("ELSE") else Constant(None))
        self.expect("sign", "END")
        return Call("IF", tuple(parts))

    def word(self, word: str) -> Tree:
        if not self.met("("):
            if word in _CONSTANTS:
                return Constant(_CONSTANTS[word])
            raise FormulaError(f"the name {word} without brackets")
        return Call(word, tuple(self.arguments(")")))

    def arguments(self, end: str) -> list[Tree]:
        """Expressions with commas between them, up to the sign ``end``, which is passed."""
        arguments: list[Tree] = []
        while not self.met(end):
            if arguments and not self.met(","):
                self.expect("sign", end)
            arguments.append(self.expression(0))
        return arguments


def _shown(sign: str) -> str:
    return f"{sign[:40]!r}" if sign else "its end"
