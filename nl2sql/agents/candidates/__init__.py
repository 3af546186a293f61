"""Several queries for a question, executed, scored and ranked (docs/candidates.md)."""
