"""Alveo cards through XRT: power readings, kernels, errors, reset."""
