"""Renders a report: the terminal, the HTML page, and the tables and plots in it."""
