"""Training in several processes whose number changes: a supervisor and the processes it starts."""
