"""Episodes as a training environment: prompts, rewards, and the loop driven by another library.

``environment`` is the public face, imported as ``nl2sql.environment``, and decides which questions may be learned from.
``driven`` hands control of a loop to whoever writes the completions, and judges what came of it.
``trl_form`` and ``verifiers_form`` put the same environment into the forms of two libraries. Nothing here trains.
"""
