"""``ecorl carbon``: what the grid emits now, and what it will."""
