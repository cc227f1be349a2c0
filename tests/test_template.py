"""Tests of runtime/template.py: the dialect of chat templates, and what one may not do."""

import pytest

from runtime.errors import TextError
from runtime.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a <b> & 'c' é"}, {"role": "assistant", "content": "d"}]


def render(source: str) -> str:
    return ChatTemplate(source, origin="here").render(MESSAGES, {"bos_token": "<s>"})


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>a <b> & 'c' é"),
        ("{% for m in messages %}\n  {% if true %}\n{{ m['role'] }},\n  {% endif %}\n{% endfor %}",
         "user,\nassistant,\n"),
        ("{% for m in messages %}{% if loop.last %}{{ loop.index }}{% endif %}{% endfor %}", "2"),
        ("{% for m in messages %}{{ loop.length }}{% break %}{% endfor %}", "2"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content[0] }}{% endfor %}", "a"),
        ("{% for x in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in messages[1].items() %}{{ k }}{% endfor %}", "rolecontent"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "a <b> & \'c\' é"}'),
        ("{{ add_generation_prompt }}{{ tools is none }}", "TrueTrue"),
        ("{% generation %}{{ messages[1].content }}{% endgeneration %}", "d"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 2 * 3 %}"
         "{% endfor %}{{ ns.n }}", "12"),
        ("{{ '-' * 3 }}{{ 2 ** 5 }}{{ 1.5 * 2 }}{{ 5000000 * 4000000 }}", "---323.020000000000000"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ unknown }}{{ messages[0].unknown }}", ""),
        ("{%- macro f(x) -%}[{{ x }}]{%- endmacro -%}{{ f(1) }}", "[1]"),
    ],
)  # fmt: skip
def test_dialect(source: str, rendered: str) -> None:
    assert render(source) == rendered


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * 10 ** 6 * 10 ** 6 }}",
        "{{ 10 ** 5 * [1, 2] * 100 }}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ 1 / 0 }}",
        "{{ unknown.name }}",
        "{{ messages | nosuchfilter }}",
        "{% for m in messages %}",
        "{% include 'other' %}",
        "{{ 'a' + 1 }}",
    ],
)
def test_failure_is_one_sentence(source: str) -> None:
    with pytest.raises(TextError, match=r"^The chat template of here failed: .+\. Check "):
        render(source)


@pytest.mark.parametrize(
    "source", ["{{ lipsum(n=10000000) }}", "{{ [1] | slice(1000000000) | list }}"]
)
def test_what_only_fills_pages_is_not_there(source: str) -> None:
    with pytest.raises(TextError):
        render(source)


def test_the_templates_own_words_are_in_the_error() -> None:
    with pytest.raises(TextError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_steps_are_counted_for_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(90000) %}{% endfor %}done", origin="here")
    assert {template.render(MESSAGES, {}) for _ in range(20)} == {"done"}


def test_the_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": "x"}]
    template = ChatTemplate("{% set messages = [] %}{{ messages | length }}", origin="here")
    assert template.render(messages, {}) == "0"
    assert messages == [{"role": "user", "content": "x"}]
