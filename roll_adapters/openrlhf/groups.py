"""OpenRLHF's groups of actors, with a look at each call that is dispatched to them.

In the driver this class stands in the place of OpenRLHF's own. The trainer's actor gets copies of
the groups, and with them the same look: without `hooks.current` every call passes unchanged.
"""

from __future__ import annotations

from typing import Any

from openrlhf.trainer.ray.launcher import (
    RayActorGroup,
    ReferenceModelActor,
    RewardModelActor,
)
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from openrlhf.trainer.ray.ppo_critic import CriticModelActor

from ecorl.records import Stage
from roll_adapters.openrlhf import driver, hooks

_KINDS: tuple[tuple[Any, Stage], ...] = (
    (PolicyModelActor, Stage.ACTOR_TRAIN),
    (CriticModelActor, Stage.CRITIC_TRAIN),
    (ReferenceModelActor, Stage.REFERENCE),
    (RewardModelActor, Stage.REWARD),
)


class WatchedActorGroup(RayActorGroup):
    """A group of OpenRLHF's actors whose calls ecorl sees.

    Attributes:
        stage: that the group's model is trained in or, of a frozen one, answers in.
    """

    def __init__(self, num_nodes: int, num_gpus_per_node: int, kind: Any, **rest: Any) -> None:
        super().__init__(num_nodes, num_gpus_per_node, kind, **rest)
        self.stage = next((stage for known, stage in _KINDS if known is kind), None)
        if self.stage is not None and driver.current is not None:
            driver.current.add_group(self.stage, self._actor_handlers)

    @property
    def n_parts(self) -> int:
        """Into how many parts a batch is cut: one an actor, or one a ring of them."""
        return len(self._actor_handlers) // int(self.duplicate_actors)

    def async_init_model_from_pretrained(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Load the models; with the policy's, which comes first, the run is started."""
        if self.stage is not Stage.ACTOR_TRAIN or driver.current is None:
            return self._own("async_init_model_from_pretrained", *args, **kwargs)
        strategy, _, max_steps, engines = (*args, None, None, None, None)[:4]
        # Asked first: an actor answers in the order of its calls, and loading takes long.
        driver.current.ask_processes(engines or ())
        refs = self._own("async_init_model_from_pretrained", *args, **kwargs)
        driver.current.start(strategy.args, max_steps)
        return refs

    def async_run_method(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Run a method on all actors; of those that train the stage is recorded."""

        def send() -> list[Any]:
            return self._own("async_run_method", method_name, *args, **kwargs)

        if method_name != "fit" or hooks.current is None or self.stage is None:
            return send()
        return hooks.current.train(self.stage, send)

    def async_run_method_batch(self, method_name: str, **kwargs: Any) -> list[Any]:
        """Run a method on a batch; of forward passes the stage is placed and recorded."""

        def send() -> list[Any]:
            return self._own("async_run_method_batch", method_name, **kwargs)

        if method_name != "forward" or hooks.current is None or self.stage is None:
            return send()
        return hooks.current.forward(self, kwargs, send)

    def run_batches(self, kwargs: dict[str, list[Any]], numbers: list[int]) -> dict[int, Any]:
        """Run the forward pass of some micro-batches, unseen: the exact path.

        Args:
            kwargs: arguments of the whole forward, lists of one entry a micro-batch.
            numbers: of the micro-batches to run.

        Returns:
            The answers by number.
        """
        # Fewer micro-batches than parts are refused: then the last one is computed again.
        padded = numbers + [numbers[-1]] * max(0, self.n_parts - len(numbers))
        some = {key: [value[i] for i in padded] for key, value in kwargs.items()}
        refs = self._own("async_run_method_batch", "forward", **some)
        answers = hooks.gathered(refs[:: int(self.duplicate_actors)])
        return dict(zip(padded, answers, strict=True))

    def _own(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        refs: list[Any] = getattr(super(), method)(*args, **kwargs)
        return refs
