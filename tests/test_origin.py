"""Where each character comes from: nothing that anyone says can pass as the template's own text.

The oracle is the alphabet: in these tests a template's literals are written in Greek, messages in Hebrew (both without
the other, and neither is part of what Jinja prints by itself). Whatever an operation does, a character that counts as
the template's must be Greek.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from chat_worlds import NOW, reference
from hypothesis import given, settings
from hypothesis import strategies as st

from pantheon.chat import render
from pantheon.chat.origin import DATA, TEMPLATE, Traced, concat, mark, runs_of
from pantheon.chat.sandbox import CompiledTemplate
from pantheon.errors import ChatTemplateError

GREEK, HEBREW = "αβγδε", "אבגדה"
SOURCE = 5  # a message's


def own(text: str) -> Traced:
    return mark(text, TEMPLATE)


def said(text: str) -> Traced:
    return mark(text, SOURCE)


def labels(text: str) -> str:
    """A letter for each character: t for the template's, m for the message's, - for data."""
    return "".join({TEMPLATE: "t", SOURCE: "m", DATA: "-"}[source] * length for length, source in runs_of(text))


def assert_safe(text: str) -> None:
    """The lengths are right, and what counts as the template's is in its alphabet (white space is in both)."""
    assert sum(length for length, _ in runs_of(text)) == len(text)
    for character, label in zip(str.__str__(text), labels(text), strict=True):
        assert label != "t" or character not in HEBREW, (text, labels(text))
        assert label != "m" or character not in GREEK, (text, labels(text))


spaces = st.sampled_from(["", " ", "\n", "  "])
pieces = st.one_of(
    st.text(GREEK, max_size=4).map(own), st.text(HEBREW, max_size=4).map(said), st.text(HEBREW, max_size=3), spaces
)
traced = st.lists(pieces, max_size=5).map(concat)
small = st.integers(-6, 6)
maybe = st.none() | small


@settings(deadline=None, max_examples=300)
@given(text=traced, other=traced, third=traced, start=maybe, stop=maybe, step=maybe, count=small)
def test_every_operation_says_what_str_says_and_forges_nothing(
    text: Traced, other: Traced, third: Traced, start: int | None, stop: int | None, step: int | None, count: int
) -> None:
    a, b, c = str.__str__(text), str.__str__(other), str.__str__(third)
    key = slice(start, stop, step or None)
    assert type(a) is str
    assert hash(text) == hash(a)
    pairs: list[tuple[Any, Any]] = [
        (text + other, a + b), (a + other, a + b), (text + b, a + b), (text * count, a * count),
        (count * text, a * count),
        (text[key], a[key]), (list(text), list(a)), (text.strip(), a.strip()), (text.lstrip(), a.lstrip()),
        (text.rstrip(other or None), a.rstrip(b or None)), (text.strip(HEBREW[0]), a.strip(HEBREW[0])),
        (text.removeprefix(other), a.removeprefix(b)), (text.removesuffix(other), a.removesuffix(b)),
        (text.split(), a.split()), (text.split(None, count), a.split(None, count)), (text.rsplit(), a.rsplit()),
        (text.rsplit(None, count), a.rsplit(None, count)), (text.splitlines(), a.splitlines()),
        (text.splitlines(True), a.splitlines(True)), (text.replace(other, third), a.replace(b, c)),
        (text.replace(other, third, count), a.replace(b, c, count)), (text.join([other, third, c]), a.join([b, c, c])),
        (text.upper(), a.upper()), (text.title(), a.title()), (text.capitalize(), a.capitalize()),
        (text.lower(), a.lower()), (text.swapcase(), a.swapcase()), (str(text), a),
    ]  # fmt: skip
    if b:
        pairs += [(text.split(other), a.split(b)), (text.split(other, count), a.split(b, count))]
        pairs += [(text.rsplit(other, count), a.rsplit(b, count)), (text.rsplit(b), a.rsplit(b))]
        pairs += [(text.partition(other), a.partition(b)), (text.rpartition(other), a.rpartition(b))]
    for ours, theirs in pairs:
        assert ours == theirs
        for part in [ours] if isinstance(ours, str) else ours:
            assert_safe(part)


