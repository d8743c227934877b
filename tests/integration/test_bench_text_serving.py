"""The benchmark of rewards of texts runs, and knows what was lost or mixed up."""

from __future__ import annotations

import numpy as np

from benchmarks.studies.frameworks.text_serving import ID, TextLoad, _judged, measure_text_ratio
from benchmarks.studies.peers import ModelSize
from benchmarks.studies.serving import Answered
from tests.conftest import demand


def test_a_tiny_load_is_measured():
    for tool in ("torch", "gxx"):
        demand(tool)
    load = TextLoad(ModelSize(64, 2, 112, 4, 2, 400), 8, (6, 20), clients=4, n_rounds=2, box_s=1.0)
    told = measure_text_ratio(load)
    assert told[ID] > 0
    assert told["spread"]["n"] == 2
    assert told["ratio_without_delay"] < told[ID]
    assert (told["lost_requests"], told["mixed_answers"]) == (0, 0)
    assert told["rows_a_micro_batch"] >= 1
    assert told["tokens_a_pass"] > 8 * 6
    assert (told["clients"], told["provenance"]) == (4, "measured")


def test_answers_are_held_against_the_truth():
    truth = [np.float32([0.5]).tobytes(), np.float32([0.25]).tobytes()]
    right = [Answered(200, b'{"rewards": 0.5}', 1.0), Answered(200, b'{"rewards": 0.25}', 1.0)]
    assert _judged([right, right], truth) == (0, 0)
    assert _judged([right, right[::-1]], truth) == (0, 2)
    assert _judged([[right[0], Answered(None, b"", 1.0)]], truth) == (1, 0)
