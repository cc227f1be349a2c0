"""Tests of scripts/equality/settings.py: nothing is left out, nothing is there twice."""

import itertools

import pytest

from scripts.equality.settings import FACTORS, Setting, by_pairs, every

TIED = ("strategy", "sources", "hypotheses", "after a miss", "shape", "early exit")


@pytest.fixture(scope="module")
def settings() -> list[Setting]:
    return every()


def test_all_settings_are_those_that_mean_something(settings: list[Setting]) -> None:
    others = 6 * 3 * 5  # drafts, draft tokens, samplings
    sources = 4 + 6  # two of six need an early exit
    hypotheses, misses, shapes = 3, 2, 4
    speculative, mirror = 2 * shapes, sources * hypotheses * misses * shapes
    planned = sources * hypotheses * (shapes - 1)
    assert len(settings) == others * (speculative + mirror + 2 * planned)
    assert len({*settings}) == len(settings)
    assert settings == every()


def test_the_few_have_every_pair_that_there_is(settings: list[Setting]) -> None:
    few = [setting.values() for setting in by_pairs()]
    values = [{name: each[name] for name in TIED} for each in few]
    together = {tuple(each.values()) for each in values}
    known = {tuple(setting.values()[name] for name in TIED) for setting in settings}
    assert together <= known
    for one, other in itertools.combinations(few[0], 2):
        found = {(each[one], each[other]) for each in few}
        if one in TIED and other in TIED:
            first, second = TIED.index(one), TIED.index(other)
            assert found == {(each[first], each[second]) for each in known}
        else:
            every_one, every_other = ({each[name] for each in few} for name in (one, other))
            assert found == {*itertools.product(every_one, every_other)}
    assert len(few) < 60


def test_a_share_has_something_of_everything(settings: list[Setting]) -> None:
    found = {value for setting in settings[::400] for value in setting.values().items()}
    assert len(found) == sum(map(len, FACTORS))