@pytest.mark.parametrize(
    ("expression", "text", "wanted"),
    [
        ("x + 'αβ'", "אבαβ", "mmtt"),
        ("'α' ~ x ~ 'β'", "αאבβ", "tmmt"),
        ("'α' ~ 1 ~ x", "α1אב", "t-mm"),
        ("['α', 'β'][1] ~ {'k': 'γ'}['k'] ~ ('δ', x)[0]", "βγδ", "ttt"),
        ("'α%sβ%%%s' % (x, 'γ')", "αאבβ%γ", "tmmttt"),
        ("'α%dβ' % 7", "α7β", "t-t"),
        ("'α{}β{{}}'.format(x)", "αאבβ{}", "tmmttt"),
        ("'{1}{0}{n}'.format(x, 'α', n='β')", "αאבβ", "tmmt"),
        ("'α%5sβ' % x", "α   אבβ", "-------"),
        ("'α%d' % 7.9", "α7", "--"),
        ("'α{:>4}β'.format(x)", "α  אבβ", "------"),
        ("x.format('α')", "אב", "mm"),
        ("('α' + x)[1:]", "אב", "mm"),
        ("('α' + x)[::-1]", "באα", "mmt"),
        ("('α' + x)[0]", "α", "t"),
        ("('  α' + x + ' ')|trim", "αאב", "tmm"),
        ("'α,β'.split(',')[1] + x", "βאב", "tmm"),
        ("x.split('ב')|join('α')", "אα", "mt"),
        ("[x, 'α']|join('β')", "אבβα", "mmtt"),
        ("'β'.join([x, 'α'])", "אבβα", "mmtt"),
        ("x|replace('א', 'αβ')", "αβב", "ttm"),
        ("x.replace('ב', 'α')", "אα", "mt"),
        ("'αβ'|replace('β', x)", "αאב", "tmm"),
        ("'ω' * 2 + x", "ωωאב", "ttmm"),
        ("'ω'|upper + x", "Ωאב", "tmm"),
        ("[x, 'α']|first + 'α'", "אבα", "mmt"),
        ("x|list|last + 'α'", "בα", "mt"),
        ("x|reverse + 'α'", "באα", "mmt"),
        ("(x ~ 'α')|string", "אבα", "mmt"),
        ("[x]|tojson", '["אב"]', "mmmmmm"),
        ("[role]|tojson", '["α"]', "-----"),
        ("[x, other]|tojson", '["אב", "ג"]', "-----------"),
        ("{'α': x}", "{'α': 'אב'}", "-----------"),
        ("x|default('α')", "אב", "mm"),
        ("nothing|default('α')", "α", "t"),
        ("{'א': 'α'}['א'] + x", "αאב", "tmm"),
        ("'α' if x else 'β'", "α", "t"),
        ("'αβγ'[:x|length]", "αβ", "tt"),
        ("x|e", "אב", "mm"),
        ("(x ~ '<')|e", "אב&lt;", "------"),
        ("'α' + (x|safe)", "αאב", "tmm"),
        ("(x|safe) + 'α'", "אבα", "mmt"),
        ("(role + '<') + (x|safe)", "α&lt;אב", "-------"),
        ("(role|safe).upper() + 'α'", "Αα", "-t"),
        ("(role|safe) * 2", "αα", "--"),
        ("(role|safe) ~ 'β'", "αβ", "tt"),
        ("('א'|safe) + x", "אאב", "tmm"),
        ("strftime_now('%Y')", "2024", "tttt"),
        ("strftime_now(x)", "אב", "--"),
        ("other + 'α'", "גα", "-t"),
        ("role + x", "αאב", "tmm"),
        ("['α', 'א']|select('equalto', x[0])|join", "א", "t"),
        ("[x, 'אב']|unique|join", "אב", "mm"),
        ("['α' + x]|map('upper')|join", "αאב".upper(), "tmm"),
        ("namespace(a='α').a + x", "αאב", "tmm"),
        ("joiner('α')() + x", "אב", "mm"),
        ("(role ~ '\nβ')|indent", "α\n    β", "-" * 7),
    ],
)
def test_origins_follow_the_characters(expression: str, text: str, wanted: str) -> None:
    variables = {"x": said("אב"), "other": "ג", "role": own("α")}
    for template in ("{{ " + expression + " }}", "{% set y = " + expression + " %}{{ y }}"):
        out = CompiledTemplate(template).render(variables, NOW)
        assert str.__str__(out) == text == reference(template, x="אב", other="ג", role="α")
        assert labels(out) == wanted


