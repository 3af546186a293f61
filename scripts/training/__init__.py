"""Training data: what the embedded models learn from.

``sql_style`` writes golds the way the model should; ``examples`` and ``act`` make the examples of the tasks from a
benchmark's training questions, with the product's own prompts; ``mixture`` draws them; ``packing`` turns them into
token rows, which ``tune_gguf.py`` learns. Nothing here imports torch.
"""
