"""Llama-family checkpoints: their config, their weights, and changes that keep the function."""