@pytest.mark.parametrize(
    ("template", "text", "wanted"),
    [
        ("α{{ x }}β", "αאבβ", "tmmt"),
        ("{% macro f(y) %}α{{ y }}{% endmacro %}{{ f(x) }}{{ f('β')|upper }}", "αאבΑΒ", "tmmtt"),
        ("{% set y %}α{{ x }}{% endset %}{{ y ~ 'β' }}", "αאבβ", "tmmt"),
        ("{% for c in x %}{{ c }}α{% endfor %}", "אαבα", "mtmt"),
        ("{% for c in 'αβ' + x %}{{ c }}{% endfor %}", "αβאב", "ttmm"),
        (
            "{% set ns = namespace(y='α') %}{% for c in x %}{% set ns.y = ns.y + c %}{% endfor %}{{ ns.y }}",
            "αאב",
            "tmm",
        ),
        ("{% filter upper %}α{{ x }}{% endfilter %}", "Αאב", "tmm"),
        ("{% call(y) f() %}{{ y }}β{% endcall %}", "αβ", "tt"),
        ("{% generation %}α{{ x }}{% endgeneration %}", "αאב", "tmm"),
        ("{% block b %}α{{ x }}{% endblock %}", "αאב", "tmm"),
        ("{% autoescape true %}α{{ x }}{% endautoescape %}", "αאב", "t--"),
        ("{{ 'α' }}{{ 'β' ~ 'γ' }}", "αβγ", "ttt"),
    ],
)
def test_origins_survive_blocks(template: str, text: str, wanted: str) -> None:
    prefix = "{% macro f() %}{{ caller('α') }}{% endmacro %}" if "call(" in template else ""
    out = CompiledTemplate(prefix + template).render({"x": said("אב")}, NOW)
    assert str.__str__(out) == text == reference(prefix + template, x="אב")
    assert labels(out) == wanted


# ---- Random templates ---------------------------------------------------------------------------------------------

contents = st.text(HEBREW + " \n%{}", max_size=6)
literals = st.text(GREEK + " \n%{}", max_size=4).map(lambda text: repr(text))
leaves = st.one_of(literals, st.sampled_from(["x", "y", "m.content", "m['role']", "x[:2]", "x[0:y|length]", "3"]))


def _grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    unary = [
        "({})|trim", "({})|upper", "({})|string|list|join", "({})|string|reverse", "[{}]|join",
        "({})|string|replace('א', 'α')",
        "({})|tojson", "({})|default('α')", "({})|string|indent", "[{}]|first", "({{'k': {}}}).k", "(({})|string)[1:]",
        "(({})|string)[::2]", "(({})|string).split()|join('β')", "(({})|string).strip().title()", "({})|safe", "({})|e",
        "(({})|string).split('ב', 1)|last", "(({})|string).rsplit('β')|first", "(({})|string).splitlines()|join('δ')",
        "[{}]|map('string')|map('trim')|join(' ')", "(({})|string).partition('α')[2]", "(({})|string) * 2",
        "({})|string|length", "[{}]",
    ]  # fmt: skip
    binary = [
        "({}) ~ ({})", "(({})|string) + (({})|string)", "'%s-%s' % ({}, {})", "'{{}}{{}}'.format({}, {})",
        "(({})|string).join([({})|string, 'γ'])", "(({})|string)|replace(({})|string, 'δ')", "({}) if x else ({})",
        "(({})|string).removeprefix(({})|string)", "(({})|string) % ()  ~ ({})", "'%2s%s' % ({}, {})",
    ]  # fmt: skip
    one = st.tuples(st.sampled_from(unary), inner).map(lambda pair: pair[0].format(pair[1]))
    two = st.tuples(st.sampled_from(binary), inner, inner).map(lambda three: three[0].format(*three[1:]))
    return one | two


