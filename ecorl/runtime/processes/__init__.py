"""A training of several processes that run the same program in step."""
