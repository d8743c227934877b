"""Micro-batches of even tokens for a TRL trainer's forward and backward passes."""
