"""A run in its folder: the record, what lay there before, and what its user is told."""
