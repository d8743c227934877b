from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from ecorl.control import Gear
from ecorl.errors import ConfigError, DataError, EcorlError, RunError
from ecorl.trainer.elastic.groups import GroupOptions, MeetingPlace
from ecorl.trainer.elastic.member import Member
from ecorl.trainer.elastic.records import MemberOptions, Point
from ecorl.trainer.elastic.task import split_rows
from tests.toy_task import ToyTask, order, together, undisturbed

HOST = "127.0.0.1"
GROUPS = GroupOptions(timeout_s=120.0)
PLACES = []


def make(names, task, **options):
    members = [Member(one, task, MemberOptions(groups=GROUPS, **options), HOST) for one in names]
    for one in members:
        one.load(task.rows(0))
    return members


@pytest.fixture(scope="module", autouse=True)
def place():
    PLACES.append(MeetingPlace(HOST))
    yield
    PLACES.clear()


def meet(members):
    names = tuple(one.name for one in members)
    spec = PLACES[0].spec(names)
    assert together(*(lambda m=m: m.join(spec) for m in members)) == [None] * len(members)
    return names


def compute(members, task, step):
    names = tuple(one.name for one in members)
    parts = split_rows(len(task.rows(step)), len(members))
    return together(
        *(
            lambda m=m, p=p: m.compute(order(task, step, p, names))
            for m, p in zip(members, parts, strict=True)
        )
    )


def same_state(a, b):
    return all(torch.equal(one, b[name]) for name, one in a.items())


@pytest.mark.parametrize(
    ("width", "batch_rows", "micro"), [(1, 7, 2), (2, 7, None), (3, 7, 2), (3, 2, None)]
)
def test_the_loss_curve_is_that_of_one_member(width, batch_rows, micro):
    task = ToyTask(batch_rows=batch_rows)
    losses, weights = undisturbed(task, 12)
    members = make("abc"[:width], task, micro_batch_rows=micro)
    if width > 1:
        meet(members)
    for step in range(12):
        answers = compute(members, task, step)
        assert {one.loss for one in answers} == {answers[0].loss}
        assert answers[0].loss == pytest.approx(losses[step], rel=1e-5)
    digests = {one.digest(12) for one in members}
    assert len(digests) == 1
    for name, one in members[0].model.state_dict().items():
        if name != "n_calls":
            torch.testing.assert_close(one, weights[name], rtol=1e-5, atol=1e-6)
    # Never used, and so never decayed, at any width.
    assert torch.equal(members[0].model.unused, torch.ones(3))


@dataclass(frozen=True)
class ByTokens(ToyTask):
    """Row i has i + 1 tokens; its loss is the sum over them."""

    no_tokens_at: int | None = None

    def weight(self, indices):
        if self.no_tokens_at is not None and set(indices) == set(self.rows(self.no_tokens_at)):
            return 0
        return sum(i + 1 for i in indices)

    def loss(self, model, indices):
        return super().loss(model, indices) * torch.tensor([i + 1.0 for i in indices])


def test_a_mean_over_tokens_is_that_of_the_whole_step_at_any_width():
    task = ByTokens()
    losses, _ = undisturbed(task, 4)
    model = task.make_model()
    with torch.no_grad():
        torch.manual_seed(0)
        by_hand = task.loss(model, task.rows(0)).sum() / sum(i + 1 for i in task.rows(0))
    members = make("abc", task, micro_batch_rows=2)
    for one in members:
        one.model.load_state_dict(model.state_dict())
    meet(members)
    assert compute(members, task, 0)[0].loss == pytest.approx(float(by_hand), rel=1e-5)
    members = make("abc", task, micro_batch_rows=2)
    meet(members)
    found = [compute(members, task, step)[0].loss for step in range(4)]
    assert found == pytest.approx(losses, rel=1e-5)


def test_a_step_without_weight_is_refused():
    task = ByTokens(no_tokens_at=1)
    (member,) = make("a", task)
    member.compute(order(task, 0, members="a"))
    with pytest.raises(DataError, match=r"weight\(\) .* 0 .*step 1"):
        member.compute(order(task, 1, members="a"))


