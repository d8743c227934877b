"""Stage schedules of other RLHF frameworks, for comparison on the same costs."""
