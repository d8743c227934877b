"""Energy of a part of a run: of some of its steps, with or without the evaluations among them.

`steps` finds the windows of time, `seconds` cuts the power readings to them, `evidence` puts
together what the record holds of them. All that accounts the energy of a whole run then accounts
that of the windows, by the same rules.
"""
