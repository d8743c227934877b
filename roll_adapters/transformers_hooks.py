"""ecorl inside the `Trainer` of transformers: supervised training, as a callback.

    from roll_adapters.transformers_hooks import attach
    attach(trainer, "ecorl.toml")
    trainer.train()

or, where the trainer is made in one go,

    trainer = Trainer(..., callbacks=[EcorlCallback("ecorl.toml")])

Each optimizer step is a stage execution of the record, from ``on_step_begin`` to ``on_step_end``;
before it training waits for a clean window, if the config asks for it. Evaluations and checkpoints
lie between the steps. No number of the training changes.

`attach` does two things more. Its callback comes before those of loggers (W&B, TensorBoard), so
that these see energy and emissions; a callback that is handed to the trainer comes behind them, and
its figures are in the progress bar and in ``state.log_history`` alone. And an error that ends
``train`` ends the record at once, where a callback is not told of it.
"""

from roll_adapters.transformers.callback import EcorlCallback, attach

__all__ = ["EcorlCallback", "attach"]
