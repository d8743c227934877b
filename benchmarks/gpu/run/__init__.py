"""The frame of ``make gpu``: what is asked for, the parts and their processes, missing packages."""
