"""The ways to take joules out of a step of RLHF, each priced alone and together with the others."""
