"""How each command of the pages is tested: run at once, run in the longer pass, or why neither."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Pass(StrEnum):
    """When a command is run."""

    QUICK = "quick"
    """By `make test`: it ends within about ten seconds."""
    LONG = "long"
    """By ``python -m tests.pages.longer``, once in continuous integration."""
    BOTH = "both"
    """By the two of them: the longer ones need what it leaves."""
    DEEP = "deep"
    """By ``make pages`` and ``make test-all``: the tests run the same code with smaller models."""
    NEVER = "never"


@dataclass(frozen=True)
class Treatment:
    """What is done with a command.

    Attributes:
        when: it is run.
        code: exit code that it must have.
        line: regular expression that a line on standard error must match; empty: none has to.
        or_succeeds: whether exit code 0 is right as well: what the command does depends on what was
            measured before.
        waits_for: text on its output after which the next command comes; it is then ended by
            SIGTERM behind its page. Empty: it is waited for.
        shorter: options with which the quick pass runs a command of the longer one, since others
            need what it leaves.
        at_root: whether it is run in the project's folder, and not in the reader's.
        why: it is not run.
    """

    when: Pass
    code: int = 0
    line: str = ""
    or_succeeds: bool = False
    waits_for: str = ""
    shorter: str = ""
    at_root: bool = False
    why: str = ""


QUICK, LONG, DEEP = Treatment(Pass.QUICK), Treatment(Pass.LONG), Treatment(Pass.DEEP)
LONG_AT_ROOT = Treatment(Pass.LONG, at_root=True)
DEEP_AT_ROOT = Treatment(Pass.DEEP, at_root=True)


def refused(line: str, *, at_root: bool = False) -> Treatment:
    """A command that lacks something here, and says so in one line."""
    return Treatment(Pass.QUICK, code=2, line=line, at_root=at_root)


def never(why: str) -> Treatment:
    """A command that no test runs."""
    return Treatment(Pass.NEVER, why=why)


TESTS = never("the tests themselves")
BENCHMARKS = never("the benchmarks themselves")
CLUSTER = never("a command of Ray's own, about machines of the reader's")

PAGES = (
    "README.md",
    "roll_adapters/trl/README.md",
    "ecorl/engines/README.md",
    "ecorl/serve/README.md",
    "ecorl/scheduler/README.md",
    "ecorl/operate/README.md",
    "ecorl/carbon/README.md",
    "ecorl/trainer/README.md",
    "bitstreams/README.md",
    "hls_kernels/README.md",
    "benchmarks/README.md",
    "roll_adapters/README.md",
    "roll_adapters/examples/roll/README.md",
    "ecorl/README.md",
)
"""Pages that are read in this order: what a command needs is made on a page before it."""

COMMANDS: dict[str, Treatment] = {
    "git clone … ecorl && cd ecorl": never("fetches the project that is tested"),
    "source .venv/bin/activate": never("the tests run in this environment"),
    "make demo": LONG_AT_ROOT,
    "make test": TESTS,
    "make quick": TESTS,
    "ecorl demo models demo": Treatment(Pass.BOTH),
    "python demo/train.py": LONG,
    "ecorl runs": QUICK,
    "ecorl report runs/demo-models-42": QUICK,
    "ecorl run --config demo/ecorl.toml --check": QUICK,
    "ecorl run --config demo/ecorl.toml": Treatment(
        Pass.LONG, shorter="--set trainer.steps=24 --set placement.n_profiling=24"
    ),
    "ecorl doctor": QUICK,
    "torchrun --nproc_per_node 2 demo/train.py": DEEP,
    "make demo-ray": DEEP_AT_ROOT,
    "ecorl run --config demo-all": DEEP,
    "ecorl policy explain runs/demo-models-42": QUICK,
    "ecorl policy train --quick": DEEP,
    "ecorl policy evaluate": DEEP,
    "ecorl policy export runs/policy-roofline --out mine.onnx": DEEP,
    "ecorl policy calibrate runs/demo-models-42": QUICK,
    "ecorl policy train --quick --calibration runs/demo-models-42/calibration.toml": DEEP,
    "ecorl policy evaluate --runs runs/demo-models-42": DEEP,
    # Where the work has shifted by what was measured, it trains for a while and swaps the policy.
    "ecorl policy adapt runs/demo-models-42 --folder policies/mine": DEEP,
    "ecorl policy rollback policies/mine": Treatment(
        Pass.DEEP, code=2, line="no policy before", or_succeeds=True
    ),
    "ecorl plan": QUICK,
    "ecorl plan --gpu l4 --n-gpus 1 --policy-model 0.5b --inference-model 0.5b --n-cards 1": QUICK,
    "ecorl plan --policy-model 8b --n-gpus 8 --card l4 --n-cards 8 --kwh-price 0.2 "
    "--g-per-kwh 300 --plot plan.png": QUICK,
    "ecorl plan --run runs/demo-models-42": QUICK,
    "ecorl plan --gpu l4 --n-gpus 1 --policy-model 0.5b --inference-model 0.5b --n-cards 1 "
    "--thorough": QUICK,
    "ecorl run --config demo-carbon": DEEP,
    "ecorl carbon now --config demo-carbon": QUICK,
    "ecorl carbon forecast --config demo-carbon": QUICK,
    "ecorl report runs/demo-carbon-42 --model-card": DEEP,
    "ecorl report runs/demo-carbon-42 --annex-xi": DEEP,
    "ecorl carbon plan --set 'carbon.feeds=[{type=\"synthetic\"}]' --tokens 2e10 --days 5": QUICK,
    "ecorl carbon simulate --traces CISO_2022_hourly.csv": refused("a file that can be read"),
    "make bitstream TARGET=hw PLATFORM=xilinx_u55c_gen3x16_xdma_3_202210_1": refused(
        "v[+][+]", at_root=True
    ),
    "python -m roll_adapters.examples.classifier": DEEP_AT_ROOT,
    "ecorl-openrlhf --ecorl.config roll_adapters/examples/openrlhf/ecorl.toml "
    "--actor.model_name_or_path demo/policy --reward.model_name_or_path demo/reward "
    "--vllm.num_engines 1": refused("needs OpenRLHF"),
    "ecorl report runs/openrlhf": refused("there is no ledger"),
    "ecorl-roll convert rlhf_critic.yaml": QUICK,
    "ecorl-roll check rlhf_critic_ecorl.yaml": refused("needs ROLL"),
    "ecorl-roll start --config_path . --config_name rlhf_critic_ecorl": refused("needs ROLL"),
    "ecorl report runs/rlhf_critic": refused("there is no ledger"),
    "ecorl run --config demo --show-config": QUICK,
    "ecorl fpga validate --model demo/reward --pairs demo/pairs.jsonl": Treatment(
        Pass.LONG, shorter="--limit 100"
    ),
    "ecorl fpga estimate --model demo/reward --tokens 512 --reference demo/policy": QUICK,
    "ecorl fpga serve --model demo/policy --port 8642": Treatment(Pass.QUICK, waits_for="serving"),
    "curl -s http://127.0.0.1:8642/v1/logprobs -H 'Content-Type: application/json' "
    '-d \'{"rows":[{"id":"a","token_ids":[5,9,2,7],"n_completion":2}],"temperature":1.0}\'': QUICK,
    "make bench": BENCHMARKS,
    "make bench-long": BENCHMARKS,
    "make gpu": BENCHMARKS,
    "make gpu MINUTES=9 WHEELS=wheels OUT=results": BENCHMARKS,
    "make gpu-wheels WHEELS=wheels": never("asks the package index"),
    "python -m benchmarks.fpga_physics --quick": BENCHMARKS,
    "ecorl bench tokens-per-joule": BENCHMARKS,
    "ecorl bench tokens-per-joule --config demo/ecorl.toml --steps 40 --placements gpu_only,learned"
    " --out runs/tokens": DEEP,
    "make lint-hls": never("`make test` runs it before the tests"),
    "make lint-hls DEEP=1": never("needs clang 19; the tests of recurrences run it where it is"),
    "make bitstream": LONG_AT_ROOT,
    "make test-all": TESTS,
    "make test-numpy1": TESTS,
    "make test-openrlhf": TESTS,
    "make test-roll ROLL_SRC=../ROLL": TESTS,
    'pip install "ecorl[ray]"': never("asks the package index"),
    "ray start --head --resources '{\"FPGA\": 2}'": CLUSTER,
    "ray start --head": CLUSTER,
    "ray start --address HEAD:6379 --resources '{\"FPGA\": 2}'": CLUSTER,
}
"""Every command of the pages, as it stands there."""
