"""Converting configs of ROLL's: what changes, what stays, and what is said about it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import roll_adapters
from ecorl.config.reading import validate_config
from ecorl.errors import ConfigError
from roll_adapters.roll.config.convert import (
    MOVABLE_MODEL,
    ROLLS_MODEL,
    convert,
    difference,
    kind_of,
    reads_images,
)

EXAMPLES = Path(roll_adapters.__file__).parent / "examples" / "roll"
RULES = "roll.pipeline.rlvr.rewards"
MATH = f"{RULES}.math_rule_reward_worker.MathRuleRewardWorker"
JUDGE = f"{RULES}.llm_judge_reward_worker.LLMJudgeRewardWorker"

BASE = """\
hydra: {run: {dir: .}, output_subdir: null}
exp_name: "a.job-1"   # the name
seed: 42
actor_train:
  model_args:
    dtype: bf16
    model_type: ~
  device_mapping: list(range(0,8))
reference: {device_mapping: "list(range(0,8))"}
"""

DOMAINS = f"""\
rewards:
  # numbers, by a rule
  math_rule:
    worker_cls: {MATH}
    tag_included: [deepmath_103k, aime]   # tags
  llm_judge:
    # NOTE: 也需要gpu
    worker_cls: {JUDGE}
#    query_filter_config: {{type: mean_filter}}
  code:
    worker_cls: {RULES}.code_sandbox_reward_worker.CodeSandboxRewardWorker
"""

MODEL = f"""\
rewards:
  general:
    worker_cls: {ROLLS_MODEL}   # a reward model
    model_args:
      model_name_or_path: ${{reward_pretrain}}
    device_mapping: "[3]"
"""

PPO = f"""\
{BASE}adv_estimator: "gae"
response_length: 4096
critic: {{device_mapping: "[2]"}}
actor_infer:
  generating_args:
    max_new_tokens: ${{response_length}}
{MODEL}"""

LORA = BASE.replace("dtype: bf16", "lora_target: o_proj,q_proj   # an adapter") + MODEL

ROLES = """\
actor_train: {model_args: {dtype: bf16}, device_mapping: "list(range(0,8))"}
reference: {device_mapping: "list(range(0,8))"}   # the policy's start
"""

AGENTIC = f"""\
defaults:
  - ../config/traj_envs@_here_
{ROLES}train_env_manager:
  num_env_groups: 8
custom_envs:
  Sokoban:
    ${{custom_env.Sokoban}}
"""

DPO = f"exp_name: dpo\nbeta: 0.1\nchosen_key: chosen\nrejected_key: rejected\n{ROLES}"
DISTILL = "distill_loss_weight: 0.85\nstudent: {world_size: 1}\nteacher: {world_size: 1}\n"
SFT = "prompt_key: instruction\nsft_train:\n  device_mapping: list(range(0,8))\n"

ON_POLICY = f"""\
student_train:
  model_args: {{dtype: bf16}}
teacher:
  large: {{tag_included: [math], device_mapping: "list(range(8,16))"}}
  small: {{tag_included: [code], device_mapping: "list(range(8,16))"}}
{MODEL}"""

ANCHORS = f"""\
{BASE}shared: &shared
  worker_cls: {ROLLS_MODEL}
  data_args: &data {{template: native}}
rewards:
  first: &first
    worker_cls: &class '{ROLLS_MODEL}'
    data_args: *data
  second:
    worker_cls: *class   # the same
  third:
    <<: *first
    tag_included: [third]
  fourth:
    <<: *shared   # merged
"""

FLOW = f"""\
{BASE}rewards: {{
  # in braces
  one: {{worker_cls: "{ROLLS_MODEL}", tag_included: [a]}},   # first
  two: {{worker_cls: {MATH}}},
}}"""

NOTED = BASE.replace("\n", "   # größer als √2 \U0001f642\n")
COMMENTS = f"""\
# before

# and again
{NOTED}
# between
rewards:   # all of them
  # the model
  münchen:   # a domain
    # its class
    worker_cls:   # on the next line
      {ROLLS_MODEL}   # there
    # below
  # end of rewards
