"""Resets, quarantine, changes of weights and the end of a card: nothing hangs, nothing is lost."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

from ecorl.engines.fpga.card.card import Card
from ecorl.engines.fpga.card.health import OCCUPANCY_S, CardState, Occupancy
from ecorl.engines.fpga.card.image import Weights
from ecorl.engines.fpga.card.plan import lay_out
from ecorl.engines.fpga.card.plan_builder import plan_rewards
from ecorl.engines.fpga.card.runner import CardRunner
from ecorl.engines.fpga.int8_decoder import segments_of
from ecorl.engines.fpga.numerics.formats import integer_decoder
from ecorl.errors import DriverError, EngineCrashed, EngineError
from tests.fakes import cards
from tests.fakes.pyxrt_faults import Fault
from tests.fakes.pyxrt_python import LONGEST_WAIT_MS

NAME = "llama_reward"
HANG_S = 1.0
ALWAYS = 1_000_000


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _a_group_for_each_row(monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 16)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def make(make_cards, card_root, clock):
    """Cards and a decoder on them, with an injected clock."""

    def made(*faults, start_s=10.0, **options):
        found = make_cards(*faults, clock=clock, start_s=start_s, **options)
        return found, found.decoder(card_root, NAME)

    return made


def ask(decoder, root, n_rows=4, name=NAME):
    """Rows that were lost; all others have the right bits."""
    rows = cards.rows_of(*(30 + i for i in range(n_rows)))
    wanted = cards.answers(cards.csim_answers(root, name), rows)
    return cards.lost_rows(cards.answers(decoder, rows), wanted)


def settled(decoder, index=0):
    """The status once the card's thread has nothing to do: a reset follows the last answer."""
    for _ in range(1000):
        status = decoder.status()[index]
        busy = status.state is CardState.RECOVERING
        if not busy and (status.weights_digest or status.state is not CardState.READY):
            return status
        time.sleep(0.01)
    raise AssertionError("the card does not come back")


def revived(decoder, index=0):
    """A batch when a quarantine is over starts the way back; the status at its end."""
    for card in decoder._pool._cards:
        card.revive()
    for _ in range(1000):
        status = decoder.status()[index]
        if not decoder._pool._cards[index]._is_reviving:
            return settled(decoder, index)
        time.sleep(0.01)
    raise AssertionError(f"the card is not tried: {status}")


def test_a_few_faults_in_a_row_reset_a_card_and_let_go_of_all_its_buffers(make, card_root):
    gc.disable()  # nothing may depend on the collector
    try:
        found, decoder = make(Fault("refuse", times=3), max_faults=3)
        assert len(ask(decoder, card_root)) == 3
        assert found.machine.live_at_reset == [0]
    finally:
        gc.enable()
    status = settled(decoder)
    assert (status.n_faults, status.n_resets, status.n_groups) == (3, 1, 1)
    assert ask(decoder, card_root) == []


def test_faults_that_are_apart_reset_nothing(make, card_root):
    found, decoder = make(max_faults=2)
    for _ in range(4):
        found.script.clear()
        found.script.add(Fault("error", after=3))
        assert len(ask(decoder, card_root)) == 1
    assert found.machine.live_at_reset == []
    assert settled(decoder).n_faults == 4


@pytest.mark.parametrize("kind", ["hang", "lost_device", "no_device"])
def test_a_run_without_an_end_or_a_lost_card_is_reset_at_once(make, card_root, kind):
    gc.disable()
    try:
        found, decoder = make(start_s=HANG_S if kind == "hang" else 10.0)
        assert ask(decoder, card_root) == []
        found.script.add(Fault(kind, after=5 if kind == "hang" else 0))
        assert len(ask(decoder, card_root)) == 1
        assert found.machine.live_at_reset == [0]
    finally:
        gc.enable()
    assert ask(decoder, card_root) == []
    assert settled(decoder).n_resets == 1
    assert found.machine.longest_wait_ms <= LONGEST_WAIT_MS


@pytest.mark.parametrize("kind", ["download_fails", "stale", "short_read"])
def test_results_that_never_come_reset_a_card_as_well(make, card_root, kind):
    """Each kernel says that it completed; what counts is what arrives."""
    found, decoder = make(max_faults=3)
    found.script.add(Fault(kind, times=ALWAYS))
    with pytest.raises(EngineCrashed):
        ask(decoder, card_root)
    assert settled(decoder).n_resets >= 1


