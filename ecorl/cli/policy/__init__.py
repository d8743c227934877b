"""``ecorl policy``: one module a command."""
