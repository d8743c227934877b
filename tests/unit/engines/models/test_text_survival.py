"""Which tokenizers a policy's ids survive as text."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from ecorl.engines.models.text_tokenizer import survives_text
from ecorl.errors import CheckpointError

TEXT = ["The policy writes a text, and the reward model reads it: 3 + 4 = 7. Übrigens!"] * 5


def byte_level(corpus=TEXT, size=300, special=("<eos>",)):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        corpus,
        BpeTrainer(
            vocab_size=size,
            special_tokens=list(special),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return made


def by_pieces():
    """As SentencePiece: a mark for a space at the start of a word, characters and no bytes."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    special = ["<eos>", "<unk>"]
    made.train_from_iterator(
        TEXT, BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    )
    return made


@pytest.fixture
def save(tmp_path):
    def saved(name, tokenizer):
        folder = tmp_path / name
        wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
        wrapped.save_pretrained(folder)
        return folder

    return saved


def test_the_same_tokenizer_and_what_only_changes_added_tokens(save):
    policy = save("policy", byte_level())
    assert survives_text(policy, policy, ["Any text, zoë & 漢字", [5, 9, 300]]) is None
    other = byte_level()
    other.enable_truncation(4)
    other.enable_padding(length=7)
    eos = other.token_to_id("<eos>")
    other.post_processor = processors.TemplateProcessing(
        "<eos> $A", special_tokens=[("<eos>", eos)]
    )
    assert survives_text(policy, save("reward", other), ["Any text", list(range(40, 70))]) is None


def test_ids_that_are_no_ones_canonical_ones_do_not_count(save):
    tokenizer = byte_level()
    policy = save("policy", tokenizer)
    ids = [tokenizer.token_to_id(c) for c in "the"]
    assert tokenizer.encode("the").ids != ids
    assert survives_text(policy, policy, [ids]) is None


def test_another_vocabulary(save, snapshot):
    policy = save("policy", byte_level())
    reward = save("reward", byte_level(["Quite another corpus with other words in it"] * 5))
    snapshot(survives_text(policy, reward))


def test_tokens_that_are_added_behind_the_policys_own_harm_nothing(save):
    policy = save("policy", byte_level())
    reward = byte_level()
    reward.add_special_tokens(["[REWARD]"])
    assert survives_text(policy, save("reward", reward)) is None


def test_a_special_token_that_the_reward_model_lacks(save, snapshot):
    policy = byte_level()
    policy.add_special_tokens(["<|im_end|>"])
    snapshot(survives_text(save("policy", policy), save("reward", byte_level())))


def test_bytes_against_pieces_both_ways(save, snapshot):
    one, other = save("bytes", byte_level()), save("pieces", by_pieces())
    snapshot(f"{survives_text(one, other)}\n{survives_text(other, one)}")


def test_other_merges_and_another_normaliser_with_the_same_vocabulary(save, snapshot):
    policy, reward = save("policy", byte_level()), byte_level()
    reward.normalizer = normalizers.Lowercase()
    made = json.loads(byte_level().to_str())
    made["model"]["merges"] = made["model"]["merges"][:5]
    fewer = save("fewer", Tokenizer.from_str(json.dumps(made)))
    snapshot(f"{survives_text(policy, save('lower', reward))}\n{survives_text(policy, fewer)}")


def test_a_sample_that_a_lossy_tokenizer_changes(save, snapshot):
    """Words are joined by spaces: a text without them comes back as another one."""
    made = Tokenizer(models.WordLevel({"<eos>": 0, "a": 1, "b": 2, "<unk>": 3}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    policy = save("policy", made)
    snapshot(survives_text(policy, policy, ["ab"]))


def test_a_tokenizer_that_is_not_there(save, tmp_path, snapshot):
    policy = save("policy", byte_level())
    snapshot(survives_text(policy, tmp_path))
    with pytest.raises(CheckpointError, match="tokenizer"):
        survives_text(tmp_path / "nowhere", policy)
