"""A ROLL job as ecorl sees it: settings that cannot work, what is said of roles, devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
pytest.importorskip("hydra")

import ray

from ecorl.errors import ConfigError
from ecorl.records import Stage
from ecorl.runtime.ray.cluster import ClusterNode
from ecorl.runtime.runs.found import GO_ON
from roll_adapters.ray_jobs.processes import ActorFacts
from roll_adapters.roll import checks, description
from tests.fakes.roll_batches import RULE, Job, small_decoder

AWAY = {"type": "static", "reference": "concurrent", "reward": "concurrent"}
REFERENCE = {"type": "static", "reference": "concurrent"}


@pytest.fixture
def model(tmp_path):
    """Makes a folder with the config of a small decoder."""
    return lambda name, **more: small_decoder(tmp_path / name, **more)


@pytest.fixture
def job(tmp_path):
    """Makes a job: PPO with critic, a reward model that may move and a rule."""

    def job(policy=AWAY, moves=True, block=None, **changed):
        return Job(tmp_path, policy, block or {}, changed, moves=moves)

    return job


def refused(found, key, value, line):
    """The words of what is allowed, of an error with this key, and with the line of some text."""
    with pytest.raises(ConfigError) as caught:
        found.check()
    error = caught.value
    assert (error.key, error.value) == (key, value)
    assert line in found.read.file.read_text().split("\n")[error.line - 1]
    return error.allowed


# ---------------------------------------------------------------- settings that cannot work


@pytest.mark.parametrize(
    "policy", [AWAY, REFERENCE, {"type": "static"}, {"type": "lookahead"}, {"type": "learned"}]
)
def test_a_job_whose_settings_work_is_let_through(job, policy):
    job(policy).check()
    cards = {"reference__device_mapping": "[2], fpga:0"}
    job(policy if policy != {"type": "static"} else AWAY, **cards).check()
    job({"type": "static"}, moves=False).check()


STATIC = "ecorl.placement.policy"


@pytest.mark.parametrize("stage", ["reference", "reward"])
def test_nothing_moves_in_a_pipeline_that_is_only_measured(job, snapshot, stage):
    found = job({"type": "static", stage: "fpga"}, moves=False)
    snapshot(refused(found, f"{STATIC}.{stage}", "fpga", f"{stage}: fpga"))


def test_with_lora_the_reference_does_not_move(job, snapshot):
    found = job(REFERENCE, actor_train__model_args__lora_target="o_proj")
    snapshot(refused(found, f"{STATIC}.reference", "concurrent", "reference: concurrent"))
    assert [own.role for own in found.roles if own.role.startswith("reference")] == []


def test_a_job_without_a_reference_moves_none(job, snapshot):
    found = job(REFERENCE, enable_reference=False)
    snapshot(refused(found, f"{STATIC}.reference", "concurrent", "reference: concurrent"))


@pytest.mark.parametrize("worker_cls", [RULE, None])
def test_rewards_without_a_class_that_moves_stay(job, snapshot, worker_cls):
    found = job(AWAY, rewards__general__worker_cls=worker_cls)
    snapshot(refused(found, f"{STATIC}.reward", "concurrent", "reward: concurrent"))


OVERLAP = {"roll": {"overlap_reference": True}}
OVERLAP_KEY = "ecorl.roll.overlap_reference"


def test_stages_on_the_same_gpus_do_not_run_at_once(job, snapshot):
    lines = []
    for changed in (
        {"reference__device_mapping": "[1, 2]"},
        {"reference__device_mapping": "[3]"},
        {"enable_reference": False},
        {"actor_train__model_args__lora_target": "q"},
    ):
        found = job({"type": "static"}, block=OVERLAP, **changed)
        why = refused(found, OVERLAP_KEY, True, "overlap_reference")
        lines.append(f"{changed}: {why}")
    snapshot("\n".join(lines))
    job({"type": "static"}, block=OVERLAP).check()


def test_the_width_of_the_policy_stays(job, snapshot):
    found = job({"type": "static"}, block={"trainer": {"widths": [1, 2]}})
    snapshot(refused(found, "ecorl.trainer.widths", [1, 2], "widths"))
    job({"type": "static"}, block={"trainer": {"widths": [1]}}).check()


def test_of_several_references_the_one_that_shares_is_named(job):
    found = job({"type": "static"}, block=OVERLAP)
    found.settings.reference_configs = {
        "large": SimpleNamespace(device_mapping=[5]), "small": SimpleNamespace(device_mapping=[0]),
    }  # fmt: skip
    why = refused(found, OVERLAP_KEY, True, "overlap_reference")
    assert "'small'" in why
    assert "actor_train" in why
    assert "[0]" in why


CARDS = [
    ({"reference__device_mapping": "[2], fpga:0-1"}, AWAY, "reference", "fpga:0, fpga:1"),
    ({"reference__device_mapping": "fpga:0"}, {"type": "static"}, "reference", "fpga:0"),
    ({"rewards__general__device_mapping": "fpga:0"}, REFERENCE, "rewards.general", "fpga:0"),
    ({"actor_train__device_mapping": "[0], fpga:2"}, AWAY, "actor_train", "fpga:2"),
    ({"reference__device_mapping": "[2], fpga:3", "rewards__general__device_mapping": "fpga:3"},
     AWAY, "reference", "fpga:3"),
    ({"rewards__math__device_mapping": "[1], fpga:0"}, REFERENCE, "rewards.math", "[1], fpga:0"),
]  # fmt: skip


def test_cards_that_nothing_could_use_are_refused(job, snapshot):
    lines = []
    for changed, policy, key, value in CARDS:
        where = next(iter(changed.values()))
        why = refused(job(policy, **changed), f"{key}.device_mapping", value, where)
        lines.append(f"{key} = '{value}': {why}")
    snapshot("\n".join(lines))


def test_a_class_of_the_user_s_own_may_have_several_cards(job):
    job(REFERENCE, rewards__math__device_mapping="fpga:0-3").check()


@pytest.mark.parametrize(
    ("strategy", "works"), [("hf_infer", True), ("fsdp2_infer", True), ("megatron_infer", False)]
)
def test_a_role_without_gpus_computes_its_bad_rows_in_one_process(job, snapshot, strategy, works):
    strategy_args = {"strategy_name": strategy}
    found = job(reference__device_mapping="fpga:1", reference__strategy_args=strategy_args)
    if works:
        found.check()
    else:
        snapshot(refused(found, "reference.strategy_args.strategy_name", strategy, strategy))
    on_gpus = job(reference__device_mapping="[2], fpga:1", reference__strategy_args=strategy_args)
    on_gpus.check()


@pytest.mark.parametrize(
    ("role", "key"),
    [("reference", "reference"), ("reward:general", "rewards.general"),
     ("reward", "rewards.general")],
)  # fmt: skip
def test_a_card_has_its_node_already(job, snapshot, role, key):
    mapping = {f"{key.replace('.', '__')}__device_mapping": "fpga:0"}
    found = job(block={"places": {role: {"node": "b"}}}, **mapping)
    snapshot(refused(found, f"ecorl.places.{role}.node", "b", "node: b"))
    job(block={"places": {role: {"count": 1}}}, **mapping).check()


@pytest.mark.parametrize("key", ["reference", "rewards.general"])
def test_a_model_that_is_not_here_is_named(job, snapshot, key):
    where = f"{key.replace('.', '__')}__model_args__model_name_or_path"
    found = job(**{where: "nobody/has-it"})
    snapshot(
        refused(found, f"{key}.model_args.model_name_or_path", "nobody/has-it", "nobody/has-it")
    )
    job({"type": "static"}, **{where: "nobody/has-it"}).check()


def test_an_engine_that_is_not_there_is_refused(job):
    found = job(REFERENCE, block={"engine": {"offload": {"type": "plugin", "name": "absent"}}})
    refused(found, "ecorl.engine.offload.name", "absent", "name: absent")


def test_roll_s_own_class_rewards_nothing(job, snapshot):
    engine = {"engine": {"offload": {"type": "plugin", "name": "roll"}}}
    job(REFERENCE, block=engine).check()
    found = job(AWAY, block=engine)
    snapshot(refused(found, "ecorl.engine.offload.name", "roll", "name: roll"))


def test_a_model_that_reads_other_tokens_is_refused(job, monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "survives_text", lambda *_: "token 5 is another")
    found = job(AWAY).check()  # no folder has a tokenizer
    (tmp_path / "reward" / "tokenizer.json").touch()
    key = "rewards.general.model_args.model_name_or_path"
    why = refused(found, key, str(tmp_path / "reward"), str(tmp_path / "reward"))
    assert "token 5 is another" in why
    monkeypatch.setattr(checks, "survives_text", lambda *_: None)
    found.check()


@pytest.mark.parametrize(
    ("there", "cards", "key", "has"),
    [
        (1, ("[2], fpga:0", "[4], fpga:1"), "rewards.general.device_mapping", "fpga:0"),
        (2, ("[2], fpga:2", "[4]"), "reference.device_mapping", "fpga:0 to fpga:1"),
        (0, ("[2], fpga:0", "[4]"), "reference.device_mapping", "ray start --resources"),
        (1, ("[2], fpga:0", "[4]"), "runtime.address", "2 cards"),
    ],
)
def test_cards_that_the_cluster_lacks_are_refused(job, monkeypatch, there, cards, key, has):
    def check_accelerators(n, patience_s):
        if n > there:
            raise ConfigError("runtime.address", "auto", f"{n} cards in {patience_s} s")

    monkeypatch.setattr(checks, "check_accelerators", check_accelerators)
    monkeypatch.setattr(checks, "nodes", lambda: [ClusterNode("a", "a", "a", float(there))])
    found = job(AWAY, reference__device_mapping=cards[0], rewards__general__device_mapping=cards[1])
    with pytest.raises(ConfigError) as caught:
        checks.check_cluster(found.read, found.movable, 3.0)
    assert caught.value.key == key
    assert has in caught.value.allowed
    still = job({"type": "static"})
    checks.check_cluster(still.read, still.movable, 3.0)  # nothing is asked for


# ---------------------------------------------------------------- what is said of each role


def said(found):
    return "\n".join(f"{role}: {what}" for role, what in found.happens().items())


def test_what_is_said_of_roles_that_move(job, snapshot):
    snapshot(said(job(AWAY, reference__device_mapping="[2], fpga:0")))
    waits = job({"type": "static", "reference": "fpga"}, reference__device_mapping="fpga:0")
    snapshot(said(waits), "while the GPUs wait")
    snapshot(said(job({"type": "lookahead"})), "when the policy decides so")


def test_what_roll_does_to_values_is_said(job, snapshot):
    found = job()
    before = found.happens()
    found.settings.enable_old_logprobs_recompute = True
    changed = {role: what for role, what in found.happens().items() if what != before[role]}
    assert changed.keys() == {"critic"}
    snapshot(changed["critic"])


def test_what_is_said_of_roles_that_stay(job, snapshot):
    snapshot(said(job({"type": "static"}, rewards__math__judge_model_type="api")))
    snapshot(job({"type": "static"}, block=OVERLAP).happens()["reference"], "beside others")


def test_what_is_said_in_a_pipeline_that_is_only_measured(job, snapshot):
    snapshot(said(job({"type": "static"}, moves=False)))


# ---------------------------------------------------------------- roles and their models


def test_roles_are_those_of_the_config(job):
    found = job(rewards__math__judge_model_type="inference")
    found.settings.reward_model = SimpleNamespace(name="reward_model")
    told = [
        (own.role, own.key, own.cluster, own.model.rpartition("/")[2], own.dtype)
        for own in description.model_roles(found.read, found.settings)
    ]
    assert told == [
        ("generation", "actor_infer", "actor_infer", "actor", "bfloat16"),
        ("actor_train", "actor_train", "actor_train", "actor", "bfloat16"),
        ("critic", "critic", "critic", "critic", "bfloat16"),
        ("critic_train", "critic", "critic", "critic", "bfloat16"),
        ("reference", "reference", "reference", "start", "bfloat16"),
        ("reward:general", "rewards.general", "reward-general", "reward", "bfloat16"),
        ("reward:math", "rewards.math", "reward_model", "", "float32"),
    ]
    without = [own.role for own in job(adv_estimator="grpo").roles]
    assert not {"critic", "critic_train"} & set(without)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("large", "small"), {"reference:large": "teacher.large", "reference:small": "teacher.s"}),
        (("large",), {"reference": "teacher.large"}),
        ((), {"reference": "teacher"}),
    ],
)
def test_a_teacher_takes_the_place_of_the_reference(job, model, names, told):
    one = {"model_args": {"model_name_or_path": model("teacher")}, "device_mapping": "[5], fpga:0"}
    tables = {name: {**one, "device_mapping": f"[5], fpga:{i}"} for i, name in enumerate(names)}
    found = job(AWAY, teacher=tables or one, reference=None)
    found.settings.is_pure_opd = True
    teachers = {name: getattr(found.settings.teacher, name) for name in names}
    found.settings.reference_configs = teachers or {"default": found.settings.teacher}
    for role, settings in zip(told, found.settings.reference_configs.values(), strict=True):
        settings.name = role.replace(":", "-").replace("reference", "teacher")
    found.roles = description.model_roles(found.read, found.settings)
    found.movable = description.movable(found.read, found.settings, found.roles, moves=True)
    keys = {own.role: own.key for own in found.movable if own.role.startswith("reference")}
    assert {role: key[: len(told[role])] for role, key in keys.items()} == told
    happens = found.check().happens()
    assert all("(fpga:0)" in happens[role] or "(fpga:1)" in happens[role] for role in told)


def test_models_that_may_move_are_those_that_the_policy_may_send(job):
    def moved(policy, **options):
        found = job(policy, **options)
        frozen = description.frozen_models(found.movable)
        return {role: (m.folder.name, m.dtype) for role, m in frozen.items()}

    both = {"reference": ("start", "bfloat16"), "reward:general": ("reward", "bfloat16")}
    assert moved(AWAY) == moved({"type": "lookahead"}) == both
    assert moved(REFERENCE) == {"reference": both["reference"]}
    assert moved({"type": "static"}) == moved({"type": "lookahead"}, moves=False) == {}
    half = {"reference__model_args__dtype": "fp16", "rewards__general__worker_cls": RULE}
    assert moved({"type": "lookahead"}, **half) == {"reference": ("start", "float16")}


def test_shapes_are_those_of_the_folders(job, model, tmp_path):
    (tmp_path / "broken").mkdir()
    model("critic", num_hidden_layers=3)
    changed = {"rewards__general__model_args__model_name_or_path": str(tmp_path / "broken")}
    found = job(**changed)
    model("critic", num_hidden_layers=3)
    shapes = {role: shape.n_layers for role, shape in description.shapes(found.roles).items()}
    policy = dict.fromkeys([Stage.GENERATION, Stage.ACTOR_TRAIN, Stage.REFERENCE], 2)
    assert shapes == {**policy, Stage.CRITIC: 3, Stage.CRITIC_TRAIN: 3}


def test_the_head_of_the_record_tells_the_settings(job):
    told = description.job_facts(job().read)
    assert told["trainer"] == "ROLL"
    assert (told["adv_estimator"], told["max_steps"]) == ("gae", "5")
    assert told["actor_train.device_mapping"] == "[0, 1]"
    assert "init_kl_coef" not in told
    assert "resume_from_checkpoint" in told[GO_ON]


# ---------------------------------------------------------------- processes and their devices


@pytest.fixture
def described(job, monkeypatch):
    """Describes a job by its processes: of each cluster what they tell of themselves."""
    found = [ClusterNode("id-a", "a", "a", 0.0), ClusterNode("id-b", "b", "b", 0.0)]
    monkeypatch.setattr(description, "nodes", lambda: found)
    context = SimpleNamespace(get_node_id=lambda: "id-a")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)

    def get(refs, timeout):
        if "lost" in refs:
            raise ray.exceptions.GetTimeoutError("too late")
        return refs

    monkeypatch.setattr(ray, "get", get)

    def worker(told):
        return SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda tell: told))

    def described(clusters):
        clusters = {
            name.replace("_of_", "-"): SimpleNamespace(workers=[worker(told) for told in processes])
            for name, processes in clusters.items()
        }
        return description.describe(job().roles, {}, {"reference": "group"}, clusters)

    return described


def process(node, *gpus, title="H100", pid=7):
    return ActorFacts(f"id-{node}", pid, gpus, (title,) * len(gpus))


def test_stages_on_gpus_become_places_and_others_are_served_elsewhere(described):
    side = described({
        "actor_train": [process("a", "GPU-0"), process("a", "GPU-1")],
        "actor_infer": [process("a", "GPU-0"), process("b", "GPU-4")],
        "critic": [process("a", "GPU-2")],
        "reference": ["lost"],
        "reward-general": [process("b", "GPU-5"), process("b")],
        "reward-math": [process("a"), process("b")],
        "train_env": [process("b", "GPU-9", title="H200")],
    })  # fmt: skip
    places = {
        role: [(part.node, part.devices) for part in parts] for role, parts in side.places.items()
    }
    assert places == {
        "actor_train": [("a", ("GPU-0", "GPU-1"))],
        "generation": [("a", ("GPU-0",)), ("b", ("GPU-4",))],
        "critic": [("a", ("GPU-2",))],
        "critic_train": [("a", ("GPU-2",))],
        "reward:general": [("b", ("GPU-5",))],
    }
    assert side.elsewhere == dict.fromkeys(["reference", "reward:math"], "workers without a GPU")
    assert (side.device, side.gpu_title, side.cards) == ("none", "H100", {"reference": "group"})


def test_gpus_of_several_kinds_have_no_title(described):
    side = described({"actor_train": [process("a", "GPU-0"), process("a", "GPU-1", title="A100")]})
    assert side.gpu_title == ""


def test_without_gpus_the_processes_of_this_machine_are_the_trainer(described):
    side = described({
        "actor_train": [process("a", pid=1), process("b", pid=2)],
        "reward-math": [process("a", pid=3)],
        "train_env": [process("a", pid=4)],
    })  # fmt: skip
    assert (side.device, side.pids, side.places) == ("cpu", (1, 3), {})
    assert side.cards == {"reference": "group"}


def test_rows_are_packed_by_roll_itself(job):
    found = job(block={"trainer": {"adaptive_micro_batch": True}})
    key = "ecorl.trainer.adaptive_micro_batch"
    assert "use_dynamic_batching_in_train" in refused(
        found, key, True, "adaptive_micro_batch: true"
    )
    job(block={"trainer": {"adaptive_micro_batch": False}}).check()
