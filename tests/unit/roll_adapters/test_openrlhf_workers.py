"""What happens in each process of an OpenRLHF job, with modules of OpenRLHF's shape on the path."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ecorl.errors import ConfigError, EngineTimeout
from ecorl.records import Stage
from ecorl.runtime.overhead import HookTime
from roll_adapters.openrlhf import attach, hooks, workers
from roll_adapters.openrlhf.attach import KEY, Invitation, invite, open_hooks
from roll_adapters.openrlhf.rewards import TIMES
from tests.fakes.openrlhf import FakeRuntime, flags

TRAINER = """
class BasePPOTrainer:
    def __init__(self, strategy, *args, **kwargs):
        self.made = (args, kwargs)
    def train_step(self, rollout_samples, global_step):
        return {"trained": rollout_samples}, global_step + 1
    def save_logs_and_checkpoints(self, global_step, logs_dict=None, client_states=None):
        self.saved = (global_step, logs_dict, client_states)
"""
GENERATOR = """
class SamplesGenerator:
    def __init__(self, strategy, **kwargs):
        pass
    def generate_samples(self, **kwargs):
        return [self._process_response_into_experience("answer", **kwargs)], None, 1, False
    def _process_response_into_experience(self, response, **kwargs):
        return (response, kwargs)
"""
MAKER = """
class RemoteExperienceMaker:
    def make_experience_batch(self, rollout_samples):
        return self.make_experience(rollout_samples)
    def make_experience(self, samples_list):
        return self._flatten_results(samples_list, 1)
    def _flatten_results(self, refs, duplicate_factor):
        return list(refs)
"""
EXECUTOR = """
class SingleTurnAgentExecutor:
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine,
                      images=None):
        text = await llm_engine.generate(prompt)
        reward = await self._fetch_rewards_via_http(text)
        return {"text": text, "reward": reward, "told": (label, max_length, images)}
    async def _fetch_rewards_via_http(self, queries):
        return 1.0
    async def _fetch_rewards_via_func(self, queries):
        return 2.0
