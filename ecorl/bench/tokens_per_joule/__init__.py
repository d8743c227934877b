"""Output tokens per joule of the same RL training under several placements, and what else it took.

`arms` says what is compared, `plan` what is run, `running/` runs it, each arm and seed as an
`ecorl run` of its own, `reading/` reads the records, `summary` compares the arms in pairs over
seeds, `telling/` shows it, `result` keeps and joins results, `figures` are those of ``make bench``.
"""
