"""Agents: what turns a question into SQL. The loop, its control, candidates, reflection, and what they share."""
