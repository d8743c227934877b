"""Simulated runs whose true costs a calibration does not see: what a fit is checked against."""
