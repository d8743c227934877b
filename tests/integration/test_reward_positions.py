"""Every way to a reward reads it where transformers' own class reads it for that checkpoint.

The rows are those in which the last token, the last attended one and the last that is no pad token
are not the same. Engines are told apart by what they read, not by their rounding: each row is one
whose rewards at other positions are far from the right one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.engines.fpga.engine import FpgaEngine
from ecorl.engines.fpga.validation import scoring
from ecorl.engines.fpga.validation.scoring import TokenPair
from ecorl.engines.lanes.threaded import EngineSpec, ThreadedEngine
from ecorl.engines.models.checkpoint import load_decoder
from ecorl.engines.protocol import ScoreBatch, reward_position
from ecorl.engines.torch.engine import TorchEngine
from ecorl.errors import CheckpointError
from ecorl.records import Stage
from ecorl.runtime.processes.head import joined
from tests.conftest import demand
from tests.fakes.blocking_engine import HostLimits, IsolatedEngine
from tests.fakes.openrlhf import micro_batch
from tests.fakes.roll_batches import roll_on_path

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

VOCAB, PAD, EOS = 64, 0, 2
PADS = {"own": PAD, "eos": EOS, "none": None, "minus": -1}
"""Pad tokens of the checkpoints: one of its own, the end of text, none, and -1 for none."""

FAR = 0.2
"""Least distance of the right reward to all others of its row. The INT8 engine errs by less than
half of it on this model; a float engine by 1e-5."""


def token(i: int) -> str:
    return f"<{i}>"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """One model saved with each pad token, with a tokenizer in which each id is a word."""
    demand("gxx")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("positions")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=EOS, initializer_range=0.12, num_labels=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = transformers.LlamaForSequenceClassification(config)
    words = Tokenizer(models.WordLevel({token(i): i for i in range(VOCAB)}, unk_token=token(3)))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for name, pad in PADS.items():
        model.config.pad_token_id = pad
        model.save_pretrained(folder / name)
        words.save(str(folder / name / "tokenizer.json"))
    return folder


class Truth:
    """What transformers' own class answers, and what it would have answered elsewhere."""

    def __init__(self, folder: Path) -> None:
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        self.model = load(folder, dtype=torch.float32).eval()

    def rewards(self, rows):
        """One row at a time, without padding."""
        with torch.inference_mode():
            return np.array([self.model(torch.tensor(row)[None]).logits[0, 0] for row in rows])

    def everywhere(self, row):
        """The reward at each position of a row."""
        with torch.inference_mode():
            hidden = self.model.model(torch.tensor(row)[None]).last_hidden_state
            return self.model.score(hidden)[0, :, 0].numpy()

    def is_far(self, row, right) -> bool:
        gaps = np.abs(self.everywhere(row) - right)
        return bool((gaps[gaps > 1e-4] > FAR).all())


