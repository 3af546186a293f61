"""The texts of every prompt; ``prompts`` fills them in.

>>> tool_lines([("finish", "{}", "end")])
'finish[{}] - end'

A prompt is replaced by name through ``Config.prompts`` (``-c prompts.react_system=...`` or a YAML file). Placeholders
are ``{name}``; literal braces need no doubling.
"""

from __future__ import annotations

from collections.abc import Iterable

TOOL_TEXTS: dict[str, tuple[str, str]] = {  # tool -> its arguments as the prompt shows them, what it is for
    "get_schema": ("{}", "all tables and columns"),
    "link_schema": ("{}", "the tables and columns that matter for the question"),
    "extract_constraints": ("{}", "what the question demands: aggregate, grouping, ordering, limit, distinct"),
    "generate_sql": ("{}", "propose one SELECT statement"),
    "validate_sql": ("{}", "check the statement's form and its tables and columns"),
    "validate_constraints": ("{}", "check the statement against the constraints"),
    "run_sql": ("{}", "execute the statement"),
    "repair_sql": ("{}", "correct the statement after an error"),
    "get_table_samples": ('{"table": "name", "n": 3}', "example rows of a table"),
    "finish": ("{}", "end, once run_sql has succeeded"),
}


def tool_lines(tools: Iterable[tuple[str, str, str]]) -> str:
    """(name, arguments, what it is for) as the prompt lists them, e.g. ``run_sql[{}] - execute the statement``."""
    return "\n".join(f"{name}[{arguments}] - {says}" for name, arguments, says in tools)


REACT_SYSTEM_PROMPT = """\
You answer questions about a SQLite database by calling tools, one per turn.

Reply in exactly this format, then stop:
Thought: <what you know and what is missing>
Action: tool_name[{"arg": "value"}]

The tool's output follows as a line that starts with "Observation:". Never write an observation yourself.

Tools:
{tools}

Order: get_schema, link_schema, extract_constraints, generate_sql, validate_sql, validate_constraints, run_sql, finish.
After an error use repair_sql, then validate again.""".replace(
    "{tools}", tool_lines((name, *text) for name, text in TOOL_TEXTS.items())
)

OWN_TOOLS = "\n\nMore tools:\n"  # behind the system prompt, where a user has added any

# With react.native_tools the model's own template shows the tools and how to call them.
REACT_NATIVE_SYSTEM_PROMPT = """\
You answer questions about a SQLite database by calling tools, one per turn. Every turn is a tool call.

Order: get_schema, link_schema, extract_constraints, generate_sql, validate_sql, validate_constraints, run_sql, finish.
After an error use repair_sql, then validate again."""

HINT = "Hint: the same action gave the same result before; now use "

GENERATE_SYSTEM_PROMPT = """\
You write SQLite queries. Answer with one SELECT statement and nothing else: no explanation, no comments.
Use only the tables and columns of the schema. Return only the columns that the question asks for."""

GENERATE_USER_PROMPT = """\
Schema:
{schema}

Question: {question}
{constraints}SQL:"""

# A follow-up question that could not be made whole, with the query that it speaks of.
GENERATE_FOLLOWUP_USER_PROMPT = """\
Schema:
{schema}

Previous query:
{previous_sql}

Question about the previous query: {question}
{constraints}SQL:"""

# With few_shot.k: behind the schema, so that all questions over a database still share what comes before.
FEW_SHOT_PROMPT = """\
{schema}

Solved examples, which may be over other schemas:

{examples}"""

FEW_SHOT_EXAMPLE = """\
Question: {question}
SQL: {sql}"""

REPAIR_USER_PROMPT = """\
Schema:
{schema}

Question: {question}

This query failed:
{bad_sql}

Error: {error}

Write the corrected query.
SQL:"""

# With repair.guidance patterns and patterns+corpus: the specification's sections, and what the episode has tried.
REPAIR_GUIDED_USER_PROMPT = """\
Schema:
{schema}

Question: {question}

{attempts}This query failed:
{bad_sql}

Error: {error}
{valid_part}
VIOLATED CONSTRAINT:
{constraint}

ALTERNATIVE APPROACH:
{alternative}
{similar}
Please rewrite the SQL following these constraints.
SQL:"""

# session.resolve rewrite: the specification's prompt, with the earlier exchanges quoted.
RESOLVE_SYSTEM_PROMPT = """\
You are a query resolution assistant. Resolve follow-up queries into standalone queries."""

RESOLVE_USER_PROMPT = """\
Given this conversation history:

{history}

User's new query: {question}

If this is a follow-up query that references previous context (e.g., "what about...", "show me more", \
"filter that by...", "what about Q4?", "by region"), \
rewrite it as a standalone query that includes all necessary context.

If it's already a standalone query, return it unchanged.

Return ONLY the resolved query, nothing else."""

