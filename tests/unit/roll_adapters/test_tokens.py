"""One rollout of several turns, as each framework tells of it: all adapters count the same tokens.

The environment speaks between the policy's turns, and once behind the last one.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from ecorl.records import Stage, StageWork
from ecorl.runtime.rollout import GeneratedRows, Rollout
from roll_adapters.openrlhf.rewards import ResponseTimes
from roll_adapters.openrlhf.rows import RolloutRows
from roll_adapters.roll.stages.rows import sizes_of
from roll_adapters.trl.masks import add_generated
from roll_adapters.trl.reference import ReferenceCall
from tests.fakes.openrlhf import micro_batch
from tests.fakes.roll_batches import step_batch

TURNS = [(2, 3, 4, 2, 1), (3, 1, 5, 4), (1, 6)]
"""Tokens of each row: of its prompt, then of the policy and of the environment by turns."""

GENERATION, PASSES = (3, 32, 16), (3, 32, 26)
"""Rows, tokens and output tokens."""


def row_of(turns):
    """Its tokens, and which of them the policy made."""
    mask = [k % 2 for k, n in enumerate(turns) for _ in range(n)]
    return list(range(3, 3 + len(mask))), mask


ROWS = [row_of(turns) for turns in TURNS]


class Counted(NamedTuple):
    generation: StageWork | None
    passes: list[StageWork]


def of_trl():
    parts = [
        (ids[: turns[0]], ids[turns[0] :]) for (ids, _), turns in zip(ROWS, TURNS, strict=True)
    ]
    masks = [mask[turns[0] :] for (_, mask), turns in zip(ROWS, TURNS, strict=True)]
    prompts, completions = ([part[k] for part in parts] for k in (0, 1))
    rows = GeneratedRows()
    add_generated(rows, (prompts, completions, masks, [""] * 3, None, {}, None, []), 0)
    ended = []
    iteration = SimpleNamespace(number=1)
    work = StageWork(Stage.GENERATION, 3, 9, 9, 3)
    run = SimpleNamespace(stage=SimpleNamespace(serial=1), work=work)
    runtime = SimpleNamespace(
        begin_iteration=lambda *_: iteration,
        on_stage_start=lambda *_, **__: run,
        on_stage_end=lambda run, work: ended.append(work),
    )
    rollout = Rollout(runtime, None)
    rollout.end_generation(rollout.begin_generation(1, 0, 3, 3), rows)
    n_prompt, n_keep = (max(map(len, part)) for part in (prompts, completions))
    ids = torch.zeros((3, n_prompt + n_keep), dtype=torch.int64)
    for i, (prompt, completion) in enumerate(parts):
        ids[i, n_prompt - len(prompt) : n_prompt + len(completion)] = torch.tensor(ROWS[i][0])
    call = ReferenceCall(None, None, ids, (ids > 0).long(), n_keep, None, 0)
    return Counted(ended[0], [rollout.last_work, call.work(Stage.REFERENCE, None)])


def of_openrlhf():
    times = ResponseTimes()
    for (ids, _), turns in zip(ROWS, TURNS, strict=True):
        spans = list(pairwise(accumulate(turns, initial=0)))
        times.add({"observation_tokens": ids, "action_ranges": spans[1::2]})
    parts = [micro_batch([(ids, mask[1:]) for ids, mask in ROWS], [0, 1, 2], n_padding=1)]
    sizes = RolloutRows(parts, ["a", "b", "c"]).sizes
    passes = [sizes.work(Stage.REFERENCE, None), times.work(Stage.REWARD, None)]
    return Counted(times.work(Stage.GENERATION, None), passes)


def of_roll():
    """ROLL's agentic rollouts are counted where their rows are read: their generation is not."""
    return Counted(None, [sizes_of(step_batch(ROWS, n_padding=2)).work(Stage.REFERENCE, None)])


def first_turns(tensors):
    """ROLL's ``prompt_mask`` of agentic rollouts: what stands before the first response."""
    return (tensors["response_mask"].cumsum(1) == 0) & (tensors["attention_mask"] > 0)


@pytest.mark.parametrize("count", [of_trl, of_openrlhf, of_roll])
def test_the_policy_s_tokens_are_generated_and_passes_compute_all_of_a_completion(count):
    generation, passes = count()
    for work, truth in [(generation, GENERATION), *((work, PASSES) for work in passes)]:
        if work is not None:
            assert (work.n_sequences, work.n_tokens, work.n_output_tokens) == truth


def test_a_response_that_roll_leaves_out_of_the_loss_is_computed_all_the_same():
    batch = step_batch(ROWS)
    batch.batch["prompt_mask"] = first_turns(batch.batch)
    batch.batch["final_response_mask"] = torch.zeros_like(batch.batch["response_mask"][:, 1:])
    assert sizes_of(batch).n_output_tokens == PASSES[2]
    batch.batch["response_mask"][1] = 0
    assert sizes_of(batch).n_output_tokens == PASSES[2]
    # A placeholder of an environment that failed: nothing is there to compute.
    batch.batch["attention_mask"][1] = batch.batch["prompt_mask"][1] = 0
    assert sizes_of(batch).n_output_tokens == PASSES[2] - sum(TURNS[1][1:])