def test_layers_that_are_unfrozen_in_training_are_summed_too():
    class Thaws(ToyTask):
        def make_model(self):
            made = super().make_model()
            made.inner.requires_grad_(False)
            return made

        def before_update(self, model, optimizer, step):
            model.inner.requires_grad_(step >= 1)

    task = Thaws()
    losses, _ = undisturbed(task, 6)
    members = make("ab", task)
    meet(members)
    found = [compute(members, task, step)[0].loss for step in range(6)]
    assert found == pytest.approx(losses, rel=1e-5)
    assert len({one.digest(6) for one in members}) == 1


def test_members_whose_weights_have_come_to_differ_end_the_training(snapshot):
    class Counts(ToyTask):
        def before_update(self, model, optimizer, step):
            model.n_updates = getattr(model, "n_updates", 0) + 1
            optimizer.param_groups[0]["lr"] = 0.02 / model.n_updates

    task = Counts()
    members = make("abc", task, compare_every=3)
    members[0].compute(order(task, 0, members="a"))
    names = meet(members)
    together(
        *(lambda m=m, n=n: m.share(names, n) for m, n in zip(members, (1, None, None), strict=True))
    )
    for step in (1, 2):  # at the second they differ, and are not compared
        assert compute(members, task, step)[0].failure is None
    raised = compute(members, task, 3)
    assert {type(one) for one in raised} == {RunError}
    snapshot("\n".join(sorted({str(one) for one in raised})))
    with pytest.raises(ConfigError) as caught:
        MemberOptions(compare_every=-1)
    assert (caught.value.key, caught.value.value) == ("compare_every", -1)


def test_the_same_steps_give_the_same_bits_whatever_was_drawn_in_between():
    task = ToyTask(dropout=0.3)
    losses, weights = undisturbed(task, 6, micro_batch_rows=3)
    torch.randn(17)
    again, same = undisturbed(task, 6, micro_batch_rows=3)
    assert losses == again
    assert same_state(weights, same)
    other, _ = undisturbed(task, 6, micro_batch_rows=3, seed=1)
    assert other != losses


def test_a_step_counts_only_when_it_is_committed():
    task = ToyTask()
    (member,) = make("a", task)
    before = member.digest(0)
    first = member.compute(order(task, 0, members="a"))
    assert member.digest(0) == before  # and the step is dropped by asking: nobody committed it
    assert member.compute(order(task, 0, members="a")) == first
    member.settle(1)
    assert member.digest(1) != before
    member.settle(1)  # twice is no harm
    # The driver says that a step is committed which this member does not have.
    with pytest.raises(EcorlError, match=r" 1 steps.* 3 "):
        member.compute(order(task, 3, members="a"))


def test_a_failed_collective_leaves_nothing_of_the_step():
    task = ToyTask()
    a, b = members = make("ab", task)
    names = meet(members)
    compute(members, task, 0)
    before = {name: one.clone() for name, one in a.model.state_dict().items()}
    buffers = [one.clone() for one in a.model.buffers()]
    b.abort(names)
    a.abort(names)
    failed = a.compute(order(task, 1, range(4), names))
    assert failed.loss is None
    assert "no group" in failed.failure
    # The step before it was committed by the order and is applied; of this one nothing is left.
    assert not same_state(before, a.model.state_dict())
    assert all(map(torch.equal, buffers, a.model.buffers()))
    assert all(one.grad is None for one in a.model.parameters())
    meet(members)
    losses, _ = undisturbed(task, 2)
    assert compute(members, task, 1)[0].loss == pytest.approx(losses[1], rel=1e-5)


def test_what_the_users_loss_raises_leaves_nothing_of_the_step_either():
    class Odd(ToyTask):
        def loss(self, model, indices):
            losses = super().loss(model, indices)
            return losses.mean() if len(indices) == 3 else losses

    task = Odd()
    (member,) = make("a", task)
    before = member.digest(0)
    with pytest.raises(DataError, match=r"shape \(\).* 3 rows"):
        member.compute(order(task, 0, range(3), "a"))
    assert member.digest(0) == before


