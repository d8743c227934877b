"""Tables of the config about the trainer and the numeric formats of its training stage."""
