"""Runs ``ecorl-roll`` as a module."""

from roll_adapters.roll.command import main

main()
