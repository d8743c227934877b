"""What hardware a source asks for: its functions with all templates filled in, followed from each
top through all calls, with the values, places and loops that are known on the way.
"""
