"""A graph's trial in a child process: what it compares, what is kept."""

import pytest

from runtime.errors import ProviderError
from runtime.providers import Place
from runtime.trial import BOUND, Trial, judge

PLACE = Place("OpenVINO")


def trial(largest_difference: float, spread: float = 10.0) -> Trial:
    return Trial(largest_difference, spread, 27, 26, 1.5)


def test_an_answer_is_right_up_to_a_share_of_the_spread() -> None:
    judge(trial(BOUND * 10), PLACE, "The target's graph portable-fp32")
    message = (
        r"^The target's graph portable-fp32 on OpenVINO on CPU answers wrongly: the largest "
        r"difference is 1\.2 of 10, and 26 of 27 rows choose the same token, compared with the "
        "CPU. Take another execution provider or precision, or another version of the device's "
        "driver.$"
    )
    with pytest.raises(ProviderError, match=message):
        judge(trial(1.2), PLACE, "The target's graph portable-fp32")
    for odd in (trial(float("inf")), trial(float("nan")), trial(0, spread=0), trial(1, -1)):
        with pytest.raises(ProviderError, match="gives logits that are no numbers"):
            judge(odd, PLACE, "The target's graph portable-fp32")
