"""Plans of a job: whether a second device pays, and what would save joules in its place."""
