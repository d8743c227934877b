"""The example of gradient accumulation: its figures, and the table that it prints."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ecorl.ledger import LedgerReader
from roll_adapters.examples import classifier
from roll_adapters.examples.classifier import ClassifierRun
from tests.fakes.grids import plain_config


def test_activations_are_counted_by_the_rows_that_are_trained_on():
    images, digits = classifier.draw(64, seed=1)
    model = classifier.build_model()
    whole, half, one = (
        classifier.activation_bytes(model, images[:n], digits[:n]) for n in (64, 32, 1)
    )
    side, n_bytes = classifier.SIDE**2, 4
    # Of the first convolution alone: the image, and what the activation behind it gave.
    assert one > (1 + 16) * side * n_bytes
    assert whole == pytest.approx(2 * half, rel=0.01)
    assert whole == pytest.approx(64 * one, rel=0.05)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_training_s_table_is_data_and_text(tmp_path):
    config = plain_config(tmp_path / "unused")
    whole = classifier.train(tmp_path / "whole", config, 1, 3)
    (half,) = classifier.train_all(tmp_path, config, n_steps=3, accumulations=(2,))
    assert (whole.batch_size, half.batch_size) == (64, 32)
    assert half.final_loss == pytest.approx(whole.final_loss, rel=1e-4)
    assert half.activation_bytes < whole.activation_bytes
    with contextlib.closing(LedgerReader(half.run_dir)) as reader:
        assert reader.run().meta["effective_batch_size"] == "64"
        assert [row.result.n_sequences for row in reader.executions()] == [64, 64, 64]
        (row,) = reader.evaluations()
    assert row.values == tuple(map(float, half.correct))
    assert "50 %" in classifier.table([whole, half])


def test_what_is_not_known_is_not_told(snapshot):
    def run(number, correct):
        return ClassifierRun(number, 64 // number, 100 // number, None, 1.0, correct, Path())

    snapshot(classifier.table([run(1, (1, 0, 1, 0)), run(4, (1, 1, 1, 0))]))


def test_a_gain_is_of_the_same_images():
    gain, error = ClassifierRun(1, 1, 1, None, 1.0, (1, 1, 0, 1), Path()).gain_over(
        ClassifierRun(1, 1, 1, None, 1.0, (1, 0, 0, 1), Path())
    )
    assert (gain, error) == (0.25, pytest.approx(0.25))
