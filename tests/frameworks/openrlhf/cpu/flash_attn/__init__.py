"""In place of flash-attn: what OpenRLHF imports from it and never calls on the CPU."""
