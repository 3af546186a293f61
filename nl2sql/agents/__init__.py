"""Agents, which turn a question into SQL: the loop, its control, candidates, reflection, and what they share."""
