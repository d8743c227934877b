"""The C-simulation of the kernels: its build, its library and the decoder that runs on it."""
