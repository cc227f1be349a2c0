"""Tests of runtime/sandbox.py: templates that attack get an error within what they may spend."""

from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from runtime.metering import metered
from runtime.sandbox import Sandbox

UNITS = 300_000
TWICE = "{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% set ns.y = %s %%}{%% endfor %%}"
DAG = "{% set ns = namespace(x=[1], y=[1]) %}" + TWICE % ("[ns.x, ns.x]", "[ns.y, ns.y]")
PAIRS = "{% set ns = namespace(x=(1,), y=(1,)) %}" + TWICE % ("(ns.x, ns.x)", "(ns.y, ns.y)")
DEEP = (
    "{% set ns = namespace(x=(1,)) %}{% for i in range(999) %}{% set ns.x = (ns.x,) %}{% endfor %}"
)
BIG = "{% set big = 'a' * 1000 * 4 %}"
GROWING = (
    "{%% set ns = namespace(x=%s) %%}{%% for i in range(99) %%}{%% set ns.x = %s %%}{%% endfor %%}"
)
LOOP = "{%% for i in range(99999) %%}{%% for j in range(99999) %%}%s{%% endfor %%}{%% endfor %%}"


def render(source: str, units: int = UNITS) -> str:
    sandbox = Sandbox()
    sandbox.allowance.refill(units)
    template = sandbox.from_string(metered(sandbox.parse(source)))
    sandbox.allowance.refill(units)
    return template.render(messages=[{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ 'abc'.center(7) }}|{{ '%-5s|%03d' % ('a', 7) }}", "  abc  |a    |007"),
        ("{{ '{:>4}{}'.format('a', 1) }}{{ '%s' | format('x') }}", "   a1x"),
        ("{{ [3, 1, 2] | sort | join('-') }}{{ range(4) | sum }}", "1-2-36"),
        ("{{ 'a\nb' | indent(2) }}{{ 'aXb'.replace('X', '--') }}", "a\n  ba--b"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}", "[[1, 2], [3, 0]]"),
        ("{{ {'b': 1, 'a': 2} | dictsort }}", "[('a', 2), ('b', 1)]"),
        ("{{ ['a', 'a'] | unique | list }}{{ 'abc' | reverse }}", "['a']cba"),
        ("{{ messages | selectattr('role', '==', 'user') | map(attribute='content') | join }}",
         "hi"),
        ("{{ 'x'.join(['a', 'b'] | map('upper')) }}{{ 2.5 | round(0, 'floor') }}", "AxB2.0"),
        ("{{ '<' | e }}{{ '<' | safe }}{{ 5 | string ~ 6 }}", "<<56"),
        ("{% for x in [1, [2]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}",
         "12"),
        ("{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ dict(a=1).items() | list }}",
         "12[('a', 1)]"),
        ("{% filter upper %}a{% endfilter %}", "A"),
        ("{% macro f(x) %}{{ caller(x) }}{% endmacro %}{% call(y) f(3) %}[{{ y }}]{% endcall %}",
         "[3]"),
        ("{% for i in range(3) %}{{ loop.changed(i) }}{{ 'a'.strip('b') }}{% endfor %}",
         "Truea" * 3),
        ("{{ {'a': [1, {'b': none}]} | tojson(indent=1) | length }}", "40"),
    ],
)  # fmt: skip
def test_what_templates_need_is_there(source: str, rendered: str) -> None:
    assert render(source) == rendered


@pytest.mark.parametrize(
    "body",
    [
        "", "x", "{{ i }}", "{% if i == j %}{% endif %}", "{{ joiner()() }}", "{{ 'x' | trim }}",
        "{{ 'x'.strip() }}", "{% set a = {'b': 1} %}", "{% set a = i + 1 %}",
        "{% set x %}y{% endset %}", "{{ [1, 2] | map('string') | list | length }}",
    ],
)  # fmt: skip
def test_loops_end(body: str) -> None:
    with pytest.raises(SecurityError, match="more than 300,000 steps"):
        render(LOOP % body)


