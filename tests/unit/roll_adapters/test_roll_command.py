"""The command ecorl-roll, with and without ROLL; what a run replaces in ROLL, and puts back."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

pytest.importorskip("ray")
pytest.importorskip("hydra")
pytest.importorskip("dacite")

from ecorl.errors import MissingToolError
from roll_adapters.roll import command, driver
from roll_adapters.roll.config import names
from roll_adapters.roll.config.convert import MOVABLE_MODEL, ROLLS_MODEL
from roll_adapters.roll.driver import AutoDeviceMapping
from roll_adapters.roll.stages import hooks
from roll_adapters.roll.stages.dispatch import WatchedCall
from roll_adapters.roll.stages.hooks import PipelineHooks
from tests.fakes.roll_batches import RULE, FakeRuntime, roll_on_path, small_decoder


@pytest.fixture
def run(capsys):
    """Run the command; gives its exit code and what it wrote."""

    def run(*words):
        with pytest.raises(SystemExit) as ended:
            command.main([str(word) for word in words])
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run


@pytest.fixture
def refused(run):
    """Run the command to a user's mistake; gives its line."""

    def refused(*words):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert err.startswith("ecorl: ")
        assert err.count("\n") == 1
        return err

    return refused


@pytest.fixture
def load(monkeypatch):
    """ROLL's double is on the path; imports modules of it."""
    with roll_on_path(monkeypatch) as load:
        yield load


@pytest.fixture
def absent(monkeypatch):
    """ROLL is not here, whatever this machine has."""
    for name in [name for name in sys.modules if name.startswith("roll.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "roll", None)


PPO = f"""\
exp_name: job   # a name
adv_estimator: gae
actor_train: {{device_mapping: "[0]"}}
reference: {{device_mapping: "[1]"}}
rewards:
  general:
    worker_cls: {ROLLS_MODEL}
  math:
    worker_cls: {RULE}
"""


@pytest.fixture
def job(tmp_path):
    """A config of ROLL's, without ecorl's block."""
    file = tmp_path / "job.yaml"
    file.write_text(PPO)
    return file


@pytest.fixture
def rlvr(tmp_path):
    """Writes a config that ROLL takes, with ecorl's block; gives its file."""

    def rlvr(policy="{type: static, reference: concurrent}", **changed):
        def role(gpus, **more):
            model = {"model_name_or_path": small_decoder(tmp_path / "model"), "dtype": "fp32"}
            return {"model_args": model, "device_mapping": gpus, **more}

        data = {
            "exp_name": "job", "adv_estimator": "gae", "max_steps": 3,
            "actor_train": role("[0]"), "reference": role("[1], fpga:0"), "critic": role("[2]"),
            "actor_infer": role("[0]", strategy_args={"strategy_name": "vllm"}),
            "rewards": {"math": {"worker_cls": RULE, "world_size": 1}},
            "ecorl": {
                "run_dir": str(tmp_path / "run"), "placement": {"policy": yaml.safe_load(policy)},
            },
        }  # fmt: skip
        file = tmp_path / "rlvr.yaml"
        file.write_text(yaml.safe_dump(data | changed, sort_keys=False))
        return file

    return rlvr


# ---------------------------------------------------------------- words


@pytest.mark.parametrize("words", [(), ("start",), ("check",), ("convert",)])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_needs_no_roll(run, absent, words, flag):
    code, out, err = run(*words, flag)
    assert (code, err) == (0, "")
    told = {
        (): "write a config with ecorl's block", ("start",): "--config_path DIR",
        ("check",): "--set KEY=VALUE", ("convert",): "<name>_ecorl.yaml",
    }  # fmt: skip
    assert told[words] in out


@pytest.mark.parametrize(
    "words", [(), ("train",), ("start",), ("check",), ("convert",), ("check", "a", "--config", "b")]
)
def test_words_that_are_not_understood_are_told_in_one_line(run, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    (line,) = err.strip().split("\n")
    assert line.startswith("ecorl: ")
    assert "--help" in line


def test_it_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "roll_adapters.roll", "convert", "/nowhere.yaml"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


# ---------------------------------------------------------------- convert


def test_a_config_is_converted_and_the_difference_told(run, absent, job, snapshot):
    target = job.with_name("job_ecorl.yaml")
    for mark in ("", "\ufeff"):
        job.write_text(mark + PPO, "utf-8")
        target.unlink(missing_ok=True)
        code, out, err = run("convert", job)
        assert (code, err) == (0, "")
        assert job.read_text("utf-8") == mark + PPO
        new = target.read_text("utf-8")
        assert new.startswith(PPO.replace(ROLLS_MODEL, MOVABLE_MODEL))
        assert "\necorl:\n" in new
        snapshot(out)


def test_the_converted_config_goes_where_the_user_says(run, job, tmp_path):
    assert run("convert", job, "-o", tmp_path / "other.yml")[0] == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["job.yaml", "other.yml"]


def test_a_file_that_is_there_is_not_written_over(refused, job, tmp_path, snapshot):
    target = job.with_name("job_ecorl.yaml")
    target.write_text("mine")
    snapshot(refused("convert", job))
    assert f"--output = '{job}'" in refused("convert", job, "--output", job)
    assert (target.read_text(), job.read_text()) == ("mine", PPO)


def test_what_cannot_be_converted_is_one_line(refused, job, tmp_path, snapshot):
    job.unlink()
    lines = [refused("convert", job), refused("convert", tmp_path)]
    for content in (b"a: \xff\n", b"a: [1\n", b"- 1\n", b"a: 1\necorl: {}\n"):
        job.write_bytes(content)
        lines.append(refused("convert", job))
    snapshot("".join(lines))
    assert not job.with_name("job_ecorl.yaml").exists()


def test_a_file_in_no_folder_is_not_written(refused, job, tmp_path):
    there = tmp_path / "no" / "such"
    assert "--output = " in refused("convert", job, "-o", there / "a.yaml")


# ---------------------------------------------------------------- check and start


@pytest.mark.parametrize("way", ["check", "start"])
def test_without_roll_that_is_one_line(refused, absent, rlvr, way):
    file = rlvr()
    words = {"check": [file], "start": ["--config_path", file.parent, "--config_name", "rlvr"]}
    assert "ROLL 0.3.0" in refused(way, *words[way])
    assert not (file.parent / "run").exists()


@pytest.mark.parametrize("package", ["dacite", "hydra", "yaml"])
def test_without_roll_s_packages_that_is_one_line(refused, monkeypatch, rlvr, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert package in refused("check", rlvr())


def test_check_says_of_each_role_what_happens(run, load, rlvr, snapshot):
    code, out, err = run("check", rlvr(), "max_steps=5", "--set", "name=other")
    assert (code, err) == (0, "")
    snapshot(out)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"max_steps": "many"}, "--config_name = 'rlvr.yaml'"),
        ({"actor_train": {"device_mapping": "nowhere"}}, "--config_name = 'rlvr.yaml'"),
        ({"actor_train": {"device_mapping": "[0"}}, "--config_name = 'rlvr.yaml'"),
        ({"reference": {"device_mapping": "[1], fpga:2-1"}}, "reference.device_mapping = "),
        ({"pipeline_cls": 3, "rewards": None, "reference": None}, "allowed is "),
    ],
)
def test_what_roll_would_refuse_is_one_line(refused, load, rlvr, changed, key):
    line = refused("check", rlvr(**changed))
    assert key in line
    assert "rlvr.yaml" in line


