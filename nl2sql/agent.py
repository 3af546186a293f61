"""The candidate-driven agent (specification, section 10)."""

from nl2sql.agents.candidates import ReactSqlAgent as ReactSqlAgent
