"""What a batch of a `Trainer` holds: sequences and tokens, known by how the batch was made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.errors import DataError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import BatchEncoding  # noqa: E402

from roll_adapters.transformers.batches import TrainedBatches, counted  # noqa: E402

PAD, EOS = 0, 2

texts = st.lists(st.lists(st.integers(5, 90), min_size=2, max_size=9), min_size=1, max_size=6)


def trainer(pad=PAD, eos=EOS, bos=1, **model):
    tokenizer = SimpleNamespace(pad_token_id=pad, eos_token_id=eos, bos_token_id=bos)
    return SimpleNamespace(processing_class=tokenizer, model=SimpleNamespace(**model))


def counts(inputs, **of):
    return tuple(None if n is None else int(n) for n in counted(inputs, trainer(**of)))


def padded(rows, side, filler):
    """The rows as a rectangle, two columns wider than the longest."""
    width = max(map(len, rows)) + 2
    fill = [[filler] * (width - len(row)) for row in rows]
    both = zip(rows, fill, strict=True)
    return torch.tensor([f + r if side == "left" else r + f for r, f in both])


@given(texts, st.sampled_from(["left", "right"]))
def test_padding_is_no_token(rows, side):
    truth = (len(rows), sum(map(len, rows)))
    ids = padded(rows, side, PAD)
    mask = padded([[1] * len(row) for row in rows], side, 0)
    assert counts({"input_ids": ids, "attention_mask": mask}) == truth
    # A mask is believed whatever the ids are, and is not needed.
    assert counts({"input_ids": ids * 0 + 7, "attention_mask": mask}) == truth
    assert counts({"input_ids": ids}) == truth
    positions = padded([list(range(len(row))) for row in rows], side, 0)
    assert counts({"input_ids": ids, "position_ids": positions}) == truth


@given(texts, st.sampled_from(["left", "right"]))
def test_a_pad_token_that_ends_sequences_counts_once(rows, side):
    ended = [[*row, EOS] for row in rows]
    ids = padded(ended, side, EOS)
    assert counts({"input_ids": ids}, pad=EOS) == (len(rows), sum(map(len, ended)))


def test_without_a_pad_token_every_token_counts():
    ids = torch.zeros(3, 4, dtype=torch.long)
    assert counts({"input_ids": ids}, pad=None) == (3, 12)


@given(texts, st.integers(0, 5))
def test_sequences_are_found_in_a_row_without_padding(rows, tail):
    """As TRL lays them out: one row, its positions begin anew, padded to a multiple."""
    flat = [token for row in rows for token in row]
    positions = [i for row in rows for i in range(len(row))]
    inputs = {
        "input_ids": torch.tensor([flat + [PAD] * tail]),
        "position_ids": torch.tensor([positions + [0] * tail]),
    }
    assert counts(inputs) == (len(rows), len(flat))
    ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
    whole = {"input_ids": torch.tensor([flat]), "cu_seq_lens_q": ends}
    assert counts(whole) == (len(rows), len(flat))


@given(st.lists(st.lists(st.integers(5, 90), min_size=1, max_size=4), min_size=1, max_size=6))
def test_documents_of_one_token_are_sequences(rows):
    flat = torch.tensor([[token for row in rows for token in row]])
    positions = torch.tensor([[i for row in rows for i in range(len(row))]])
    assert counts({"input_ids": flat, "position_ids": positions}) == (len(rows), flat.numel())


@given(texts, st.integers(0, 5))
def test_one_special_token_may_begin_and_end_documents_and_pad_them(rows, tail):
    """As GPT-2's, whose only one it is."""
    rows = [[EOS, *row, EOS] for row in rows]
    special = {"pad": EOS, "bos": EOS}
    flat = [token for row in rows for token in row]
    positions = [i for row in rows for i in range(len(row))]
    inputs = {
        "input_ids": torch.tensor([flat + [EOS] * tail]),
        "position_ids": torch.tensor([positions + [0] * tail]),
    }
    assert counts(inputs, **special) == (len(rows), len(flat))
    for side in ("left", "right"):
        ids = padded(rows, side, EOS)
        assert counts({"input_ids": ids}, **special) == (len(rows), len(flat))
        assert counts({"input_ids": ids[:1, 2:]} if side == "left" else {"input_ids": ids[:1, :-2]},
                      **special) == (1, len(rows[0]))  # fmt: skip
    # No BOS in the texts: the longest row has no padding.
    bare = torch.tensor([[EOS, 7, 8], [7, 8, 9]])
    assert counts({"input_ids": bare}, **special) == (2, 5)


