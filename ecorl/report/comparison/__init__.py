"""Two runs beside each other: what the second saved against the first, and at which cost."""
