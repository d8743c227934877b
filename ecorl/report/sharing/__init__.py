"""A run's figures as others want them: footprint file, model card, EU AI Act, two runs compared."""
