"""Scoring over HTTP: rewards and reference log-probs for frameworks that want a service.

`access` checks the token, `body_reader` reads a request within its bounds, `parsing` checks its
rows, `batcher` gathers the rows of many clients (`row_queue`) into micro-batches for one engine,
and `responses` encodes the results with their provenance; `texts` does both for rewards of texts.
`app` holds the endpoints, `connections` the time limits of a client; `server` runs all of it, and
on a signal answers what was accepted before it ends.
"""
