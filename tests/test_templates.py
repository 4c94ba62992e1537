"""Chat templates: Jinja as their authors have it, and the limits of the box."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import time
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from chat_worlds import reference

from pantheon.chat import limits, render
from pantheon.errors import ArgumentError, ChatTemplateError

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]
NOW = datetime(2024, 2, 29, 12, 0)


# ---- Jinja, as templates expect it


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (
            "{% for m in messages %}\n    {% if m.role=='user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}",
            "hi\n",
        ),
        ("{% for i in [1,2,3] %}{% if i==2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1,2,3] %}{% if i==2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{{ 'a\nb' }}", "a\nb"),
        ("{{ messages[1:]|length }}", "0"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        (
            "{% for i in 'abc' %}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}",
            "1False3 2False3 3True3 ",
        ),
        ("{{ bos_token }}|{{ eos_token }}|{{ add_generation_prompt }}", "<s>|</s>|True"),
        ("{{ tools is none }}{{ nothing is defined }}", "TrueFalse"),
        ("{{ 'a' ~ 1 ~ 'b' }}{{ 'ab'.upper().strip() }}{{ 'a,b'.split(',')|join('-') }}", "a1bABa-b"),
        ("{{ '%s-%d' % ('a', 7) }}{{ '{}'.format(3) }}{{ 'x' * 3 }}", "a-73xxx"),
        ("{{ '{:>4}|{a}|{{}}'.format(1, a='b') }}{{ '%5.1f%%' % 2.25 }}", "   1|b|{}  2.2%"),
        ('{{ \'{{"a": {0}, "b": "{{}}"}}\'.format(1) }}', '{"a": 1, "b": "{}"}'),
        ("{{ 'a\n\nb'|indent }}|{{ 'a\nb'|indent(2, true) }}", "a\n\n    b|  a\n  b"),
        (
            "{{ [3, 1]|sort|join(',') }}{{ [1, 2.5]|sum }}{{ range(3)|list }}{{ 'ab'|list }}",
            "1,33.5[0, 1, 2]['a', 'b']",
        ),
        ("{{ messages|map(attribute='role')|join }}{{ messages|join('', attribute='content') }}", "userhi"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages[0].items()|list|length }}", "12"),
        ("{{ {'a': 1}|items|first }}{{ ([1] + [2])[::-1] }}{% set a, b = 1, 2 %}{{ (b, a) }}", "('a', 1)[2, 1](2, 1)"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') ~ f(none) }}{% set y %}q{% endset %}{{ y }}", "<a><None>q"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ [1, 2]|reverse|list }}", "a1[2, 1]"),
        ("{{ 'x'|replace('x', 'yy')|upper }}{{ 'a b'.split()|last }}{{ ' a '|trim }}{{ 1.25|round(1) }}", "YYba1.2"),
    ],
)
def test_templates_render_as_their_authors_expect(template: str, wanted: str) -> None:
    assert render(template, HI, bos_token="<s>", eos_token="</s>", now=NOW) == wanted


def test_tojson_writes_for_a_model_and_not_for_a_web_page() -> None:
    tools = [{"d": "temp > 10 & hum < 50 (user's) 안녕 🤗", "a": 1}]
    assert render("{{ tools[0]|tojson }}", HI, tools=tools) == (
        '{"d": "temp > 10 & hum < 50 (user\'s) 안녕 🤗", "a": 1}'
    )
    assert render("{{ tools[0]|tojson(indent=2) }}", HI, tools=[{"b": 1, "a": 2}]) == '{\n  "b": 1,\n  "a": 2\n}'


def test_content_that_is_none_reads_as_empty() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    assert render("{{ '<a>' + messages[0].content + '<b>' }}", [call]) == "<a><b>"


def test_a_templates_refusal_arrives_in_its_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        render("{{ raise_exception('System role not supported') }}", HI)


def test_broken_templates_are_one_clear_error() -> None:
    for template in ("{% if %}", "{{ .System }}", "{% endfor %}", "{{ x.y }}", "{% include 'x' %}", "{{ 1 / 0 }}"):
        with pytest.raises(ChatTemplateError):
            render(template, HI)


# ---- The box


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ lipsum.__globals__['os'] }}",
        "{{ strftime_now.__globals__.os }}",
        "{{ raise_exception.__code__.co_consts }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}",
        "{% for i in 'a' * 50000 %}{% for j in 'a' * 50000 %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 10**9 * 'a' }}",
        "{{ [1] * 10**9 }}",
        "{{ 9**(9**9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x'|center(10**9) }}",
        "{{ 'x'|indent(10**9, true) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000)|length }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000)|length }}",
        "{{ ('b' * 1000000).join('a' * 1000000)|length }}",
        "{{ ('a' * 1000000)|join('b' * 1000000)|length }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'content': 'x'}) %}",
        "{% set _ = dict.update(messages[0], content='x') %}",  # the method of a type belongs to no value
        "{% set _ = dict['update'].update(messages[0], content='x') %}",
        "{% set _ = ([dict]|map(attribute='update')|first)(messages[0], content='x') %}",
        "{% set _ = {}.fromkeys('ab') %}",
        "{{ cycler.reset(namespace()) }}",
        "{{ ('a' * 4000000).rfind('ab' ~ 'a' * 2000000) }}",  # hours: the sizes are multiplied, in C
        "{{ ('a' * 4000000).rsplit('ab' ~ 'a' * 2000000)|length }}",
        "{{ ('a' * 4000000).rpartition(sep='ab' ~ 'a' * 2000000)[0] }}",
        "{{ ('a' * 4000000).strip('b' * 3999999 ~ 'a') }}",
        "{{ ('a' * 4000000)|trim('b' * 3999999 ~ 'a') }}",
        "{{ 5|round(4000000, 'floor') }}",
        "{{ a }}" * 100_000,
        "{{ 1 + " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
def test_hostile_templates_are_stopped_soon_and_harm_nothing(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 1.0)
    messages = copy.deepcopy(HI)
    started = time.monotonic()
    with pytest.raises(ChatTemplateError):
        render(template, messages)
    assert time.monotonic() - started < 15  # a busy machine adds
    assert messages == HI


DOUBLED = "".join(f"{{% set _ = dict.update(d{i}, a=d{i - 1}, b=d{i - 1}) %}}" for i in range(1, 30))
HUNGRY = [
    "{{ ('{0:999999}' * 600).format('x') }}",
    "{{ ('%999999d' * 600) % ((1,) * 600) }}",
    "{{ ('{0}' * 1000).format('a' * 1000000) }}",
    "{{ ('%s' * 1000) % (('a' * 100000,) * 1000) }}",
    "{{ '{:{}}'.format(1, 90000000) }}",
    "{% set ns = namespace(x='a' * 1000000) %}{{ ('{0.x}' * 1000).format(ns) }}",
    "{% set ns = namespace(x='a' * 1000000) %}{{ ([ns] * 1000)|join('', attribute='x') }}",
    "{% set ns = namespace(x='a' * 1000000) %}{{ ([ns] * 1000)|map(attribute='x')|join }}",
    "{{ ('a\n' * 800)|indent(1000000) }}",
    "{{ ('a\n' * 800)|indent('b' * 1000000) }}",
    "{{ range(400)|join('a' * 1000000) }}",
    "{{ ('a' * 1000000).join(range(400)) }}",
    "{{ ('a' * 1000000).join([1] * 400) }}",
    "{{ [1, [2, [3]]]|tojson(indent=100000000) }}",
    "{{ ([1] * 1000)|tojson(separators=('a' * 1000000, ':')) }}",
    "{{ ('a ' * 100000)|wordwrap(1, wrapstring='b' * 100000) }}",
    "{{ 'a'|center(900000000) }}",
    "{{ ('a' * 400)|list|map('center', 1000000)|list }}",
    "{{ ('\t' * 1000000).expandtabs(1000) }}",
    "{% for i in range(400) %}{% set x = 'a'.zfill(1000000) %}{% endfor %}",
    "{{ 'a'.rjust(900000000) }}{{ 'a'.center(900000000) }}",
    "{{ 'a'.encode().ljust(900000000) }}{{ (5).to_bytes(900000000) }}",
    "{{ ('a ' * 2000000).split()|length }}",
    "{{ ('a' * 4000000)|list|length }}",
    "{{ [('a' * 4000000)] * 1000 }}",
    "{{ [[[['a' * 1000] * 100] * 100] * 100] * 100 }}",
    "{% set a = 'x' * 3000000 %}" + "{% set b = a[1:] %}" * 400,
    "{% set a = 'x' * 3000000 %}" + "{% set l = [a, a, a, a] %}{{ l|string|length }}",
    "{% set a = ['x' * 1000] * 1000 %}{% macro f() %}{% for i in range(1000) %}{{ a }}{% endfor %}{% endmacro %}"
    "{{ f()|length }}",
    "{% set a = 'x' * 1000000 %}{% macro f() %}{% for i in range(1000) %}{{ a }}{% endfor %}{% endmacro %}"
    "{{ f()|length }}",
    "{% set a = 'x' * 1000000 %}{% set b %}{% for i in range(1000) %}{{ a }}{% endfor %}{% endset %}{{ b|length }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x={}) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}"
    "{{ ns.x|tojson }}",
    "{% set ns = namespace(x=namespace()) %}{% for i in range(60) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}"
    "{% endfor %}{{ ns.x.a.a.a }}{{ 1 / 0 }}",
    "{{ ([[1] * 1000] * 100)|sum(start=[])|length }}",
    "{{ strftime_now('%99999999d') }}{{ strftime_now('%d' * 1000000) }}",
    "{{ ('%(' * 1900000) % {} }}",
    "{{ '%(a)*d' % {'a': 90000000} }}",
    "{{ ('{' ~ ':' * 3900000).format(1) }}",
    "{{ ('{0.' * 1000000).format(1) }}",
    "{{ ('12 ' * 1300000).format(1) }}",
    "{{ ('ab\n' * 1300000)|indent(1) }}",
    "{{ ('a' * 4000000)|urlencode }}{{ lipsum(n=1000000) }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ['%d' % i * 100000] %}{% endfor %}",
    "".join(f"{{% set d{i} = {{}} %}}" for i in range(30)) + DOUBLED + "{{ d29 }}",
    "{% set x = ('a' ~ messages[0].content) * 240000 %}{% set ns = namespace() %}{% for i in range(20) %}"
    "{% set ns.p = namespace(l=x.replace('a', 'bc'), p=ns.p) %}{% endfor %}",
    "{% set ns = namespace() %}{% for i in range(20) %}{% set ns.p = namespace(l=('a' * 190000)|list, p=ns.p) %}"
    "{% endfor %}",
]
LIMITED = """
import resource, sys
from pantheon.chat import render
from pantheon.errors import ChatTemplateError
render("{{ 1 }}", [])
def used():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used() + 200_000_000, -1))
for number, template in enumerate(eval(sys.stdin.read())):
    try:
        render(template, [{"role": "user", "content": "hi"}])
        print(number, "was not stopped:", template[:100])
    except ChatTemplateError as error:
        if "MemoryError" in str(error):
            print(number, "took all memory:", template[:100])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux does")
