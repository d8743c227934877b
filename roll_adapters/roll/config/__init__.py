"""A config of ROLL's: its text, ecorl's block in it, and what ROLL makes of it.

yaml_text  finds lines and changes values without touching the rest of the text
convert    adds ecorl's block
settings   reads the config as ROLL does, and the block as strictly as any config of ecorl's
handles    cards in ``device_mapping``
names      the names of ROLL's that are replaced, each checked first
pipelines  ROLL's pipelines by what their configs hold
"""