# session.clarify: what is asked back.
CLARIFY_TEXT = """\
Nothing in this database is called like what you ask for; its tables are: {tables}. Which of them do you mean?"""

# The answer to "thanks", "hello", "why?".
TALK_TEXT = """\
That asks nothing of the database, so no query was made. Its tables are: {tables}."""

# Structured queries (docs/vizql.md); {rules} is vizql_rules in both.
VIZQL_SYSTEM_PROMPT = """\
You write queries for a data source as JSON. Answer with one JSON object and nothing else.
{rules}"""

VIZQL_RULES = """\
Rules:
- Ask for what the question wants shown, and for nothing else. The result has one row for each combination of the \
dimensions; with "options": {"disaggregate": true} it has the rows as they are, and no field has a function.
- A measure has a function: {"fieldCaption": "Price", "function": "AVG"}, or SUM, MEDIAN, MIN, MAX.
- A dimension has none, but to be counted: COUNT, COUNTD (different ones). A number of orders: {"fieldCaption": \
"Order ID", "function": "COUNT"}. A date has YEAR, QUARTER, MONTH, TRUNC_MONTH.
- To sort: "sortDirection": "DESC", "sortPriority": 1 in a field. The first rows only: "options": {"rowLimit": 3}.
- A filter may be about a field that is not shown:
{"field": {"fieldCaption": "City"}, "filterType": "SET", "values": ["Oslo", "Bern"]}, with "exclude": true for all \
others, with "values": [null] where there is none
{"field": {"fieldCaption": "Name"}, "filterType": "MATCH", "contains": "son"}, or startsWith, endsWith
{"field": {"fieldCaption": "Price"}, "filterType": "QUANTITATIVE_NUMERICAL", "quantitativeFilterType": "RANGE", \
"min": 2, "max": 9}, or MIN with min, MAX with max, ONLY_NULL, ONLY_NON_NULL
{"field": {"fieldCaption": "Day"}, "filterType": "QUANTITATIVE_DATE", "quantitativeFilterType": "MIN", "minDate": \
"2024-03-01"}
{"field": {"fieldCaption": "City"}, "filterType": "TOP", "howMany": 3, "fieldToMeasure": {"fieldCaption": "Price", \
"function": "SUM"}, "direction": "TOP"}"""

VIZQL_USER_PROMPT = """\
Data source:
{schema}

{examples}Question: {question}
JSON:"""

VIZQL_EXAMPLE = """\
Question: {question}
JSON: {query}"""

# The specification's six parts, and its common fixes.
VIZQL_REFINE_PROMPT = """\
Question: {question}

This query failed:
{query}

Errors:
{errors}
{earlier}{suggestions}
Data source:
{schema}

{rules}

Common fixes:
- A name that is not there: write one of the data source's, letter by letter.
- A measure alone: add "function": "SUM". A dimension with SUM or AVG: take the function away.
- A value that is not there: write one of those that are suggested.

Write the whole corrected query.
JSON:"""

# The open assistant turn that the SQL prompts are continued from. It keeps a small model from answering in prose
# (VA of the stock 135M model 0% without, 20% with it, on 60 packaged questions) and rules out WITH; a larger model is
# better off with -c prompts.generate_prefill= (empty).
GENERATE_PREFILL = "SELECT"

PROMPTS: dict[str, str] = {
    "generate_prefill": GENERATE_PREFILL,
    "react_system": REACT_SYSTEM_PROMPT,
    "react_native_system": REACT_NATIVE_SYSTEM_PROMPT,
    "generate_system": GENERATE_SYSTEM_PROMPT,
    "generate_user": GENERATE_USER_PROMPT,
    "few_shot": FEW_SHOT_PROMPT,
    "few_shot_example": FEW_SHOT_EXAMPLE,
    "repair_user": REPAIR_USER_PROMPT,
    "repair_guided_user": REPAIR_GUIDED_USER_PROMPT,
    "generate_followup_user": GENERATE_FOLLOWUP_USER_PROMPT,
    "resolve_system": RESOLVE_SYSTEM_PROMPT,
    "resolve_user": RESOLVE_USER_PROMPT,
    "clarify": CLARIFY_TEXT,
    "talk": TALK_TEXT,
    "vizql_system": VIZQL_SYSTEM_PROMPT,
    "vizql_user": VIZQL_USER_PROMPT,
    "vizql_example": VIZQL_EXAMPLE,
    "vizql_refine": VIZQL_REFINE_PROMPT,
    "vizql_rules": VIZQL_RULES,
}
