"""``ecorl bench``: benchmarks of a user's own training."""
