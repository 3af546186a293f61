"""Databases: the one place where SQL is executed, and what is known of their schemas."""
