"""Any OpenAI-compatible server, or Anthropic's, as a model: what it is asked, answers, and turns out to do."""
