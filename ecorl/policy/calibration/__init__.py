"""Fits the simulator's costs, lengths and card queues to the ledger of a run."""
