"""Tests of runtime/template.py: the dialect of chat templates, and what one may not do."""

import json
from collections.abc import Sequence

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.errors import TextError
from runtime.template import ChatTemplate
from tests.chat_templates import ALL

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


def plainly(source: str, messages: Sequence[dict[str, str]]) -> str:
    """What jinja2's own sandbox renders, set up as Hugging Face's tokenizers do."""
    plain = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    plain.globals["strftime_now"] = lambda _pattern: "today"
    for tag in ("{%- generation -%}", "{%- endgeneration -%}"):
        source = source.replace(tag, "")
    return plain.from_string(source).render(
        messages=messages, add_generation_prompt=True, tools=None, bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "Hi"), (5, "é\r\n <think>a</think> b\n"), (3, "x y\n" * 30_000), (1001, " word" * 20)],
)
def test_templates_of_known_families_render_as_in_jinja2(name: str, count: int, text: str) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n in range(count)]
    template = ChatTemplate(ALL[name], origin="here")
    rendered = template.render(messages, {"bos_token": "<s>", "eos_token": "</s>"})
    assert rendered == plainly(ALL[name], messages)


def test_every_message_may_look_at_every_other() -> None:
    source = (
        "{% for m in messages %}{% for n in messages %}{% if m == n %}{% endif %}{% endfor %}"
        "{% endfor %}done"
    )
    assert ChatTemplate(source, origin="here").render(MESSAGES * 50, {}) == "done"


def test_a_source_of_unlikely_length_is_refused_unread() -> None:
    with pytest.raises(TextError, match="10,000,000 characters"):
        ChatTemplate("x" * 10_000_000, origin="here")


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
        "{{ " + "[" * 9999 + "]" * 9999 + " }}",
        "{% if a %}" * 2000 + "{% endif %}" * 2000,
        "{% for a in b %}" * 2000 + "{% endfor %}" * 2000,
        "{{ 1" + " + 1" * 3000 + " }}",
        "{{ " + "9" * 90_000 + " }}",
        "{{" + " " * 90_000 + "}}",
        "{% raw %}" + "{%      " * 9000,
        "{{ '" + "\\" * 90_000,
    ],
)
def test_a_source_made_to_break_the_compiler_is_refused(source: str) -> None:
    with pytest.raises(TextError, match="failed"):
        ChatTemplate(source, origin="here")


def test_what_a_template_says_is_cut_short_and_put_on_one_line() -> None:
    with pytest.raises(TextError) as error:
        render("{{ raise_exception('no\n' * 10000) }}")
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)
