"""What happens in each process of a job: OpenRLHF's modules are watched as they are imported.

`install` is the job's ``worker_process_setup_hook``. It costs nothing in a process that imports
none of them, and never raises: a process that it cannot prepare runs OpenRLHF as it is.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ecorl.runtime.overhead import HookTime

logger = logging.getLogger(__name__)

_MARK = "_ecorl_wrapper"
"""Attribute of a method that has been wrapped."""


def install() -> None:
    """Watch the imports of this process."""
    if any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Watcher())
    for name, wrap in _WRAPPERS.items():
        module = sys.modules.get(name)
        if module is not None:
            _wrapped(wrap, module)


class _Watcher(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and wraps it once it has been executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find one of the watched modules. See `importlib`."""
        wrap = _WRAPPERS.get(name)
        if wrap is None:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Watcher) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _run_after(spec.loader, wrap)
                return spec
        return None


def _run_after(loader: Any, wrap: Callable[[Any], None]) -> None:
    """Wrap a module when its loader has executed it; the loader is this module's own object."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _wrapped(wrap, module)

    loader.exec_module = exec_module


def _wrapped(wrap: Callable[[Any], None], module: ModuleType) -> None:
    try:
        wrap(module)
    except (AttributeError, TypeError, ImportError) as error:
        # Another release: what is not found is not measured.
        logger.warning("ecorl: %s is not as expected: %s", module.__name__, error)


def _replace(owner: Any, wrappers: Mapping[str, Callable[[Callable[..., Any]], Any]]) -> None:
    """Replace methods by wrappers of themselves, once; all of them, or none where one is missing.

    Half of them would break the training: rows that one sends away are what another brings back.
    """
    originals = {name: getattr(owner, name) for name in wrappers}
    for name, original in originals.items():
        if not getattr(original, _MARK, False):
            wrapper = functools.wraps(original)(wrappers[name](original))
            setattr(wrapper, _MARK, True)
            setattr(owner, name, wrapper)


# ---------------------------------------------------------------- OpenRLHF's modules


def _wrap_trainer(module: Any) -> None:
    trainer = module.BasePPOTrainer

    def init(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, strategy: Any, *args: Any, **kwargs: Any) -> None:
            original(self, strategy, *args, **kwargs)
            group = getattr(self, "actor_model_group", None)
            actors = getattr(group, "_actor_handlers", ())
            _promise(strategy.args, actors, getattr(self, "max_steps", None))

        return wrapped

    def train_step(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, rollout_samples: Any, global_step: int) -> Any:
            hooks = _hooks()
            if hooks is None:
                return original(self, rollout_samples, global_step)
            return hooks.step(lambda: original(self, rollout_samples, global_step))

        return wrapped

    def save(original: Callable[..., Any]) -> Any:
        def wrapped(
            self: Any, global_step: int, logs_dict: Any = None, client_states: Any = None
        ) -> None:
            hooks = _hooks()
            if hooks is None:
                original(self, global_step, logs_dict, client_states)
                return
            hooks.save(
                global_step,
                logs_dict,
                lambda: original(self, global_step, logs_dict, client_states),
            )

        return wrapped

    _replace(
        trainer,
        {"__init__": init, "train_step": train_step, "save_logs_and_checkpoints": save},
    )


def _wrap_generator(module: Any) -> None:
    generator = module.SamplesGenerator

    def init(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, strategy: Any, *args: Any, **kwargs: Any) -> None:
            original(self, strategy, *args, **kwargs)
            _promise(strategy.args)

        return wrapped

    def generate(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, **kwargs: Any) -> Any:
            hooks = _hooks()
            if hooks is None:
                return original(self, **kwargs)
            return hooks.generate(lambda: original(self, **kwargs))

        return wrapped

    def process(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, response: Any, **kwargs: Any) -> Any:
            hooks = _hooks()
            if hooks is not None:
                hooks.responded(response)
            return original(self, response, **kwargs)

        return wrapped

    _replace(
        generator,
        {
            "__init__": init,
            "generate_samples": generate,
            "_process_response_into_experience": process,
        },
    )


def _wrap_experience_maker(module: Any) -> None:
    maker = module.RemoteExperienceMaker

    def batch(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, rollout_samples: Any) -> Any:
            hooks = _hooks()
            if hooks is not None:
                hooks.begin_experience(rollout_samples)
            return original(self, rollout_samples)

        return wrapped

    def make(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, samples_list: Any) -> Any:
            hooks = _hooks()
            if hooks is not None:
                hooks.begin_forward(samples_list)
            return original(self, samples_list)

        return wrapped

    def flatten(original: Callable[..., Any]) -> Any:
        def wrapped(self: Any, refs: Any, duplicate_factor: int) -> Any:
            hooks = _hooks()
            if hooks is None:
                return original(self, refs, duplicate_factor)
            return hooks.gather(refs, lambda: original(self, refs, duplicate_factor))

        return wrapped

    _replace(
        maker,
        {"make_experience_batch": batch, "make_experience": make, "_flatten_results": flatten},
    )


def _wrap_executor(module: Any) -> None:
    from roll_adapters.openrlhf.rewards import timed_execution, timed_fetch

    executor = module.SingleTurnAgentExecutor
    order = [name for name in inspect.signature(executor.execute).parameters if name != "self"]
    if "llm_engine" not in order:
        raise TypeError("SingleTurnAgentExecutor.execute takes no llm_engine")

    def execute(original: Callable[..., Any]) -> Any:
        async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = {**dict(zip(order, args, strict=False)), **kwargs}
            return await timed_execution(functools.partial(original, self), arguments)

        return wrapped

    def fetch(original: Callable[..., Any]) -> Any:
        async def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await timed_fetch(lambda: original(self, *args, **kwargs))

        return wrapped

    _replace(
        executor,
        {
            "execute": execute,
            "_fetch_rewards_via_http": fetch,
            "_fetch_rewards_via_func": fetch,
        },
    )


_WRAPPERS: dict[str, Callable[[Any], None]] = {
    "openrlhf.trainer.ppo_trainer": _wrap_trainer,
    "openrlhf.trainer.ppo_utils.samples_generator": _wrap_generator,
    "openrlhf.trainer.ppo_utils.experience_maker": _wrap_experience_maker,
    "openrlhf.utils.agent": _wrap_executor,
}


# ---------------------------------------------------------------- hooks of this process

_args: Any = None
_actors: Sequence[Any] = ()
_n_steps: int | None = None


def _promise(args: Any, actors: Sequence[Any] = (), n_steps: int | None = None) -> None:
    """Remember the flags with which this process will take part in the run, once that has begun.

    The trainer's actors are made before the models are loaded, and the run starts with these.

    Args:
        args: OpenRLHF's flags, nested.
        actors: handles of the policy's processes, where this process drives the training.
        n_steps: optimizer steps of the whole training, where that is known here.
    """
    global _args, _actors, _n_steps
    _args, _actors, _n_steps = args, tuple(actors) or _actors, n_steps or _n_steps


def _hooks() -> Any:
    """The hooks of this process; None where it takes no part in a run, or could not."""
    global _args
    from roll_adapters.openrlhf import hooks

    if hooks.current is None and _args is not None:
        args, _args = _args, None
        from roll_adapters.openrlhf.attach import open_hooks

        hooks.current = open_hooks(args, _actors, _n_steps)
    return hooks.current


def close_hooks(actor: Any) -> HookTime:
    """Wait until the run's scheduler has all that this process, and actors that it made, told it.

    Args:
        actor: the trainer; the asynchronous one has made two further actors.

    Returns:
        Time of ecorl's own work in them.
    """
    import ray

    from roll_adapters.openrlhf import hooks

    others = [getattr(actor, name, None) for name in ("trainer_actor", "generator_actor")]
    asked = [other.__ray_call__.remote(close_hooks) for other in others if other is not None]
    spent = sum(ray.get(asked), HookTime())
    if hooks.current is not None:
        hooks.current.runtime.close()
        spent += hooks.current.runtime.clock.time
    return spent