@pytest.mark.parametrize(
    "use",
    [
        "{{ ns.x }}", "{{ ns.x ~ '' }}", "{{ ns.x | tojson }}", "{{ ns.x | string }}",
        "{{ ns.x == ns.y }}", "{{ ns.x is eq(ns.y) }}", "{{ ns.x in [ns.y] }}",
        "{{ {ns.x: 1} }}", "{{ {}.get(ns.x) }}", "{{ [ns.x] | unique | list }}",
        "{{ '%s' % (ns.x,) }}", "{{ '{}'.format(ns.x) }}", "{{ '%s' | format(ns.x) }}",
        "{{ [ns.x, ns.y] | sort }}", "{{ [ns.x, ns.y] | min }}", "{{ [ns.x] | join }}",
        "{{ [[ns.x, 1]] | map('first') | join }}", "{{ ''.join([ns.x] | map('string')) }}",
        "{{ [ns.x].index(ns.y) }}", "{{ [ns.x].count(ns.y) }}", "{{ dict([(ns.x, 1)]) }}",
        "{{ raise_exception(ns.x) }}", "{{ [{'a': ns.x}] | groupby('a') | list }}",
        "{% for k in [ns.x, ns.y] %}{{ loop.changed(k) }}{% endfor %}",
        "{{ [ns.x, ns.y] | select('eq', ns.y) | list }}", "{{ {'a': ns.x} | dictsort }}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("made", [DAG, PAIRS, DEEP])
def test_lists_that_double_are_never_written_out(made: str, use: str) -> None:
    with pytest.raises((SecurityError, TypeError)):
        render(
            made.replace("ns.x,", "ns.x,") + use.replace("ns.y", "ns.x" if made == DEEP else "ns.y")
        )


@pytest.mark.parametrize(
    "source",
    [
        GROWING % ("'aa'", "ns.x ~ ns.x"), GROWING % ("'aa'", "ns.x + ns.x"),
        GROWING % ("[1]", "ns.x + ns.x"), GROWING % ("3", "ns.x * ns.x"),
        GROWING % ("'a '", "ns.x.split(' ') | join(' a ')"),
        "{% macro f() %}{{ f(*(varargs + varargs)) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 30 + "x" + "{% endcall %}" * 30,
        "{% for i in range(999) %}" + "x" * 999 + "{% endfor %}",
        "{% for i in range(999) %}{% set x = [" + "0, " * 999 + "] %}{% endfor %}",
        "{% for x in [range(99999)] * 99 recursive %}"
        "{% if loop.depth0 == 0 %}{{ loop(x) }}{% endif %}{% endfor %}",
        "{{ 3 ** 9999999999 }}", "{{ (-3) ** 99999999 }}", "{{ 0x" + "f" * 2000 + " * 2 }}",
        "{{ 5 | round(-999999999) }}", "{{ (1).to_bytes(1000000000) }}",
        "{{ 'a'.center(1000000000) }}", "{{ 'a' | center(1000000000) }}",
        "{{ ('\t' * 9999).expandtabs(9999) }}", "{{ ('\t' * 9999).expandtabs(tabsize=9999) }}",
        "{% for i in range(999) %}{{ 'a'.zfill(9999) }}{% endfor %}",
        "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ '{x:999999999}'.format_map({'x': 1}) }}", "{{ '{0.__class__}'.format(1) }}",
        "{{ '%1000000000d' | format(1) }}", "{{ 'a'.ljust }}",
        BIG + "{{ ('%s' * 999) % ((big,) * 999) }}", BIG + "{{ ('{0}' * 999).format(big) }}",
        BIG + "{{ range(9999) | join(big) }}", BIG + "{{ range(9999) | join(d=big) }}",
        BIG + "{{ big.join(big) }}", BIG + "{{ big.replace('a', big) }}",
        BIG + "{{ big | replace('', big) }}", BIG + "{{ ('\n' * 9999) | indent(big) }}",
        BIG + "{{ range(999) | list | tojson(separators=(big, big)) }}",
        "{{ range(9999) | list | tojson(indent=9999) }}", "{{ [1] | batch(10**9, 0) | list }}",
        "{{ (range(9999) | batch(1) | list) | sum(start=[]) }}", "{{ ['a', 'b'] | sum }}",
        BIG + "{{ big.rfind('b' + big) }}", BIG + "{{ big.strip('b' * 4000) }}",
        BIG + "{{ big | trim('b' * 4000) }}", BIG + "{{ big.rsplit(sep='b' * 4000) }}",
        "{{ strftime_now('%c' * 999) }}", "{{ ('f' * 9999) | int(0, 16) }}",
        "{{ ('a' | attr('center'))(999999999) }}", "{{ dict.fromkeys(range(9)) }}",
        "{{ namespace(x=1) }}", "{{ 'a'.encode() }}", "{{ 'a'.translate({}) }}",
        "{{ raise_exception }}",
        "{{ 'a' | urlize }}", "{{ 'a' | xmlattr }}", "{{ [1] | random }}",
        "{{ 'a' | wordwrap(9) }}",
    ],
)  # fmt: skip
def test_attacks_end_in_an_error(source: str) -> None:
    with pytest.raises(Exception) as error:  # noqa: PT011 - whatever the sandbox raises
        render(source)
    assert not isinstance(error.value, MemoryError)


def test_what_one_rendering_may_spend_is_exact() -> None:
    sandbox = Sandbox()
    template: Any = sandbox.from_string(metered(sandbox.parse("{{ 'abc' }}")))
    sandbox.allowance.refill(23)
    assert template.render() == "abc"
    sandbox.allowance.refill(22)
    with pytest.raises(SecurityError):
        template.render()
