"""What a GPU computes while it is measured."""