def test_hungry_templates_are_stopped_before_they_have_eaten_200_megabytes() -> None:
    command = [sys.executable, "-c", LIMITED]
    done = subprocess.run(command, input=repr(HUNGRY), capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    "use",
    ["'a'|center(3)", "'a'|pprint", "'a'.zfill(3)", "'a'.encode()", "(5).to_bytes(2)", "[1].append(2)", "lipsum()"],
)
def test_what_no_chat_template_needs_is_not_there(use: str) -> None:
    with pytest.raises(ChatTemplateError):
        render("{{ " + use + " }}", HI)


@pytest.mark.parametrize(
    "use",
    ["split(',')|length", "rsplit(',')|length", "split()|length", "splitlines()|length", "replace(',', ';')|length"],
)
def test_a_text_of_many_origins_is_taken_apart_in_one_pass(use: str) -> None:
    """Each of 40,000 pieces used to look for its place among 80,000 origins: minutes."""
    started = time.process_time()
    said = "{% set said = messages[0].content %}"
    assert int(render(said + "{{ ((', \n' ~ said) * 40000)." + use + " }}", HI)) > 40_000
    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"template": 5}, "template must be a str, got int"),
        ({"messages": [*HI, 5]}, "message 1 must be a Message or a mapping, got int"),
        ({"messages": [{"role": "user", "content": "hi", "number": Fraction(1)}]}, "message 0 holds a Fraction"),
        ({"tools": [{"name": Fraction(1)}]}, "tools holds a Fraction"),
        ({"bos_token": None}, "bos_token must be a str, got NoneType"),
    ],
)
def test_what_is_no_json_is_refused_by_name(arguments: dict[str, Any], sentence: str) -> None:
    """The methods of any other object would be in reach of the template: `{{ message.path.unlink() }}`."""
    with pytest.raises(ArgumentError, match=sentence):
        render(**{"template": "{{ messages }}", "messages": HI, **arguments})


