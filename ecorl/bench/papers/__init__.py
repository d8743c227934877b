"""The EcoRL-Sched paper's scheduler claims beside what our simulator gives."""
