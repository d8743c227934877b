"""The benchmark of rewards of texts runs, and knows what was lost."""

from __future__ import annotations

from benchmarks.studies.frameworks import text_serving
from benchmarks.studies.frameworks.text_serving import ID, TextLoad, measure_text_ratio
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


class HalfLost(text_serving.Clients):
    """Clients that lose their last answer."""

    def send_all(self):
        super().send_all()
        self.answers[-1][-1] = Answered(None, b"", 1.0)


def test_a_pass_that_lost_a_request_has_no_ratio(monkeypatch):
    for tool in ("torch", "gxx"):
        demand(tool)
    monkeypatch.setattr(text_serving, "Clients", HalfLost)
    load = TextLoad(ModelSize(64, 2, 112, 4, 2, 400), 8, (6, 20), clients=4, n_rounds=2, box_s=1.0)
    assert measure_text_ratio(load)[ID] is None
