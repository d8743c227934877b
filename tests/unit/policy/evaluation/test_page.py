"""The page of a policy, and what stands in it: choices, comparison, curves."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from ecorl.devices import load_profile
from ecorl.errors import ConfigError
from ecorl.policy.evaluation.comparison import RULES, PolicyComparison, ScenarioResult, Scores
from ecorl.policy.evaluation.page import (
    REFUSED,
    Choices,
    choices,
    reference_scenario,
    render_page,
    write_page,
)
from ecorl.policy.evaluation.pools import kept_out, variations
from ecorl.policy.evaluation.summary import counted, rows, sentences
from ecorl.sim.scenario import Scenario
from tests.plain_words import banned

RECORD = {
    "ecorl": "0.1.0",
    "schema": "ecorl.features/1",
    "train_s": 12.4,
    "n_labels": 1198,
    "plan": {"family": "paper", "n_scenarios": 8, "n_rounds": 2, "n_epochs": 3, "ppo_steps": 100},
    "curves": {
        "imitation": [0.02, 0.01, 0.006],
        "ppo": [[3840, 1.5], [7680, 1.9]],
        "validation": {"imitation": 1.5, "ppo": 1.25},
    },
}


class Ranked:
    """Stands in for a policy file: the same logits in every state, or by a rule."""

    def __init__(self, rule):
        self.rule = rule

    def batch(self, states):
        return np.array([self.rule(state) for state in states], dtype=np.float32)


def scores(*per_seed, energy=0.9):
    values = np.array(per_seed, dtype=np.float64)
    ones = np.ones(len(values))
    return Scores(values, values - 0.01, energy * ones, ones, energy * ones)


def compared(hard=True, gain=0.1):
    """A comparison whose shares can be told in the head."""
    simple = 0.5 * gain if hard else 0.95 * gain
    found = {
        "always_gpu": scores(0.0, 0.0, energy=1.0),
        "random": scores(-gain, -1.01 * gain, energy=1.02),
        "static": scores(simple, simple * 1.02),
        "threshold": scores(simple, simple * 1.02),
        "learned": scores(0.90 * gain, 0.94 * gain, energy=0.95),
        "planner": scores(0.95 * gain, 0.97 * gain),
        "dp": scores(gain, gain),
    }
    judged = dict.fromkeys(RULES, 0.0) | {"threshold": simple, "planner": 0.96 * gain}
    result = ScenarioResult(Scenario("s-0"), found, judged)
    return PolicyComparison((result,), tuple(found))


def test_a_row_holds_shares_energy_loss_and_the_test():
    found = {r.policy: r for r in rows(compared(), "learned")}
    ours = found["learned"]
    assert (ours.dp_share.mean, ours.dp_share.error) == pytest.approx((0.92, 0.02))
    assert ours.causal_share.mean == pytest.approx(0.92 / 0.96)
    assert (ours.energy, ours.worst_loss) == (pytest.approx(0.95), 0.0)
    assert ours.p_value is None
    assert found["random"].worst_loss == pytest.approx(0.02)
    # p = 0.023: below 5 %, and not below a quarter of that, for four tests are made.
    assert found["best static"].p_value < 0.05
    assert not found["best static"].significant
    assert found["random"].significant
    assert found["random"].cells()[-1].endswith(" *")
    assert not found["causal planner"].significant
    assert found["always GPU"].cells()[1] == "0.0 ± 0.0 %"


def test_without_a_hard_scenario_the_sentences_say_so(snapshot):
    easy = compared(hard=False)
    assert counted(easy) == easy.valued() != ()
    snapshot("\n".join(sentences(easy, "learned")))
    assert all(r.p_value is None for r in rows(easy, "learned"))


def test_where_nothing_can_be_shared_the_loss_stands_in_its_place(snapshot):
    little = compared(gain=0.0004)
    assert all(r.dp_share is None for r in rows(little, "random"))
    snapshot("\n".join(sentences(little, "random")))


@pytest.fixture(scope="module")
def reference():
    return reference_scenario("paper")


def test_choices_follow_the_policy_within_the_guards(reference):
    found = choices(Ranked(lambda state: (0.0, 0.0, 1.0)), reference)
    inside = found.codes != REFUSED
    assert set(found.codes[inside]) == {2}
    # The guards: a queue of 8 batches, and 2,048 tokens.
    expected = (found.queue[:, None] < 8.0) & (found.row_length[None, :] <= 2048.0)
    assert (inside == expected).all()
    assert (np.diff(found.row_length) > 0).all()
    never = choices(Ranked(lambda state: (1.0, 0.0, 0.0)), reference)
    assert set(never.codes[expected]) == {0}


def test_choices_show_the_policy_the_queue_and_the_length(reference):
    from ecorl.scheduler.features import NAMES

    queue, length = NAMES.index("queue_batches"), NAMES.index("row_length")

    def rule(state):
        return (0.0, float(state[queue] < 0.5), float(state[length] < 0.25))

    found = choices(Ranked(rule), reference)
    short = found.row_length < 512.0
    assert set(found.codes[found.queue > 2.1][:18, short].ravel()) <= {2, REFUSED}
    assert set(found.codes[found.queue < 1.9][:, ~short].ravel()) == {1, REFUSED}
    assert set(found.codes[(found.queue > 2.1) & (found.queue < 8)][:, ~short].ravel()) == {
        0, REFUSED,
    }  # fmt: skip


def test_choices_take_every_batch_alike_however_its_rows_share_prompts(reference):
    policy = Ranked(lambda state: (0.0, 0.5, float(state[0])))
    plain, grouped = (choices(policy, replace(reference, group_size=g)) for g in (1, 16))
    assert np.array_equal(plain.row_length, grouped.row_length)
    assert np.array_equal(plain.codes, grouped.codes)


class Reader(HTMLParser):
    """Checks that tags close, and collects what would be loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.cells = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "path", "use", "rect", "circle"):
            self.open.append(tag)
        given = dict(attrs)
        self.loaded += [v for k, v in given.items() if k in ("src", "href") and v[0] != "#"]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells.append(data.strip())


