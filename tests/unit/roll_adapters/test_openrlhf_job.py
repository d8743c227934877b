"""An OpenRLHF job as its driver sees it: checkpoints, settings that cannot work, its devices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

import ray

from ecorl.config import RayRuntimeConfig, TrainerConfig, validate_config
from ecorl.edi import EdiMatrix
from ecorl.errors import ConfigError, RunError
from ecorl.records import Stage
from ecorl.runtime.checkpoints import write_state
from ecorl.runtime.ray import cluster as ray_cluster
from ecorl.runtime.ray.cluster import ClusterNode
from ecorl.runtime.runs.found import GO_ON
from roll_adapters.openrlhf import checkpoints, checks, description
from roll_adapters.openrlhf.checkpoints import checkpoint_to_resume, read_progress, record_saved
from roll_adapters.openrlhf.checks import fitted
from roll_adapters.openrlhf.description import Job, describe
from roll_adapters.openrlhf.driver import SETUP_HOOK, Driver
from roll_adapters.ray_jobs.models import local_folder
from roll_adapters.ray_jobs.processes import ActorFacts, tell
from roll_adapters.ray_jobs.run import on_ray
from tests.fakes.nvml.fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401
from tests.fakes.openrlhf import FakeRuntime, flags

CONCURRENT = {"type": "static", "reward": "concurrent", "reference": "concurrent"}


def config(policy=None, **tables):
    return validate_config({"placement": {"policy": policy or {"type": "static"}}, **tables})


def job_flags(**changed):
    return flags(**{
        "algo__advantage__estimator": "gae", "algo__kl__init_coef": 0.01,
        "reward__remote_url": None, "train__colocate_all": False,
        "train__colocate_actor_ref": False, "ds__param_dtype": "bf16", "ds__ring_attn_size": 1,
        "ds__tensor_parallel_size": 1, "actor__model_name_or_path": None,
        "reward__model_name_or_path": None, "critic__model_name_or_path": None, **changed,
    })  # fmt: skip


# ---------------------------------------------------------------- checkpoints


@pytest.fixture
def saved(tmp_path):
    """A folder of checkpoints whose newest is that of step 12."""
    folder = tmp_path / "_actor"
    for step in (6, 12):
        (folder / f"global_step{step}").mkdir(parents=True)
    (folder / "latest").write_text("global_step12\n")
    return folder


def test_the_checkpoint_that_openrlhf_takes_is_found(saved, tmp_path):
    args = flags(ckpt__path=str(tmp_path), ckpt__load_enable=True)
    assert checkpoint_to_resume(args) == saved / "global_step12"
    args.ckpt.load_enable = False
    assert checkpoint_to_resume(args) is None


@pytest.mark.parametrize("lost", ["latest", "folder"])
def test_without_a_checkpoint_a_job_begins_anew(saved, tmp_path, lost):
    (saved / "latest").unlink()
    where = tmp_path if lost == "latest" else tmp_path / "nowhere"
    assert checkpoint_to_resume(flags(ckpt__path=str(where), ckpt__load_enable=True)) is None
    assert checkpoint_to_resume(flags()) is None


def test_progress_is_read_with_and_without_ecorl_s_own_state(saved, caplog):
    assert read_progress(saved / "global_step12") == (12, None)
    assert "ecorl_state.json" in caplog.text
    write_state(saved / "global_step12", 12, EdiMatrix(0.05, 20).to_json())
    step, edi = read_progress(saved / "global_step12")
    assert step == 12
    assert isinstance(edi, EdiMatrix)
    assert read_progress(Path("x/best_global_step3"))[0] == 3


@pytest.mark.parametrize("name", ["_actor", "global_step", "global_step3_old", "checkpoint-3"])
def test_a_folder_that_tells_no_step_is_refused(tmp_path, name):
    with pytest.raises(RunError, match=name):
        read_progress(tmp_path / name)


@pytest.mark.parametrize(
    ("every", "disabled", "due"),
    [(2, False, True), (-1, False, False), (float("inf"), False, False), (3, False, False),
     (2, True, False)],
)  # fmt: skip
def test_only_steps_that_openrlhf_saves_are_recorded(monkeypatch, every, disabled, due):
    told = []
    monkeypatch.setattr(checkpoints, "complete_checkpoint", lambda *call: told.append(call[1:]))
    args = flags(ckpt__path="/c", ckpt__save_steps=every, ckpt__disable_ds=disabled)
    record_saved(FakeRuntime(), args, 4)
    assert told == ([(Path("/c/_actor/global_step4"), 4, None)] if due else [])


# ---------------------------------------------------------------- settings


def test_a_run_is_on_ray_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head")  # what it names is looked at when it is joined
    assert on_ray(config(), "OpenRLHF").runtime == RayRuntimeConfig()
    own = config(runtime={"type": "ray", "address": "local"})
    assert on_ray(own, "OpenRLHF") is own
    with pytest.raises(ConfigError, match=r"runtime\.type = 'local': allowed is ray"):
        on_ray(config(runtime={"type": "local"}), "OpenRLHF")


@pytest.mark.parametrize(
    ("policy", "more"), [(CONCURRENT, {"resources": {"FPGA": 2}}), ({"type": "static"}, {})]
)
def test_a_machine_without_a_cluster_starts_one_with_a_place_for_each_worker(
    monkeypatch, policy, more
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = clusters_asked_for(monkeypatch)
    Driver(on_ray(config(policy), "OpenRLHF")).connect()
    (auto, first), (local, second) = asked
    assert (auto, local) == ("auto", "local")
    assert second == first | more
    assert second["runtime_env"]["worker_process_setup_hook"] == SETUP_HOOK


@pytest.mark.parametrize("named_by", ["config", "environment"])
def test_a_cluster_that_is_named_and_does_not_answer_is_refused(monkeypatch, named_by):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = {"type": "ray", "address": "10.0.0.1:6379"}
    if named_by == "environment":
        monkeypatch.setenv("RAY_ADDRESS", own.pop("address"))
    asked = clusters_asked_for(monkeypatch)
    key = "RAY_ADDRESS" if named_by == "environment" else r"runtime\.address"
    with pytest.raises(ConfigError, match=f"^{key} = .*nobody there"):
        Driver(on_ray(config(runtime=own), "OpenRLHF")).connect()
    assert len(asked) == 1


def test_a_cluster_that_was_found_and_does_not_answer_is_no_reason_to_start_one(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = clusters_asked_for(monkeypatch)

    def refusal(address, patience_s):
        raise TimeoutError(f"{address} is silent")

    monkeypatch.setattr(ray_cluster, "refusal", refusal)
    with pytest.raises(ConfigError, match=r"runtime\.address = 'auto': .*auto is silent"):
        Driver(on_ray(config(), "OpenRLHF")).connect()
    assert asked == []


def test_a_job_may_be_a_client_of_the_cluster(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    asked = []
    monkeypatch.setattr(ray_cluster, "refusal", lambda *_: None)
    monkeypatch.setattr(ray, "init", lambda address, **options: asked.append(address))
    Driver(on_ray(config(), "OpenRLHF")).connect()
    assert asked == ["ray://head:10001"]


def clusters_asked_for(monkeypatch):
    """What Ray is asked to join; nothing answers but a cluster that it starts."""
    asked = []

    def init(address, **options):
        asked.append((address, options))
        if address != "local":
            raise ConnectionError("nobody there")

    monkeypatch.setattr(ray_cluster, "refusal", lambda *_: None)
    monkeypatch.setattr(ray, "init", init)
    return asked


@pytest.mark.parametrize(
    ("estimator", "algorithm"),
    [("gae", "ppo"), ("group_norm", "grpo"), ("rloo", "rloo"), ("reinforce", "reinforce++")],
)
def test_the_algorithm_is_that_of_the_flags(estimator, algorithm):
    args = job_flags(algo__advantage__estimator=estimator)
    found = fitted(config(), args)
    assert (found.algorithm, found.adapter) == (algorithm, "openrlhf")
    assert fitted(config(algorithm=algorithm), args).algorithm == algorithm
    with pytest.raises(ConfigError, match=f"algorithm = 'dapo': .*{estimator}"):
        fitted(config(algorithm="dapo"), args)


def test_rows_are_packed_by_openrlhf_itself():
    asked = config().model_copy(update={"trainer": TrainerConfig(adaptive_micro_batch=True)})
    with pytest.raises(ConfigError) as refused:
        fitted(asked, job_flags())
    assert refused.value.key == "trainer.adaptive_micro_batch"
    assert "--train.dynamic_batch_enable" in refused.value.allowed


OVERLAP = [
    ("train__colocate_all", "reward", "concurrent"),
    ("train__colocate_all", "reference", "concurrent"),
    ("train__colocate_actor_ref", "reference", "concurrent"),
]


@pytest.mark.parametrize(("flag", "stage", "action"), OVERLAP)
def test_overlap_is_refused_where_openrlhf_knows_none(flag, stage, action):
    args = job_flags(**{flag: True})
    policy = {"type": "static", stage: action}
    with pytest.raises(ConfigError) as refused:
        checks._check_overlap(config(policy), args)
    assert refused.value.key == f"placement.policy.{stage}"
    assert f"--{flag.replace('__', '.')}" in str(refused.value)
    checks._check_overlap(config(policy), job_flags())
    checks._check_overlap(config({"type": "static", stage: "fpga"}), args)


def test_overlap_of_models_on_devices_of_their_own_is_fine():
    args = job_flags(train__colocate_actor_ref=True)
    checks._check_overlap(config({"type": "static", "reward": "concurrent"}), args)


@pytest.mark.parametrize("policy", [{"type": "lookahead"}, {"type": "learned"}])
def test_a_policy_that_may_overlap_is_refused_too(policy):
    with pytest.raises(ConfigError, match=r"placement\.policy\.type = .*allowed is static"):
        checks._check_overlap(config(policy), job_flags(train__colocate_all=True))
    checks._check_overlap(config(policy), job_flags())


def test_an_exact_worker_is_one_process():
    engine = {"offload": {"type": "plugin", "name": "openrlhf"}}
    args = job_flags(ds__ring_attn_size=2)
    with pytest.raises(ConfigError, match=r"--ds\.ring_attn_size = 2: allowed is 1"):
        checks._check_exact_engine(config(CONCURRENT, engine=engine), args)
    checks._check_exact_engine(config(engine=engine), args)  # nothing leaves the GPU
    checks._check_exact_engine(config(CONCURRENT), args)  # another engine


# ---------------------------------------------------------------- models


@pytest.fixture
def model(tmp_path):
    """Makes a folder with the config of a small decoder."""

    def make(name, head="CausalLM", **more):
        folder = tmp_path / name
        folder.mkdir()
        told = {
            "model_type": "llama", "architectures": [f"LlamaFor{head}"], "hidden_size": 32,
            "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "vocab_size": 64, "hidden_act": "silu",
            "max_position_embeddings": 64, **more,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(told))
        return str(folder)

    return make


def test_shapes_are_those_of_the_folders(model, tmp_path):
    (tmp_path / "broken").mkdir()
    args = job_flags(
        actor__model_name_or_path=model("actor"),
        critic__model_name_or_path=model("critic", num_hidden_layers=3),
        reward__model_name_or_path=str(tmp_path / "broken"),
    )
    found = description.shapes(args)
    policy = {Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.REFERENCE}
    assert set(found) == policy | {Stage.CRITIC, Stage.CRITIC_TRAIN}
    assert {found[stage].n_layers for stage in policy} == {2}
    assert {found[Stage.CRITIC].n_layers, found[Stage.CRITIC_TRAIN].n_layers} == {3}
    assert description.shapes(job_flags()) == {}


def test_frozen_models_are_those_that_the_policy_may_send(model):
    args = job_flags(
        actor__model_name_or_path=model("actor"), reward__model_name_or_path=model("reward")
    )
    assert description.frozen_models(config(), args) == {}
    both = description.frozen_models(config(CONCURRENT), args)
    assert {role: (m.folder.name, m.dtype) for role, m in both.items()} == {
        "reward": ("reward", "bfloat16"),
        "reference": ("actor", "bfloat16"),
    }
    args.ds.param_dtype, args.algo.kl.init_coef = "fp32", 0
    alone = description.frozen_models(config({"type": "lookahead"}), args)
    assert {role: m.dtype for role, m in alone.items()} == {"reward": "float32"}
    args.reward.remote_url = ["http://x"]
    assert description.frozen_models(config(CONCURRENT), args) == {}


def test_a_frozen_model_that_is_not_here_is_named():
    args = job_flags(actor__model_name_or_path="nobody/has-it")
    with pytest.raises(ConfigError, match=r"--actor\.model_name_or_path = 'nobody/has-it'"):
        description.frozen_models(config(CONCURRENT), args)


def test_cards_that_the_cluster_lacks_are_missed_at_once(model, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_cluster, "nodes", lambda: [ClusterNode("a", "a", "a", 1.0)])
    runtime = RayRuntimeConfig().model_copy(update={"patience_s": 0.0})
    args = job_flags(
        actor__model_name_or_path=model("actor"), reward__model_name_or_path=model("reward")
    )
    alone = {"type": "static", "reward": "concurrent"}
    fitted(config(alone).model_copy(update={"runtime": runtime}), args)
    with pytest.raises(ConfigError) as refused:
        fitted(config(CONCURRENT).model_copy(update={"runtime": runtime}), args)
    assert refused.value.key == "runtime.type"
    assert "a cluster with 2 of the resource FPGA (it has 1)" in refused.value.allowed


def test_a_model_s_folder_is_a_path_or_the_hub_s_cache(model, monkeypatch):
    import huggingface_hub

    assert local_folder(model("here")).name == "here"
    assert local_folder("nobody/has-it") is None
    assert local_folder("not/a/name of a model") is None
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: f"/hub/{name}")
    assert local_folder("some/model") == Path("/hub/some/model")


def test_normalised_rewards_bring_their_mean(model):
    args = job_flags(reward__model_name_or_path=model("reward", mean=1.5, std=0.5))
    assert description.normalised(args) == {}
    args.reward.normalize_enable = True
    assert description.normalised(args) == {Stage.REWARD: (1.5, 0.5)}
    args.reward.model_name_or_path = model("plain")
    assert description.normalised(args) == {Stage.REWARD: (0.0, 1.0)}
    args.reward.model_name_or_path = None
    assert description.normalised(args) == {}


# ---------------------------------------------------------------- processes and their devices


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    """Two machines; the driver is on the first."""
    found = [ClusterNode("id-a", "a", "a", 0.0), ClusterNode("id-b", "b", "b", 0.0)]
    monkeypatch.setattr(description, "nodes", lambda: found)
    context = SimpleNamespace(get_node_id=lambda: "id-a")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


def process(node, *gpus, title="H100", pid=7):
    return ActorFacts(f"id-{node}", pid, gpus, (title,) * len(gpus))


def by_stage(side):
    """Machines and devices of each stage."""
    return {
        str(stage): [(part.node, part.devices) for part in parts]
        for stage, parts in side.places.items()
    }


def test_stages_on_gpus_become_places(model):
    args = job_flags(
        actor__model_name_or_path=model("actor"), critic__model_name_or_path=model("critic")
    )
    job = Job({
        Stage.GENERATION: [process("b", "GPU-4"), process("b", "GPU-5")],
        Stage.ACTOR_TRAIN: [process("a", "GPU-0"), process("a", "GPU-1"), process("a", "GPU-0")],
        Stage.CRITIC_TRAIN: [process("a", "GPU-2")],
        Stage.REFERENCE: [],
    })  # fmt: skip
    side = describe(config(), args, job)
    assert by_stage(side) == {
        "generation": [("b", ("GPU-4", "GPU-5"))],
        "actor_train": [("a", ("GPU-0", "GPU-1"))],
        "critic": [("a", ("GPU-2",))],
        "critic_train": [("a", ("GPU-2",))],
    }
    assert (side.device, side.gpu_title) == ("none", "H100")
    assert set(side.models) == {*by_stage(side), "reference"}
    assert set(side.served_elsewhere) == set(side.models)


def test_a_role_over_several_machines_has_devices_on_each():
    job = Job({
        Stage.ACTOR_TRAIN: [
            process("b", "GPU-1", title="H200"), process("a", "GPU-0"), process("b", "GPU-2"),
        ],
    })  # fmt: skip
    side = describe(config(), job_flags(), job)
    assert by_stage(side) == {"actor_train": [("a", ("GPU-0",)), ("b", ("GPU-1", "GPU-2"))]}
    assert side.elsewhere == {}
    assert set(side.served_elsewhere) == {Stage.ACTOR_TRAIN}
    assert side.gpu_title == ""


def test_a_machine_that_told_no_gpus_counts_its_processes():
    job = Job({Stage.ACTOR_TRAIN: [process("a", "GPU-0"), process("b"), process("b")]})
    silent = describe(config(), job_flags(), job).places[Stage.ACTOR_TRAIN][1]
    assert (silent.node, silent.devices, silent.n_gpus) == ("b", (), 2)


def test_without_gpus_the_processes_of_this_machine_are_the_trainer():
    job = Job({
        Stage.ACTOR_TRAIN: [process("a", pid=1), process("b", pid=2)],
        Stage.REWARD: [process("a", pid=3)],
    })  # fmt: skip
    side = describe(config(), job_flags(), job)
    assert (side.device, side.pids, side.places) == ("cpu", (1, 3), {})


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (["http://a:5000"], "a service"),
        (["https://a", "http://b"], "2 reward services"),
        (["reward.py"], None),
        ("agent", None),
        (None, None),
    ],
)
def test_rewards_of_services_are_served_elsewhere(url, told):
    side = describe(config(), job_flags(reward__remote_url=url), Job({}))
    assert side.elsewhere == ({Stage.REWARD: told} if told else {})


def test_processes_that_do_not_answer_leave_their_devices_unknown(monkeypatch):
    def get(refs, timeout):
        if "lost" in refs:
            raise ray.exceptions.GetTimeoutError("too late")
        return [process("a", ref) for ref in refs]

    monkeypatch.setattr(ray, "get", get)
    job = Job.ask({Stage.GENERATION: ["lost"], Stage.REWARD: ["GPU-0"]})
    assert job.of(Stage.GENERATION) == []
    assert job.on_gpus
    assert set(describe(config(), job_flags(), job).places) == {"reward"}


def test_a_process_without_gpus_tells_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert tell(None) == ActorFacts("id-a", os.getpid(), (), ())


def test_a_process_with_a_broken_gpu_tells_all_of_its_gpus(monkeypatch, fake_nvml):  # noqa: F811
    """Else its stages would be charged the healthy ones alone."""
    names = ("0", "GPU-00000001-fake")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    for call in ("HandleByIndex", "UUID", "Name"):
        fake_nvml.set(f"error nvmlDeviceGet{call} 999 1")
        assert tell(None) == ActorFacts("id-a", os.getpid(), names, ("Fake GPU 0",))


def test_the_head_of_the_record_tells_the_flags():
    told = description.job_facts(job_flags(rollout__temperature=0.7))
    assert told["trainer"] == "OpenRLHF"
    assert told["--rollout.temperature"] == "0.7"
    assert told["--algo.kl.init_coef"] == "0.01"
    assert "--train.async_enable" not in told
    assert "--ckpt.load_enable" in told[GO_ON]
