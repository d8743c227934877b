"""What the benchmarks of the training stage measure with: its optimizer, against torch's."""
