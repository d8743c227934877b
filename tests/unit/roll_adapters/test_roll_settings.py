"""A config of ROLL's with ecorl's block: what is read, and what is refused with its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("hydra")
pytest.importorskip("dacite")

from ecorl.errors import ConfigError
from ecorl.records import Action
from roll_adapters.roll.config import pipelines
from roll_adapters.roll.config.convert import convert
from roll_adapters.roll.config.handles import Devices, parse
from roll_adapters.roll.config.pipelines import PIPELINES, Pipeline, pipeline_of
from roll_adapters.roll.config.settings import read

BLOCK = """\
ecorl:
  placement:
    policy: {type: static, reference: concurrent}
"""
JOB = """\
hydra: {run: {dir: .}, output_subdir: null}
exp_name: job
seed: 7
adv_estimator: gae
pretrain: ${oc.env:ECORL_TEST_POLICY,policy}
actor_train:
  model_args: {model_name_or_path: "${pretrain}"}
  device_mapping: list(range(0,2))
reference:
  device_mapping: "[2, 3], fpga:0"
rewards:
  general:
    device_mapping: fpga:1
"""


@pytest.fixture
def given_config(tmp_path):
    """Write a config and read it."""

    def given_config(text=JOB + BLOCK, overrides=(), settings=(), name="job"):
        (tmp_path / "job.yaml").write_text(text, "utf-8")
        return read(tmp_path, name, overrides, settings)

    return given_config


@pytest.fixture
def refused(given_config, tmp_path):
    """Read a config that is refused; gives the error, whose line must be the marked one."""

    def refused(text=JOB + BLOCK, overrides=(), settings=()):
        with pytest.raises(ConfigError) as caught:
            given_config(text, overrides, settings)
        error = caught.value
        marked = [i for i, line in enumerate(text.split("\n"), 1) if "# here" in line]
        if marked:
            assert (error.line, str(error.path)) == (marked[0], str(tmp_path / "job.yaml"))
            assert str(error).startswith(f"{tmp_path / 'job.yaml'}:{marked[0]}: ")
        assert "\n" not in str(error)
        return error

    return refused


# ---------------------------------------------------------------- what is read


def test_roll_is_given_its_settings_without_ecorl_s(given_config):
    found = given_config()
    assert "ecorl" not in found.data
    assert "hydra" not in found.data
    assert found.data["actor_train"] == {
        "model_args": {"model_name_or_path": "policy"}, "device_mapping": "list(range(0,2))",
    }  # fmt: skip
    assert (found.kind, found.file.name) == ("rlvr", "job.yaml")
    assert found.config.placement.policy.reference is Action.CONCURRENT
    assert not found.own.overlap_reference


@pytest.mark.parametrize("name", ["job", "job.yaml"])
def test_a_config_is_named_with_or_without_its_ending(given_config, name):
    assert given_config(name=name).kind == "rlvr"


def test_a_name_may_have_dots(given_config, tmp_path):
    (tmp_path / "qwen2.5-7B.yaml").write_text(JOB + BLOCK)
    assert given_config(name="qwen2.5-7B").file.name == "qwen2.5-7B.yaml"


@pytest.mark.parametrize("name", ["nowhere", "nowhere.yaml", "job.yml", "sub/job"])
def test_a_config_that_is_not_there_is_told(given_config, tmp_path, name):
    (tmp_path / "job.yml").write_text(JOB + BLOCK)
    with pytest.raises(ConfigError, match=f"--config_name = {name!r}"):
        given_config(name=name)


@pytest.mark.parametrize("mark", ["\ufeff", ""])
def test_a_mark_of_utf_8_is_no_part_of_the_text(given_config, mark):
    found = given_config(mark + JOB + BLOCK.replace("static,", "static, reward: fpga,"))
    assert found.data["exp_name"] == "job"
    assert found.error("exp_name", "job", "another").line == 2


def test_settings_are_those_of_the_environment_and_of_other_keys(given_config, monkeypatch):
    monkeypatch.setenv("ECORL_TEST_POLICY", "/models/mine")
    found = given_config(JOB + "ecorl: {name: '${exp_name}'}\n")
    assert found.role("actor_train.model_args") == {"model_name_or_path": "/models/mine"}
    assert found.config.name == "job"


def test_overrides_are_hydra_s(given_config):
    given = ["seed=8", "actor_train.device_mapping='[5]'", "+critic.world_size=3"]
    found = given_config(overrides=[*given, "ecorl.placement.policy.reference=fpga"])
    assert (found.data["seed"], found.role("critic")) == (8, {"world_size": 3})
    assert found.role("actor_train")["device_mapping"] == "[5]"
    assert found.config.placement.policy.reference is Action.FPGA


def test_settings_of_the_block_may_be_set_beside_the_file(given_config):
    given = ["placement.deadline_s=3.5", "name=other", "roll.overlap_reference=true"]
    found = given_config(settings=given)
    assert (found.config.placement.deadline_s, found.config.name) == (3.5, "other")
    assert found.own.overlap_reference


def test_the_algorithm_and_the_seed_are_roll_s(given_config):
    assert (given_config().config.algorithm, given_config().config.seed) == ("ppo", 7)
    told = {"grpo": "grpo", "reinforce": "reinforce++", "gigpo": "grpo"}
    for estimator, algorithm in told.items():
        found = given_config(JOB.replace("gae", estimator) + BLOCK).config
        assert (found.algorithm, found.adapter) == (algorithm, "roll")
    found = given_config(JOB + BLOCK + "  algorithm: ppo\n  seed: 3\n").config
    assert (found.algorithm, found.seed) == ("ppo", 3)


def test_a_student_is_trained_by_distillation_on_its_own_words(given_config):
    found = given_config(JOB.replace("actor_train", "student_train") + BLOCK)
    assert (found.data["is_pure_opd"], found.kind) == (True, "rlvr")
    assert "is_pure_opd" not in given_config().data


def test_what_convert_writes_is_read(given_config):
    assert given_config(convert(JOB, "job.yaml").text).config.name == "job"


def test_roles_are_found_by_their_keys(given_config):
    found = given_config()
    assert found.role("rewards.general") == {"world_size": 1}
    assert [found.role(key) for key in ("nothing", "rewards.none.more", "seed")] == [{}] * 3


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("block", "key", "allowed"),
    [
        ("ecorl:\n  placment: {}  # here\n", "ecorl.placment", "is 'placement' meant"),
        ("ecorl:\n  placement:\n    q_max: many  # here\n", "ecorl.placement.q_max", "whole"),
        ("ecorl:\n  placement: 3  # here\n", "ecorl.placement", ""),
        ("ecorl:\n  placement:\n    policy: {type: x}  # here\n", "ecorl.placement.policy.t", ""),
        ("ecorl:\n  roll: {overlap: true}  # here\n", "ecorl.roll.overlap", "overlap_reference"),
        ("ecorl:\n  roll:\n    overlap_reference: 1  # here\n", "ecorl.roll.overlap_r", "true or"),
        ("ecorl:\n  roll: [1]  # here\n", "ecorl.roll", ""),
        ("ecorl: text  # here\n", "ecorl", "a block with ecorl's settings"),
        ("ecorl: [1]  # here\n", "ecorl", "a block with ecorl's settings"),
        ("ecorl:\n  algorithm: grpo  # here\n", "ecorl.algorithm", "ppo, or left out: adv_est"),
    ],
)
def test_a_mistake_in_the_block_has_its_line(refused, block, key, allowed):
    error = refused(JOB + block)
    assert error.key.startswith(key)
    assert allowed in error.allowed


@pytest.mark.parametrize("block", ["", "ecorl:\n", "ecorl: ~\n"])
def test_a_config_without_a_block_is_told_how_to_get_one(refused, block):
    assert "`ecorl-roll convert`" in refused(JOB + block).allowed


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("placement.q_max=many", "--set placement.q_max"),
        ("placment.q_max=3", "--set placment"),
        ("nothing", "--set"),
        ("roll.overlap_reference=maybe", "--set roll.overlap_reference"),
    ],
)
def test_a_mistake_of_the_command_line_is_not_the_file_s(refused, given, key):
    error = refused(settings=[given])
    assert (error.key, error.path, error.line) == (key, None, None)


@pytest.mark.parametrize(
    ("text", "overrides", "why"),
    [
        (JOB.replace(",policy}", "}") + BLOCK, [], "ECORL_TEST_POLICY"),
        (JOB.replace("${oc.env:ECORL_TEST_POLICY,policy}", "${nowhere}") + BLOCK, [], "nowhere"),
        (JOB + BLOCK, ["no.such.key=1"], "no"),
        (JOB + BLOCK, ["a b"], "a b"),
        (JOB + BLOCK + "defaults: [_self_, absent]\n", [], "absent"),
    ],
)
def test_what_hydra_refuses_is_one_line(refused, text, overrides, why):
    error = refused(text, overrides)
    assert error.key == "--config_name"
    assert why in error.allowed


@pytest.mark.parametrize("text", ["a: [1, 2  # here\n", "a: 1\nb: {c: 'd\n"])
def test_what_is_no_yaml_is_refused_with_its_line(refused, text):
    error = refused(text)
    assert error.key == "(syntax)"
    assert error.line is not None


def test_text_that_is_no_utf_8_is_refused(tmp_path):
    (tmp_path / "job.yaml").write_bytes(b"a: \xff\n" + BLOCK.encode())
    with pytest.raises(ConfigError, match="UTF-8"):
        read(tmp_path, "job", [], [])


# ---------------------------------------------------------------- cards


def test_cards_are_taken_out_of_the_device_mapping(given_config):
    found = given_config()
    assert found.cards == {"reference": (0,), "rewards.general": (1,)}
    assert found.data["reference"] == {"device_mapping": "[2, 3]"}
    # A role without GPUs is a process of its own for ROLL.
    assert found.data["rewards"]["general"] == {"world_size": 1}


def test_a_world_size_that_is_given_stays(given_config):
    more = "    device_mapping: fpga:1\n    world_size: 4\n"
    found = given_config(JOB.replace("    device_mapping: fpga:1\n", more) + BLOCK)
    assert found.data["rewards"]["general"]["world_size"] == 4


SPELLINGS = [
    ("fpga:0", None, (0,)), ("fpga:3", None, (3,)), ("fpga:0-2", None, (0, 1, 2)),
    ("fpga:2-2", None, (2,)), (" fpga:0 ", None, (0,)), ("fpga:0,fpga:4-5", None, (0, 4, 5)),
    ("list(range(0, 8)), fpga:0", "list(range(0, 8))", (0,)),
    ("fpga:0, list(range(0,8))", "list(range(0,8))", (0,)),
    ("[0, 1],fpga:1,fpga:0", "[0, 1]", (1, 0)),
    ("fpga:1, [4], fpga:0", "[4]", (1, 0)),
    ("list(range(0,2)) + [5], fpga:7", "list(range(0,2)) + [5]", (7,)),
    ("[fpga:0]", None, (0,)), ("[0, 1, fpga:0]", "[0, 1]", (0,)),
    ("list(range(0, 8))", "list(range(0, 8))", ()), ("", None, ()),
]  # fmt: skip


@pytest.mark.parametrize(("mapping", "ranks", "cards"), SPELLINGS)
def test_handles_in_all_spellings(mapping, ranks, cards):
    found = parse(mapping, "reference.device_mapping")
    assert found.cards == cards
    assert (found.ranks and eval(found.ranks)) == (ranks and eval(ranks))


BAD = [
    "fpga:1-0", "fpga:0,fpga:0", "fpga:0-2, fpga:1", "fpga", "fpga:", "fpga:a", "fpga: 0",
    "fpga:-1", "fpga0", "[0], fpga:x", "fpga:0-3-5", "fpga:0x", "fpga:1.5", "fpga:0-", "myfpga:0",
    "list(range(0,8)) fpga:0", "list(range(0,8)) + fpga:0", "fpga:0fpga:1",
]  # fmt: skip


@pytest.mark.parametrize("mapping", BAD)
def test_what_is_no_handle_is_refused(mapping):
    with pytest.raises(ConfigError, match=r"^reference\.device_mapping = .*'fpga:0-3'"):
        parse(mapping, "reference.device_mapping")


@pytest.mark.parametrize(
    ("key", "old"), [("reference", '"[2, 3], fpga:0"'), ("rewards.general", "fpga:1")]
)
def test_a_bad_handle_is_refused_with_its_line(refused, key, old):
    error = refused(JOB.replace(old, '"[0], fpga:3-1"  # here') + BLOCK)
    assert (error.key, error.value) == (f"{key}.device_mapping", "[0], fpga:3-1")


def test_a_list_of_handles_is_refused_with_its_line(refused):
    """ROLL takes text alone, which it evaluates."""
    error = refused(JOB.replace("fpga:1", "[fpga:1]  # here") + BLOCK)
    assert error.key == "rewards.general.device_mapping"


RANKS = st.sampled_from(["list(range(0, 8))", "[0]", "[4, 5]", "list(range(0,2)) + [7]"])
PIECES = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=4)


@given(RANKS, PIECES, st.integers(0, 4), st.sampled_from([",", ", ", " , "]))
def test_ranks_and_cards_are_told_apart_wherever_they_stand(ranks, pieces, place, comma):
    handles, cards, first = [], [], 0
    for size, gap in pieces:
        first += gap
        handles.append(f"fpga:{first}" if size == 1 else f"fpga:{first}-{first + size - 1}")
        cards += range(first, first + size)
        first += size
    words = [*handles[:place], ranks, *handles[place:]]
    assert parse(comma.join(words), "a") == Devices(ranks, tuple(cards))
    assert parse(comma.join(handles), "a") == Devices(None, tuple(cards))


# ---------------------------------------------------------------- pipelines


def test_each_kind_of_config_has_a_pipeline_and_only_in_rlvr_stages_move(given_config, snapshot):
    assert {kind for kind, found in PIPELINES.items() if found.moves} == {"rlvr"}
    assert pipeline_of(given_config()) is PIPELINES["rlvr"]
    assert pipeline_of(given_config("train_env_manager: {}\n" + BLOCK)) is PIPELINES["agentic"]
    with pytest.raises(ConfigError) as caught:
        pipeline_of(given_config("exp_name: a\n" + BLOCK))
    snapshot(str(caught.value))


def test_a_pipeline_for_images_or_of_the_user_s_own_moves_nothing(given_config):
    images = JOB.replace("  model_args:", "  data_args: {image_max: 1}\n  model_args:", 1)
    found = pipeline_of(given_config(images + BLOCK))
    assert (found.pipeline.rpartition(".")[2], found.moves) == ("RLVRVLMPipeline", False)
    own = given_config(JOB + BLOCK + "pipeline_cls: my.own.Pipeline\n")
    assert pipeline_of(own) == Pipeline(PIPELINES["rlvr"].config, "my.own.Pipeline")
    same = f"pipeline_cls: {PIPELINES['rlvr'].pipeline}\n"
    assert pipeline_of(given_config(JOB + BLOCK + same)).moves


@pytest.mark.parametrize("path", ["no.such.module.Class", "json.Nothing", "alone"])
def test_a_pipeline_that_is_not_there_is_told(path):
    assert pipelines.load("json.JSONDecoder").__name__ == "JSONDecoder"
    with pytest.raises(ConfigError, match=r"^pipeline_cls = "):
        pipelines.load(path)