def test_the_text_s_config_names_the_padding_of_a_model_without_a_tokenizer():
    from transformers import Gemma3Config

    config = Gemma3Config()
    config.get_text_config().pad_token_id = PAD
    bare = SimpleNamespace(processing_class=None, model=SimpleNamespace(config=config))
    ids = torch.tensor([[5, 6, 7, PAD, PAD], [5, 6, 7, 8, 9]])
    assert tuple(map(int, counted({"input_ids": ids}, bare))) == (2, 8)


def test_a_tokenizer_s_own_attribute_of_that_name_is_no_tokenizer():
    made = trainer()
    made.processing_class.tokenizer = object()
    ids = torch.tensor([[5, 6, PAD, PAD], [5, 6, 7, 8]])
    assert tuple(map(int, counted({"input_ids": ids}, made))) == (2, 6)


def test_ids_in_one_dimension_hold_the_sequences_that_their_ends_tell():
    flat = {"input_ids": torch.arange(5, 17), "position_ids": torch.arange(12)}
    assert counts(flat | {"cu_seq_lens_q": torch.tensor([0, 4, 8, 12])}) == (3, 12)
    with pytest.raises(DataError, match="cu_seq_lens_q"):
        counted(flat, trainer())


@pytest.mark.parametrize("filler", [0, 1, -1])
def test_a_padded_row_of_one_token_is_a_row(filler):
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, filler)
    ids = torch.tensor([[PAD, PAD, 5], [5, 6, 7]])
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    assert counts(batch) == (2, 4)


@pytest.mark.parametrize("positions", [[3, 2, 1, 0], [9, 7, 5, 3]])
def test_rows_whose_positions_fall_are_rows(positions):
    batch = {"input_ids": torch.full((2, 4), 7), "position_ids": torch.tensor([positions] * 2)}
    assert counts(batch) == (2, 8)


def test_masks_that_number_packed_sequences_attend_to_each_token_once():
    mask = torch.tensor([[1, 1, 2, 2, 3, 0]])
    assert counts({"input_ids": torch.full((1, 6), 7), "attention_mask": mask}) == (1, 5)


def test_a_mask_of_another_shape_is_none():
    ids = torch.tensor([[7, 8, PAD], [7, 8, 9]])
    assert counts({"input_ids": ids, "attention_mask": torch.ones(2, 1, 3, 3)}) == (2, 5)


def test_choices_of_an_item_are_one_row():
    assert counts({"input_ids": torch.full((2, 4, 3), 7)}) == (2, 24)


def test_pairs_below_each_other_are_a_sequence_each():
    ids = torch.tensor([[7, 8], [9, PAD], [7, 8], [9, 9]])
    batch = {"input_ids": ids, "attention_mask": ids != PAD, "margin": torch.ones(2)}
    assert counts(batch) == (4, 7)


def test_batches_without_tokens_have_rows():
    pixels = torch.zeros(5, 3, 8, 8)
    images = {"pixel_values": pixels, "boxes": torch.zeros(9, 4)}
    assert counts(images, main_input_name="pixel_values") == (5, None)
    table = {"x": torch.zeros(4, 2), "y": torch.zeros(4), "scale": torch.tensor(2.0), "kind": "a"}
    assert counts(BatchEncoding(table)) == (4, None)


