"""The context that a prompt shows beside the question: the tables that matter, the values it names, solved examples."""
