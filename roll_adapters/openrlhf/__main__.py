"""Runs ``ecorl-openrlhf`` as a module."""

from roll_adapters.openrlhf.command import main

main()
