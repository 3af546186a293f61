"""Any OpenAI-compatible server as a model: what it is asked, what it answers, and what it turns out to do."""
