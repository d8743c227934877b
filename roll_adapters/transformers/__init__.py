"""ecorl inside the `Trainer` of transformers; `roll_adapters.transformers_hooks` is the way in."""
