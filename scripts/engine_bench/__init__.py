"""The parts of scripts/bench_engine.py: recorded transcripts, the variants that replay them, the floor."""
