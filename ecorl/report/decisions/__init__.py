"""The decisions of a run over its time, and what they saved."""
