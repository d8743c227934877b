"""The host of a card: what lies in its memory, what runs there in which order, and who waits.

image      a model's constants in the order of the card's memory
weights    those on their way there, and what proves that they arrived
tokens     where the tokens of a group stand, and who attends to what
plan       a group as starts of kernels on buffers: pure data; planning makes it
memory     the buffers of one card
runner     one opened card at work
service    bringing it into service and out of it: faults, resets, quarantine
card       a queue and a thread in front of it
pool       several cards
decoder    the forward on cards, with the interface of the C-simulation's
emulation  XRT's noop driver and our module behind it; opening picks it, or real cards
"""
