"""What repair guidance is worth: failing statements with their questions and golds, repaired at each level.

``slips`` makes right statements wrong, ``cases`` collects what really fails on a database, ``clickhouse`` loads SQLite
databases into ClickHouse, ``bench`` repairs every case under every arm and compares the arms. Nothing here imports a
model library; see docs/repair.md.
"""
