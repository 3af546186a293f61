"""Training data and adapters: what the embedded model learns from, and how.

``sql_style`` writes golds the way the model should; ``examples`` and ``act`` make the examples of the three tasks from
a benchmark's training questions, with the product's own prompts; ``packing`` turns them into token rows;
``lora`` trains. Needs the extra ``train`` (peft); the first four do not import torch.
"""