def test_an_update_that_has_failed_halfway_is_not_applied_twice():
    task = ToyTask(faulty_from=0)
    (member,) = make("a", task)
    member.compute(order(task, 0, members="a"))
    with pytest.raises(ValueError, match="the user's own mistake"):
        member.settle(1)
    with pytest.raises(EcorlError, match="part of step 0"):
        member.snapshot(1)


def test_a_joiner_gets_weights_buffers_and_moments_to_the_last_bit():
    task = ToyTask(dropout=0.2)
    a, b = make("ab", task)
    for step in range(5):
        a.compute(order(task, step, members="a"))
    names = meet([a, b])
    assert together(lambda: a.share(names, 5), lambda: b.share(names, None)) == [None, None]
    assert a.digest(5) == b.digest(5)
    assert all(map(torch.equal, a.model.buffers(), b.model.buffers()))
    # The same step alone, from the same moments.
    for member in (a, b):
        member.compute(order(task, 5, members=[member.name]))
    assert a.digest(6) == b.digest(6)


KINDS = [
    torch.bool,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
]


def test_buffers_of_any_kind_are_the_first_members():
    class Kinds(ToyTask):
        def make_model(self):
            made = super().make_model()
            for i, kind in enumerate(KINDS):
                made.register_buffer(f"of_{i}", torch.zeros(3).to(kind))
            return made

    task = Kinds()
    a, b = members = make("ab", task)
    for i, kind in enumerate(KINDS):
        setattr(a.model, f"of_{i}", torch.tensor([1.0, 0.0, 1.0]).to(kind))
    names = meet(members)
    assert compute(members, task, 0)[1].failure is None
    assert together(lambda: a.share(names, 1), lambda: b.share(names, None)) == [None, None]
    assert compute(members, task, 1)[1].failure is None
    assert a.digest(2) == b.digest(2)
    assert b.model.of_1.tolist() == [1, 0, 1]


def test_a_state_that_is_larger_than_a_bucket_arrives(monkeypatch):
    monkeypatch.setattr("ecorl.trainer.elastic.state._BUCKET_BYTES", 100)
    task = ToyTask()
    a, b = make("ab", task)
    a.compute(order(task, 0, members="a"))
    names = meet([a, b])
    together(lambda: a.share(names, 1), lambda: b.share(names, None))
    assert a.digest(1) == b.digest(1)


def test_a_snapshot_goes_on_bit_by_bit():
    task = ToyTask(dropout=0.2)
    losses, weights = undisturbed(task, 8)
    (first,) = make("a", task)
    for step in range(4):
        first.compute(order(task, step, members="a"))
    (second,) = make("b", task)
    second.restore(first.snapshot(4))
    later = [second.compute(order(task, step, members="b")).loss for step in range(4, 8)]
    assert later == losses[4:]
    second.settle(8)
    assert same_state(weights, second.model.state_dict())


def test_the_gear_is_shifted_once_and_before_the_step():
    shifts = []

    class Geared(ToyTask):
        def shift(self, model, gear):
            shifts.append((gear, int(model.n_calls)))

    task = Geared()
    (member,) = make("a", task)
    for step, gear in enumerate([None, Gear.BF16, Gear.BF16, None, Gear.FP8]):
        asked = order(task, step, members="a")
        object.__setattr__(asked, "gear", gear)
        member.compute(asked)
    assert shifts == [(Gear.BF16, 1), (Gear.FP8, 4)]


def test_a_drill_is_called_at_each_point():
    seen = []
    task = ToyTask()
    (member,) = make("a", task, drill=lambda *where: seen.append(where))
    member.compute(order(task, 0, members="a"))
    member.settle(1)
    assert seen == [
        (Point.LOADING, "a", -1),
        (Point.COMPUTING, "a", 0),
        (Point.REDUCED, "a", 0),
        (Point.APPLIED, "a", 0),
    ]