def test_an_endless_output_is_cut_off() -> None:
    with pytest.raises(ChatTemplateError, match=r"prints more|grows beyond"):
        render("{% for i in range(20) %}{{ 'a' * 1000000 }}{% endfor %}", HI)


def test_long_but_honest_conversations_render() -> None:
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": "word " * 1000} for i in range(400)]
    assert len(render(SMOLLM2, messages)) > 2_000_000


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ 'a'|center(3) }}", "uses the filter 'center' in line 1, which is not supported here"),
        (
            "{% if messages %}{{ 'a'|wordwrap(3) }}{% endif %}",
            "uses the filter 'wordwrap', which is not supported here",
        ),
        ("{{ 'a'|entangle }}", "uses the filter 'entangle' in line 1, which Jinja does not have"),
        ("{{ messages[0].content.zfill(3) }}", "uses str.zfill, which is not supported here"),
        ("{{ (messages[0].content|safe).striptags() }}", "uses str.striptags, which is not supported here"),
        ("{{ messages.append(1) }}", "uses list.append, which is not supported here"),
        ("{{ messages[0].content.entangle() }}", "'str object' has no attribute 'entangle'"),
        ("{{ namespace().a.b }}", "'namespace object' has no attribute 'a'"),
        ("{% include 'x' %}", "includes or imports another file, which is not supported here"),
        ("{% entangle %}", "not valid Jinja: line 1"),
    ],
)
def test_what_is_not_here_is_called_by_its_name_and_not_by_ours(template: str, sentence: str) -> None:
    with pytest.raises(ChatTemplateError, match=re.escape(sentence)) as caught:
        render(template, HI)
    assert "Traced" not in str(caught.value)
    assert ("not valid Jinja" in str(caught.value)) is ("not valid Jinja" in sentence)


