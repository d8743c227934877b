"""The host of a card: what lies in its memory, what runs there in which order, and who waits.

image     a model's constants in the order of the card's memory
plan      a batch as starts of kernels on buffers: pure data
runner    one card: buffers, a queue, deadlines, faults
pool      several cards, and those that are out of service
decoder   the forward on cards, with the interface of the C-simulation's
"""