def shapes_of(words):
    """Rows of some words in which it matters where a reward is read."""
    w, e, p = list(words), EOS, PAD
    return [
        [*w, e],  # as it was generated
        w,  # truncated: no end of text is left
        [*w, e, e, e],  # several trailing pads, where that is the pad token
        [*w, p],
        [*w, e, p, p],
        [p, p, *w, e],
        [e, e, *w, e],
        [*w[:2], e, *w[2:], e],  # two turns
        [*w[:2], p, *w[2:]],
        w[:1],
        [e] * 4,  # nothing but the end of text
        [p] * 3,
        [e],
        [p],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def truths(root):
    return {name: Truth(root / name) for name in PADS}


@pytest.fixture(scope="module")
def cases(truths):
    """For each checkpoint its rows, one of each shape, and their right rewards."""
    found = {}
    for name, truth in truths.items():
        rows = []
        for shape in range(len(shapes_of(range(5)))):
            for seed in range(400):
                words = np.random.default_rng(seed).integers(4, VOCAB, 5).tolist()
                row = np.array(shapes_of(words)[shape], np.int64)
                if truth.is_far(row, truth.rewards([row])[0]):
                    rows.append(row)
                    break
        assert len(rows) == len(shapes_of(range(5))), "each shape has a row that tells"
        found[name] = rows, truth.rewards(rows)
    return found


def batch_of(rows, **fields) -> ScoreBatch:
    return ScoreBatch(
        tuple(f"r{i}" for i in range(len(rows))), tuple(rows), (0,) * len(rows), **fields
    )


def scored(engine, rows, **fields):
    with contextlib.closing(engine):
        return engine.score(batch_of(rows, **fields)).values


def isolated(kind, folder, rows):
    device = "host_cpu" if kind == "torch" else "u55c"
    spec = EngineSpec(kind, kind, folder, Stage.REWARD, device)
    return scored(IsolatedEngine(spec, HostLimits(start_s=240.0, call_s=60.0, close_s=5.0)), rows)


def sharing(folder, rows):
    """Rows of one prompt, which is computed once; what is read may lie in it."""
    engine = FpgaEngine(folder, Stage.REWARD)
    values = []
    with contextlib.closing(engine):
        for row in rows:
            n = min(1, len(row) - 1)
            both = ScoreBatch(("a", "b"), (row, np.append(row, 9)), (n, n + 1))
            values.append(engine.score(both).values[0])
    return np.array(values)


def asked(folder, rows, path, body, key):
    """The service with the kernels, asked over its own HTTP application."""
    from ecorl.cli.fpga.serve import _loaded
    from ecorl.serve.app import ScoringService
    from ecorl.serve.settings import ServeSettings

    engine, served = _loaded(folder, "u55c", {"threads": 1}, None)

    async def ask():
        service = ScoringService(ThreadedEngine(engine), served, ServeSettings())
        transport = httpx2.ASGITransport(service.app)
        async with (
            service.app.router.lifespan_context(service.app),
            httpx2.AsyncClient(transport=transport, base_url="http://here") as client,
        ):
            answer = await client.post(path, json=body(rows))
            return answer.status_code, answer.json()

    with contextlib.closing(engine):
        status, told = asyncio.run(ask())
    assert status == 200, told
    return np.array(key(told), np.float32)


def by_ids(folder, rows):
    def body(rows):
        return {"rows": [{"token_ids": row.tolist()} for row in rows]}

    return asked(folder, rows, "/v1/rewards", body, lambda t: [r["reward"] for r in t["rows"]])


def by_texts(folder, rows):
    def body(rows):
        return {"query": [" ".join(map(token, row)) for row in rows]}

    return asked(folder, rows, "/openrlhf", body, lambda told: told["rewards"])


def texts_of(rows) -> scoring.PairTexts:
    return scoring.PairTexts(tuple(rows), tuple(map(str, range(len(rows)))), np.zeros((0, 2)))


def validated_float(folder, rows):
    return scoring.exact_scores(folder, texts_of(rows), 1, lambda *_: None)


def validated_int8(folder, rows):
    engine = FpgaEngine(folder, Stage.REWARD)
    with contextlib.closing(engine):
        return scoring._engine_scores(engine, texts_of(rows), lambda *_: None, "INT8")


def validated_decoder(folder, rows):
    """By the path of INT4, with eight bits."""
    from ecorl.engines.fpga.csim.decoder import Int8Decoder
    from ecorl.engines.fpga.csim.library import CsimLibrary
    from ecorl.engines.models.equalise import equalised

    decoder = Int8Decoder(equalised(load_decoder(folder)), CsimLibrary.load("fast"))
    every = np.ones(len(rows), bool)
    return scoring.decoder_scores(decoder, texts_of(rows), every, lambda *_: None, "INT8")


FLOAT = {
    "torch": lambda folder, rows: scored(TorchEngine(folder, Stage.REWARD), rows),
    "torch in micro-batches": lambda folder, rows: scored(
        TorchEngine(folder, Stage.REWARD), rows, micro_batch=3
    ),
    "torch packed": lambda folder, rows: scored(
        TorchEngine(folder, Stage.REWARD), rows, token_budget=16
    ),
    "validate's float": validated_float,
}
INT8 = {
    "INT8": lambda folder, rows: scored(FpgaEngine(folder, Stage.REWARD), rows),
    "INT8 with a shared prompt": sharing,
    "HTTP, token ids": by_ids,
    "HTTP, texts": by_texts,
    "validate's INT8": validated_int8,
    "validate's decoder": validated_decoder,
}
SLOW = {
    "torch in a process": (lambda *a: isolated("torch", *a), "gxx"),
    "INT8 in a process": (lambda *a: isolated("fpga", *a), "gxx"),
    "INT8, strict": (
        lambda folder, rows: scored(FpgaEngine(folder, Stage.REWARD, build="strict"), rows[:4]),
        "hls_headers",
    ),
}


def assert_right(values, right, way):
    assert values.dtype == np.float32
    atol = 1e-5 if way in FLOAT or way.startswith("torch") else FAR / 2
    np.testing.assert_allclose(values, right[: len(values)], rtol=0, atol=atol)


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("way", [*FLOAT, *INT8])
def test_each_engine_reads_what_transformers_reads(root, cases, way, name):
    rows, right = cases[name]
    assert_right((FLOAT | INT8)[way](root / name, rows), right, way)


@pytest.mark.parametrize("way", SLOW)
def test_engines_of_other_builds_and_processes_do_too(root, cases, way, require_tool):
    run, tool = SLOW[way]
    require_tool(tool)
    rows, right = cases["eos"]
    assert_right(run(root / "eos", rows), right, way)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["own", "eos"])