"""
MODULES = {
    "openrlhf.trainer.ppo_trainer": TRAINER,
    "openrlhf.trainer.ppo_utils.samples_generator": GENERATOR,
    "openrlhf.trainer.ppo_utils.experience_maker": MAKER,
    "openrlhf.utils.agent": EXECUTOR,
}
CLASSES = {
    "openrlhf.trainer.ppo_trainer": "BasePPOTrainer",
    "openrlhf.trainer.ppo_utils.samples_generator": "SamplesGenerator",
    "openrlhf.trainer.ppo_utils.experience_maker": "RemoteExperienceMaker",
    "openrlhf.utils.agent": "SingleTurnAgentExecutor",
}
STRATEGY = SimpleNamespace(args=flags(train__async_enable=False))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write modules of OpenRLHF's names; all is as before when the test has ended."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(workers, "_args", None)
    monkeypatch.setattr(workers, "_actors", ())
    monkeypatch.setattr(workers, "_n_steps", None)
    monkeypatch.setattr(hooks, "current", None)
    monkeypatch.syspath_prepend(tmp_path)
    kept = {name: module for name, module in sys.modules.items() if name.startswith("openrlhf")}
    for name in kept:
        del sys.modules[name]

    def write(**changed):
        for name, source in MODULES.items():
            file = tmp_path / (name.replace(".", "/") + ".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            for folder in file.relative_to(tmp_path).parents:
                if folder != Path():
                    (tmp_path / folder / "__init__.py").touch()
            file.write_text(changed.get(name.rpartition(".")[2], source))
        importlib.invalidate_caches()

    yield write
    for name in [name for name in sys.modules if name.startswith("openrlhf")]:
        del sys.modules[name]
    sys.modules.update(kept)


def kind_of(name):
    return getattr(importlib.import_module(name), CLASSES[name])


def wrapped(kind):
    return {name for name, value in vars(kind).items() if getattr(value, workers._MARK, False)}


ALL = {
    "ppo_trainer": {"__init__", "train_step", "save_logs_and_checkpoints"},
    "samples_generator": {"__init__", "generate_samples", "_process_response_into_experience"},
    "experience_maker": {"make_experience_batch", "make_experience", "_flatten_results"},
    "agent": {"execute", "_fetch_rewards_via_http", "_fetch_rewards_via_func"},
}


@pytest.mark.parametrize("when", ["before", "after"])
def test_modules_are_wrapped_whenever_they_are_imported(write, when):
    write()
    if when == "before":
        for name in MODULES:
            importlib.import_module(name)
    workers.install()
    workers.install()
    assert sum(isinstance(finder, workers._Watcher) for finder in sys.meta_path) == 1
    assert {name.rpartition(".")[2]: wrapped(kind_of(name)) for name in MODULES} == ALL


def test_to_wrap_twice_is_harmless(write):
    write()
    workers.install()
    for name, wrap in workers._WRAPPERS.items():
        kind = kind_of(name)
        before = dict(vars(kind))
        workers._wrapped(wrap, sys.modules[name])
        assert dict(vars(kind)) == before


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("ppo_trainer", "train_step", "train_one_step"),
        ("ppo_trainer", "BasePPOTrainer", "Trainer"),
        ("samples_generator", "_process_response_into_experience", "_process"),
        ("experience_maker", "_flatten_results", "_gather"),
        ("agent", "_fetch_rewards_via_func", "_call_rewards"),
        ("agent", "llm_engine", "engine"),
    ],
)
def test_a_module_of_another_shape_stays_as_it_is(write, caplog, module, old, new):
    (name,) = [name for name in MODULES if name.endswith(f".{module}")]
    write(**{module: MODULES[name].replace(old, new)})
    workers.install()
    found = importlib.import_module(name)
    kind = getattr(found, CLASSES[name], None) or found.Trainer
    # None of its methods: half of them would send rows away that nobody brings back.
    assert wrapped(kind) == set()
    assert name in caplog.text


def test_a_module_that_does_not_import_fails_as_it_would(write):
    write(agent="import a_module_that_nobody_has")
    workers.install()
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        importlib.import_module("openrlhf.utils.agent")
    with pytest.raises(ModuleNotFoundError, match=r"openrlhf\.nothing"):
        importlib.import_module("openrlhf.nothing")


# ---------------------------------------------------------------- wrapped methods


class Seen:
    """Hooks that note their calls and do what the trainer asks for."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args):
            self.calls.append(name)
            return args[-1]() if args and callable(args[-1]) else None

        return call


def use(kinds):
    """Call each wrapped method once, and give what came of it."""
    trainer = kinds["BasePPOTrainer"](STRATEGY, 1, key=2)
    trainer.save_logs_and_checkpoints(3, client_states={"a": 1})
    generator = kinds["SamplesGenerator"](STRATEGY)
    return (
        trainer.made,
        trainer.train_step(["row"], 4),
        trainer.saved,
        generator.generate_samples(top_p=1.0),
        kinds["RemoteExperienceMaker"]().make_experience_batch([5, 6]),
    )


RIGHT = (
    ((1,), {"key": 2}),
    ({"trained": ["row"]}, 5),
    (3, None, {"a": 1}),
    ([("answer", {"top_p": 1.0})], None, 1, False),
    [5, 6],
)


def test_methods_do_what_they_did_without_an_invitation_and_with_hooks(write, monkeypatch):
    write()
    workers.install()
    kinds = {CLASSES[name]: kind_of(name) for name in MODULES}
    asked = []
    monkeypatch.setattr(attach, "open_hooks", lambda args, *found: asked.append((args, *found)))
    assert use(kinds) == RIGHT
    # Asked once an actor, with the flags that it was made with, and not before it is needed. Where
    # no group of the policy's actors is, nobody can be shifted.
    assert asked == [(STRATEGY.args, (), None)] * 2
    seen = Seen()
    monkeypatch.setattr(hooks, "current", seen)
    assert use(kinds) == RIGHT
    assert seen.calls == [
        "save", "step", "generate", "responded", "begin_experience", "begin_forward", "gather",
    ]  # fmt: skip