@pytest.fixture
def mapping(monkeypatch, tmp_path):
    """Stands in the place of the override; gives its calls."""
    calls = []

    class Mapping:
        config = SimpleNamespace(resolved_run_dir=lambda: tmp_path / "run")

        def __init__(self, *given):
            calls.append(given)

        def __enter__(self):
            calls.append("begun")

        def __exit__(self, kind, *_):
            calls.append(kind)

        def build(self):
            return SimpleNamespace(run=lambda: calls.append("trained"))

        prepare = what_happens = lambda self: ()

    monkeypatch.setattr(driver, "AutoDeviceMapping", Mapping)
    return Mapping, calls


START = ("start", "--config_path", "configs", "--config_name", "job")


def test_start_trains_with_what_it_is_given(run, mapping, tmp_path, snapshot):
    kind, calls = mapping
    words = [*START, "max_steps=3", "+a.b=2", "--set", "name=b", "--set", "seed=1"]
    code, out, err = run(*words)
    assert calls == [
        ("configs", "job", ["max_steps=3", "+a.b=2"], ["name=b", "seed=1"]),
        "begun", "trained", None,
    ]  # fmt: skip
    assert (code, err) == (0, "")
    snapshot(out)

    def stop(self):
        raise KeyboardInterrupt

    kind.build = stop
    code, out, err = run(*words)
    assert (code, out) == (130, "")
    snapshot(err, "stopped")
    assert calls[-1] is KeyboardInterrupt


@pytest.mark.parametrize(
    "words",
    [
        (*START, "a=1", "b=2", "--set", "c=3"),
        (*START, "--set", "c=3", "a=1", "b=2"),
        (*START, "a=1", "--set", "c=3", "b=2"),
        ("check", "configs/job", "a=1", "b=2", "--set", "c=3"),
        ("check", "--set", "c=3", "configs/job", "a=1", "b=2"),
        ("check", "configs/job", "--set", "c=3", "a=1", "b=2"),
    ],
)
def test_settings_may_stand_anywhere_among_the_words(run, mapping, words):
    assert run(*words)[0] == 0
    folder, name, *given = mapping[1][0]
    assert (str(folder), name, given) == ("configs", "job", [["a=1", "b=2"], ["c=3"]])


# ---------------------------------------------------------------- ROLL's modules and objects


