"""What a run has once: decisions, engines and their barriers, and how they are accounted."""
