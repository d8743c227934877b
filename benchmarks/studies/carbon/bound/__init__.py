"""Further sides of the clairvoyant bound of a training: Lagrangian and mixed-integer programme."""
