"""ROLL itself, unmodified, on a machine without a GPU (`make test-roll ROLL_SRC=...`)."""
