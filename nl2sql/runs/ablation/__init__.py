"""Ablations: the cells of a grid as ordinary runs, and the table that compares them."""
