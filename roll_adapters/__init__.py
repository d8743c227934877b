"""Adapters: ecorl inside RL frameworks. They import `ecorl`, never the reverse."""
