"""What the EcoRL-Sched paper prints of its scheduler, and why our simulator gives otherwise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the paper.

    Attributes:
        id: of its figures: ``paper.<id>.printed``, ``.paper`` and ``.roofline``.
        text: what is claimed, with the place in the paper.
        unit: of the figures; ``1`` for a ratio or share.
        printed: as printed; a pair for a range; None where no figure is printed.
        why: why our simulator gives another value.
        not_printed: what stands there in place of a figure.
    """

    id: str
    text: str
    unit: str
    printed: float | tuple[float, float] | None
    why: str
    not_printed: str = ""


_TAIL = (
    "Most idle GPU time is the tail of generation, in which few rows are left, and the filling and "
    "draining of training pipelines. Placing reward and reference touches neither."
)
_EMPTY_TAIL = (
    "Reward and reference are what RLHFuse fills the tail of generation with. On the cards they "
    "leave it empty, so the bubble grows. Under the roofline nothing is offloaded."
)
_TENTH = (
    "Inference has a tenth of the energy under the paper's own shares, the two stages that may "
    "leave still less, and overlap saves idle power alone. Under the roofline cards cost more "
    "joules than they save, so nothing is offloaded; order, batch and idle cards remain."
)
_ORDER = (
    "All frameworks get the same kernels here: only order, overlap, weights moved and batch "
    "differ. Generation and training fill most of the iteration, and no placement shortens them."
)
_HIDDEN = (
    "RLHFuse hides inference in the tail of generation already, so where it runs hardly matters "
    "for the time. What is left is the adaptive batch, whose short batches have more samples."
)
_LEVEL = (
    "Absolute tokens/J follow from 256 rows of about 1,000 tokens in some 20 s at the printed "
    "powers. The printed level would take about 12,000 tokens a sample (see the second table)."
)
_ONE_CARD = (
    "Under the paper calibration one card already answers within the tail or the forward pass, so "
    "more cards add idle power alone. Under the roofline no count of cards is worth using, and 0 "
    "is where it saturates."
)
_SWEEP = (
    "Order and overlap alone, against DeepSpeed-Chat's order, without the adaptive batch. It rises "
    "with the share of inference in the iteration."
)
_BATCH = (
    "Order and overlap alone, without the adaptive batch. A larger batch makes the tail of "
    "generation a smaller part, so nothing here makes the largest batch worse."
)
_SWEEP_GAIN = (
    "Bounded by inference's share of the energy, at a level of below 1 token/J in place of the "
    "printed 6.2 of DeepSpeed-Chat. Under the roofline nothing is offloaded: what RLHFuse's order "
    "saves and what idle cards cost are all that differs."
)
_TENTH_POLICY = (
    "Inference has a tenth of the energy under the paper's own shares, and overlap saves idle "
    "power alone. Under the roofline whatever is offloaded costs more joules than it saves."
)
_POLICY = "DeepSpeed-Chat's order with cards beside it, placed by the policy under test."

