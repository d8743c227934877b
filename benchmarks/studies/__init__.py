"""What the scripts measure and compute, a module or a folder a question."""