def test_padding_on_either_side_changes_nothing(root, cases, truths, name, side):
    """A padded batch, given to transformers as it is and to engines without its padding."""
    # Of a row of pad tokens alone transformers reads the first column, which may be padding.
    rows = [row for row in cases[name][0] if (row != PADS[name]).any()]
    width = max(map(len, rows))
    ids, mask = np.full((len(rows), width), PADS[name]), np.zeros((len(rows), width), int)
    for i, row in enumerate(rows):
        place = slice(width - len(row), None) if side == "left" else slice(len(row))
        ids[i, place], mask[i, place] = row, 1
    inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
    with torch.inference_mode():
        right = truths[name].model(**inputs).logits[:, 0].numpy()
    names, unpadded = tuple(map(str, range(len(rows)))), zip(ids, mask, strict=True)
    batch = ScoreBatch(names, tuple(row[real != 0] for row, real in unpadded), (0,) * len(rows))
    for engine, way in (
        (TorchEngine(root / name, Stage.REWARD), "torch"),
        (FpgaEngine(root / name, Stage.REWARD), "INT8"),
    ):
        with contextlib.closing(engine):
            assert_right(engine.score(batch).values, right, way)


class _Probe(transformers.modeling_layers.GenericForSequenceClassification, torch.nn.Module):
    """transformers' class over a model whose reward at a position is that position."""

    def __init__(self, pad):
        torch.nn.Module.__init__(self)
        text = SimpleNamespace(pad_token_id=pad)
        self.config = SimpleNamespace(get_text_config=lambda: text, return_dict=True)
        self.score = torch.nn.Identity()

    def model(self, ids, **_):
        places = torch.arange(ids.shape[1], dtype=torch.float32).expand(ids.shape)
        return SimpleNamespace(
            last_hidden_state=places[..., None], past_key_values=None, hidden_states=None,
            attentions=None,
        )  # fmt: skip


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.sampled_from([None, -1, 0, 2]))
def test_the_position_is_that_of_transformers_own_forward(row, pad):
    right = int(_Probe(pad).forward(torch.tensor([row])).logits[0, 0])
    assert reward_position(np.array(row), pad) == right


# ---------------------------------------------------------------- adapters


class Stub:
    """As much of a TRL trainer as its reward models need; the pad token is the tokenizer's."""

    def __init__(self, folder, pad, tokenizer_file):
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tokenizer_file), pad_token=token(pad), unk_token=token(3)
        )
        model = Truth(folder).model
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id  # as TRL does
        self.reward_funcs, self.reward_processing_classes = [model], [tokenizer]
        self.accelerator = SimpleNamespace(device="cpu")


@pytest.mark.parametrize("name", ["own", "eos", "none"])
@pytest.mark.parametrize("pad", [PAD, EOS])
def test_trl_s_rows_are_read_where_its_model_reads_them(root, cases, truths, name, pad):
    """The trainer's pad token counts, which may be another than that of the checkpoint."""
    demand("trl")
    from roll_adapters.trl.evaluate import engine_scores, float_scores
    from roll_adapters.trl.reward import RewardModelCall

    stub = Stub(root / name, pad, root / name / "tokenizer.json")
    call = RewardModelCall(stub, 0)
    rows = cases["eos" if pad == EOS else "own"][0]
    texts = [" ".join(map(token, row)) for row in rows]
    right = np.array(call.exact(texts, range(len(texts))))
    ids = tuple(str(i) for i in range(len(rows)))
    batch = call.batch(ids, texts, [1] * len(rows))
    parts = [stub.reward_funcs[0], stub.reward_processing_classes[0], texts]
    np.testing.assert_allclose(float_scores(*parts), right, rtol=0, atol=1e-5)
    for engine, way in (
        (TorchEngine(root / name, Stage.REWARD), "torch"),
        (FpgaEngine(root / name, Stage.REWARD), "INT8"),
    ):
        with contextlib.closing(engine):
            assert_right(engine.score(batch).values, right, way)
            assert_right(engine.score(joined([batch, batch])).values, np.tile(right, 2), way)
            assert_right(engine_scores(engine, *parts), right, way)


