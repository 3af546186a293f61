"""What leaves a run for other tools: wrong items for annotation, and the forms of ``nl2sql runs export``."""
