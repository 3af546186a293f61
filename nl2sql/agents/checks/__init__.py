"""The checks on a model's SQL: guardrails on the text, constraints and intent from the question."""
