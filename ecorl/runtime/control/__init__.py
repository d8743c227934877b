"""The control path: what is known of the grid, and whether the training stage runs."""
