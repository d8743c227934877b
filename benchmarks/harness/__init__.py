"""What every benchmark script shares: command line, child processes, outliers."""
