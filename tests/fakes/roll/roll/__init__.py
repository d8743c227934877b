"""A contract double of ROLL 0.3.0: what ecorl's adapter meets there, small enough for any machine.

Names, signatures, kinds of results and the order of calls are ROLL's; the code is not, and neither
are the models: they read the same checkpoint folders and are two matrices each. One suite of tests
runs on the double and on ROLL itself (`tests/frameworks/roll`).
"""
