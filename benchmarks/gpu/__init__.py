"""What the benchmarks on a real NVIDIA GPU measure with.

traces          arithmetic on recorded readings: integrals, changes, rise times; no hardware
tracer          a process that reads every instrument as fast as it is told
meter           the energy of repetitions of a load, by ecorl's own sampler
llama           a Llama of random weights in plain PyTorch, nothing to download
generation      sampling from it with a cache, a step as a replayed CUDA graph
stages          the stages of RLHF as loads: generation, reward, reference, training
gears           a training step by numeric format, and matrix products alone
bursts          loads of a known duty, for the sensors
sensors         what NVML's instruments say of such loads
attached        the same loop with ecorl and without it
figures         the figures of all of these
"""
