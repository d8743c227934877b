"""OpenRLHF itself, unmodified, on a machine without a GPU (`make test-openrlhf`)."""
