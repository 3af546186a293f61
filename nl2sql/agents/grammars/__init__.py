"""The grammars of constrained decoding: turns of the loop, SELECT over a schema, the plain style (docs/grammars.md)."""
