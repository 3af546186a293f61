"""Reading SQL text: no database, no model. Parsing within bounds, names, hardness, and "is it the same query?"."""
