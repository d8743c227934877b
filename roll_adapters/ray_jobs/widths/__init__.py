"""Widths of a job: it is saved, ended, and started again with other processes for the policy."""
