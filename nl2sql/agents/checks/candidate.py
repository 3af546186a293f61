"""The one SELECT in a model's output: ``clean_candidate_with_reason`` (re-exported by ``guardrails``).

>>> clean_candidate_with_reason("Sure! SQL: SELECT name FROM customers; Anything else?")
('SELECT name FROM customers;', 'ok')

Where the SQL starts in the chatter is found with plain text work (code fences, ``SQL:`` labels, lines that begin with
SELECT); what is SQL and where it ends is decided by tokens and by parsing, so strings that hold ``;``, ``--`` or code
fences survive. The statement that comes out is a slice of the model's own text; it is changed only where it had to
be (typographic quotes, HTML entities, redundant outer parentheses).
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from nl2sql.errors import one_line
from nl2sql.models.http.wire import CLOSING, OPENING, begun, set_aside
from nl2sql.sql.parse import REFUSED, decode_json, parse_bounded, past_limits
from nl2sql.sql.same import same_tokens
from nl2sql.sql.text import Tree, edited, parse, syntax_error, tokens

_MAX_CHARS = 20_000  # longer output is no answer to "write one query"
_MAX_SNIPPETS = 8  # code blocks and labelled texts tried in one output
_MAX_SELECTS = 200  # looked at in one text
_MAX_STARTS = 12  # SELECTs tried in one text
_MAX_QUOTES = 2  # tried as the end of SQL in quotes
_MAX_CUTS = 25  # line ends tried per SELECT
_MAX_SEMICOLONS = 20  # tried as a statement's end; each costs a reading of the text before it
_PARSED_CHARS = 200_000  # read by the tokenizer per call, all attempts together; more happens to garbage only

_FENCE = re.compile(r"```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\n?(.*?)(?:```|\Z)", re.S)
_TAGGED = re.compile(r"<(\w+)>(.*?)(?:</\1>|\Z)", re.S | re.I)
_ANSWER_TAG = re.compile("sql|query|final|answer|solution|response|result|output", re.I)  # before others: drafts
_CALLED_FINAL = re.compile(  # what ends in front of a block; "Alternatively:" does not
    r"\b(?:final|correct(?:ed|ion)?|revised|fixed|answer)\b[^\n.;`]{0,60}[:\n][\s*#>-]*\Z", re.I
)
_QUOTED = re.compile(r"(\"\"\"|'\'\'|[\"'])\s*(?=(?:select|with)\b)", re.I)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.S)
_ESCAPES = {"n": "\n", "r": "\n", "t": "\t"}  # any other character stands for itself: quotes, Markdown's _ and *
_LABEL = re.compile(
    r"(?:^|\n)[ \t>*#-]*(?:final |the |sqlite |corrected |generated )*"
    r"(?:sql(?:ite)?(?: ?query| statement)?|query|answer|repaired sql)[ \t*]*:[ \t*]*",
    re.I,
)
_INLINE_CODE = re.compile(r"`(\s*(?:select|with)\b[^`]*)`", re.I)
_START = re.compile(
    r"\bselect\b|\bwith\s+(?:recursive\s+)?(?:\w+|\"[^\"]+\"|`[^`]+`|\[[^]]+\])\s*(?:\([^()]*\)\s*)?"
    r"as\s*(?:not\s+)?(?:materialized\s*)?\(",
    re.I,
)
_OTHER_STATEMENT = re.compile(
    r"^[ \t]*(?:insert\s+(?:or\s+\w+\s+)?into|replace\s+into|delete\s+from|update\s+\S+\s+set|merge\s+into|truncate\b"
    r"|(?:drop|create|alter)\s+(?:temp\s+|temporary\s+|unique\s+|virtual\s+|or\s+replace\s+)*"
    r"(?:table|view|index|trigger|database|schema|user|function)"
    r"|pragma\s+\w|attach\s+|detach\s+|vacuum\b|explain\s+|reindex\b|analyze\s*(?:;|$)"
    r"|(?:begin|commit|rollback)\s*(?:;|$|transaction\b|to\b)|grant\s+|savepoint\s+)",
    re.I | re.M,
)
_ECHO = re.compile(
    r"^[ \t]*(?:#+\s|schema\s*:|user question\s*:|question\s*:|database schema|you are\b|instructions?\s*:|action\s*:"
    r"|observation\s*:|thought\s*:|tables?\s*:|create table\b)",
    re.I | re.M,
)
_PLACEHOLDER = re.compile(r"\.\.\.|…|<[A-Za-z_ ]+>|\[(?:table|column)[^\]]*\]|\byour (?:sql|query)\b", re.I)
_BEGINS = re.compile(r"[\s(]*(?:select|with)\b", re.I)
_STARTS_OVER = re.compile(r"\s*(?:(?:SELECT|WITH)\b|```)", re.I)
_LEADING_NOISE = re.compile(r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.S)
_SPECIAL_TOKEN = re.compile(r"<\|[^|>]*\|>.*|</\w+>.*|<end_of_turn>.*|\[/\w+\].*|\[INST\].*|```.*", re.S)
_INSIDE = re.compile(r"(?:\(|\b(?:union|all|intersect|except))\Z", re.I)  # what comes before an inner SELECT
_CONTINUES = re.compile(
    r"\s*(?:[^\w\s`\"#*>\-]|(?:--)|(?:from|where|group|order|having|limit|offset|join|left|right|inner|outer|full|cross"
    r"|natural|on|using|and|or|not|in|is|like|glob|between|union|intersect|except|as|asc|desc|case|when|then|else|end"
    r"|select|with|over|partition|window|exists|by|distinct|collate|escape|null)\b)",
    re.I,
)
_SET_OPERATORS = frozenset({TokenType.UNION, TokenType.INTERSECT, TokenType.EXCEPT, TokenType.ALL, TokenType.DISTINCT})
_QUERY_STARTS = frozenset({TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN})
_TYPOGRAPHIC = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "；": ";", "，": ",", "（": "(", "）": ")"})


def clean_candidate_with_reason(raw_sql: str, dialect: str = "sqlite") -> tuple[str | None, str]:
    """Keep a single executable ``SELECT ... FROM ...;`` of a model's output.

    Returns ``(sql, "ok")`` with ``sql`` the model's own text from its first to its last token and one ``;`` at the
    end, or ``(None, reason)`` with reason one of ``empty``, ``prompt_echo``, ``multi_statement``, ``not_select``,
    ``no_select``, ``no_from``, ``syntax:<what SQLite says>`` or ``junk`` (also of a text past ``sql.bounds``).

    WITH ... SELECT, set operations and a parenthesised SELECT pass. A FROM anywhere in the statement will do
    (``SELECT (SELECT count(*) FROM a) - (SELECT count(*) FROM b)``); a SELECT that reads no table at all is rejected
    as ``no_from``. A statement that sqlglot cannot parse passes when SQLite's own parser accepts its syntax. One that
    only sqlglot accepts (another dialect's ILIKE) passes as well unless it is cut short, so that ``validate_sql`` can
    tell the model what SQLite has against it. The same statement said twice is one statement; prose after it is
    dropped. On another ``dialect`` sqlglot's parser for it decides. Source: the specification's 4.1.1.
    """
    if past_limits(raw_sql) or raw_sql.startswith(REFUSED):
        return None, "junk"
    text = _answer(raw_sql)
    if not text.strip(" \t\r\n;`"):
        return None, "empty"
    if len(text) > _MAX_CHARS:
        return None, "junk"
    reasons: list[str] = []
    budget = _Budget(_PARSED_CHARS, dialect)
    for form in dict.fromkeys((text, _unescaped(text))):
        for snippet in itertools.islice(_snippets(form), _MAX_SNIPPETS):
            sql, reason = _first_statement(snippet, budget)
            if sql is not None:
                return sql + ";", "ok"
            if reason == "multi_statement":
                return None, reason
            if reason:
                reasons.append(reason)
    return None, _verdict(text, reasons)


def behind_prefill(prefill: str, text: str, dialect: str = "sqlite") -> str:
    """The raw SQL of a turn that ``prefill`` opened: both, or the text alone where the model starts over in it.

    It starts over with a SELECT, a code fence or thoughts, or with a statement in parentheses behind a bare SELECT.
    """
    if past_limits(text) or text.startswith(REFUSED) or not text.strip() or _STARTS_OVER.match(text) or begun(text):
        return text
    bare = prefill.split()[-1:] in (["SELECT"], ["select"])
    return text if bare and _whole(text, _Budget(_PARSED_CHARS, dialect)) else prefill + text


def _answer(text: str) -> str:
    """A text without its thoughts; where the chat template has opened them, all before their end are some."""
    if begun(text):
        return set_aside(text)[1]
    kept, at = "", 0
    while (opening := OPENING.search(text, at)) and (closed := CLOSING.search(text, opening.end())):
        kept, at = f"{kept}{text[at : opening.start()]} ", closed.end()
    if not at and (closed := CLOSING.search(text)) and "select" in text[closed.end() :].lower():
        at = closed.end()
    return kept + text[at:]


def _unescaped(text: str) -> str:
    """A text that was written as the inside of a JSON string, or for Markdown, as it was meant."""
    return _ESCAPED.sub(lambda at: chr(int(at[1], 16)) if at[1] else _ESCAPES.get(at[2], at[2]), text)


@dataclass
class _Budget:
    """The characters that may still be lexed or parsed for one output."""

    left: int
    dialect: str = "sqlite"

    def allows(self, text: str) -> bool:
        self.left -= len(text)
        return self.left >= 0


def _snippets(text: str) -> Iterator[str]:
    """The parts of a model's output that may be SQL, most trustworthy first; the whole text is the last."""
    begins = _START.match(text.lstrip(" \t\r\n("))
    fences = [match for match in _FENCE.finditer(text) if match.group(1).lower() not in ("json", "python")]
    final = [
        match
        for match in (*_START.finditer(text), *fences)
        if _CALLED_FINAL.search(text[max(match.start() - 100, 0) : match.start()])
    ]
    if final and not (begins and syntax_error(text) is None):  # else it stands in a string
        yield final[-1].group(2) if final[-1].re is _FENCE else text[final[-1].start() :]
    if begins:
        yield text
    yield from _from_json(text)
    yield from _from_quotes(text)
    yield from (match.group(2) for match in fences)
    tags = sorted(_TAGGED.finditer(text), key=lambda match: not _ANSWER_TAG.match(match.group(1)))
    yield from (match.group(2) for match in tags)
    yield from (text[match.end() :] for match in _LABEL.finditer(text))
    yield from (match.group(1) for match in _INLINE_CODE.finditer(text))
    yield text


def _from_json(text: str) -> Iterator[str]:
    """The SQL in the first JSON value of the text: under the usual keys first, else any text that begins as SQL."""
    for match in itertools.islice(re.finditer(r"[\[{]", text), _MAX_SNIPPETS):
        try:
            value, _ = decode_json(text, match.start())
        except ValueError:
            continue
        found = [(key not in ("sql", "query", "SQL"), sql) for key, sql in _texts_in(value) if _BEGINS.match(sql)]
        if found:
            yield from (sql for _, sql in sorted(found, key=lambda pair: pair[0]))
            return


def _texts_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with the key that it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else ((key, inner) for inner in value):
            yield from _texts_in(inner, name)


def _from_quotes(text: str) -> Iterator[str]:
    """What a quotation mark before a SELECT encloses: up to the last mark of the kind, else to the one before."""
    match = _QUOTED.search(text)
    if match and not _INSIDE.search(text[: match.start()].rstrip()[-10:]):
        ends = [at.start() for at in re.finditer(re.escape(match.group(1)), text[match.end() :])]
        yield from (text[match.end() : match.end() + end] for end in ends[: -_MAX_QUOTES - 1 : -1])


def _first_statement(snippet: str, budget: _Budget) -> tuple[str | None, str]:
    """The first acceptable SELECT of a snippet, or the reason why the likeliest one is none ("" without any)."""
    if (whole := _whole(snippet, budget)) is not None:
        return whole, "ok"
    other = _OTHER_STATEMENT.search(snippet)
    starts = _starts(snippet)
    if other and not any(start < other.start() for start, _ in starts):
        return None, "not_select"
    first_reason, failed_at = "", -1
    for start, clear in starts[:_MAX_STARTS]:
        # A SELECT inside a larger statement that failed is not what the model meant to say.
        if failed_at >= 0 and snippet.count("(", failed_at, start) > snippet.count(")", failed_at, start):
            continue
        sql, reason = _statement_at(snippet[start:], budget)
        if sql is not None or reason == "multi_statement":
            return sql, reason
        first_reason = first_reason or (reason if clear else "junk")
        failed_at = start if failed_at < 0 else min(failed_at, start)
    return None, first_reason


def _whole(snippet: str, budget: _Budget) -> str | None:
    """A snippet that is one statement from its first token on: no SELECT inside it is looked for."""
    noise = _LEADING_NOISE.match(snippet)
    text = snippet[noise.end() :] if noise else snippet
    if not _BEGINS.match(text):
        return None
    return _statement_at(text, budget, exact=True)[0]


def _starts(snippet: str) -> list[tuple[int, bool]]:
    """Offsets where a statement may start: WITH and upper case first, then line starts, then the order of the text.

    The flag is False for a lower-case "select" in the middle of a line: more likely English than SQL.
    """
    ranked = []
    for match in itertools.islice(_START.finditer(snippet), _MAX_SELECTS):
        at = match.start()
        before = snippet[:at]
        opened = before.rstrip(" \t\r\n(")
        if "(" in before[len(opened) :] and (not opened or before[len(opened) :].lstrip(" \t").startswith("\n")):
            at, before = len(opened) + before[len(opened) :].index("("), opened  # the statement's own parenthesis
        if _INSIDE.search(before.rstrip()[-10:]):
            continue
        common_table = match.group()[0] in "wW"  # "with x as (": no English
        upper = common_table or match.group()[:4].isupper()
        at_line_start = common_table or not before.rsplit("\n", 1)[-1].strip(" \t>*-:`")
        ranked.append((not upper, not at_line_start, at))
    return [(at, not (lower and inside)) for lower, inside, at in sorted(ranked)]


def _statement_at(text: str, budget: _Budget, *, exact: bool = False) -> tuple[str | None, str]:
    """The statement that starts at the first character of ``text``; what follows it may be prose.

    ``exact``: only if it is one up to its semicolon as it stands.
    """
    body, rest = _split(text, budget)
    sql, reason = _checked(body, budget)
    if exact and reason != "ok":
        return None, reason
    if reason != "ok":
        sql = _without_trailing_prose(body, budget) or sql
    if sql is None and (cut := _without_full_stop(_SPECIAL_TOKEN.sub("", body), budget.dialect)) != body:
        sql, _ = _checked(cut, budget)
    if sql is None:
        return None, reason
    return (None, "multi_statement") if _another_statement(rest, sql, budget) else (sql, "ok")


def _without_full_stop(body: str, dialect: str) -> str:
    """``body`` without the full stop of the sentence it ends; that of a cut-off ``T1.`` stays."""
    stripped = body.rstrip()
    stream = tokens(stripped, dialect) if stripped.endswith(".") else None
    if not stream or len(stream) < 2 or stream[-1].token_type != TokenType.DOT:
        return body
    return stripped[:-1] if sum(token.text == stream[-2].text for token in stream) == 1 else body


def _split(text: str, budget: _Budget, *, escaped: bool = True) -> tuple[str, str]:
    """``text`` before and after its first real semicolon: one that the tokens up to it see as a semicolon.

    ``escaped``: HTML entities outside strings mean that the whole text is HTML.
    """
    for seen in _up_to_semicolons(text, budget):
        if seen and seen[-1].token_type == TokenType.SEMICOLON:
            if escaped and _is_entity(seen):
                return _split(html.unescape(text), budget, escaped=False)
            return text[: seen[-1].start], text[seen[-1].start + 1 :]
    return text, ""


def _up_to_semicolons(text: str, budget: _Budget) -> Iterator[list[Token] | None]:
    """The tokens up to the first semicolon; where the text does not lex (prose with an apostrophe), up to each ";"."""
    at = text.find(";")
    whole = tokens(text, budget.dialect) if at >= 0 and budget.allows(text) else None
    if whole is not None:
        ends = (i for i, token in enumerate(whole, 1) if token.token_type == TokenType.SEMICOLON)
        yield whole[: next(ends, 0)]
        return
    for _ in range(_MAX_SEMICOLONS):
        if at < 0:
            return
        yield tokens(text[: at + 1], budget.dialect) if budget.allows(text[:at]) else None
        at = text.find(";", at + 1)


def _is_entity(seen: list[Token]) -> bool:
    """Whether the tokens end in ``&lt;`` or another HTML entity, outside any string."""
    return len(seen) > 2 and seen[-3].token_type == TokenType.AMP and seen[-1].start - seen[-3].end in (3, 4, 5)


def _another_statement(rest: str, sql: str, budget: _Budget) -> bool:
    """Whether what follows the semicolon is a second, different statement (prose and repetitions are not)."""
    for _ in range(_MAX_SEMICOLONS):
        noise = _LEADING_NOISE.match(rest)
        rest = rest[noise.end() :] if noise else rest
        if _OTHER_STATEMENT.match(rest):
            return True
        if not _START.match(rest.lstrip("(")):
            return False
        body, rest = _split(rest, budget)
        again, _ = _checked(body, budget)
        if again is None:
            prefix, whole = " ".join(body.lower().split()), " ".join(sql.lower().split())
            return not whole.startswith(prefix) and body.lstrip("( ")[:4].isupper()
        if not same_tokens(tokens(again, budget.dialect) or [], tokens(sql, budget.dialect) or []):
            return True
    return False


def _without_trailing_prose(body: str, budget: _Budget) -> str | None:
    """The longest run of whole lines that is a statement and is not followed by a line that continues it."""
    lines = body.split("\n")
    cuts = [k for k in range(1, len(lines)) if lines[k].strip() and not _CONTINUES.match(lines[k])][:_MAX_CUTS]
    for cut in reversed(cuts):
        sql, reason = _checked("\n".join(lines[:cut]), budget)
        if reason == "ok":
            return sql
    return None


def _checked(body: str, budget: _Budget) -> tuple[str | None, str]:
    """``body`` from its first to its last token if it is one SELECT that reads a table; else None.

    The reason is ``ok``, ``not_sqlite`` (the SQL comes along: sqlglot parses it, SQLite does not), or the reject's.
    """
    if not budget.allows(body):
        return None, "junk"
    return _select_of(body, budget.dialect)


def _select_of(body: str, dialect: str) -> tuple[str | None, str]:
    stream = tokens(body, dialect)
    if stream is None or any(t.token_type == TokenType.VAR and t.text[0] in "‘’“”" for t in stream):
        body = body.translate(_TYPOGRAPHIC)  # quotes that are no quotes to SQL; inside a string they lex as part of it
        stream = tokens(body, dialect)
    if stream is None:
        return None, _syntax_reason(body)
    stream = [*itertools.takewhile(lambda token: body[token.start : token.start + 2] != "[/", stream)]  # [/SQL]
    while stream and stream[-1].token_type == TokenType.SEMICOLON:
        stream.pop()
    while len(stream) > 2 and _wrapped(stream):
        stream = stream[1:-1]
    if not stream:
        return None, "empty"
    sql = body[stream[0].start : stream[-1].end + 1]
    if any(token.token_type == TokenType.SEMICOLON for token in stream):
        return None, "multi_statement"
    tree, error = _read(sql, dialect)
    if error is not None and (tree is None or error == "incomplete input"):
        return None, _syntax_reason(sql, error)
    if tree is not None and not isinstance(tree, exp.Query):
        return None, "not_select"
    reads = tree.find(exp.From) if tree is not None else any(t.token_type == TokenType.FROM for t in stream)
    if not reads:
        return None, "no_from"
    if error is not None and isinstance(tree, exp.SetOperation) and dialect == "sqlite":
        sql = _bare_operands(sql)
        error = syntax_error(sql)
    return sql, "ok" if error is None else "not_sqlite"


def _read(sql: str, dialect: str) -> tuple[Tree | None, str | None]:
    """The tree of a statement, and what its dialect has against its syntax."""
    if dialect == "sqlite":
        return parse(sql), syntax_error(sql)
    try:
        return parse_bounded(sql, dialect), None
    except SqlglotError as error:
        return None, one_line(error, 80)


def _bare_operands(sql: str) -> str:
    """``(SELECT ...) UNION (SELECT ...)`` in the form SQLite has for it: ``SELECT * FROM (SELECT ...) UNION ...``."""
    edits, previous, depth = [], None, 0
    stream = tokens(sql) or []
    for token, after in itertools.pairwise(stream):
        operand = previous is None or previous.token_type in _SET_OPERATORS
        if depth == 0 and token.token_type == TokenType.L_PAREN and operand and after.token_type in _QUERY_STARTS:
            edits.append((token.start, token.start, "SELECT * FROM "))
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        previous = token
    return edited(sql, edits)


def _wrapped(stream: list[Token]) -> bool:
    """Whether the first and the last token are one pair of parentheses round everything."""
    if stream[0].token_type != TokenType.L_PAREN or stream[-1].token_type != TokenType.R_PAREN:
        return False
    depth = 0
    for token in stream[:-1]:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0:
            return False
    return True


def _syntax_reason(sql: str, error: str | None = None) -> str:
    message = error or syntax_error(sql) or "not parsable"
    return "syntax:" + message.removesuffix(": syntax error")[:80]


def _verdict(text: str, reasons: list[str]) -> str:
    """One reason for a text in which no statement was found."""
    echo = _ECHO.search(text) is not None
    if not reasons:
        if echo or _PLACEHOLDER.search(text):
            return "prompt_echo"
        if _START.search(text) or not re.search(r"[^\W\d_]{2}", text):
            return "junk"
        return "no_select"
    reason = reasons[0]
    if reason == "not_select" and re.match(r"\s*create table", text, re.I) and echo and "question" in text.lower():
        return "prompt_echo"
    if reason.startswith("syntax") and _PLACEHOLDER.search(text):
        return "prompt_echo"
    return reason
