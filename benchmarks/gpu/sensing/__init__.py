"""What reads a GPU's energy, power and clocks, and arithmetic on readings."""
