"""A batch as starts of kernels: every row once, every place inside its buffer and its bank."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecorl.engines.fpga.card import plan_builder as module
from ecorl.engines.fpga.card.decoder import CardDecoder
from ecorl.engines.fpga.card.image import REGIONS, WORD, CardModel, code_words, place_model, words
from ecorl.engines.fpga.card.plan import ROW_FIELDS, At, lay_out
from ecorl.engines.fpga.card.plan_builder import plan_logprobs, plan_rewards
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.engines.fpga.kernels import banks
from ecorl.engines.fpga.kernels.banks import PORTS, SLOTTED, WIRING, bank_of
from ecorl.engines.fpga.kernels.interfaces import kernel_interfaces
from ecorl.engines.fpga.kernels.sequence import SCORE_OPERATIONS, VECTOR_OPERATIONS
from ecorl.engines.fpga.numerics.formats import LOG2_E, Scale, integer_decoder
from ecorl.errors import CheckpointError
from tests.examples import examples
from tests.fakes import cards

INTERFACES = {k.kernel: k for k in kernel_interfaces()}
SLOW = settings(deadline=None, max_examples=examples(25))


@functools.cache
def model_of(root, name):
    decoder = integer_decoder(cards.tensors(root, name))
    return CardModel.of(decoder, place_model(decoder, 512))


def plan_of(root, name, lengths, seed=0):
    """A plan for rows with a shared prompt; several outputs at a token."""
    model = model_of(root, name)
    rows, counts = cards.group(1 + seed % 130, lengths, seed)
    segments = segments_of(rows, counts)
    rng = np.random.default_rng(seed)
    wanted = [segments.tokens(i, np.append(rng.integers(0, len(r), 3), len(r) - 1)) for i, r in
              enumerate(rows)]  # fmt: skip
    tokens = np.sort(np.concatenate(wanted))
    layout = lay_out(segments, 0, len(segments.parent), tokens)
    if name in cards.REWARDS:
        return plan_rewards(model, layout)
    targets = rng.integers(0, 97, len(tokens)).astype(np.int32)
    return plan_logprobs(model, layout, targets, Scale.of(LOG2_E))


class Task:
    """The fields of a task of vector_ops or score_aggregator."""

    def __init__(self, plan, start):
        tasks = plan.inputs["tasks"].view(np.int32).reshape(-1, ROW_FIELDS)
        fields = tasks[start.arguments["task"].offset // WORD]
        self.t0 = start.arguments["rows"].offset // WORD
        if start.kernel == "vector_ops":
            self.op = VECTOR_OPERATIONS[fields[0]]
            self.m, self.n = int(fields[3]), int(fields[4])
        else:
            self.op = SCORE_OPERATIONS[fields[0]]
            self.m, self.n, self.n_outputs, self.block = (int(fields[i]) for i in (1, 2, 8, 10))


def extents(plan, start):
    """Bytes that a start reaches, from the beginning of each of its places."""
    shape, layout = plan.model.config.shape, plan.layout
    a, d = start.arguments, shape.head_dim
    token_bytes, n_all = WORD * -(-d // WORD), shape.n_heads + 2 * shape.n_kv_heads
    if start.kernel == "gemm_int8":
        m, n, k = a["m"], a["n"], a["k"]
        half = code_words(n, k) * WORD // 2
        return {"a": code_words(m, k) * WORD, "w_low": half, "w_high": half,
                "c": words(n) * m * WORD}  # fmt: skip
    if start.kernel == "kv_cache_router":
        rows = shape.n_kv_heads * layout.stride
        return {"keys": rows * token_bytes, "values": rows * token_bytes, "key_rows": rows * 16,
                "value_rows": rows * 16, "jobs": a["n_jobs"] * 32}  # fmt: skip
    if start.kernel == "mha_int8":
        rows = shape.n_heads * layout.stride
        return {"blocks": a["n_blocks"] * 16, "rows": rows * 16, "queries": rows * token_bytes,
                "context": rows * d * 4, "results": rows * 8}  # fmt: skip
    task = Task(plan, start)
    found = {"task": WORD, "rows": task.m * WORD, "rows_out": task.m * WORD}
    row_words = words(task.n) * WORD
    if start.kernel == "score_aggregator":
        found |= {"outputs": task.n_outputs * 16, "outputs_out": task.n_outputs * 16}
        return found | ({"acc": row_words * task.m} if "acc" in a else {})
    last = (n_all - 1) * layout.stride + task.m
    own = {
        "embed": {"y": task.m * row_words},
        "norm": {"x": task.m * row_words, "codes": code_words(task.m, task.n) * WORD},
        "residual": {"x": task.m * row_words, "y": task.m * row_words},
        "head": {"codes": last * token_bytes, "scales": last * 16},
        "gate": {"codes": code_words(task.m, task.n) * WORD},
        "context": {"codes": code_words(task.m, task.n) * WORD},
        "fixed": {"y": task.m * row_words},
    }
    return found | own[task.op]


LENGTHS = st.lists(st.sampled_from([1, 5, 16, 63, 64, 65, 130]), min_size=1, max_size=5)


@SLOW
@given(
    name=st.sampled_from(["qwen_reward", "llama_lm", "llama96"]),
    lengths=LENGTHS,
    seed=st.integers(0, 999),
    at_once=st.sampled_from([16, 48, 1024]),
)
def test_places_lie_inside_the_buffers_that_are_reserved(card_root, name, lengths, seed, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", at_once)
        plan = plan_of(card_root, name, lengths, seed)
    sizes = dict(plan.sizes) | plan.model.placed.sizes
    for start in (*plan.before, *plan.attend, *plan.after):
        reach = extents(plan, start)
        for argument, value in start.arguments.items():
            if isinstance(value, At):
                end = value.offset + max(1, reach.get(argument, 1))
                assert value.offset % 64 == 0
                assert end <= sizes[value.buffer], (start.kernel, argument)
    for name_, data in plan.inputs.items():
        assert len(data) == sizes.get(name_, 0)


@SLOW
@given(name=st.sampled_from(cards.MODELS), lengths=LENGTHS, seed=st.integers(0, 999))
def test_arguments_are_those_of_the_kernels_and_see_only_their_buffers(
    card_root, name, lengths, seed
):
    plan = plan_of(card_root, name, lengths, seed)
    for start in (*plan.before, *plan.attend, *plan.after):
        known = {a.name: a for a in INTERFACES[start.kernel].arguments}
        for argument, value in start.arguments.items():
            assert known[argument].is_buffer == isinstance(value, At)
            if isinstance(value, At):
                assert (start.kernel, argument) in PORTS[value.buffer]
        scalars = {n for n, a in known.items() if not a.is_buffer}
        assert scalars <= start.arguments.keys()
    assert set(plan.sizes) <= set(PORTS) - set(REGIONS)


@SLOW
@given(
    name=st.sampled_from(["qwen_reward", "qwen_lm_tied"]),
    lengths=LENGTHS,
    seed=st.integers(0, 999),
    at_once=st.sampled_from([16, 32, 1024]),
)
def test_blocks_of_rows_cover_each_row_once(card_root, name, lengths, seed, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", at_once)
        plan = plan_of(card_root, name, lengths, seed)
    n_rows, first = plan.layout.n_rows, plan.layout.first_wanted
    n_layers = plan.model.config.shape.n_layers
    covered = {}
    for start in (*plan.before, *plan.attend, *plan.after):
        if "task" not in start.arguments:
            continue
        task = Task(plan, start)
        rows = covered.setdefault((start.kernel, task.op), np.zeros(n_rows, int))
        rows[task.t0 : task.t0 + task.m] += 1
        assert task.m <= at_once or task.op == "embed"
        assert task.t0 % 16 == 0
    own, wanted = np.ones(n_rows, int), (np.arange(n_rows) >= first).astype(int)
    both = own * (n_layers - 1) + wanted
    expected = {
        ("vector_ops", "embed"): own,
        ("vector_ops", "norm"): own * n_layers + both + wanted,
        ("vector_ops", "head"): own * n_layers,
        ("vector_ops", "context"): both,
        ("vector_ops", "residual"): 2 * both,
        ("vector_ops", "gate"): both,
    }
    if name in cards.REWARDS:
        expected["vector_ops", "fixed"] = wanted
    else:
        n_blocks = len(plan.model.placed.head)
        expected["score_aggregator", "logits"] = wanted * n_blocks
        expected["score_aggregator", "finish"] = wanted
    assert covered.keys() == expected.keys()
    for key, rows in expected.items():
        assert np.array_equal(covered[key], rows), key


@SLOW
@given(lengths=LENGTHS, seed=st.integers(0, 999), at_once=st.sampled_from([16, 1024]))
def test_each_result_has_a_place_of_its_own_with_its_target(card_root, lengths, seed, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", at_once)
        plan = plan_of(card_root, "llama_lm", lengths, seed)
    assert len(np.unique(plan.output_at)) == len(plan.output_at)
    outputs = plan.inputs["outputs"].view(np.int32).reshape(-1, 4)
    assert (outputs[:, 2] == module.UNWRITTEN).all()
    # The card hands a block's results out by the rows' counts, in their order.
    for start in plan.after:
        if start.kernel == "score_aggregator" and Task(plan, start).op == "finish":
            task = Task(plan, start)
            at = start.arguments["outputs"].offset // 16
            rows = plan.layout.output_rows
            own = np.flatnonzero((rows >= task.t0) & (rows < task.t0 + task.m))
            assert len(own) == task.n_outputs
            assert np.array_equal(plan.output_at[own], at + np.arange(len(own)))


def test_all_arguments_that_see_a_buffer_are_wired_to_one_bank():
    for buffer, ports in PORTS.items():
        assert len({WIRING[kernel][argument] for kernel, argument in ports}) == 1, buffer
        for kernel, argument in ports:
            assert argument in {a.name for a in INTERFACES[kernel].buffers}
    assert set(REGIONS) <= set(PORTS)
    assert set(SLOTTED) <= set(PORTS)


def test_what_a_bank_does_not_hold_is_neither_loaded_nor_sent(
    card_root, make_cards, monkeypatch, snapshot
):
    root, name = card_root, "llama_reward"
    tensors, library = cards.tensors(root, name), cards.int8_models.library("fast")
    rows = cards.rows_of(20, 300, 30)
    wanted = cards.answers(cards.csim_answers(root, name), rows)
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 16)
    small = dict.fromkeys(banks.bank_capacities(), 100000)
    small |= {bank_of(region): 10_000_000 for region in ("low", "high", "tables")}
    monkeypatch.setattr(banks, "bank_capacities", lambda: small)
    found = make_cards()
    decoder = CardDecoder(tensors, library, found.setups)
    assert cards.lost_rows(cards.answers(decoder, rows), wanted) == [1]
    (status,) = decoder.status()
    assert (status.n_groups, status.n_faults) == (2, 0)
    decoder.close()
    small[bank_of("low")] = 1_000
    with pytest.raises(CheckpointError) as caught:
        CardDecoder(tensors, library, found.setups)
    snapshot(str(caught.value))
