"""The grid of the demo makes a training pause in its dirty hours, on fast and on slow machines."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from ecorl.carbon.building import build_chains
from ecorl.carbon.outlook import series_of
from ecorl.config import load_config
from ecorl.control import Command
from ecorl.controllers.protocol import Seen
from ecorl.records import Provenance
from ecorl.runtime.control.planned import PlannedRun

BEGAN_S = 1.8e9
DAY_S = 86400.0 / 3600.0


@pytest.mark.parametrize("step_s", [0.05, 0.12, 0.5, 1.0])
def test_it_pauses_in_dirty_hours_and_is_over_in_time(step_s):
    config = load_config("demo-carbon")
    chain, planned = build_chains(config, BEGAN_S).average, PlannedRun(config, BEGAN_S)
    chain.recall(BEGAN_S)
    feed = chain.feeds[0]
    now_s, left = BEGAN_S + 0.5, config.trainer.steps
    steps_s: deque[float] = deque(maxlen=32)
    seen_g: dict[Command, list[float]] = {Command.RUN: [], Command.PAUSE: []}
    while left:
        value = chain.ask(now_s).value
        assert value.provenance is Provenance.REPLAYED
        assert "made up" in value.factors
        past = series_of(chain.past(feed.info.name), feed.info.interval_s)
        choice = planned.decide(now_s, Seen(value, past=past), steps_s, left, 60.0, feed.info.day_s)
        seen_g[choice.command].append(value.g_per_kwh)
        if choice.command is Command.PAUSE:
            now_s = choice.look_again_s
            continue
        steps_s.append(step_s)
        now_s, left = now_s + step_s, left - 1
    assert feed.info.day_s == DAY_S
    assert len(seen_g[Command.PAUSE]) > 3
    assert np.mean(seen_g[Command.PAUSE]) > 1.2 * np.mean(seen_g[Command.RUN])
    taken_s = config.trainer.steps * step_s
    assert now_s - BEGAN_S <= config.carbon.control.slack * taken_s + 2 * step_s + 1.0
