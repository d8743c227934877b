"""Asynchronous lanes in front of an engine: a thread, or a process of its own."""
