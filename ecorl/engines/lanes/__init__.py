"""Asynchronous in-order queues in front of an engine, on a thread or in a separate process."""
