"""Rows and tokens in the record of a `Trainer`: what it trained on, however batches are made."""

from __future__ import annotations

import contextlib

import pytest

from ecorl.ledger import LedgerReader
from tests.fakes.grids import plain_config

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    IterableDataset,
    WeightedRandomSampler,
)
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from roll_adapters.transformers_hooks import EcorlCallback, attach  # noqa: E402

SHAPE = {
    "vocab_size": 96, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
N_ROWS = 10
ROWS = [{"input_ids": [5 + i, *[9] * (i % 4), 3], "labels": float(i % 2)} for i in range(N_ROWS)]


def collate(rows):
    """A rectangle without a mask: padding is what the model's config says."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor([r["labels"] for r in rows])}


class Stream(IterableDataset):
    def __iter__(self):
        yield from ROWS


class OwnSampler(Trainer):
    """More rows an epoch than the data set has."""

    def _get_train_sampler(self, *args):
        return WeightedRandomSampler([1.0] * N_ROWS, num_samples=13)


class Batches(BatchSampler):
    """Batches of 1, 4, 2 and 3 rows."""

    def __init__(self):
        self.batch_size, self.drop_last, self.sampler = 4, False, range(N_ROWS)

    def __iter__(self):
        yield from ([0], [1, 2, 3, 4], [5, 6], [7, 8, 9])

    def __len__(self):
        return 4


class OwnBatches(Trainer):
    def get_train_dataloader(self):
        loader = DataLoader(ROWS, batch_sampler=Batches(), collate_fn=collate)
        return self.accelerator.prepare(loader)


def settings(tmp_path, kind=TrainingArguments, **changes):
    plain = {
        "output_dir": str(tmp_path / "out"), "use_cpu": True, "max_steps": 6, "seed": 7,
        "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": [],
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    return kind(**plain | changes)


def seen_by(model):
    """Lists rows and tokens of each batch that the model is trained with, as they come."""
    seen, forward = [], model.forward

    def watched(*args, **kwargs):
        if model.training:
            ids = kwargs["input_ids"]
            seen.append((len(ids), int((ids != 0).sum())))
        return forward(*args, **kwargs)

    model.forward = watched
    return seen


def recorded(folder):
    with contextlib.closing(LedgerReader(folder)) as reader:
        kept = [row.result for row in reader.executions() if not row.superseded]
        return [(r.n_sequences, r.n_tokens) for r in kept], reader.faults()


def make(tmp_path, kind=Trainer, dataset=ROWS, collator=collate, **changes):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    changes = {"remove_unused_columns": False, **changes}
    return kind(
        model=LlamaForSequenceClassification(LlamaConfig(**SHAPE, num_labels=1)),
        args=settings(tmp_path, **changes),
        train_dataset=dataset,
        eval_dataset=ROWS,
        data_collator=collator,
    )


def sums(batches, sizes):
    """Sums of the batches, so many of them a step."""
    left = iter(batches)
    steps = [[next(left) for _ in range(n)] for n in sizes]
    assert not list(left)
    return [tuple(map(sum, zip(*step, strict=True))) for step in steps]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({"kind": OwnSampler}, [1] * 6),  # 4, 4, 4 and 1 rows an epoch, of a data set of 10
        ({"kind": OwnBatches}, [1] * 6),
        ({"kind": OwnBatches, "gradient_accumulation_steps": 3, "max_steps": 4}, [3, 1] * 2),
        ({"dataset": Stream()}, [1] * 6),
        # A batch that is left at the end of an epoch adds to the gradient of the step behind it.
        ({"dataset": Stream(), "gradient_accumulation_steps": 2, "max_steps": 3}, [2, 3, 3]),
        ({"train_sampling_strategy": "group_by_length"}, [1] * 6),
        ({"dataloader_drop_last": True}, [1] * 6),
        ({"include_num_input_tokens_seen": "all"}, [1] * 6),  # the trainer's own count has padding
        ({"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2}, [1] * 2),
    ],
)
def test_the_record_has_what_was_trained_on(tmp_path, changes, sizes):
    trainer = make(tmp_path, **changes)
    seen = seen_by(trainer.model)
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    steps, faults = recorded(tmp_path / "run")
    assert steps == sums(seen, sizes)
    assert not faults
    assert "training_step" not in trainer.__dict__


def test_a_step_over_the_end_of_a_stream_begins_once(tmp_path):
    """Else its device would count as held twice, and its energy be halved from there on."""
    config = plain_config(tmp_path / "run")
    trainer = make(tmp_path, dataset=Stream(), gradient_accumulation_steps=2, max_steps=3)
    trainer.add_callback(EcorlCallback(config))
    trainer.train()
    with contextlib.closing(LedgerReader(tmp_path / "run")) as reader:
        assert len(reader.executions()) == len(reader.placements()) == 3


class Cut(Exception):
    """Ends a training as an error of the user's code would."""


class CutAtOne(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        raise Cut


def test_a_resume_inside_an_epoch_counts_no_batch_that_it_skips(tmp_path):
    changes = {
        "max_steps": 3, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 1,
    }  # fmt: skip
    config = plain_config(tmp_path / "run")
    first, again = (make(tmp_path, OwnBatches, **changes) for _ in range(2))
    attach(first, config)
    first.add_callback(CutAtOne())
    with pytest.raises(Cut):
        first.train()
    seen = seen_by(again.model)
    again.add_callback(EcorlCallback(config))
    again.train(resume_from_checkpoint=True)
    assert [rows for rows, _ in seen] == [2, 3, 1, 4]
    steps, _ = recorded(tmp_path / "run")
    assert [rows for rows, _ in steps] == [5, 5, 5]
    assert steps[1:] == sums(seen, [2, 2])


def test_rows_that_a_batch_hides_are_missing_and_said(tmp_path, caplog):
    class Pairs(Trainer):
        """Trains on tuples."""

        def compute_loss(self, model, inputs, *args, **kwargs):
            named = dict(zip(("input_ids", "labels"), inputs, strict=True))
            return super().compute_loss(model, named, *args, **kwargs)

    trainer = make(tmp_path, Pairs, collator=lambda rows: tuple(collate(rows).values()))
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    steps, faults = recorded(tmp_path / "run")
    assert steps == [(0, 0)] * 6
    told = "rows and tokens of a batch are not known: it is a tuple, not a mapping of tensors"
    assert [(f.kind, f.detail) for f in faults] == [("NotCounted", told)]
    assert caplog.text.count(told) == 1


# ---------------------------------------------------------------- TRL's trainers


LENGTHS = [3, 7, 2, 9, 4, 4, 8, 5, 6, 2]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"padding_free": True, "max_length": None},
        {"padding_free": True, "max_length": None, "pad_to_multiple_of": 16},
        {"packing": True, "max_length": 12},
    ],
)
def test_packed_rows_count_as_the_sequences_in_them(tmp_path, tiny, changes):
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(1)
    once = {"max_steps": -1, "num_train_epochs": 1, "gradient_checkpointing": False, "bf16": False}
    trainer = SFTTrainer(
        model=LlamaForCausalLM(LlamaConfig(**SHAPE)),
        args=settings(tmp_path, SFTConfig, **once | changes),
        train_dataset=Dataset.from_list([{"input_ids": [7] * n} for n in LENGTHS]),
        processing_class=AutoTokenizer.from_pretrained(tiny.policy),
    )
    attach(trainer, plain_config(tmp_path / "run"))
    trainer.train()
    steps, faults = recorded(tmp_path / "run")
    assert tuple(map(sum, zip(*steps, strict=True))) == (len(LENGTHS), sum(LENGTHS))
    assert not faults