def read(text):
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def words(text):
    """What the page says beside its drawings."""
    page = read(re.sub(r"<(style|svg)\b.*?</\1>", "", text, flags=re.DOTALL))
    return "\n".join(" ".join(cell.split()) for cell in page.cells if cell)


def picture(reference):
    codes = np.array([[0, 1, 2], [2, 2, REFUSED]])
    return Choices(reference, np.array([100.0, 500.0, 3000.0]), np.array([0.0, 4.0]), codes)


def test_the_page_is_whole_and_needs_nothing_else(reference, snapshot):
    text = render_page(RECORD, compared(), picture(reference), title="x <b>.onnx")
    page = read(text)
    assert page.loaded == []
    assert "<script" not in text
    assert banned(" ".join(page.cells), on_gpus=True) == []
    assert "x &lt;b&gt;.onnx" in text
    drawn = {"card, GPU waits", "Imitation: mean score lost", "PPO: score"}
    assert {"92.0 ± 2.0 %", "1,198", "12 s (measured)", *drawn} <= set(page.cells)
    snapshot(words(text))
    # Stand-in colours of the drawing became those of the page.
    assert not re.search(r"#0[01]0[0-9]0[0-9]\b", text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_a_page_of_little_says_what_is_missing(snapshot):
    text = render_page({})
    assert "<svg" not in text
    snapshot(words(text))


def test_a_page_is_written_whole_or_not(tmp_path):
    write_page(tmp_path / "a" / "r.html", "text")
    assert (tmp_path / "a" / "r.html").read_text() == "text"
    with pytest.raises(ConfigError, match="written"):
        write_page(tmp_path / "a", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_variations_keep_the_costs_and_begin_with_the_run():
    base = Scenario("run", load=0.5)
    pool = variations(base, 6, seed=3)
    assert pool[0] is base
    assert len({s.load for s in pool}) == 6
    assert len({s.length_scale for s in pool}) == 6
    assert all(0.0 < s.load <= 0.9 for s in pool)
    assert all((s.n_gpus, s.sizes, s.limits) == (base.n_gpus, base.sizes, base.limits)
               for s in pool)  # fmt: skip
    assert [s.load for s in variations(base, 6, seed=3)] == [s.load for s in pool]


def test_kept_out_scenarios_are_none_of_training():
    from ecorl.policy.training.train import TrainingPlan, pool_of
    from ecorl.sim.families.pools import HELD_OUT_ALGORITHM, HELD_OUT_GPU

    ours = {s.length_scale for s in kept_out("paper", 4)}
    assert ours.isdisjoint(s.length_scale for s in pool_of(TrainingPlan("paper", n_scenarios=12)))

    def devices(scenarios):
        return [{s.setting.gpu.name, s.setting.card.name} for s in scenarios]

    trained = pool_of(TrainingPlan(n_scenarios=40))
    assert not any(HELD_OUT_GPU in both for both in devices(trained))
    assert HELD_OUT_ALGORITHM not in {s.algorithm for s in trained if s.calibration != "paper"}
    for family in ("mixed", "wrong_tables", "drift"):
        drawn = kept_out(family, 12, n_iterations=7)
        assert all(HELD_OUT_GPU in both for both in devices(drawn) if "cpu16" not in both)
        assert {s.divergence.table_error for s in drawn} == {0.0 if family == "mixed" else 0.3}
    drifting = kept_out("drift", 12)
    assert max(s.divergence.growth for s in drifting) > 1.2
    assert max(s.divergence.growth for s in trained) == 1.0


def test_real_pairs_are_devices_that_are_bought():
    from ecorl.devices import profile_names

    for scenario in kept_out("real_pairs", 99, n_iterations=3):
        for device in (scenario.setting.gpu, scenario.setting.card):
            assert device.name in profile_names() or device.name.startswith("cpu")
        assert np.isfinite(scenario.table.values).all()


def test_hypothetical_cards_stay_within_the_silicon_of_their_part():
    for scenario in kept_out("hypothetical", 8):
        card = scenario.setting.card
        part = load_profile(card.name.partition("_")[0])
        assert card.value("clock_hz") <= part.value("clock_max_hz")
        assert card.value("n_dsp_used") == part.value("n_dsp")
        assert card.value("active_w") <= part.value("tdp_w")
        for key in ("memory_bytes", "memory_bytes_per_s", "link_bytes_per_s"):
            assert card.value(key) == part.value(key)
        assert card.title.startswith("hypothetical")


def test_what_cannot_be_compared_on_is_refused():
    with pytest.raises(ConfigError, match="one of"):
        kept_out("nonsense", 1)
    with pytest.raises(ConfigError, match="--calibration"):
        kept_out("fitted", 1)
