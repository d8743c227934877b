"""A fault of a card costs at most the rows of its group, and never gives a wrong number."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ecorl.errors import EngineCrashed, EngineError
from tests.fakes import cards
from tests.fakes.pyxrt_faults import Fault

N_ROWS = 5
RAISING = [
    "error", "abort", "noresponse", "refuse", "lost_device", "upload_fails", "download_fails",
    "no_device", "short_read",
]  # fmt: skip
NAMES = ("llama_reward", "llama_lm")


@pytest.fixture(autouse=True)
def _a_group_for_each_row(monkeypatch):
    monkeypatch.setattr("ecorl.engines.fpga.card.decoder.GROUP_TOKENS", 16)


def rows_of_batch(seed=0):
    return cards.rows_of(*(40 + 7 * i for i in range(N_ROWS)), seed=seed)


def wanted_of(root, name, rows):
    return cards.answers(cards.csim_answers(root, name), rows)


def guarded(ask):
    """What `ask` gives; fails where it never comes back."""
    found = []

    def run():
        try:
            found.append(ask())
        except EngineError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout=240)
    assert found, "the cards do not answer"
    if isinstance(found[0], EngineError):
        raise found[0]
    return found[0]


class Bench:
    """One model on cards in pure Python, warm: all buffers are there."""

    def __init__(self, made, root, name):
        self.root, self.name, self.script, self.made = root, name, made.script, made
        self.decoder = made.decoder(root, name)
        self.ask()
        self.script.clear()

    def ask(self, seed=0):
        """Rows that were lost; all others have the right bits."""
        rows = rows_of_batch(seed)
        got = guarded(lambda: cards.answers(self.decoder, rows))
        return cards.lost_rows(got, wanted_of(self.root, self.name, rows))

    def strike(self, fault, seed=1):
        self.script.clear()
        self.script.add(fault)
        return self.ask(seed)

    def events(self, event, seed=1):
        """How many events of a kind a batch has."""
        self.script.clear()
        self.ask(seed)
        return self.script.count(event)

    def faults(self):
        return [status.n_faults for status in self.decoder.status()]


@pytest.fixture
def bench(make_cards, card_root):
    def make(name="llama_reward", **options):
        made = make_cards(**({"max_faults": 1000} | options))
        return Bench(made, card_root, name)

    return make


def spread(n, most=8):
    """Up to so many of n places, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, most))})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", RAISING)
def test_a_fault_costs_its_group_alone(bench, name, kind):
    one = bench(name)
    event = "start" if kind in RAISING[:5] else {"u": "upload", "d": "download"}.get(kind[0])
    event = event or {"no_device": "download", "short_read": "read"}[kind]
    for after in spread(one.events(event)):
        fault = Fault(kind, after=after)
        before = one.faults()[0]
        lost = one.strike(fault)
        assert (fault.struck, len(lost)) == (1, 1), (kind, after)
        assert one.faults()[0] == before + 1
    one.script.clear()
    assert one.ask(2) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_start_of_a_batch_may_fail(bench, name):
    """Wherever it happens, prefetched groups and results that wait on the card are kept."""
    one = bench(name)
    for after in range(0, one.events("start"), 3):
        assert len(one.strike(Fault("error", after=after))) == 1, after


@pytest.mark.parametrize("times", [2, 3, 7])
def test_faults_in_a_row_lose_no_group_unanswered(bench, times):
    one = bench()
    for after in range(0, one.events("start"), 5):
        lost = None
        try:
            lost = one.strike(Fault("refuse", after=after, times=times))
        except EngineCrashed:
            assert times >= N_ROWS
        assert lost is None or 1 <= len(lost) <= times
    assert all(s.depth == s.backlog_tokens == 0 for s in one.decoder.status())


