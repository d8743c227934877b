"""Controllers that adapt while they run: paced by a dual variable, or by learned action values."""
