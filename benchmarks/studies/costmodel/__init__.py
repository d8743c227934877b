"""The cost model of GPUs, fitted to published measurements of decoding, and how far off it is."""
