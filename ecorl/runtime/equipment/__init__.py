"""The devices of a run: which profile stands for each, and where its power is read."""
