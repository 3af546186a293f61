"""Runs: a controller over a benchmark, carried out, resumed, scored, compared and shown."""
