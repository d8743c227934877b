"""The TRL adapter; `roll_adapters.trl_hooks` is its public module."""
