"""What casting weights takes of a micro-batch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.studies.trainer.weight_casts import cast_figure, weight_casts


def test_casts_are_a_part_of_the_micro_batch_beside_them():
    figure = weight_casts(0.1, n_rounds=6)
    assert figure.id == "trainer.weight_cast_share"
    assert 0.0 < figure.value < 1.0
    assert figure.spread["n"] == 6


def test_the_share_is_taken_by_round():
    figure = cast_figure({"cast": (1.0, 1.0, 9.0), "micro_batch": (10.0, 5.0, 10.0)}, 10, 4)
    assert figure.value == pytest.approx(0.2)
    assert "1000.00 of 10000" in figure.note
