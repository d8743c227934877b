"""How long an execution held its devices: the times at which its clock stood are not its own."""

from hypothesis import given
from hypothesis import strategies as st

from ecorl.runtime.handles import Span, held_s

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda s: Span(s[0], s[0] + s[1])),
    min_size=1, max_size=8,
)  # fmt: skip


def test_gaps_are_left_out_and_overlaps_count_once():
    spans = [Span(10.0, 12.0), Span(0.0, 4.0), Span(3.0, 5.0), Span(3.5, 4.0)]
    assert held_s(spans) == 7.0


@given(SPANS)
def test_it_is_the_number_of_seconds_in_at_least_one_span(spans):
    seconds = {t for s in spans for t in range(int(s.t_start_s), int(s.t_end_s))}
    assert held_s(spans) == len(seconds)
