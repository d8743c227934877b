"""A frozen model that the engine cannot run: it stays where TRL computes, and training goes on."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import shutil

import pytest
import torch
from rich.console import Console

from ecorl.ledger import LedgerReader
from ecorl.records import Action, FaultKind, Stage
from ecorl.report import write_report
from roll_adapters.trl_hooks import attach
from tests.integration.checks import BOTH, assert_same_bits, config, outcome

WHY = "the INT8 engine runs Llama and Qwen2.5 models, and this one is GPT-2"

POLICIES = {
    "static": {"type": "static", "reward": "fpga"},
    "threshold": {"type": "threshold"},
    "lookahead": {"type": "lookahead"},
    "learned": {"type": "learned"},
}


@pytest.fixture(scope="module")
def gpt2(tiny, tmp_path_factory):
    """A reward model of another family, with the tokenizer of the tiny one."""
    from transformers import AutoTokenizer, GPT2Config, GPT2ForSequenceClassification

    folder = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    tokenizer = AutoTokenizer.from_pretrained(tiny.reward)
    shape = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=1,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        GPT2ForSequenceClassification(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def gpt2_trainer(gpt2, make_trainer):
    """Makes a trainer with that reward model."""
    from transformers import AutoModelForSequenceClassification

    def make(name, **changes):
        model = AutoModelForSequenceClassification.from_pretrained(gpt2, dtype=torch.float32)
        parts = {"reward_funcs": [model.eval()]}
        return make_trainer(name=name, parts=parts, max_steps=2, **changes)

    return make


@pytest.fixture(scope="module")
def kept():
    """What plain TRL ends with, once for all policies."""
    return {}


def warned(caplog):
    """All that ecorl itself warned of."""
    own = [r for r in caplog.records if r.name.startswith(("ecorl", "roll_adapters"))]
    return [r.getMessage() for r in own if r.levelno >= logging.WARNING]


def placements(folder, stage):
    with contextlib.closing(LedgerReader(folder)) as reader:
        return [p.placement for p in reader.placements() if p.placement.stage is stage]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_reward_model_that_the_engine_cannot_run_stays_and_the_numbers_are_plain_trls(
    gpt2_trainer, tmp_path, caplog, kept, policy
):
    if not kept:
        plain = gpt2_trainer("plain")
        plain.train()
        kept.update(outcome(plain))
    trainer = gpt2_trainer(policy)
    # The reference is left to TRL, so that all numbers are its own.
    changed = {} if policy == "static" else {"q_max": 1, "l_max": 1}
    attachment = attach(trainer, config(tmp_path, policy=POLICIES[policy], **changed))
    reason = f"stays on the host: {WHY}"
    assert warned(caplog) == [f"the reward model (tiny-gpt2) {reason}"]
    assert attachment.runtime.checkpoint(Stage.REWARD) is None
    assert not attachment.runtime.offloads(Stage.REWARD)
    assert attachment.runtime.offloads(Stage.REFERENCE) is (policy != "static")
    trainer.train()
    assert_same_bits(kept, outcome(trainer))
    run = tmp_path / "run"
    assert not (run / "models").exists()  # it was not saved for an engine that cannot load it
    found = placements(run, Stage.REWARD)
    assert {(p.action, p.reason) for p in found} == {(Action.GPU, reason)}
    assert len(found) == 2
    with contextlib.closing(LedgerReader(run)) as reader:
        (fault,) = reader.faults()
    told = (fault.kind, fault.where, fault.detail)
    assert told == (FaultKind.NO_ENGINE, "reward", f"tiny-gpt2 {reason}")


def test_the_other_role_keeps_its_engine_and_the_report_has_the_line(
    gpt2_trainer, tmp_path, caplog
):
    trainer = gpt2_trainer("both")
    attach(trainer, config(tmp_path, policy=BOTH))
    trainer.train()
    run = tmp_path / "run"
    assert warned(caplog) == [f"the reward model (tiny-gpt2) stays on the host: {WHY}"]
    assert {p.action for p in placements(run, Stage.REFERENCE)} == {Action.CONCURRENT}
    printed = io.StringIO()
    write_report(run, console=Console(file=printed, width=400))
    text = " ".join(printed.getvalue().split())
    assert f"stays on the host: {WHY}" in text


def test_a_model_that_cannot_be_saved_for_its_engine_stays(make_trainer, tmp_path, caplog):
    """It differs from its folder, and the run's own folder is of no use."""
    trainer = make_trainer(max_steps=1)
    with torch.no_grad():
        trainer.reward_funcs[0].score.weight.mul_(0.5)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "models").write_text("in the way")
    attachment = attach(trainer, config(tmp_path, policy=BOTH))
    (line,) = warned(caplog)
    assert line.startswith("the reward model (reward) stays on the host: it cannot be saved for")
    assert attachment.runtime.offloads(Stage.REFERENCE)
    attachment.detach()


def test_a_verdict_against_int8_keeps_the_model_and_ends_no_run(
    make_trainer, tiny, tmp_path, caplog
):
    from transformers import AutoModelForSequenceClassification

    from ecorl.engines.fpga.csim.build import kernels_digest
    from ecorl.engines.fpga.verdict import LAST_NO_PAD, VERDICT_FILE, checkpoint_digest
    from ecorl.engines.models.checkpoint import load_decoder

    folder = tmp_path / "judged"
    shutil.copytree(tiny.reward, folder)
    verdict = {
        "checkpoint_digest": checkpoint_digest(load_decoder(folder)),
        "kernels_digest": kernels_digest(),
        "read_at": LAST_NO_PAD,
        "rank_flip_share": 0.2,
        "budget": 0.03,
        "accepted": False,
    }
    (folder / VERDICT_FILE).write_text(json.dumps(verdict))
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    trainer = make_trainer(max_steps=1, parts={"reward_funcs": [model.eval()]})
    attachment = attach(trainer, config(tmp_path, policy=BOTH))
    (line,) = warned(caplog)
    assert line.startswith("the reward model (judged) stays on the host: ")
    assert "INT8 flips 20 % of the held-out pairs, allowed is at most 3 %" in line
    attachment.detach()
