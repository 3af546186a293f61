"""The plugin by which the verifiers library finds nl2sql: ``vf-eval nl2sql_verifiers``. See docs/environment.md."""

from nl2sql.runs.rollouts.verifiers_form import LoopHarness, Questions

__all__ = ["LoopHarness", "Questions"]
