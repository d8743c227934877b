"""Feeds of carbon intensities: one protocol (`protocol`), a back-end for each source."""
