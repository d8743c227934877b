"""Gears of OpenRLHF's actor: its training forward in another numeric format than its weights."""
