"""One seeded generator per packaged database; ``scripts/build_packaged_data.py`` runs them."""