@pytest.mark.parametrize(
    "template", ["{{ messages[1].content|trim }}", "{% for m in messages %}{{ m.content }}{% endfor %}"]
)
def test_messages_that_are_too_long_are_not_the_templates_fault(template: str) -> None:
    messages = [*HI, {"role": "user", "content": "word " * 1_000_000}]
    with pytest.raises(ChatTemplateError, match=r"messages are too long .*longest \(message 1\) 5,000,000.*4000000"):
        render(template, messages)
    with pytest.raises(ChatTemplateError, match="^the chat template was stopped"):
        render("{{ 'a' * 5000000 }}", HI)


@pytest.mark.parametrize(
    "use",
    [
        "split()|join(' ')",
        "replace('w', '&amp;')|replace(' ', ' - ')",
        "replace(' ', '\t')|replace('\t', '    ')",
        "split(' ')|map('upper')|join",
    ],
)
def test_a_message_of_90_000_words_can_be_taken_apart_and_written_anew(use: str) -> None:
    messages = [{"role": "user", "content": "word " * 90_000}]
    template = "{{ messages[0].content." + use + " }}"
    started = time.process_time()
    assert render(template, messages) == reference(template, messages=messages)
    assert time.process_time() - started < 20  # it takes less than one


def test_questions_that_take_several_renderings_have_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_STEPS", 1000)
    template = "{% for i in range(700) %}{% endfor %}"
    for _ in range(3):
        assert render(template, HI) == ""  # each has its own
    with limits.one_budget() as budget:
        assert render(template, HI) == ""
        assert not budget.is_spent
        with limits.one_budget() as same, pytest.raises(ChatTemplateError, match="more than 1000 steps"):
            render(template, HI)
        assert same is budget
        assert budget.is_spent
    assert render(template, HI) == ""
