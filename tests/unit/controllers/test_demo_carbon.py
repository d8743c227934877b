"""The grid of the demo makes a training of half a minute wait once and pause once."""

from __future__ import annotations

from ecorl.carbon.building import build_chains
from ecorl.config import load_config
from ecorl.control import Command
from ecorl.controllers.protocol import Seen
from ecorl.controllers.waiting import decide
from ecorl.records import Provenance
from ecorl.runtime.control.governor import waiting_rule

BEGAN_S = 1.8e9
LONGEST_S = 600  # a machine that is twenty times as slow


def test_it_waits_once_pauses_once_and_then_runs_on():
    config = load_config("demo-carbon")
    rule, chains = waiting_rule(config), build_chains(config, BEGAN_S)
    commands, waited_s = [], 0.0
    for second in range(LONGEST_S):
        now_s = BEGAN_S + second + 0.5
        value = chains.average.ask(now_s).value
        assert value.provenance is Provenance.REPLAYED
        assert "made up" in value.factors
        seen = Seen(value, waited_s=waited_s, has_begun=Command.RUN in commands)
        choice = decide(rule, now_s, seen)
        waited_s += choice.command is Command.PAUSE
        if commands[-1:] != [choice.command]:
            commands.append(choice.command)
    assert commands == [Command.PAUSE, Command.RUN, Command.PAUSE, Command.RUN]
    assert waited_s < config.carbon.max_wait_s
