"""Records of runs, and what the product makes of them: what a change of the code must keep."""
