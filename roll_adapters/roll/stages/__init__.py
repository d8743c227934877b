"""The stages of a step, in the driver of a ROLL pipeline.

dispatch    a look at each call that the driver dispatches
roles       which stage a call is
hooks       the stages meet the runtime
references  the reference is put off, and joined by ``prompt_id``
rows        rows between ROLL's padded batches and an engine's
metrics     ROLL's metrics in the run's record
"""
