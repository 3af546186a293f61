"""The last of the guardrails' steps that change a query (specification, section 4.1)."""

from nl2sql.agents.checks.guardrails import guarded_postprocess as guarded_postprocess