expressions = st.recursive(leaves, _grow, max_leaves=6)


@settings(deadline=None, max_examples=250)
@given(expression=expressions, x=contents, y=contents, looped=st.booleans())
def test_random_templates_print_what_jinja_prints_and_forge_nothing(
    expression: str, x: str, y: str, looped: bool
) -> None:
    template = "α{{ " + expression + " }}β"
    if looped:
        template = "{% for m in messages %}{% set z = " + expression + " %}{{ z }}α{% endfor %}"
    message = {"role": "αβ", "content": x}
    variables = {"x": x, "y": y, "messages": [message], "m": message}
    marked = {"role": own("αβ"), "content": said(x)}
    traced_variables = {"x": said(x), "y": y, "messages": [marked], "m": marked}
    try:
        theirs = reference(template, **variables)
    except Exception:  # noqa: BLE001  whatever the template runs into
        with pytest.raises(ChatTemplateError):
            CompiledTemplate(template).render(traced_variables, NOW)
        return
    ours = CompiledTemplate(template).render(traced_variables, NOW)
    assert str.__str__(ours) == theirs
    for character, label in zip(theirs, labels(ours), strict=True):
        assert label != "t" or character not in HEBREW
        assert label != "m" or character not in GREEK or "tojson" in expression or "indent" in expression


def test_a_template_can_reach_nothing_that_str_has_not() -> None:
    """Names with an underscore are out of a template's reach."""
    assert {name for name in dir(Traced) if not name.startswith("_")} == {n for n in dir(str) if not n.startswith("_")}
    for name in ("_runs", "_recased", "_piece", "__class__"):
        with pytest.raises(ChatTemplateError):
            CompiledTemplate("{{ x." + name + "('a') }}").render({"x": said("א")}, NOW)
        with pytest.raises(ChatTemplateError):
            CompiledTemplate("{{ (x|safe)['" + name + "'] + 'a' }}").render({"x": said("א")}, NOW)


def test_a_text_with_origins_is_copied_and_stored_as_plain_text() -> None:
    text = own("α")
    assert type(copy.deepcopy(text)) is str
    assert type(pickle.loads(pickle.dumps(text))) is str
    assert labels(Traced("αβ")) == "--"
    assert labels(Traced("αβ", ((1, TEMPLATE),))) == "--"  # lengths that do not fit are no origins


@pytest.mark.parametrize(("form", "said_text"), [("'%1s%s' % (x, x)", "%1s"), ("'{:s}{}'.format(x, x)", "{:s}")])
def test_what_is_said_cannot_pass_as_a_directive_that_was_not_understood(form: str, said_text: str) -> None:
    out = CompiledTemplate("{{ " + form + " }}").render({"x": said(said_text)}, NOW)
    assert (str.__str__(out), set(labels(out))) == (said_text * 2, {"-"})


def test_the_variables_are_not_changed_and_not_shared() -> None:
    messages = [{"role": "user", "content": "hi", "extra": {"a": [1, {"b": "c"}]}}]
    before = copy.deepcopy(messages)
    render("{% for m in messages %}{{ m.extra.a }}{% endfor %}", messages)
    assert messages == before
