"""Adaptive micro-batches in two processes, whose rows have other lengths."""

from __future__ import annotations

from collections import defaultdict

import pytest

from ecorl.ledger import LedgerReader
from tests.integration.checks import BOTH, MODELLED
from tests.integration.two_processes import N_STEPS, outcomes, run_trainings, training

pytestmark = pytest.mark.timeout(900)  # several processes that train share two slow cores

PACKED = {"trainer": {"adaptive_micro_batch": True, "micro_batch_tokens": 90}}
UNEVEN = {"max_completion_length": 24, "optim": "sgd", "learning_rate": 0.05}
REUSED = UNEVEN | {"gradient_accumulation_steps": 2, "num_iterations": 2, "loss_type": "grpo"}
GEARS = {"gears": {"allowed": ["FP16", "BF16"], "measure_every": 0}}
EXACT = {"offload": {"type": "torch"}}
BROKEN = {"rank": 1, "step": 1}
STATIC = {"type": "static"}


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """Trainings in folders by name: the processes start once for all of them."""
    root = tmp_path_factory.mktemp("packed")

    def one(name, *args, more=None, **kwargs):
        more = {"telemetry": MODELLED, **(more or {})}
        return training(tiny, root / name, *args, more=more, **kwargs)

    run_trainings(
        one("plain", trainer=UNEVEN),
        one("packed", STATIC, more=PACKED, trainer=UNEVEN),
        one("reused", trainer=REUSED),
        one("packed-reused", STATIC, more=PACKED, trainer=REUSED),
        one("offloaded", BOTH, EXACT, more=PACKED, trainer=UNEVEN),
        one("geared", STATIC, more=PACKED | GEARS, trainer=UNEVEN, broken=BROKEN),
        one("rloo", trainer=UNEVEN, algorithm="rloo"),
        one("packed-rloo", STATIC, more=PACKED, trainer=UNEVEN, algorithm="rloo"),
    )
    return root


def metrics(folder):
    found = defaultdict(lambda: defaultdict(list))
    with LedgerReader(folder / "run") as reader:
        for row in reader.metrics():
            figure, slash, what = row.name.partition("/")
            if slash:
                found[figure][what].append(row.value)
    return found


@pytest.mark.parametrize(
    ("plain", "packed"),
    [
        ("plain", "packed"),
        ("reused", "packed-reused"),
        ("plain", "offloaded"),
        ("rloo", "packed-rloo"),
    ],
)
def test_log_and_weights_are_those_of_plain_trl_but_for_rounding(folder, plain, packed):
    for mine, theirs in zip(outcomes(folder / plain), outcomes(folder / packed), strict=True):
        for one, other in zip(mine["log"], theirs["log"], strict=True):
            assert one.keys() == other.keys()
            for key, value in one.items():
                assert float(other[key]) == pytest.approx(float(value), rel=1e-5, abs=2e-5), key
        for name, weight in mine["weights"].items():
            assert weight.allclose(theirs["weights"][name], rtol=0, atol=1e-5), name


def test_both_processes_end_with_the_same_weights(folder):
    for name in ("packed", "packed-reused", "geared"):
        one, other = outcomes(folder / name)
        assert all(w.equal(other["weights"][key]) for key, w in one["weights"].items()), name


def test_tokens_are_those_of_both_processes(folder):
    found = metrics(folder / "packed")
    with LedgerReader(folder / "packed" / "run") as reader:
        rows = [row.result for row in reader.executions() if not row.superseded]
    by_stage = defaultdict(list)
    for row in rows:
        if row.stage in ("reference", "actor_train"):
            by_stage[str(row.stage)].append(row.n_tokens)
    for what, tokens in by_stage.items():
        assert found["tokens"][what] == tokens
    for what in ("reward", "reference", "actor_train"):
        assert len(found["tokens"][what]) == N_STEPS
        assert sum(found["computed_tokens"][what]) < sum(found["unpacked_tokens"][what])
        assert all(0 <= d < 1e-5 for d in found["packing_difference"][what])
    # Each process makes as many passes as the other, so that both together make an even number.
    assert all(n % 2 == 0 and n > 2 for n in found["micro_batches"]["actor_train"])


def test_rows_of_both_processes_are_packed_by_one_engine(folder):
    found = metrics(folder / "offloaded")
    alone = metrics(folder / "packed")
    for role in ("reward", "reference"):
        assert found["tokens"][role] == alone["tokens"][role]
        assert sum(found["computed_tokens"][role]) < sum(found["unpacked_tokens"][role])
        assert found["packing_difference"][role]


def test_a_step_that_overflows_on_one_process_is_computed_anew_on_both(folder):
    with LedgerReader(folder / "geared" / "run") as reader:
        faults = [(row.iteration, row.kind) for row in reader.faults()]
    assert faults == [(BROKEN["step"] + 1, "GearOverflow")]
    found = metrics(folder / "geared")["computed_tokens"]["actor_train"]
    plain = metrics(folder / "packed")["computed_tokens"]["actor_train"]
    # The step's tokens are computed twice, and say so.
    assert found[BROKEN["step"]] > 1.5 * plain[BROKEN["step"]]
    assert found[0] == pytest.approx(plain[0], rel=0.2)
