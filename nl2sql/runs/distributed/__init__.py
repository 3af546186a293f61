"""Episodes and scoring on the workers of a Ray cluster: shards by database, a lost worker's shard done again.

``Ray`` is an executor: ``evaluate``, ``resume``, ``ablate``, ``replay`` and ``score`` take it as ``executor``. The
process that made it keeps the run folder: workers hand back episodes and verdicts and write nothing. What comes out is
what the same call gives without it. Needs the extra ``ray``; importing this package does not import Ray.
"""

from nl2sql.runs.distributed.executor import Ray

__all__ = ["Ray"]
