"""The decisions of a run on one axis: picture, table and lines."""
