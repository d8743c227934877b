"""OpenRLHF's flags: the names that older releases had, and their way to an engine."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.errors import ConfigError
from roll_adapters.openrlhf import flags
from roll_adapters.openrlhf.flags import RENAMED, args_of, check_names, options_for, value_of
from tests.fakes.openrlhf import flags as nested


def test_each_old_name_is_there_once_and_is_no_new_one():
    told = list(flags._renamed())
    assert len(told) == len(RENAMED)
    targets = [name.split()[0].rstrip(",") for name in RENAMED.values()]
    assert not set(RENAMED) & set(targets)
    assert all(re.fullmatch(r"[a-z0-9_]+", old) for old in RENAMED)
    assert all(re.fullmatch(r"[a-z]+(\.[a-z0-9_]+)+", new) for new in targets)
    # Where two flags have become one.
    shared = {new for new, n in Counter(targets).items() if n > 1}
    assert shared == {"ds.attn_implementation", "data.max_len"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--remote_rm_url", "--reward.remote_url"),
        ("--ref_num_nodes", "--ref.num_nodes"),
        ("--vllm_num_engines", "--vllm.num_engines"),
        ("--colocate_all_models", "--train.colocate_all"),
        ("--init_kl_coef", "--algo.kl.init_coef"),
        ("--advantage_estimator", "--algo.advantage.estimator"),
        ("--pretrain", "--actor.model_name_or_path"),
        ("--micro_rollout_batch_size", "--rollout.micro_batch_size"),
        ("--generate_max_len", "--rollout.max_new_tokens"),
        ("--save_path", "--ckpt.output_dir"),
        ("--use_wandb", "--logger.wandb.key"),
        ("--lora_rank", "--ds.lora.rank"),
    ],
)
def test_an_old_flag_is_answered_with_its_new_name(old, new):
    with pytest.raises(ConfigError) as refused:
        check_names(["--actor.num_nodes", "1", old, "7"])
    assert str(refused.value).startswith(f"{old} = '7': ")
    assert str(refused.value).endswith(f" {new}")


@pytest.mark.parametrize(
    ("line", "given"),
    [
        (["--zpg=4"], "'4'"),
        (["--zpg"], "(not given)"),
        (["--bf16", "--zpg", "4"], "(not given)"),
        (["--zpg", "a b"], "'a b'"),
    ],
)
def test_the_message_holds_the_value_and_no_other_flag(line, given):
    with pytest.raises(ConfigError, match=f"= {re.escape(given)}: "):
        check_names(line)


def test_new_flags_and_values_that_look_like_old_names_pass():
    check_names(["--algo.advantage.gamma", "gamma", "pretrain", "-l2", "--local_rank", "0"])


def test_a_flag_that_is_not_there_has_its_default():
    args = nested(algo__kl__init_coef=0.5, reward__remote_url=None)
    assert value_of(args, "algo.kl.init_coef") == 0.5
    assert value_of(args, "algo.kl.target", 6) == 6
    assert value_of(args, "critic.num_nodes", 2) == 2
    assert value_of(args, "reward.remote_url", "none") == "none"


# ---------------------------------------------------------------- their way to an engine

words = st.text('a"\\\n.é', max_size=4)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words
names = st.text("abcdefgh_", min_size=1, max_size=6)
trees = st.recursive(
    scalars | st.lists(scalars, max_size=3),
    lambda inner: st.dictionaries(names, inner, max_size=4).map(lambda d: SimpleNamespace(**d)),
)


@settings(deadline=None)
@given(st.dictionaries(names, trees, max_size=4))
def test_flags_reach_an_engine_as_they_are(tree):
    args = SimpleNamespace(**tree)
    assert args_of(options_for(args)["flags"]) == args


def test_what_json_cannot_hold_is_left_out():
    args = nested(train__seed=1, train__hook=print, data__parts=("a", object(), 2), ecorl={"a": 1})
    found = args_of(options_for(args)["flags"])
    assert found == nested(train__seed=1, data__parts=["a", 2])
    assert vars(found.train) == {"seed": 1}
