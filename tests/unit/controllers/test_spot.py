"""The width follows the price, and prices are read or made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ecorl.carbon.series import Series
from ecorl.control import Gear, Why
from ecorl.controllers.problem.table import TrainingAction
from ecorl.controllers.replay.knowledge import Knowledge
from ecorl.controllers.replay.playing import play
from ecorl.controllers.rules.prices import read_prices
from ecorl.controllers.rules.reactive import SpotOnly
from ecorl.errors import DataError
from tests.fakes.training_problems import HOUR_S, NOW_S, problem, seen

# -------------------------------------------------------------------- spot


def based(p, base_price=2.0, n=10**9):
    """The rule after so many prices that one more moves their mean by nothing that counts."""
    spot = SpotOnly(p)
    spot.recall({"n_seen": n, "sum_seen": base_price * n})
    return spot


@pytest.mark.parametrize(
    ("price", "width", "why"),
    [
        (2.0, 8, Why.PRICED),
        (0.5, 8, Why.PRICED),
        (2.1, 4, Why.PRICED),
        (4.0, 4, Why.PRICED),
        (9.0, 1, Why.PRICED),
        (100.0, 1, Why.PRICED),
        (0.0, 8, Why.PRICED),
        (-1.0, 8, Why.PRICED),
        (None, 8, Why.UNKNOWN),
        (float("nan"), 8, Why.UNKNOWN),
    ],
)
def test_the_width_follows_the_price(price, width, why):
    p = problem(share=0.01)
    found = based(p).decide(NOW_S, seen(p, spot_price=price))
    assert (found.width, found.gear, found.why) == (width, Gear.BF16, why)


@given(prices=st.lists(st.floats(0.01, 50.0), min_size=2, max_size=2), share=st.floats(0.01, 0.99))
def test_a_higher_price_never_takes_more_workers_nor_too_few(prices, share):
    p = problem(share=share)
    cheap, dear = (
        based(p).decide(NOW_S, seen(p, spot_price=price)).width for price in sorted(prices)
    )
    assert cheap >= dear
    assert p.rate(TrainingAction(dear, Gear.BF16)) * 48 * HOUR_S >= p.tokens * (1 - 1e-8)


def test_the_base_is_the_mean_of_the_prices_seen(snapshot):
    p = problem(share=0.01)
    spot = SpotOnly(p)
    assert spot.decide(NOW_S, seen(p, spot_price=3.0)).width == 8
    assert spot.decide(NOW_S, seen(p, spot_price=None)).width == 8
    assert spot.decide(NOW_S, seen(p, spot_price=9.0)).width == 4
    assert spot.memory() == {"n_seen": 2, "sum_seen": 12.0}
    resumed = SpotOnly(p)
    resumed.recall(spot.memory())
    reason = resumed.decide(NOW_S, seen(p, spot_price=5.0)).reason
    assert "5.667" in reason
    snapshot(reason)


# -------------------------------------------------------------------- prices


def written(tmp_path, text):
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_prices_are_read_with_gaps_as_missing(tmp_path):
    rows = ["2024-01-08T00:00Z,2.5", "2024-01-08T01:00Z,0", "2024-01-08T03:00Z,3"]
    found = read_prices(written(tmp_path, "\n".join(["time,usd_per_h", *rows])))
    assert (found.start_s, found.step_s) == (NOW_S, HOUR_S)
    assert found.values.tolist()[:2] == [2.5, 0.0]
    assert np.isnan(found.values[2])
    assert found.at(NOW_S + 2.5 * HOUR_S) is None
    assert found.at(NOW_S + 3.5 * HOUR_S) == 3.0


def test_what_is_put_right_is_told_in_the_log(tmp_path, caplog, snapshot):
    path = written(tmp_path, "2024-01-08T01:00,2\n2024-01-08T00:00,1\n2024-01-08T02:00,3\n")
    assert read_prices(path).values.tolist() == [1.0, 2.0, 3.0]
    snapshot("\n".join(caplog.messages))


def test_what_is_no_price_is_refused_with_line_and_column(tmp_path, snapshot):
    messages = []
    for row, where in (
        ("2024-01-08T01:00Z,-2", "price = '-2'"),
        ("2024-01-08T01:00Z,nan", "price = 'nan'"),
        ("2024-01-08T01:00Z,", "price = ''"),
        ("2024-01-08T01:00Z,inf", "price = 'inf'"),
        ("2024-01-08T01:00Z,cheap", "price = 'cheap'"),
        ("yesterday,2", "time = 'yesterday'"),
        ("2024-01-08T01:00Z,2,3", "3 cells"),
    ):
        path = written(tmp_path, f"time,price\n2024-01-08T00:00Z,1\n{row}\n")
        with pytest.raises(DataError, match=rf"prices\.csv:3: {where}") as caught:
            read_prices(path)
        messages.append(str(caught.value))
        assert "\n" not in messages[-1]
    snapshot("\n".join(messages))


def test_a_file_of_other_columns_is_refused(tmp_path):
    path = written(tmp_path, "time,zone,price\n2024-01-08T00:00Z,a,1\n")
    with pytest.raises(DataError, match="3 columns"):
        read_prices(path)


def test_a_price_that_is_missing_in_a_series_is_an_unknown_one():
    p = replace(problem(share=0.3), deadline_s=NOW_S + 24 * HOUR_S)
    truth = Series(NOW_S, HOUR_S, np.full(24, 300.0))
    spot = Series(NOW_S, HOUR_S, np.full(24, np.nan))
    choices = []
    play(
        SpotOnly(p),
        p,
        Knowledge(truth),
        spot=spot,
        watch=lambda _now_s, found, _progress: choices.append(found.why),
    )
    assert set(choices) == {Why.UNKNOWN}
