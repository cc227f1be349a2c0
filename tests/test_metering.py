"""Tests of runtime/metering.py: which trees are refused, and which parts get a meter."""

import pytest
from jinja2 import TemplateError, nodes

from runtime.metering import MOST_NODES, metered
from runtime.sandbox import Sandbox


def meters(source: str) -> list[str]:
    tree = metered(Sandbox().parse(source))
    return sorted(node.name for node in tree.find_all(nodes.Filter) if node.name[0] == "_")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("text", ["_read"]),
        ("{{ a }}{{ b.c }}", ["_read", "_read"]),
        ("{% for a in b %}{% endfor %}", ["_counted"]),
        ("{% if a == b %}{% endif %}", ["_compared", "_compared"]),
        ("{% if a < b < c %}{% endif %}", ["_compared"] * 3),
        ("{% set a = b ~ c %}", ["_concatenated"]),
        ("{% set a = [1, 2] %}", ["_held"]),
        ("{% set a = (1, 2) %}", ["_held"]),
        ("{% set a, b = c %}", []),
        ("{% for a, b in c %}{% endfor %}", ["_counted"]),
        ("{% set a = {b: 1, 'c': 2} %}", ["_held", "_read", "_read"]),
        ("{% set a = b[1:] %}{% set c = b[1] %}", ["_held"]),
        ("{% macro f(a=[1]) %}x{% endmacro %}", ["_held", "_read"]),
        ("{% filter upper %}x{% endfilter %}", ["_read"]),
    ],
)
def test_meters(source: str, names: list[str]) -> None:
    assert meters(source) == names


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% autoescape true %}{% endautoescape %}",
        "{% if a %}{% include 'x' %}{% endif %}",
    ],
)
def test_other_files_are_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="it may not use"):
        meters(source)


def test_a_tree_too_large_is_refused() -> None:
    assert len(meters("{{ a }}" * 99)) == 99
    with pytest.raises(TemplateError, match="parts"):
        meters("{{ a }}" * (MOST_NODES + 1))
