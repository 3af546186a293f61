"""The guardrails (specification, section 4.1)."""

from nl2sql.agents.checks.candidate import clean_candidate_with_reason as clean_candidate_with_reason
from nl2sql.agents.checks.constraints import intent_constraints as intent_constraints
from nl2sql.agents.checks.guardrails import apply_guardrails as apply_guardrails
from nl2sql.agents.checks.guardrails import canonicalize_table_casing as canonicalize_table_casing
from nl2sql.agents.checks.guardrails import enforce_projection_contract as enforce_projection_contract
from nl2sql.agents.checks.guardrails import guarded_postprocess as guarded_postprocess
from nl2sql.agents.checks.guardrails import vanilla_candidate as vanilla_candidate
