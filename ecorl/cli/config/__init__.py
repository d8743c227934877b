"""``ecorl config``: what a config may hold, and what one says."""
