"""Controllers of the training stage: pure functions of what is seen. The runtime acts on them."""
