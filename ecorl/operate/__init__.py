"""What is worth changing in a job, before it runs: plans, and the levers that they pull."""