def test_openrlhf_s_rows_are_read_at_their_last_attended_token(root, cases, truths):
    """As its own class does, also where that is the checkpoint's pad token."""
    from roll_adapters.openrlhf.rows import RolloutRows

    rows = [row.tolist() for row in cases["eos"][0] if len(row) > 2]
    right = np.array([truths["eos"].everywhere(row)[-1] for row in rows])
    other = truths["eos"].rewards(rows)
    assert np.count_nonzero(np.abs(right - other) > FAR) >= 4
    acted = [(row, [False] * (len(row) - 2) + [True]) for row in rows]
    parts = [
        micro_batch(acted[:3], [2, 0, 1]),
        micro_batch(acted[3:], range(3, len(rows)), n_padding=2),
    ]
    batch = RolloutRows(parts, [str(i) for i in range(len(rows))]).batch(Stage.REWARD, 1.0)
    for engine, way in (
        (TorchEngine(root / "eos", Stage.REWARD), "torch"),
        (FpgaEngine(root / "eos", Stage.REWARD), "INT8"),
    ):
        with contextlib.closing(engine):
            assert_right(engine.score(batch).values, right, way)
            assert_right(engine.score(batch.rows(range(4))).values, right, way)
            sent = pickle.loads(pickle.dumps(batch))
            assert_right(engine.score(sent).values, right, way)
            assert_right(engine.score(replace(batch, token_budget=20)).values, right, way)


def test_roll_s_worker_rewards_what_transformers_reads(root, cases, monkeypatch):
    pytest.importorskip("ray")
    rows, right = cases["eos"]
    ids = np.zeros((len(rows), 16), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    tensors = {"input_ids": ids, "attention_mask": mask, "response_mask": mask, "responses": ids}
    data = SimpleNamespace(
        batch={key: torch.tensor(value) for key, value in tensors.items()}, meta_info={}
    )
    with roll_on_path(monkeypatch) as load:
        settings = SimpleNamespace(name="reward-math", infer_batch_size=4)
        worker = load("roll_adapters.roll.workers").RewardModelWorker(settings)
        worker._engine = TorchEngine(root / "eos", Stage.REWARD)
        answer = asyncio.run(worker.compute_rewards(data))
    assert_right(answer.batch["response_level_rewards"].numpy(), right, "torch")


# ---------------------------------------------------------------- the INT8 engine's own


def test_what_is_modelled_is_what_is_read(root):
    """Trailing pads are computed as tokens, and the reward is one result all the same."""
    row = np.array([5, 9, 40, EOS, EOS])
    with contextlib.closing(FpgaEngine(root / "eos", Stage.REWARD)) as engine:
        report = engine.score(batch_of([row])).report
        alone = engine.modelled(batch_of([row]), [np.array([2])])
        assert report.device_time_s == alone.time_s == engine.modelled(batch_of([row])).time_s
        plain = engine.score(batch_of([row[:3]])).values
        assert engine.score(batch_of([row])).values.tobytes() == plain.tobytes()


def test_a_refreshed_model_brings_its_own_pad_token(root, cases):
    rows, right = cases["eos"]
    with contextlib.closing(FpgaEngine(root / "own", Stage.REWARD)) as engine:
        engine.load_weights(root / "eos")
        assert_right(engine.score(batch_of(rows)).values, right, "INT8")


@pytest.mark.parametrize("bad", ["2", 2.0, [2], True])
def test_a_pad_token_that_is_none_is_refused_as_transformers_does(root, tmp_path, bad):
    for file in (root / "own").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": bad}))
    with pytest.raises(CheckpointError, match="pad_token_id"):
        load_decoder(tmp_path)
    with pytest.raises(CheckpointError, match="pad_token_id"):
        TorchEngine(tmp_path, Stage.REWARD)


def test_a_study_compares_both_at_the_token_that_transformers_reads(root, cases):
    """Pairs that transformers orders otherwise than the last tokens would."""
    rows, right = cases["eos"]
    pairs = [TokenPair(rows[i], rows[j], 1) for i in range(4) for j in range(4) if i < j]
    found = scoring.study(root / "eos", pairs)
    order = scoring.PairTexts.of(pairs)
    exact = np.array([right[[r.tobytes() for r in rows].index(t.tobytes())] for t in order.rows])
    assert found.score_std == pytest.approx(float(np.std(exact[order.index])), abs=1e-5)
    assert found.of("INT8").shift_mean < FAR / 2
