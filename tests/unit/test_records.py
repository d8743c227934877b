from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl import records
from ecorl.records import INFERENCE_STAGES, Action, Algorithm, Provenance, Stage, StageWork, weakest

RECORDS = [
    value
    for value in vars(records).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value)
]
SOME = st.lists(st.sampled_from(Provenance), min_size=1)


def test_there_are_records():
    assert len(RECORDS) >= 10


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
def test_a_record_cannot_be_changed_and_takes_no_further_fields(record):
    values = dict.fromkeys((f.name for f in dataclasses.fields(record)), None)
    made = record(**values)
    name = next(iter(values))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, name, 1)
    assert not hasattr(made, "__dict__")
    assert made == record(**values)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
def test_a_figure_that_may_be_missing_never_defaults_to_zero(record):
    for field in dataclasses.fields(record):
        if "None" in str(field.type) and field.default is not dataclasses.MISSING:
            assert field.default is None, f"{record.__name__}.{field.name}"


def test_provenance_is_ordered_from_a_reading_to_a_print():
    assert [p.value for p in Provenance] == [
        "measured", "replayed", "emulated", "modelled", "published",
    ]  # fmt: skip


def test_a_measured_figure_times_a_modelled_one_is_modelled():
    assert weakest(Provenance.MEASURED, Provenance.MODELLED) is Provenance.MODELLED
    assert weakest(Provenance.PUBLISHED, Provenance.MEASURED) is Provenance.PUBLISHED


@given(SOME, SOME)
def test_a_chain_is_as_strong_as_its_weakest_part(some, others):
    found = weakest(*some)
    assert found in some
    assert all(weakest(found, p) is found for p in some)
    assert weakest(*some, *others) is weakest(weakest(*some), weakest(*others))
    assert weakest(*reversed(some)) is found


def test_the_one_hot_order_of_the_stages_is_that_of_the_paper():
    assert [s.value for s in Stage] == [
        "generation", "reward", "reference", "critic", "actor_train", "critic_train",
    ]  # fmt: skip
    assert set(INFERENCE_STAGES) == {Stage.REWARD, Stage.REFERENCE, Stage.CRITIC}
    assert [a.value for a in Action] == ["gpu", "fpga", "concurrent"]
    assert Algorithm("reinforce++") is Algorithm.REINFORCE_PP


def test_the_mean_length_of_nothing_is_zero():
    assert StageWork(Stage.REWARD, 0, 0, 0, 0).mean_length == 0.0
    assert StageWork(Stage.REWARD, 4, 10, 6, 5).mean_length == 2.5