# end of file
"""


def _converted(text, name="configs/job.yaml"):
    """Convert, and check what holds for every config."""
    found = convert(text, name)
    # The lines that are not in the difference are all there, in order.
    ended = text if text.endswith("\n") else text + ("\r\n" if "\r\n" in text else "\n")
    told = difference(ended, found.text, "old", "new").split("\n")[2:]
    assert all(ROLLS_MODEL in line for line in told if line.startswith("-")), told
    if "\r\n" in text:
        assert found.text.count("\r\n") == found.text.count("\n")
    data = yaml.safe_load(found.text)
    config = validate_config(data.pop("ecorl"))
    placement = config.placement
    assert (config.runtime.type, config.engine.offload.type) == ("ray", "fpga")
    assert (placement.policy.type, placement.deadline_s) == ("static", 60.0)
    old, classes = yaml.safe_load(text), {}
    for domain in data.get("rewards") or {}:
        classes[domain] = data["rewards"][domain].pop("worker_cls")
        old["rewards"][domain].pop("worker_cls")
    assert data == old
    assert all(re.fullmatch(r"[^\n]+[.]", told) for told in (*found.changes, *found.left))
    return found, (str(placement.policy.reference), str(placement.policy.reward)), classes


def _config(text, name="a.yaml"):
    return validate_config(yaml.safe_load(convert(text, name).text)["ecorl"])


# ---------------------------------------------------------------- kinds of configs


def test_rules_and_judges_stay_and_the_reference_may_move(snapshot):
    found, policy, classes = _converted(BASE + DOMAINS)
    assert found.text.startswith(BASE + DOMAINS)
    assert policy == ("concurrent", "gpu")
    assert "reward" not in yaml.safe_load(found.text)["ecorl"]["placement"]["policy"]
    assert classes["llm_judge"] == JUDGE
    snapshot("\n".join((*found.changes, *found.left)))


def test_a_reward_model_gets_the_class_that_moves(snapshot):
    found, policy, classes = _converted(PPO)
    assert classes == {"general": MOVABLE_MODEL}
    assert f"worker_cls: {MOVABLE_MODEL}   # a reward model" in found.text
    assert policy == ("concurrent", "concurrent")
    assert found.left == ()
    snapshot("\n".join(found.changes))


def test_where_the_reference_stays_it_is_said_once(snapshot):
    lines = []
    for text, kind, policy in (
        (LORA, "rlvr", ("gpu", "concurrent")),
        (AGENTIC, "agentic", ("gpu", "gpu")),
        (DPO, "dpo", ("gpu", "gpu")),
        (DISTILL, "distill", ("gpu", "gpu")),
        (SFT, "sft", ("gpu", "gpu")),
        ("a: 1\n", None, ("gpu", "gpu")),
        ("defaults: [b]\n", None, ("gpu", "gpu")),
        # A teacher takes the place of the reference.
        (ON_POLICY, "rlvr", ("concurrent", "concurrent")),
    ):
        found, now, _ = _converted(text)
        assert (kind_of(yaml.safe_load(text)), now) == (kind, policy)
        assert len(found.left) == (policy[0] == "gpu")
        lines += [*found.left, found.changes[-1], ""]
    snapshot("\n".join(lines))


def test_the_keys_tell_the_pipeline():
    kinds = {
        "rlvr": ("rewards reference beta", "student_train teacher"),
        "agentic": ("train_env_manager reward", "custom_envs", "val_env_manager rewards"),
        "dpo": ("beta reference", "rejected_key"),
        None: ("beta", "actor_train reference", "", "teacher"),
    }
    for kind, configs in kinds.items():
        for keys in configs:
            assert kind_of(dict.fromkeys(keys.split())) == kind
    assert kind_of({"rewards": {}, "pure_opd_pipeline_type": "agentic"}) == "agentic"


# ---------------------------------------------------------------- ways to write one


@pytest.mark.parametrize("text", [PPO, BASE + DOMAINS, ANCHORS, FLOW, COMMENTS, AGENTIC, DPO])
@pytest.mark.parametrize("end", ["\n", "", "\n\n", "   # end"])
def test_any_layout_stays(text, end):
    text = text.rstrip("\n") + end
    plain, _, classes = _converted(text)
    crlf, _, crlf_classes = _converted(text.replace("\n", "\r\n"))
    assert crlf.text == plain.text.replace("\n", "\r\n")
    assert crlf_classes == classes
    assert (crlf.changes, crlf.left) == (plain.changes, plain.left)


def test_anchors_and_merge_keys():
    found, policy, classes = _converted(ANCHORS)
    assert classes == dict.fromkeys(["first", "second", "third", "fourth"], MOVABLE_MODEL)
    assert len(found.changes) == 5
    assert f"worker_cls: &class '{MOVABLE_MODEL}'" in found.text
    assert "worker_cls: *class   # the same" in found.text
    assert f"<<: *shared   # merged\n    worker_cls: {MOVABLE_MODEL}\n" in found.text
    assert policy == ("concurrent", "concurrent")


def test_braces_and_a_class_on_the_next_line():
    found, _, classes = _converted(FLOW)
    assert classes == {"one": MOVABLE_MODEL, "two": MATH}
    assert f'one: {{worker_cls: "{MOVABLE_MODEL}", tag_included: [a]}},   # first' in found.text
    found, _, classes = _converted(COMMENTS)
    assert classes == {"münchen": MOVABLE_MODEL}
    assert f"      {MOVABLE_MODEL}   # there\n" in found.text


def test_a_last_text_without_a_line_end_stays_as_it_is(snapshot):
    text = "train_env_manager: {}\nprompts:\n  - |\n    Choose your action."
    found = convert(text, "a.yaml")
    assert yaml.safe_load(found.text)["prompts"] == ["Choose your action."]
    snapshot(found.changes[-1])
    assert difference(text, found.text, "a", "b").count("\n-") == 2  # |, and the line end


# ---------------------------------------------------------------- what this file does not tell


def test_what_is_said_of_a_reward_that_stays(snapshot):
    lines = []
    for domain in (
        "worker_cls: my.rewards.Tone",
        "worker_cls: ${oc.env:CLS}",
        "worker_cls: ${nowhere.cls}",
        "worker_cls: ${a}${b}",
        "worker_cls: ${loop}",
        "world_size: 1",
        "worker_cls: ${judge}",
    ):
        text = f"{BASE}judge: {JUDGE}\nloop: ${{loop}}\nrewards:\n  tone:\n    {domain}\n"
        found = convert(text, "a.yaml")
        assert found.text.startswith(text)
        (line,) = found.left
        lines.append(line)
        assert _config(text).placement.policy.reward == "gpu"
    snapshot("\n".join(lines))


def test_a_class_that_another_key_names_is_followed():
    named = f"classes: {{model: {ROLLS_MODEL}, same: '${{classes.model}}'}}\n"
    text = f"{BASE}{named}rewards:\n  tone:\n    worker_cls: ${{classes.same}}  # there\n"
    new = text.replace("${classes.same}", MOVABLE_MODEL)
    assert convert(text, "a.yaml").text.startswith(new)


def test_a_model_that_can_move_already_is_left_alone():
    text = BASE + MODEL.replace(ROLLS_MODEL, MOVABLE_MODEL)
    found = convert(text, "a.yaml")
    assert found.text.startswith(text)
    assert len(found.changes) == 1
    assert "reward: concurrent" in found.text


def test_rewards_that_do_not_stand_here(snapshot):
    lines = []
    for rewards in (
        "rewards: ${more.rewards}\n",
        "rewards:\n  a: ${b}\n",
        "rewards:\n  a:\n",
        "rewards: {}\nreward_model: {world_size: 1}\n",
        "student_train: {}\ndefaults: [_self_, ../b@_here_, {group: c}]\n",
    ):
        (line,) = convert(BASE + rewards, "a.yaml").left
        lines.append(line)
    snapshot("\n".join(lines))


REFERENCE = 'reference: {device_mapping: "list(range(0,8))"}\n'
ARGUMENTS = "  model_args:\n    dtype: bf16\n    model_type: ~\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dtype: bf16", "lora_target: ~"),
        (ARGUMENTS, "  model_args: ~\n"),
        ("seed: 42", "enable_reference: false"),  # ROLL's init_kl_coef is 0.2
        ("seed: 42", "init_kl_coef: 1e-3"),
        ("seed: 42", "init_kl_coef: 0.0\nuse_kl_loss: true"),
        ("seed: 42", "init_kl_coef: 0.0\nenable_reference: true"),
        ("seed: 42", "init_kl_coef: ${kl}\nkl: 0.1"),
        ("seed: 42", "init_kl_coef: ${oc.env:KL}\nuse_kl_loss: true"),
    ],
)
def test_where_a_reference_may_move_nothing_is_said(old, new):
    assert BASE.count(old) == 1
    text = BASE.replace(old, new) + "rewards: {}\n"
    assert _config(text).placement.policy.reference == "concurrent"
    assert convert(text, "a.yaml").left == ()


def test_why_a_reference_stays(snapshot):
    lines = []
    for old, new in (
        (REFERENCE, ""),
        (REFERENCE, "defaults: [b]\n"),
        ("actor_train:", "actor:"),
        ("actor_train:", "defaults: [b]\nactor:"),
        ("dtype: bf16", "lora_target: ${lora}"),
        (ARGUMENTS, "  model_args: ${other}\n"),
        ("seed: 42", "init_kl_coef: 0"),
        ("seed: 42", "init_kl_coef: none"),
        ("seed: 42", "init_kl_coef: ${oc.env:KL}"),
        (ARGUMENTS, "  data_args: {image_max_pixels: 1}\n"),
    ):
        assert BASE.count(old) == 1
        text = BASE.replace(old, new) + "rewards: {}\n"
        assert _config(text).placement.policy.reference == "gpu"
        (line,) = convert(text, "a.yaml").left
        lines.append(line)
    snapshot("\n".join(lines))


def test_images_are_told_by_settings_of_the_rows_or_by_rewards():
    cls = f"{RULES}.detection_reward_worker.DetectionRewardWorker"
    assert reads_images({"rewards": {"cv": {"worker_cls": cls}}})
    assert reads_images({"student_train": {"data_args": {"video_folder": "v"}}})
    assert not reads_images({"actor_train": {"data_args": {"template": "native"}}, "rewards": {}})
    assert not reads_images({"rewards": {"math": {"worker_cls": MATH}, "other": None}})


# ---------------------------------------------------------------- names and refusals


@pytest.mark.parametrize(
    ("given", "file", "name"),
    [
        ("a b", "conf/my job.v2.yaml", "my-job.v2"), ("${model}-x", "conf/a.yaml", "a"),
        ("größe", "größe.yaml", "gr-e"), ("~", "a.yaml", "a"), ("[a]", "a.yaml", "a"),
        ("..", "b.yaml", "roll"), ("über all", "ü.yaml", "roll"), ("'quoted'", "a.yaml", "quoted"),
        *((name, "a.yaml", name) for name in ("qwen2.5-7B", "2024", "1.10", "2024-01-01", "true")),
    ],
)  # fmt: skip
def test_the_name_of_the_run(given, file, name):
    config = _config(f"exp_name: {given}\nrewards: {{}}\n", file)
    assert (config.name, str(config.run_dir)) == (name, f"runs/{name}")


def test_a_name_is_no_number_for_omegaconf_either():
    omegaconf = pytest.importorskip("omegaconf")
    found = convert("exp_name: 1e5\nrewards: {}\n", "a.yaml")
    assert omegaconf.OmegaConf.create(found.text).ecorl.name == "1e5"


def test_a_config_that_has_the_block_already():
    with pytest.raises(ConfigError) as caught:
        convert("a: 1\necorl:\n  name: x\n", "job.yaml")
    assert str(caught.value).startswith("job.yaml:2: ecorl = ")
    with pytest.raises(ConfigError, match=r"ecorl = "):
        convert(convert(PPO, "a.yaml").text, "a.yaml")


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        (["", "# nothing\n", "- a\n", "text\n"], "(config)"),
        (["a:\n\tb: 1\n", "a: 1\n---\nb: 1\n"], "(syntax)"),
        (["{a: 1}\n"], "(top level)"),
    ],
)
def test_what_is_no_config_is_refused(texts, key):
    for text in texts:
        with pytest.raises(ConfigError) as caught:
            convert(text, "job.yaml")
        assert caught.value.key == key
        assert str(caught.value).startswith("job.yaml:")


def test_the_difference_is_one_that_patch_takes():
    assert difference("a\n", "a\n", "x", "y") == ""
    told = difference("a\nb", "a\nc\n", "x", "y")
    assert told == ("--- x\n+++ y\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n")
    assert difference("a\r\n", "a\r\nb\r\n", "x", "y").endswith(" a\r\n+b\r\n")
    # Only line ends divide lines.
    assert difference("a\x0cb\x85c\n", "", "x", "y").endswith("\n-a\x0cb\x85c\n")


def test_the_examples():
    text = (EXAMPLES / "rlhf_critic.yaml").read_text("utf-8")
    found, policy, classes = _converted(text, "rlhf_critic.yaml")
    assert (policy, found.left) == (("concurrent", "concurrent"), ())
    assert classes == {"general": MOVABLE_MODEL}
    text = (EXAMPLES / "rlvr_two_domains.yaml").read_text("utf-8")
    found, policy, classes = _converted(text, "rlvr_two_domains.yaml")
    assert policy == ("concurrent", "gpu")
    train = yaml.safe_load(text)["actor_train"]
    assert set(classes) == {"math", "ifeval"} == set(train["data_args"]["domain_interleave_probs"])
    assert {line.split()[0] for line in found.left} == {"rewards.math", "rewards.ifeval"}
