"""What ``ecorl bench`` asks of this adapter beside runs: the task's files, supervised training."""
