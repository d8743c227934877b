"""A task with checkable answers: ``9999-4721=`` wants ``5278``.

The four digits of a number are subtracted from nines, so no borrow ever crosses a digit: a small
model can learn it on a CPU in a minute, and it can be half right, which a reward model can tell.

Preferences come from a simulated annotator who compares two answers by how far each is from the
truth (`badness`) and errs now and then. Whether an answer is *correct* is never a training
target of the reward model: it sees which of two answers was preferred, nothing else.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

N_DIGITS = 4
MINUEND = 10**N_DIGITS - 1
CHARACTERS = "0123456789+-="
PAD, BOS, EOS = "<pad>", "<s>", "</s>"
LENGTH_PENALTY = 3
"""Badness of one digit too many or too few; three wrong digits, because it breaks the format."""

WELL_FORMED_SHARE = 0.7
"""Share of the questions whose answers differ in digits alone. A broken format is easy to tell and
costs several digits, so that a reward model that mostly sees such pairs learns the format and
little of the digits; a policy then raises its reward with well-formed wrong answers. Assumed: most
of what an annotator reads is well formed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: the annotator liked `chosen` better than `rejected`."""

    prompt: str
    chosen: str
    rejected: str


def prompt_of(number: int) -> str:
    """The question for a four-digit number."""
    return f"{MINUEND}-{number}="


def answer_of(number: int) -> str:
    """The right answer, without leading zeros since numbers stay below 9000."""
    return str(MINUEND - number)


def answer_to(prompt: str) -> str:
    """The right answer to a prompt made by `prompt_of`."""
    return answer_of(int(prompt[len(f"{MINUEND}-") : -1]))


def all_numbers(rng: np.random.Generator) -> np.ndarray:
    """The numbers of the task in random order: ``[8000] int64``, 1000 to 8999."""
    return rng.permutation(np.arange(10 ** (N_DIGITS - 1), 9 * 10 ** (N_DIGITS - 1)))


def badness(truth: str, answer: str) -> int:
    """How wrong an answer is: wrong digits, plus a penalty for each digit too many or too few."""
    wrong = sum(x != y for x, y in zip(truth, answer, strict=False))
    return wrong + LENGTH_PENALTY * abs(len(truth) - len(answer))


def corrupt(truth: str, rng: np.random.Generator) -> str:
    """An answer with some digits changed and now and then a broken format."""
    digits = list(truth)
    n_changed = rng.integers(0, len(digits) + 1) if rng.random() < 0.5 else 1
    for i in rng.permutation(len(digits))[:n_changed]:
        digits[i] = str(rng.integers(10))
    kind = rng.random()
    if kind < 0.15:
        digits = digits[: rng.integers(0, len(digits))]
    elif kind < 0.35:
        for _ in range(rng.integers(1, 4)):
            alphabet = 10 if rng.random() < 0.8 else len(CHARACTERS)
            place = rng.integers(0, len(digits) + 1)
            digits.insert(place, CHARACTERS[rng.integers(alphabet)])
    elif kind < 0.4:
        digits = [CHARACTERS[i] for i in rng.integers(len(CHARACTERS), size=rng.integers(0, 8))]
    return "".join(digits)


def worsening(truth: str, rng: np.random.Generator) -> list[str]:
    """List well-formed answers: the truth, then one more wrong digit in each, up to all of them.

    Args:
        truth: the right answer.
        rng: decides in which order the digits go wrong, and to what.
    """
    digits, answers = list(truth), [truth]
    for i in rng.permutation(len(digits)):
        digits[i] = str((int(digits[i]) + rng.integers(1, 10)) % 10)
        answers.append("".join(digits))
    return answers


def ranked_pairs(
    number: int, samples: list[str], noise: float, rng: np.random.Generator
) -> list[Pair]:
    """Have the annotator rank some answers to one question, and return every comparison.

    All pairs of a ranking are kept, as in InstructGPT: one pair a question says too little of how
    much worse each further wrong digit is.

    Args:
        number: the question.
        samples: answers of the warm-started policy to it, perhaps none.
        noise: share of comparisons that the annotator gets wrong.
        rng: source of randomness.

    Returns:
        A pair for each two answers of which one is worse; at least one pair.
    """
    truth = answer_of(number)

    def candidate() -> str:
        kind = rng.random()
        if kind < 0.25:
            return truth
        if kind < 0.6 and samples:
            return samples[rng.integers(len(samples))]
        return corrupt(truth, rng)

    pairs: list[Pair] = []
    while not pairs:
        if rng.random() < WELL_FORMED_SHARE:
            answers = worsening(truth, rng)
        else:
            answers = [candidate() for _ in range(N_DIGITS + 1)]
        for two in itertools.combinations(answers, 2):
            better, worse = sorted(two, key=lambda answer: badness(truth, answer))
            if badness(truth, better) < badness(truth, worse):
                if rng.random() < noise:
                    better, worse = worse, better
                pairs.append(Pair(prompt_of(number), better, worse))
    return pairs


def build_tokenizer() -> Tokenizer:
    """A character tokenizer: three special tokens, then one token a character."""
    vocab = {token: i for i, token in enumerate([PAD, BOS, EOS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
