"""What a constrained model may write: turns of the loop, SELECT over a schema, the plain style (docs/grammars.md)."""