CLAIMS: tuple[Claim, ...] = (
    Claim("idle_sequential", "Sequential execution leaves GPUs idle (section 1)", "1", (0.2, 0.4),
          "Here finished rows and pipelines count too. Under the roofline generation is most of "
          "the iteration, so its tail weighs more."),
    Claim("bubble_rlhfuse", "Bubble of RLHFuse (Fig. 4B)", "1", 0.147, _TAIL),
    Claim("bubble_ecorl", "Bubble of EcoRL-Sched (Fig. 4B)", "1", 0.061, _EMPTY_TAIL),
    Claim("bubble_policy", "Bubble of EcoRL-Sched: the policy in the placement simulator", "1",
          0.061, f"{_POLICY} {_TAIL}"),
    Claim("utilisation_ecorl", "GPU utilisation of EcoRL-Sched, at least (Fig. 4A)", "1", 0.87,
          "One less the bubble above, for the same reason."),
    Claim("ladder_rlhfuse", "Tokens/J: RLHFuse (section 4.5)", "token/J", 18.6, _LEVEL),
    Claim("ladder_power_monitor", "Tokens/J: + power monitor", "token/J", 20.1,
          "Reading power changes no placement, no clock and no batch, so nothing is gained. The "
          "paper names nothing that the monitor switches."),
    Claim("ladder_fpga", "Tokens/J: + FPGA offloading (blocking, without scheduler)", "token/J",
          24.8,
          "GPUs idle while the cards answer, and the tail of generation stays empty. That costs "
          "more than the cheaper joules of the cards save, far more under the roofline."),
    Claim("ladder_async", "Tokens/J: + asynchronous scheduler (best placement of each iteration)",
          "token/J", 26.4, _TENTH),
    Claim("ladder_adaptive", "Tokens/J: + adaptive batch", "token/J", 28.7,
          "Even tokens an iteration move rows from long batches to short ones. That helps where "
          "fixed costs count and harms where the longest row does; both are small."),
    Claim("ladder_gain", "Tokens/J over RLHFuse, all components (28.7 / 18.6)", "1", 28.7 / 18.6,
          _TENTH),
    Claim("tokens_per_j_vs_dschat", "Tokens/J over DeepSpeed-Chat (section 4.2)", "1", 4.63,
          _TENTH),
    Claim("energy_cut", "Energy reduction (abstract, section 6)", "1", 0.384, _TENTH),
    Claim("energy_cut_policy", "Energy reduction: the policy in the placement simulator", "1",
          0.384, f"{_POLICY} {_TENTH_POLICY}"),
    Claim("throughput", "Throughput a GPU (section 4.2)", "sample/s", 1.63,
          "256 rows in the printed 21 s on 32 GPUs are 0.38 samples/s/GPU. The printed value needs "
          "1,095 rows an iteration (see the second table)."),
    Claim("throughput_vs_dschat", "Throughput over DeepSpeed-Chat (section 4.2)", "1", 3.97,
          _ORDER),
    Claim("throughput_policy", "The same: the policy in the placement simulator", "1", 3.97,
          f"{_POLICY} {_ORDER}"),
    Claim("throughput_vs_rlhfuse", "Throughput over RLHFuse (section 4.2)", "1", 1.38, _HIDDEN),
    Claim("reclaimed_s", "Time reclaimed an iteration by FPGA concurrency (Fig. 1A)", "s", 3.8,
          f"{_POLICY} It reclaims at most what reward and reference take and, by putting the "
          "critic's step off, some of that. Under the roofline the latter alone can be gained."),
    Claim("oracle_share", "Share of the oracle (Fig. 8C)", "1", 0.83,
          "Share of Eq. 7 between always-GPU and the clairvoyant optimum. With an array of its own "
          "the problem is easy, one fixed sequence does about as well; under the roofline there is "
          "nothing to gain."),
    Claim("oracle_share_fixed", "The same, of the best fixed sequence in hindsight", "1", 0.83,
          "The paper's oracle searches 3^|T| sequences an episode; with |T| its six stages that is "
          "one fixed sequence, which a policy that adapts may pass. How it normalises is not "
          "printed."),
    Claim("oracle_share_shared", "The same as the first, on an array that other jobs share", "1",
          0.83,
          "Variable length and other jobs' bursts make the placement a real decision; the paper's "
          "array is its job's alone."),
    Claim("reward_1b_speedup", "Table 5: speedup over DeepSpeed-Chat, 1 B reward model", "1", 6.7,
          _SWEEP),
    Claim("reward_7b_speedup", "Table 5: speedup, 7 B reward model", "1", 9.4, _SWEEP),
    Claim("reward_13b_speedup", "Table 5: speedup, 13 B reward model", "1", 10.1, _SWEEP),
    Claim("reward_1b_gain", "Table 5: tokens/J above DeepSpeed-Chat, 1 B reward model", "token/J",
          9.3, _SWEEP_GAIN),
    Claim("reward_7b_gain", "Table 5: tokens/J above, 7 B reward model", "token/J", 14.5,
          _SWEEP_GAIN),
    Claim("reward_13b_gain", "Table 5: tokens/J above, 13 B reward model", "token/J", 16.8,
          _SWEEP_GAIN),
    Claim("batch_128_speedup", "Table 5: speedup, batch 128", "1", 7.1, _BATCH),
    Claim("batch_256_speedup", "Table 5: speedup, batch 256", "1", 9.4, _BATCH),
    Claim("batch_1024_speedup", "Table 5: speedup, batch 1,024", "1", 8.8,
          _BATCH),
    Claim("batch_128_gain", "Table 5: tokens/J above, batch 128", "token/J", 9.4, _SWEEP_GAIN),
    Claim("batch_256_gain", "Table 5: tokens/J above, batch 256", "token/J", 14.5, _SWEEP_GAIN),
    Claim("batch_1024_gain", "Table 5: tokens/J above, batch 1,024", "token/J", 13.1,
          f"{_SWEEP_GAIN} Nothing here makes the largest batch worse."),
    Claim("card_advantage_1b", "Joules a token, H100 over card, 1 B reward model (section 4.7)",
          "1", 3.1,
          "The paper calibration scales both sides by parameters, so its 13.7 / 4.8 holds at every "
          "size. Under the roofline the card needs more joules than the GPU at every size."),
    Claim("card_advantage_13b", "Joules a token, H100 over card, 13 B reward model (section 4.7)",
          "1", 5.8,
          "As for 1 B; two cards share a model of 13 B beside the reference, which costs another "
          "8 %."),
    Claim("cards_throughput_70b", "Cards at which throughput saturates, 70 B (section 3.4)",
          "card", 8.0, _ONE_CARD),
    Claim("cards_throughput_70b_policy", "The same: the policy in the placement simulator", "card",
          8.0, f"{_POLICY} {_ONE_CARD}"),
    Claim("cards_energy_70b", "Cards at which energy saturates, 70 B (section 3.4)", "card", 4.0,
          _ONE_CARD),
    Claim("cards_energy_70b_policy", "The same: the policy in the placement simulator", "card", 4.0,
          f"{_POLICY} {_ONE_CARD}"),
    Claim("cards_throughput_405b", "Cards at which throughput saturates, 405 B (section 3.4)",
          "card", 16.0,
          "A larger policy makes inference a smaller part, so cards matter less, not more. Under "
          "the roofline 405 B needs more than 32 GPUs to be trained at all."),
    Claim("cards_energy_405b", "Cards at which energy saturates, 405 B (section 3.4)", "card", 8.0,
          "As for throughput: inference is a smaller part than at 70 B."),
    Claim("l_max", "Longest mean length that fits the latency budget (Lemma 1)", "token", 2048.0,
          "The paper calibration is made from this lemma, so it agrees by construction (the "
          "all-reduce in the training time moves it a little). By the roofline it never holds."),
    Claim("lemma_ratio", "Cards' time over the forward pass at 2,048 tokens, at most (Lemma 1)",
          "1", 1.0,
          "By construction in the paper calibration. By the roofline four U55C hold about a "
          "thousandth of the arithmetic of 32 H100."),
    Claim("barrier_active", "Iterations in which the barrier holds the GPUs (section 3.1: never)",
          "1", 0.0,
          "Algorithm 1 that always asks for a3. Lengths vary, so some batches near l_max come "
          "late; under the roofline nearly all do."),
    Claim("energy_cut_ppo", "Energy reduction with PPO (abstract)", "1", 0.384, _TENTH),
    Claim("energy_cut_grpo", "Energy reduction with GRPO (section 5.2)", "1", (0.25, 0.35), _TENTH),
    Claim("energy_cut_reinforce", "Energy reduction with REINFORCE++ (Fig. 8D)", "1", None, _TENTH,
          "'all benefit consistently', without a figure"),
    Claim("energy_cut_dapo", "Energy reduction with DAPO (Fig. 8D)", "1", None,
          "DAPO has no KL term and so no reference: half of what may leave is missing. " + _TENTH,
          "'all benefit consistently', without a figure"),
    Claim("energy_cut_range", "Largest less smallest of the four (Fig. 8D)", "1", None,
          "Small, since all four reductions are small. The order follows how much frozen inference "
          "and critic work an algorithm has.", "'consistent', without a figure"),
    Claim("scaling_baseline", "Strong scaling efficiency of the baseline, 16 to 1,024 GPUs "
          "(section 4.3)", "1", 0.31,
          "The paper calibration's all-reduce is made from this figure. Under the roofline the "
          "longest row sets the time of generation, which more GPUs do not shorten."),
    Claim("scaling_ecorl", "Strong scaling efficiency of EcoRL-Sched, 16 to 1,024 GPUs", "1", 0.72,
          "With the all-reduce cut by the printed 23 % and reward and reference free. 72 % needs a "
          "cut of five sixths (see the second table); frozen models have no gradients to reduce."),
)  # fmt: skip
