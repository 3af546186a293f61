"""A first draft through SQL: the model writes SQL for the question, and the SQL is written as a structured query.

A small model has seen far more SQL than structured queries. The prompt, its schema and its grammar are those of the
control (``single_shot``), so that both write the same SQL. Of the translations that are valid and executable, the draft
is the most literal one: rows instead of groups where the SQL does not group, its LIMIT instead of a TOP filter. Without
such a translation it is the plainest. SQL that groups by what it does not show is used where the database says that its
groups are those of what it shows. Not covered: databases that take no SQL, for which there is no such draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nl2sql.agents.checks import constraints
from nl2sql.agents.opening import link
from nl2sql.agents.task import guard, takes_no_sql
from nl2sql.agents.vizql.state import Context, Work
from nl2sql.vizql.from_sql import nullable_captions, structured
from nl2sql.vizql.querying import statement


@dataclass(frozen=True)
class SqlDraft:
    """What the model wrote, and the query that it is; None with the reason where it is none."""

    sql: str
    query: dict[str, Any] | None = None
    reason: str = ""


def drafts_in_sql(here: Context) -> bool:
    """Whether the first draft is written as SQL: ``vizql.draft``, over a database that takes SQL."""
    return here.task.config.vizql.draft == "sql" and not takes_no_sql(here.task.resources.database)


def sql_draft(work: Work) -> SqlDraft:
    """One call of the model with the control's prompt, translated. Raises EpisodeFailed."""
    task, here = work.task, work.here
    link(task)
    messages = task.sql_messages(constraints.extract_constraints(task.question.text))
    [raw] = task.write_sql(messages, task.config.vizql.max_new_tokens, sampling=task.sampling(), n=1)
    sql, refused = guard(task, raw)
    if refused is not None:
        work.refuse(0, "guardrails", raw, refused)
        return SqlDraft(raw, reason=f"no structured form: {refused}")
    nullable = nullable_captions(here.source, task.schema)
    translation = structured(sql, here.source, task.resources.database.dialect, nullable)
    if not translation.candidates:
        return SqlDraft(sql, reason=f"no structured form: {translation.reason}")
    if not _grouped_alike(here, translation.groups):
        return SqlDraft(sql, reason="no structured form: grouped by something else than what is asked for")
    usable = (candidate for candidate in reversed(translation.candidates) if _is_executable(here, candidate))
    return SqlDraft(sql, next(usable, translation.candidates[0]))


def _grouped_alike(here: Context, groups: str) -> bool:
    """Do the rows say that the SQL's groups are the query's? Where nobody can tell, they are not."""
    result = here.task.result_of(groups) if groups else None
    return result is None or (result.success and len(set(result.rows[0])) == 1)


def _is_executable(here: Context, draft: dict[str, Any]) -> bool:
    if not here.check(draft).is_valid:
        return False
    settings, dialect = here.task.config.vizql, here.task.resources.database.dialect
    return not statement(draft, here.source, dialect, settings)[1]
