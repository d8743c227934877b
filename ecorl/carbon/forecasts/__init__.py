"""Forecasts of a grid's intensity and of its renewable share, with intervals, and their scores."""