def test_a_card_that_fails_again_is_out_of_service_twice_as_long_each_time(make, card_root, clock):
    found, decoder = make(quarantine_s=30.0, longest_quarantine_s=100.0)
    found.script.add(Fault("lost_device", times=ALWAYS))
    for n, length_s in enumerate((30.0, 60.0, 100.0, 100.0)):
        with pytest.raises(EngineCrashed) as caught:
            ask(decoder, card_root)
        assert "\n" not in str(caught.value)
        assert settled(decoder).state is CardState.QUARANTINED
        assert len(found.machine.live_at_reset) == n + 1  # the last one only on its return
        n_starts = found.script.count("start")
        clock.now_s += length_s - 0.5
        with pytest.raises(EngineCrashed, match="card 0 "):
            ask(decoder, card_root)
        assert found.script.count("start") == n_starts
        clock.now_s += 1.0
        assert revived(decoder).state is CardState.READY
    found.script.clear()
    assert ask(decoder, card_root) == []
    status = settled(decoder)
    assert (status.state, status.n_resets) == (CardState.READY, 5)
    found.script.add(Fault("lost_device", times=2))
    for _ in range(2):  # after a success, the times begin anew
        with pytest.raises(EngineCrashed) as caught:
            ask(decoder, card_root)
    assert " 30 s" in str(caught.value)
    assert set(found.machine.live_at_reset) == {0}


@pytest.mark.parametrize("kind", ["no_reset", "no_open", "flip"])
def test_a_card_that_does_not_come_back_is_out_of_service(make, card_root, clock, kind):
    found, decoder = make(max_faults=3)
    weights = decoder._weights.model.placed.sizes["tables"] if kind == "flip" else None
    found.script.add(Fault("refuse", times=3), Fault(kind, n_bytes=weights))
    with pytest.raises(EngineCrashed):
        ask(decoder, card_root)
    assert settled(decoder).state is CardState.QUARANTINED
    clock.now_s += 31.0
    assert revived(decoder).state is CardState.READY
    assert ask(decoder, card_root) == []


def test_a_hanging_card_of_two_costs_no_row(make, card_root):
    _, decoder = make(Fault("hang", card=0, times=ALWAYS), n_cards=2, start_s=HANG_S)
    assert ask(decoder, card_root) == []
    assert ask(decoder, card_root) == []
    first, second = decoder.status()
    assert first.n_groups == 0
    assert second.n_groups == 8
    assert second.n_faults == 0


