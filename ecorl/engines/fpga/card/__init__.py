"""The host of a card: memory, kernel starts, queues, faults.

backend       which backend runs the kernels: C-simulation, XRT in emulation, XRT on cards
image         a model's constants in the order of the card's memory, and their upload
plan          rows and pages of a group's tokens, and its kernel starts on buffers: pure data
plan_builder  builds such plans
runner        buffers of one opened card, and runs of plans on it
health        opens, resets and quarantines a card
card          a card with a queue and a thread
decoder       the forward on several cards, with the interface of the C-simulation's
opening       opens emulated cards (XRT's noop driver) or real ones, as configured
"""