def test_a_rollout_brings_its_times_however_it_is_called(write):
    write()
    workers.install()
    executor = kind_of("openrlhf.utils.agent")()

    class Engine:
        async def generate(self, prompt):
            return prompt.upper()

    names = list(inspect.signature(executor.execute).parameters)
    given = ("a", "b", None, 9, None, Engine(), None)
    for args, kwargs in ((given[:6], {}), ((), dict(zip(names, given, strict=True)))):
        told = asyncio.run(executor.execute(*args, **kwargs))
        assert (told["text"], told["reward"], told["told"]) == ("A", 1.0, ("b", 9, None))
        generated, fetched = told[TIMES]
        assert (len(generated), len(fetched)) == (1, 1)


def test_what_a_process_notes_is_waited_for_at_the_end(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "get", lambda refs: [ref() for ref in refs])

    def remote(told):
        call = SimpleNamespace(remote=lambda function: lambda: told)
        return SimpleNamespace(__ray_call__=call)

    monkeypatch.setattr(hooks, "current", None)
    assert workers.close_hooks(SimpleNamespace()) == HookTime()
    runtime = FakeRuntime()
    runtime.clock.add(HookTime(0.25, 3, 0.125))
    monkeypatch.setattr(hooks, "current", SimpleNamespace(runtime=runtime))
    trainer, generator = HookTime(0.5, 1), HookTime(1.0, 2, 0.5)
    actor = SimpleNamespace(trainer_actor=remote(trainer), generator_actor=remote(generator))
    assert workers.close_hooks(actor) == HookTime(1.75, 6, 0.625)
    assert runtime.roles("close") == [""]


def test_the_hook_of_a_process_imports_no_framework():
    told = "import sys, roll_adapters.openrlhf.workers as w; w.install(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, check=True, timeout=240
    )
    assert not {"torch", "ray", "numpy", "openrlhf", "transformers"} & set(done.stdout.split())


# ---------------------------------------------------------------- taking part in a run

TOLD = Invitation("ecorl-scheduler-x-1", "ecorl", 4, {Stage.REWARD: (1.0, 2.0)}, (Stage.REWARD,))


def test_without_an_invitation_there_is_nothing_to_open():
    assert open_hooks(flags(train__async_enable=False)) is None
    assert open_hooks(SimpleNamespace(**{KEY: None})) is None


@pytest.mark.parametrize(
    "error", [ConfigError("scheduler", "x", "a name"), EngineTimeout("it does not answer")]
)
def test_a_scheduler_that_is_not_there_costs_a_warning(monkeypatch, caplog, error):
    def fail(self, training):
        raise error

    monkeypatch.setattr(attach.RuntimeHandle, "open", fail)
    args = flags(train__async_enable=False)
    invite(args, TOLD)
    assert open_hooks(args) is None
    assert str(error) in caplog.text


def test_an_invitation_of_another_release_costs_a_warning(caplog):
    assert open_hooks(SimpleNamespace(**{KEY: {"scheduler": "x", "newer": 1}})) is None
    assert "newer" in caplog.text


def test_an_invitation_is_taken_as_it_was_given(monkeypatch):
    opened = []

    def opens(handle, training):
        opened.append((handle.scheduler, handle.namespace, training.device))
        return FakeRuntime()

    monkeypatch.setattr(attach.RuntimeHandle, "open", opens)
    args = flags(train__async_enable=True)
    invite(args, TOLD)
    assert getattr(args, KEY) == asdict(TOLD)
    found = open_hooks(args)
    assert opened == [("ecorl-scheduler-x-1", "ecorl", "none")]
    assert found.is_async
    assert (found._step, found._normalised, found._compared) == (
        4, {Stage.REWARD: (1.0, 2.0)}, {Stage.REWARD},
    )  # fmt: skip