@pytest.mark.parametrize("kind", ["error", "download_fails", "short_read", "stale"])
def test_the_other_card_answers_for_the_one_that_failed(bench, kind):
    two = bench(n_cards=2)
    fault = Fault(kind, card=0, times=10_000)
    assert two.strike(fault) == []
    assert fault.struck > 0
    assert two.faults()[0] > 0
    assert two.faults()[1] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_card_that_says_completed_and_has_not_computed(bench, name):
    """Nothing of an earlier batch is taken for the answer."""
    one = bench(name)
    n_starts = one.events("start") // N_ROWS
    for group in range(N_ROWS):
        fault = Fault("stale", after=group * n_starts, times=n_starts)
        assert len(one.strike(fault)) == 1
        assert fault.struck == n_starts
    last = "vector_ops" if name == "llama_reward" else "score_aggregator"
    one.script.clear()
    one.ask()
    n = sum(f["kernel"] == f"{last}_krnl" for e, _, f in one.script.events if e == "start")
    for group in range(N_ROWS):
        fault = Fault("stale", kernel=last, after=(group + 1) * n // N_ROWS - 1)
        assert len(one.strike(fault)) == 1, group


def test_a_card_that_never_computes_is_an_error_in_one_line(bench, snapshot):
    one = bench()
    one.script.add(Fault("stale", times=100_000))
    with pytest.raises(EngineCrashed) as caught:
        one.ask()
    snapshot(str(caught.value))


@pytest.mark.parametrize("name", NAMES)
def test_a_download_that_moves_nothing_is_noticed(bench, name):
    """The mirror on the host holds the right sizes, and answers of former batches."""
    one = bench(name)
    for after in range(one.events("download")):
        assert len(one.strike(Fault("download_lost", after=after))) == 1, after


@pytest.mark.parametrize(("name", "inputs"), [("llama_reward", (0,)), ("llama_lm", (0, 4))])
def test_records_and_targets_that_did_not_arrive_are_noticed(bench, name, inputs):
    """Those are read back with the results; the first upload of a group is its records."""
    one = bench(name)
    per_group = one.events("upload") // N_ROWS
    for which in inputs:
        for group in range(N_ROWS):
            one.ask(0)
            fault = Fault("upload_lost", after=group * per_group + which)
            assert len(one.strike(fault, seed=1)) == 1, (which, group)


def residual_bytes(n_tokens):
    """Of the buffer ``x`` for a row whose last token alone is wanted; 64 values a token."""
    return (-(-(n_tokens - 1) // 16) + 1) * 16 * 4 * 64


def test_no_memory_costs_the_groups_that_need_more(make_cards, card_root):
    made = make_cards(Fault("no_memory", n_bytes=residual_bytes(400)), max_faults=1000)
    decoder = made.decoder(card_root, "llama_reward")
    rows = cards.rows_of(100, 400, 100)
    wanted = wanted_of(card_root, "llama_reward", rows)
    got = guarded(lambda: cards.answers(decoder, rows))
    assert cards.lost_rows(got, wanted) == [1]
    assert cards.same_rows(guarded(lambda: cards.answers(decoder, rows)), wanted)


def test_a_buffer_that_cannot_be_doubled_is_made_as_large_as_it_must_be(make_cards, card_root):
    made, fault = make_cards(), Fault("no_memory", n_bytes=2 * residual_bytes(200))
    decoder = made.decoder(card_root, "llama_reward")
    decoder.score(cards.rows_of(200))
    made.script.add(fault)
    rows = cards.rows_of(300)
    got = guarded(lambda: cards.answers(decoder, rows))
    assert cards.same_rows(got, wanted_of(card_root, "llama_reward", rows))
    assert fault.struck == 1
    assert made.script.sizes("allocate")[residual_bytes(300)] > 0


@pytest.mark.parametrize("kind", ["upload_lost", "flip"])
@pytest.mark.parametrize("region", range(4))
def test_weights_that_arrive_otherwise_keep_a_card_out(make_cards, card_root, kind, region):
    made = make_cards(Fault(kind, after=region))
    with pytest.raises(EngineCrashed, match="card 0: weights"):
        made.decoder(card_root, "llama_reward")


@pytest.mark.parametrize("kind", ["short_read", "download_lost", "upload_fails", "no_memory"])
def test_a_second_card_works_where_one_does_not_come_into_service(
    make_cards, card_root, kind, caplog
):
    made = make_cards(Fault(kind, card=0), n_cards=2)
    decoder = made.decoder(card_root, "llama_reward")
    assert [status.index for status in decoder.status()] == [1]
    assert "card 0" in caplog.text
    rows = rows_of_batch()
    assert cards.same_rows(cards.answers(decoder, rows), wanted_of(card_root, "llama_reward", rows))


def test_unchanged_weights_are_not_sent_again(make_cards, card_root):
    made = make_cards()
    decoder = made.decoder(card_root, "llama_reward")
    sent = made.script.sizes("upload")
    assert sum(sent.values()) == 4
    first = decoder.load(cards.tensors(card_root, "llama_reward"))
    assert made.script.sizes("upload") == sent
    assert decoder.load(cards.tensors(card_root, "llama_reward_other")) != first
    assert sum(made.script.sizes("upload").values()) == 8
