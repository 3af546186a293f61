"""Episodes and scoring on the workers of a Ray cluster: shards by database, a lost worker's shard done again.

``ray_cluster`` opens one; ``evaluate``, ``resume``, ``ablate``, ``replay`` and ``score`` take it as ``cluster``. The
process that opened it keeps the run folder: workers hand back episodes and verdicts and write nothing. What comes out
is what the same call gives without a cluster. Needs the extra ``ray``; importing this package does not import Ray.
"""

from nl2sql.runs.distributed.cluster import Cluster, ray_cluster

__all__ = ["Cluster", "ray_cluster"]
