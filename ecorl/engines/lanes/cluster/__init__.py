"""Engines on the machines of a Ray cluster: workers hold a card each, and load weights once."""
