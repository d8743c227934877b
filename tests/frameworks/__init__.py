"""Tests with a real training framework, each in an environment of its own."""
