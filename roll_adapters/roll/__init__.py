"""Plugs ecorl into ROLL, without a change to ROLL."""
