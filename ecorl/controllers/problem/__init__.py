"""What a controller solves: the training stage's width and gear, its token budget and deadline."""
