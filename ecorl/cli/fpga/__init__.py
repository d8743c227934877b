"""``ecorl fpga``: one module a command."""
