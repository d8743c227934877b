"""Plays controllers along a recorded grid, through the control step that a live run acts on."""