def test_a_lone_card_under_reset_is_not_waited_for_long(make, card_root, monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.RECOVERY_S", 0.3)
    found, decoder = make()
    back = threading.Event()
    first = decoder._pool._cards[0]
    reset = first._setup.reset
    object.__setattr__(first._setup, "reset", lambda address: (back.wait(240), reset(address)))
    found.script.add(Fault("lost_device"))
    try:
        with pytest.raises(EngineCrashed):
            ask(decoder, card_root)
        assert decoder.status()[0].state is CardState.RECOVERING
        assert decoder.status()[0].depth == 0
    finally:
        back.set()
    assert settled(decoder).state is CardState.READY
    assert ask(decoder, card_root) == []


def test_nobody_waits_for_a_card_under_reset_while_another_is_free(make, card_root):
    """The card comes back when the test says so, after the batch has been answered."""
    found, decoder = make(n_cards=2)
    back = threading.Event()
    first = decoder._pool._cards[0]
    reset = first._setup.reset
    object.__setattr__(first._setup, "reset", lambda address: (back.wait(240), reset(address)))
    found.script.add(Fault("lost_device", card=0))
    try:
        assert ask(decoder, card_root, 8) == []
        assert decoder.status()[0].state is CardState.RECOVERING
        assert ask(decoder, card_root, 8) == []
    finally:
        back.set()
    assert settled(decoder).state is CardState.READY
    assert ask(decoder, card_root, 8) == []


def test_all_cards_out_of_service_is_an_error_in_one_line(make, card_root):
    found, decoder = make(n_cards=2)
    found.script.add(Fault("lost_device", card=None, times=ALWAYS))
    for _ in range(20):
        with pytest.raises(EngineError) as caught:
            ask(decoder, card_root)
        assert "\n" not in str(caught.value)
        if {settled(decoder, i).state for i in (0, 1)} == {CardState.QUARANTINED}:
            return
    raise AssertionError(decoder.status())


# ---- weights -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["flip", "upload_lost", "upload_fails", "short_read"])
def test_new_weights_that_arrive_otherwise_are_brought_anew(make, card_root, kind):
    found, decoder = make()
    ask(decoder, card_root)
    found.script.add(Fault(kind))
    digest = decoder.load(cards.tensors(card_root, f"{NAME}_other"))
    assert settled(decoder).n_resets == 1
    assert digest != ""
    assert ask(decoder, card_root, name=f"{NAME}_other") == []


def test_weights_that_no_card_takes_leave_the_former_ones(make, card_root, clock):
    found, decoder = make()
    former = decoder.status()[0].weights_digest
    found.script.add(Fault("flip", times=ALWAYS))
    with pytest.raises(EngineError, match="card 0: weights") as caught:
        decoder.load(cards.tensors(card_root, f"{NAME}_other"))
    assert "\n" not in str(caught.value)
    assert settled(decoder).weights_digest == ""
    found.script.clear()
    clock.now_s += 31.0
    assert revived(decoder).weights_digest == former
    assert ask(decoder, card_root) == []
    decoder.load(cards.tensors(card_root, f"{NAME}_other"))
    assert ask(decoder, card_root, name=f"{NAME}_other") == []


def test_new_weights_do_not_end_a_quarantine(make, card_root, clock):
    found, decoder = make(n_cards=2)
    found.script.add(Fault("lost_device", card=0, times=ALWAYS))
    for _ in range(20):
        assert ask(decoder, card_root, 8) == []
        if settled(decoder).state is CardState.QUARANTINED:
            break
    assert decoder.status()[0].state is CardState.QUARANTINED
    n_resets = len(found.machine.live_at_reset)
    decoder.load(cards.tensors(card_root, f"{NAME}_other"))
    assert len(found.machine.live_at_reset) == n_resets
    assert ask(decoder, card_root, 8, f"{NAME}_other") == []
    found.script.clear()
    clock.now_s += 31.0
    assert ask(decoder, card_root, 8, f"{NAME}_other") == []
    revived(decoder)
    digests = {s.weights_digest for s in decoder.status()}
    assert len(digests) == 1
    assert {s.state for s in decoder.status()} == {CardState.READY}


# ---- one card, its queue and its end ---------------------------------------------------------


@pytest.fixture
def card(make_cards, card_root):
    """A card, its script, and a plan."""
    found = make_cards(start_s=HANG_S)
    decoder = integer_decoder(cards.tensors(card_root, NAME))
    weights = Weights.of(decoder, cards.int8_models.library("fast"), 128)
    made = Card(found.setup(0), weights)
    segments = segments_of(cards.rows_of(50))
    plan = plan_rewards(weights.model, lay_out(segments, 0, 1, np.array([49])))
    yield made, found.script, plan
    made.close()


def test_depth_and_backlog_count_what_is_not_answered(card):
    made, script, plan = card
    script.add(Fault("hang", after=3))
    futures = [made.submit(plan) for _ in range(4)]
    status = made.status()
    assert (status.depth, status.backlog_tokens) == (4, 4 * plan.n_tokens)
    assert made.backlog_tokens == 4 * plan.n_tokens
    errors = [future.exception(timeout=240) for future in futures]
    assert [type(e).__name__ for e in errors] == ["DriverTimeout", *["NoneType"] * 3]
    status = made.status()
    assert (status.depth, status.backlog_tokens, made.backlog_tokens) == (0, 0, 0)
    assert (status.n_groups, status.n_faults, status.n_resets) == (3, 1, 1)
    assert 0 <= status.hidden_s <= status.transfer_s
    assert 0 < status.occupancy <= 1


def test_transfers_beside_a_kernel_are_counted_as_hidden(card):
    made, _, plan = card
    for future in [made.submit(plan) for _ in range(30)]:
        future.result(timeout=240)
    status = made.status()
    assert 0 < status.hidden_s <= status.transfer_s


def test_closing_while_a_run_hangs_ends_and_answers_everyone(card):
    made, script, plan = card
    script.add(Fault("hang", times=ALWAYS))
    futures = [made.submit(plan) for _ in range(3)]
    closer = threading.Thread(target=made.close, daemon=True)
    closer.start()
    closer.join(timeout=240)
    assert not closer.is_alive()
    assert all(isinstance(f.exception(timeout=0), DriverError) for f in futures)
    assert script.count("reset") == 0
    assert not made.available
    for later in (made.submit(plan), made.load(made._weights)):
        assert "closed" in str(later.exception(timeout=0))
    made.close()
    assert made.status().state is CardState.CLOSED


def test_closing_does_not_work_through_the_queue(card):
    made, script, plan = card
    made.submit(plan).result(timeout=240)
    n = script.count("start")
    futures = [made.submit(plan) for _ in range(200)]
    made.close()
    assert script.count("start") < 100 * n
    assert all(future.done() for future in futures)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_answers_everyone(card, monkeypatch):
    made, _, plan = card

    def broken(*_args):
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(CardRunner, "run", broken)
    futures = [made.submit(plan) for _ in range(3)]
    assert all(isinstance(f.exception(timeout=240), DriverError) for f in futures)
    assert isinstance(made.submit(plan).exception(timeout=240), DriverError)
    assert not made.available


def test_occupancy_forgets_and_stays_a_share():
    busy = Occupancy()
    assert busy.share(5.0) == 0.0
    busy.set(True, 10.0)
    assert busy.share(10.0) == 0.0
    assert busy.share(10.0 + OCCUPANCY_S) == pytest.approx(1 - np.exp(-1))
    busy.set(False, 1000.0)
    assert busy.share(1000.0) == pytest.approx(1.0)
    assert busy.share(1000.0 + OCCUPANCY_S) == pytest.approx(np.exp(-1))
    assert busy.share(999.0) == pytest.approx(1.0)  # a clock that went back
