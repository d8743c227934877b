"""Recorded grid data: files of several forms, read into one, with every repair reported."""
