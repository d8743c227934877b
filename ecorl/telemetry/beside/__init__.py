"""Other instruments that measure the same run, for comparison."""