def test_rows_that_a_batch_hides_are_not_known(snapshot):
    reasons = []
    for batch in (
        [{"prompt": "a"}],
        (torch.zeros(4, 2), torch.zeros(4)),
        {"x": torch.zeros(4, 2), "y": torch.zeros(5)},
        {"prompt": ["a", "b"]},
    ):
        with pytest.raises(DataError) as caught:
            counted(batch, trainer())
        reasons.append(str(caught.value))
    snapshot("\n".join(reasons))


class Toy:
    """A trainer that does nothing in a step."""

    processing_class = model = None

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.given = inputs
        return 0.25


def test_what_is_hidden_in_one_batch_is_not_known_of_the_step(snapshot):
    batches, toy = TrainedBatches(), Toy()
    batches.watch(toy)
    batch = {"input_ids": torch.full((2, 3), 7)}
    assert toy.training_step(None, batch, num_items_in_batch=4) == 0.25
    assert toy.given is batch
    toy.training_step(None, inputs=batch)
    assert batches.take() == (4, 12)
    toy.training_step(None, batch)
    toy.training_step(None, [batch])
    assert batches.take() == (None, None)
    toy.training_step(None, batch)
    assert batches.take() == (2, 6)
    (why,) = batches.objections
    snapshot(why)
    batches.leave()
    assert "training_step" not in toy.__dict__


def test_no_row_at_all_is_not_known(snapshot):
    batches, toy = TrainedBatches(), Toy()
    toy.processing_class = trainer().processing_class
    batches.watch(toy)
    nothing = torch.zeros(1, 4, dtype=torch.long)
    toy.training_step(None, {"input_ids": nothing, "position_ids": nothing})
    assert batches.take() == (None, 0)
    snapshot(batches.objections[0])


class Generating(Toy):
    """A trainer that makes the batch that it trains on within the step, in two parts."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        for n in (5, 6):
            self.compute_loss(model, inputs | {"input_ids": torch.full((1, n), 7)})
        return 0.25

    def compute_loss(self, model, inputs):
        inputs.clear()  # the batch is counted before


def test_a_batch_that_the_step_makes_is_the_one_that_counts():
    batches, toy = TrainedBatches(), Generating()
    batches.watch(toy)
    toy.training_step(None, {"input_ids": torch.full((2, 3), 7)})
    toy.compute_loss(None, {"input_ids": torch.full((2, 3), 7)})  # of an evaluation
    assert batches.take() == (2, 11)
    batches.leave()
    assert not {"training_step", "compute_loss"} & set(toy.__dict__)


def test_a_batch_counts_once_where_another_tool_keeps_the_wrapped_step():
    batches, toy = TrainedBatches(), Toy()
    batch = {"input_ids": torch.full((2, 3), 7)}
    for _ in range(3):
        batches.watch(toy)
        inner = toy.training_step
        toy.training_step = lambda *args, inner=inner: inner(*args)
        toy.training_step(None, batch)
        assert batches.take() == (2, 6)
        batches.leave()
        toy.training_step = inner  # as a profiler that gives back what it found
        toy.training_step(None, batch)
    assert batches.take() == (None, None)


def test_a_trainer_that_goes_another_way_is_not_counted(snapshot):
    batches = TrainedBatches()
    batches.watch(None)
    assert batches.take() == (None, None)
    snapshot("\n".join(batches.objections))


def test_the_trainer_gets_back_what_it_had():
    batches, toy = TrainedBatches(), Toy()
    own = toy.training_step = lambda model, inputs: 1.0
    batches.watch(toy)
    assert toy.training_step is not own
    batches.leave()
    assert toy.training_step is own
    batches.watch(toy)
    later = toy.training_step = lambda model, inputs: 2.0
    batches.leave()
    assert toy.training_step is later
