"""The precision study: flips and shifts by hand, pairs from files, texts that have no answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from int8_models import decoder, library, rows_of

from ecorl.engines.fpga.csim.decoder import Int8Decoder
from ecorl.engines.fpga.validation import scoring
from ecorl.engines.fpga.validation.scoring import TokenPair, read_pairs
from ecorl.engines.fpga.verdict import low_margin_tenth, study_of
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.errors import CheckpointError, DataError
from ecorl.statistics import wilson_interval

NAN = float("nan")


def scores(*pairs):
    return np.array(pairs, np.float32)


# ---------------------------------------------------------------- by hand


def test_flips_and_shifts_by_hand():
    exact = scores([1, 0], [0, 1], [2, 2], [3, 1], [1, 1])
    other = scores([1.5, 0], [2, 1], [2, 2], [3, 3], [1, 1.25])
    study = study_of(exact, {"X": other})
    found = study.of("X")
    assert (found.flips.n_pairs, found.flips.n_flips, found.flips.share) == (5, 3, 0.6)
    assert found.flips.interval == wilson_interval(3, 5)
    assert found.shift_mean == pytest.approx((0.5 + 2 + 2 + 0.25) / 10)
    assert found.shift_p99 == pytest.approx(2.0)
    assert found.unanswered == ()
    assert study.n_low_margin == 1
    assert found.low_margin.n_flips == 0  # the third pair: a tie in both
    assert study.score_std == pytest.approx(np.std(exact))
    with pytest.raises(KeyError):
        study.of("Y")


def test_texts_without_an_answer_count_nowhere_and_are_named():
    exact = scores([1, 0], [5, 1], [0, 1], [3, 1])
    other = scores([NAN, 0], [5, np.inf], [2, 1], [3, 1])
    found = study_of(exact, {"X": other}).of("X")
    assert (found.flips.n_pairs, found.flips.n_flips) == (2, 1)
    assert (found.low_margin.n_pairs, found.low_margin.share) == (0, None)
    assert found.unanswered == ((0, 0), (1, 1))
    assert found.shift_mean == pytest.approx(2 / 6)


def test_without_any_answer_everything_is_missing_and_nothing_is_zero():
    study = study_of(scores([1, 0]), {"X": scores([NAN, NAN])})
    found = study.of("X")
    assert (found.flips.share, found.flips.interval) == (None, None)
    assert (found.shift_mean, found.shift_p99) == (None, None)
    row = next(line for line in study.lines() if line.startswith("X"))
    assert row.split() == ["X", "-", "-", "-", "-"]


@pytest.mark.parametrize("exact", [scores([NAN, 1]), np.zeros((0, 2), np.float32)])
def test_there_is_no_study_without_exact_scores(exact):
    with pytest.raises(ValueError, match="exact"):
        study_of(exact, {"X": exact})


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="X"):
        study_of(scores([1, 2]), {"X": scores([1, 2], [3, 4])})


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=60), st.integers(0, 9))
def test_the_low_margin_tenth(margins, seed):
    chosen = np.random.default_rng(seed).normal(size=len(margins)).astype(np.float32)
    exact = np.stack([chosen, chosen - np.float32(margins)], axis=1)
    low = low_margin_tenth(exact)
    assert len(low) == -(-len(margins) // 10)
    found = np.abs(exact[:, 0] - exact[:, 1])
    rest = np.delete(found, low)
    assert not len(rest) or found[low].max() <= rest.min()


def test_the_table(snapshot):
    exact = np.random.default_rng(0).normal(size=(2000, 2)).astype(np.float32)
    study = study_of(exact, {"FP16": exact, "INT4 weights": -exact})
    snapshot("\n".join(study.lines()))


# ---------------------------------------------------------------- of a model


def pairs_of(*rows):
    """Pairs of neighbours."""
    return [
        TokenPair(np.asarray(a), np.asarray(b), line)
        for line, (a, b) in enumerate(zip(rows[::2], rows[1::2], strict=True), start=1)
    ]


def test_each_text_is_scored_once_and_finds_its_pairs_again():
    long, short, other = np.arange(9), np.array([1, 2]), np.array([4, 5, 6])
    texts = scoring.PairTexts.of(pairs_of(long, short, short, other, long, long))
    assert [len(row) for row in texts.rows] == [2, 3, 9]
    assert texts.names == ("line 1 rejected", "line 2 rejected", "line 1 chosen")
    assert texts.index.tolist() == [[2, 0], [0, 1], [2, 2]]


def test_calls_cover_all_texts_and_stay_within_their_size(monkeypatch):
    monkeypatch.setattr(scoring, "TOKENS_PER_CALL", 40)
    texts = scoring.PairTexts.of(pairs_of(*rows_of(*[3, 9, 17, 5, 60, 11, 2, 39, 21, 8])))
    calls = list(texts.calls())
    assert [i for call in calls for i in range(call.start, call.stop)] == list(range(10))
    for call in calls:
        rows = texts.rows[call]
        assert len(rows) * len(rows[-1]) <= 40 or len(rows) == 1


def test_a_model_in_all_precisions(models, require_tool):
    require_tool("gxx")
    folder, _ = models("llama_reward")
    rows = rows_of(*[4, 7, 12, 20, 33, 5, 9, 40] * 25, seed=41)
    told = []
    pairs = pairs_of(*rows)
    found = scoring.study(folder, pairs, tell=lambda n, name: told.append((n, name)))
    assert sum(n for n, _ in told) == scoring.n_scores(pairs) == 4 * 200
    assert {name for _, name in told} == {"FP32", "FP16", "INT8", "INT4 weights"}
    assert [p.name for p in found.precisions] == ["FP16", "INT8", "INT4 weights"]
    fp16, int8, int4 = found.precisions
    assert (found.n_pairs, found.n_low_margin) == (100, 10)
    # Each step of precision costs about ten times: 2^-11, 2^-7 and 2^-3 of an operand's range.
    assert 0 < 4 * fp16.shift_mean < int8.shift_mean < int4.shift_mean / 4
    assert int8.shift_mean < 0.06 * found.score_std  # see test_fpga_accuracy
    assert fp16.flips.n_flips <= int8.flips.n_flips <= int4.flips.n_flips
    assert 0 < int4.flips.share < 0.5
    assert int4.low_margin.share > int4.flips.share
    # and the scores are those of the engine
    wanted = decoder(folder).score([rows[0]])[0]
    values = scoring.decoder_scores(
        decoder(folder), scoring.PairTexts.of(pairs), np.ones(200, bool), lambda _n, _s: None, ""
    )
    place = scoring.PairTexts.of(pairs).index[0, 0]
    assert values[place] == wanted


def test_four_bits_are_four_bits(models, require_tool):
    """A model whose weights are INT4 already loses nothing to it beyond its INT8 activations."""
    require_tool("gxx")
    plain = load_decoder(models("llama_reward")[0])

    class OnGrid:
        config, tensors, head_name = plain.config, plain.tensors, plain.head_name

        def tensor(self, name):
            weight = plain.tensor(name)
            if weight.ndim == 1 or "embed" in name:
                return weight
            step = np.abs(weight).max(axis=1, keepdims=True) / np.float32(7)
            return np.rint(weight / step).astype(np.float32) * step

    rows = rows_of(*range(2, 60), seed=42)
    four, eight, plain_eight = (
        Int8Decoder(checkpoint, library("fast"), weight_bits=bits).score(rows)
        for checkpoint, bits in ((OnGrid(), 4), (OnGrid(), 8), (plain, 8))
    )
    error = np.sqrt(np.mean((four - eight) ** 2))
    assert 0 < error < 0.2 * np.sqrt(np.mean((four - plain_eight) ** 2))


def test_texts_that_the_engine_cannot_run_are_named(models, require_tool):
    require_tool("gxx")
    rows = rows_of(513, 8, 9, 30, 12, 3)  # the model knows 512 positions
    found = scoring.study(models("llama_reward")[0], pairs_of(*rows))
    assert found.of("FP16").unanswered == ()
    for name in ("INT8", "INT4 weights"):
        assert found.of(name).unanswered == ((0, 0),)
        assert found.of(name).flips.n_pairs == 2


def test_a_model_without_finite_scores_cannot_be_compared(models, require_tool, tmp_path):
    require_tool("gxx")
    import copy

    import torch

    model = copy.deepcopy(models("llama_reward")[1])
    with torch.no_grad():
        model.score.weight.fill_(3e38)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="of 2 texts"):
        scoring.study(tmp_path, pairs_of(*rows_of(8, 9)))


# ---------------------------------------------------------------- pairs from a file

GOOD = {"chosen_ids": [1, 2, 3], "rejected_ids": [4]}


def write(path, *lines):
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_pairs_of_token_ids(tmp_path):
    file = write(tmp_path / "p.jsonl", GOOD, "", {"rejected_ids": [0, 63], "chosen_ids": [9]})
    first, second = read_pairs(file, tmp_path, 64).pairs
    assert (first.chosen.tolist(), first.rejected.tolist(), first.line) == ([1, 2, 3], [4], 1)
    assert (second.chosen.tolist(), second.rejected.tolist(), second.line) == ([9], [0, 63], 3)
    assert first.chosen.dtype == np.int64
    assert len(read_pairs(file, tmp_path, 64, limit=1).pairs) == 1


def test_a_pair_counts_once_in_either_order(tmp_path):
    mirrored = {"chosen_ids": [4], "rejected_ids": [1, 2, 3]}
    other = {"chosen_ids": [4], "rejected_ids": [4]}
    file = write(tmp_path / "p.jsonl", GOOD, GOOD, mirrored, other, mirrored, "{")
    with pytest.raises(DataError, match=r":6: .*JSON"):
        read_pairs(file, tmp_path, 64)
    found = read_pairs(file, tmp_path, 64, limit=2)  # reads no further than it must
    assert [pair.line for pair in found.pairs] == [1, 4]
    assert found.n_repeated == 2


def test_pairs_of_text(tmp_path, tiny_reward):
    file = write(
        tmp_path / "p.jsonl",
        {"chosen": "w5 w6", "rejected": "w7"},
        {"prompt": "w9 ", "chosen": "w5\u2028w6", "rejected": "", "score": 3},
    )
    first, second = read_pairs(file, tiny_reward, 64).pairs
    assert (first.chosen.tolist(), first.rejected.tolist()) == ([5, 6], [7])
    assert second.chosen.tolist()[0] == 9
    assert second.rejected.tolist() == [9]


MISTAKES = {
    "is not JSON": "{",
    "is not an object": "[1, 2]",
    '"chosen" is missing': "{}",
    '"rejected" = 5': {"chosen": "w5", "rejected": 5},
    '"rejected_ids" is missing': {"chosen_ids": [1]},
    '"chosen_ids" is missing': {"chosen": "w5", "rejected_ids": [1]},
    '"rejected_ids" = []': {"chosen_ids": [1], "rejected_ids": []},
    '"chosen_ids"[1] = 64': {"chosen_ids": [1, 64], "rejected_ids": [1]},
    '"chosen_ids"[0] = -1': {"chosen_ids": [-1], "rejected_ids": [1]},
    '"chosen_ids"[0] = true': {"chosen_ids": [True], "rejected_ids": [1]},
    '"chosen_ids"[0] = 1.0': {"chosen_ids": [1.0], "rejected_ids": [1]},
    '"chosen_ids"[0] = NaN': '{"chosen_ids": [NaN], "rejected_ids": [1]}',
    '"prompt" = [{"role": "user"}]': {"prompt": [{"role": "user"}], "chosen": "", "rejected": ""},
    '"rejected" has no tokens': {"chosen": "w5", "rejected": ""},
    '"chosen" holds half a character': '{"chosen": "\\ud800", "rejected": "w5"}',
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_bad_line_is_named_with_what_is_allowed(tmp_path, tiny_reward, what):
    file = write(tmp_path / "p.jsonl", GOOD, MISTAKES[what])
    with pytest.raises(DataError) as caught:
        read_pairs(file, tiny_reward, 64)
    assert str(caught.value).startswith(f"{file}:2: {what}")
    assert "allowed is" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_needs_a_tokenizer_that_belongs_to_the_model(tmp_path, tiny_reward, snapshot):
    file = write(tmp_path / "p.jsonl", GOOD, {"chosen": "w5", "rejected": "w63"})
    with pytest.raises(DataError) as caught:
        read_pairs(file, tmp_path, 64)
    snapshot(str(caught.value), "without one")
    with pytest.raises(DataError) as caught:
        read_pairs(file, tiny_reward, 63)
    snapshot(str(caught.value), "of another vocabulary")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        read_pairs(file, tmp_path, 64)


def test_files_that_hold_no_pairs(tmp_path, snapshot):
    write(tmp_path / "empty.jsonl", "", "  ")
    (tmp_path / "latin.jsonl").write_bytes(b'{"chosen": "\xff"}\n')
    lines = []
    for name in ("empty", "none", "latin"):
        with pytest.raises(DataError) as caught:
            read_pairs(tmp_path / f"{name}.jsonl", tmp_path, 64)
        lines.append(str(caught.value))
    snapshot("\n".join(lines))
