"""Power sources: one protocol, one module a kind of reading, and the registry that builds them."""