def test_names_are_replaced_for_a_run_and_put_back(load, rlvr):
    file = rlvr()
    mapping = AutoDeviceMapping(file.parent, "rlvr")
    replaced = (
        names.DISPATCH, names.RESOURCES, names.SCHEDULER, names.COMPUTE, names.TOKEN_REWARD,
        names.ROLLED_OUT,
    )  # fmt: skip

    def now():
        return [getattr(load(module), name) for module, name in replaced]

    before = now()
    mapping._replace_names()
    assert all(a is not b for a, b in zip(before, now(), strict=True))
    func_generator, manager, scheduler = now()[:3]
    assert issubclass(manager, before[1])
    assert issubclass(scheduler, before[2])
    cluster = SimpleNamespace(cluster_name="critic")
    bound = func_generator(
        cluster, "train_step", dispatch_fn=None, collect_fn=None, execute_fn=None
    )
    assert isinstance(bound, WatchedCall)
    assert mapping._clusters == {"critic": cluster}
    mapping._end(None)
    assert now() == before


def test_the_rollout_of_a_step_is_told_before_roll_writes_it_down(load, rlvr, monkeypatch):
    mapping, calls = AutoDeviceMapping(rlvr().parent, "rlvr"), []
    written = mapping._rolled_out(lambda *given: calls.append(given))
    written("path", 3, "rows", "tokenizer")
    told = SimpleNamespace(rolled_out=lambda *given: calls.append(given))
    monkeypatch.setattr(hooks, "current", told)
    mapping._pipeline = SimpleNamespace(generate_schedulers={"math": "actor"})
    written(path="path", global_step=3, data="rows", tokenizer="tokenizer")
    own = ("path", 3, "rows", "tokenizer")
    assert calls == [own, ("rows", 3, ["actor"]), own]


def test_cards_of_a_class_of_the_user_s_own_are_no_gpus_for_roll(load, rlvr):
    own = {"math": {"worker_cls": "my.Rewards", "device_mapping": "fpga:1-3"}}
    file = rlvr("{type: lookahead}", rewards=own)
    mapping = AutoDeviceMapping(file.parent, "rlvr")
    mapping.prepare()
    mapping._give_cards()
    settings = mapping.pipeline_config.rewards["math"]
    assert (settings.device_mapping, settings.device_mapping.cards) == ([], (1, 2, 3))
    assert settings.world_size == 3
    assert mapping.pipeline_config.reference.device_mapping == [1]


def test_the_pipeline_s_own_methods_tell_where_steps_begin_end_and_are_saved(tmp_path):
    """What stands in their place calls them, with their arguments."""
    folder, calls = tmp_path / "pipeline" / "checkpoint-3", []

    def save(global_step, is_last_step=None):
        calls.append(("save", global_step))
        pipeline.state.save_to_json(save_dir=str(folder / "pipeline"), tag="pipeline")
        assert (folder / "ecorl_state.json").is_file()  # before it is uploaded
        assert runtime.record.checkpoints == []

    pipeline = SimpleNamespace(
        model_update=lambda global_step: calls.append(("update", global_step)) or {"a": 1},
        do_checkpoint=save,
        tracker=SimpleNamespace(log=lambda values, step, **more: calls.append((values, step))),
        state=SimpleNamespace(
            log_history=[{"actor/total_loss": 0.5}],
            save_to_json=lambda save_dir, tag: Path(save_dir).mkdir(parents=True),
        ),
    )
    mapping = AutoDeviceMapping.__new__(AutoDeviceMapping)
    mapping._runtime = runtime = FakeRuntime()
    mapping._watch(pipeline, PipelineHooks(runtime, None, {}))
    assert pipeline.model_update(3) == {"a": 1}
    pipeline.do_checkpoint(global_step=3)
    pipeline.tracker.log(values={"actor/total_loss": 0.5}, step=3)
    assert calls == [("update", 3), ("save", 3), ({"actor/total_loss": 0.5}, 3)]
    assert runtime.record.checkpoints == [(4, str(folder))]
    assert runtime.record.metrics == {(4, "loss"): 0.5}


# ---------------------------------------------------------------- names of ROLL's

NAMES = names._EVERYWHERE | names._IN_RLVR


def owner_of(module, path):
    *parents, last = path.split(".")
    owner = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, last


@pytest.mark.parametrize("rlvr", [False, True])
def test_roll_has_all_names_that_are_built_on(load, rlvr):
    names.check_names(rlvr=rlvr)


@pytest.mark.parametrize(
    ("module", "path", "lost"),
    [(*name, "name") for name in NAMES] + [(*name, "parameter") for name in NAMES if NAMES[name]],
)
def test_a_name_or_a_parameter_that_is_missing_is_told(load, monkeypatch, module, path, lost):
    owner, last = owner_of(module, path)
    if lost == "name":
        monkeypatch.delattr(owner, last)
    else:
        monkeypatch.setattr(owner, last, lambda: None)
    parameters = ", ".join(NAMES[module, path])
    with pytest.raises(MissingToolError) as refused:
        names.check_names(rlvr=True)
    assert f"{module}.{path}({parameters}): " in str(refused.value)
    if (module, path) in names._IN_RLVR:
        names.check_names(rlvr=False)


def test_without_roll_that_is_told(absent, snapshot):
    with pytest.raises(MissingToolError) as caught:
        names.check_names(rlvr=False)
    snapshot(str(caught.value).partition(": ")[0])
    assert names.look_up("roll.anything", "name") is None
