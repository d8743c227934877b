"""Scoring over HTTP: rewards and reference log-probs for frameworks that want a service.

Requests of many clients are gathered into micro-batches for one engine (`batcher`); what comes in
is judged first (`bodies`, `reading`, `access`), what goes out carries its provenance (`answers`).
`server` runs it and ends it without losing an answer.
"""
