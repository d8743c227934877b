"""In which gears and widths the training stage ran, what limited that, and what changes took."""
