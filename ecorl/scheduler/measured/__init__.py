"""What a run has measured of its stages, and the costs that follow from it."""
