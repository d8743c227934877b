"""A training process that asks for widths at given steps, and notes the prompts of each step.

It waits in such a step until the processes that it asked for stand by: the step after which they
take over is then always the same, however long they load.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

PLAN = "ECORL_TEST_WIDTHS"
"""Variable that holds the plan: from which step on which width is wanted, as JSON."""
NOTES = "ECORL_TEST_NOTES"
"""Variable that names the folder of the noted prompts."""
STEPS = "ECORL_TEST_STEPS"
"""Variable that holds the number of steps of the run."""
KILLS = "ECORL_TEST_KILLS"
"""Variable that is set where rank 0 kills the supervisor when it has left the run."""


def plan() -> dict[int, int]:
    return {int(step): width for step, width in json.loads(os.environ.get(PLAN, "{}")).items()}


def patch() -> None:
    from roll_adapters.trl import attachment
    from roll_adapters.trl.launch.crew import Crew
    from roll_adapters.trl.launch.handover import WidthHandover
    from roll_adapters.trl.launch.messages import Left

    tell = Crew.tell

    def killing(self, message):
        if isinstance(message, Left) and KILLS in os.environ:
            os.kill(os.getppid(), signal.SIGKILL)
        tell(self, message)

    stand, wanted = attachment.stand, WidthHandover.wanted
    generate = attachment.TrlAttachment._generate

    def planned(runtime, *, steps_left=None, is_stopping, **stage):
        choice = stand(runtime, steps_left=steps_left, is_stopping=is_stopping, **stage)
        step = int(os.environ[STEPS]) - (steps_left or 0) + 1
        asked = [width for first, width in plan().items() if first <= step]
        return replace(choice, width=asked[-1] if asked and steps_left else None)

    def ready(self, width):
        found = wanted(self, width)
        while width not in (None, self.width) and not found and not self._dropped:
            time.sleep(0.01)
            found = wanted(self, width)
        return found

    def noting(self, prompts, *args, **kwargs):
        rank, step = os.environ.get("RANK", "0"), self._step()[0]
        line = json.dumps({"step": step, "rank": int(rank), "prompts": [str(p) for p in prompts]})
        with (Path(os.environ[NOTES]) / f"prompts-{rank}.jsonl").open("a") as file:
            file.write(line + "\n")
        return generate(self, prompts, *args, **kwargs)

    attachment.stand = planned
    Crew.tell = killing
    WidthHandover.wanted = ready
    attachment.TrlAttachment._generate = noting


if __name__ == "__main__":
    from roll_adapters.trl.launch import worker

    patch()
    worker.main()
