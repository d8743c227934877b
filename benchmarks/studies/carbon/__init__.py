"""What the carbon benchmarks measure with: recorded grids, forecasts, waits, and the integral."""
