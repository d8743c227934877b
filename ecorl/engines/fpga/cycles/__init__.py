"""The cycle model of a card: loops, pipeline depths, kernel starts, memory channels."""
