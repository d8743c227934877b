"""What only an NVIDIA GPU shows: ``make gpu``, and what the full benchmarks of a GPU measure with.

facts, training, clocks, training_gears, stage_table, sampling   the parts of the pass
run/       what is asked for, a process a part, packages from wheels
loads/     a Llama of random weights, its stages, TRL's GRPO, bursts
sensing/   energy by ecorl's own sampler, instruments read closely, limiters, recorded readings
attached   the same loop with ecorl and without it
"""
