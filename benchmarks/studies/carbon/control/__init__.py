"""Plays width and gear controllers along recorded grids, beside what nobody could do better."""
