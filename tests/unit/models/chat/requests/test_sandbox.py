"""Chat templates that would take any amount of memory, or a step that never ends."""

import threading
import tracemalloc
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.chat.requests import sandbox
from models.chat.requests.sandbox import bound

MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


def strftime_now(form: str) -> str:
    return form.replace("%1000d", "1" * 1000).replace("%d", "1")


def environment() -> ImmutableSandboxedEnvironment:
    usual = ImmutableSandboxedEnvironment()
    usual.globals["strftime_now"] = strftime_now
    return usual


def compiled(source: str) -> Any:
    return bound(environment().from_string(""), source)


def render(source: str) -> str:
    text: str = compiled(source).render(messages=MESSAGES, ten=10, one=[1])
    return text


SOUND = {
    "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{{ '\\n' * 2 }}{% endfor %}": (
        "<|user|>Hello\n\n<|assistant|>Hi\n\n"
    ),
    "{{ messages[0].content[1:] ~ '-' ~ ten ~ one }}": "ello-10[1]",
    "{% set ns = namespace(a='x') %}{% for m in messages %}{% set ns.a = ns.a + m.role %}{% endfor %}{{ ns.a }}": (
        "xuserassistant"
    ),
    "{{ messages | map(attribute='role') | join(', ') }}": "user, assistant",
    "{{ ', '.join(messages | map(attribute='role')) }}": "user, assistant",
    "{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '+') }}": "a+ba+b",
    "{{ '%s is %05.2f' % ('it', 1.5) }}{{ '%s' | format('x') }}{{ '{:>4}'.format(7) }}": "it is 01.50x   7",
    "{{ 2 ** 10 }} {{ 7 % 3 }} {{ 1 + 1 }} {{ [1] + [2] }} {{ one * 2 }}": "1024 1 2 [1, 2] [1, 1]",
    "{{ {'b': [1, (2, 'x')]} | tojson(indent=2) | length }}{{ 'ab' | center(6) }}{{ 'a\\tb'.expandtabs(4) }}": None,
    "{% macro m(x) %}[{{ x }}]{% endmacro %}{% set t %}{{ m(1) }}{% endset %}{{ t | indent(2) | upper }}": "[1]",
    "{% set a, b = 1, 2 %}{{ a in (1, 3) }}{{ (a, b) }}{{ none }}{{ nothing }}{{ range(3) | list }}": (
        "True(1, 2)None[0, 1, 2]"
    ),
    "{{ messages[::-1] | length }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "21",
    "{{ ('a ' * 9999).split(' ', 1) | length }}{{ 'a\\nb'.splitlines() }}{{ 'a b'.split() }}": "2['a', 'b']['a', 'b']",
    "{{ 'a</think>b'.rsplit('</think>', 1) }}{{ '-a-'.strip('-') }}{{ 'xax' | trim('x') }}{{ 'aba'.rfind('a') }}": (
        "['a', 'b']aa2"
    ),
    "{{ dict(messages[0], x=1) | length }}{{ dict([('a', 1)]) }}{{ {}.fromkeys('ab', 1) }}{{ {'a': 1}.items() }}": (
        "3{'a': 1}{'a': 1, 'b': 1}dict_items([('a', 1)])"
    ),
    "{{ strftime_now('%d.') }}{{ 'a'.encode() }}{{ ten.to_bytes(2, 'big') | length }}{{ [1] | pprint }}": "1.b'a'2[1]",
    "{{ [3, 1] | sum }}{{ [2, 1] | sort | first }}{{ 3.14159 | round(2) }}": "413.14",
}


@pytest.mark.parametrize("source", SOUND)
def test_usual_templates_are_rendered_as_ever(source: str) -> None:
    usual = environment().from_string(source).render(messages=MESSAGES, ten=10, one=[1])
    assert render(source) == usual == (SOUND[source] or usual)


def test_a_long_conversation_is_not_counted_at_each_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Qwen3's template does: it looks for the last question from the end, by the number of messages."""
    monkeypatch.setattr(sandbox, "MOST", 1 << 20)
    source = (
        "{% for m in messages[::-1] %}{% if (messages | length - 1) - loop.index0 == 0 %}{{ m.role }}{% endif %}"
        "{% set rest = messages[loop.index0:] %}{{ rest | first | length }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "x" * 1000} for _ in range(500)]
    assert compiled(source).render(messages=messages) == "2" * 499 + "user2"


DOUBLING = "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = STEP %}{% endfor %}"
BOMBS = [
    "{{ 'x' * ten ** 10 }}",
    "{{ ten ** 10 * 'x' }}",
    "{{ ([one] * ten ** 9) | length }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ ten ** (ten ** ten) }}",
    "{{ 2 ** (2 ** 40) }}",
    DOUBLING.replace("STEP", "ns.a * 2"),
    DOUBLING.replace("STEP", "ns.a + ns.a"),
    DOUBLING.replace("STEP", "ns.a ~ ns.a"),
    DOUBLING.replace("STEP", "ns.a.replace('x', 'xx')"),
    DOUBLING.replace("STEP", "ns.a | replace('x', 'xx')"),
    DOUBLING.replace("STEP", "[ns.a, ns.a] | join"),
    DOUBLING.replace("STEP", "''.join([ns.a, ns.a])"),
    DOUBLING.replace("STEP", "'%s%s' % (ns.a, ns.a)"),
    DOUBLING.replace("STEP", "'{0}{0}'.format(ns.a)"),
    DOUBLING.replace("STEP", "'%s%s' | format(ns.a, ns.a)"),
    DOUBLING.replace("STEP", "[ns.a, ns.a]"),
    DOUBLING.replace("STEP", "(ns.a, ns.a)"),
    DOUBLING.replace("STEP", "{1: ns.a, 2: ns.a}"),
    DOUBLING.replace("STEP", "dict(a=ns.a, b=ns.a)"),
    DOUBLING.replace("STEP", "namespace(a=ns.a, b=ns.a)"),
    DOUBLING.replace("STEP", "[ns.a] | batch(9, ns.a) | list"),
    DOUBLING.replace("STEP", "ns.a | list | string"),
    "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLING.replace("STEP", "m(ns.a)"),
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set t %}{{ ns.a }}{{ ns.a }}{% endset %}"
    "{% set ns.a = t %}{% endfor %}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%*d' % (ten ** 9, 1) }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, ten ** 9) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ 'x'.center(ten ** 9) }}{{ 1 }}",
    "{{ 'x'.zfill(ten ** 9) }}",
    "{{ '\\t'.expandtabs(tabsize=ten ** 9) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x\\nx' | indent(ten ** 9) }}",
    "{{ ('x\\n' * 999) | indent(9999) | length }}",
    "{{ ('x\\n' * 999) | indent('y' * 9999) | length }}",
    "{{ ('x ' * 9999) | wordwrap(1, true, 'y' * 9999) | length }}",
    "{{ ('x' * 9999) | replace(new='y' * 9999, old='x') | length }}",
    "{{ ('x' * 9999) | list | join(attribute=none, d='y' * 9999) | length }}",
    "{{ ([[1]] * 999) | tojson(indent=9999) | length }}",
    "{{ ([[1]] * 999) | tojson(indent='y' * 9999) | length }}",
    "{{ [1] | tojson(indent=ten ** 9) }}",
    "{{ [1] | batch(ten ** 9, 1) | list }}",
    "{{ [1] | slice(ten ** 9) | list }}",
    "{{ 'a'.translate({97: 'xx'}) }}",
    "{{ [[1], [2]] | sum(start=[]) }}",
    "{{ lipsum(n=1000000) }}",
    "{% set x = 'x' * 99999 %}{% for i in range(99) %}{{ x }}{% endfor %}",
    "{% set x = 'x' * 99999 %}{% for i in range(99) %}{{ x[1:] | length }}{% endfor %}",
    "{% set x = 'x' * 99999 %}{% for i in range(99) %}{{ x | upper | length }}{% endfor %}",
    "{% set x = 'x' * 99999 %}{{ x.join(x) }}",
    "{{ ('x' * 99) | urlize(target='y') }}",
    "{% set ns = namespace(a=[1] * 9999) %}{% for i in range(200) %}{% set ns.a = [ns.a] %}{% endfor %}"
    "{{ ns.a | pprint | length }}",
    DOUBLING.replace("STEP", "{1: ns.a, 2: ns.a}.values()"),
    "{% set x = {1: 'x' * 99999}.values() %}{% for i in range(99) %}{{ x }}{% endfor %}",
    "{{ ('a' * 99999).rfind('ab' + 'a' * 49999) }}",
    "{{ ('a' * 99999).rsplit(sep='ab' + 'a' * 49999) }}",
    "{{ ('a' * 9999).strip('b' * 99999 + 'a') }}",
    "{{ ('a' * 9999) | trim('b' * 99999 + 'a') }}",
    "{{ {}.fromkeys(range(0, 10001 * (2 ** 61 - 1), 2 ** 61 - 1)) | length }}",
    "{{ dict(range(0, 20002 * (2 ** 61 - 1), 2 ** 61 - 1) | batch(2)) | length }}",
    "{% for i in range(99999) %}{% for i in range(99) %}" + "x" * 1000 + "{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST", 1 << 18)
    with pytest.raises(Exception, match=r"hat template|adds numbers|lipsum|urlize") as refused:
        render(source)
    assert isinstance(refused.value, SecurityError) or str(refused.value).split("'")[1] in ("lipsum", "urlize")


LARGE = [
    "{{ ('{0:b}' * 99).format(2 ** 32000 * 2 ** 32000) | length }}",
    "{{ ('ab ' * 140000).split() | length }}",
    "{{ ('ab ' * 140000).split(' ') | length }}",
    "{{ ('ab\\n' * 140000).splitlines() | length }}",
    "{{ ten.to_bytes(10 ** 8, 'big') | length }}",
    "{{ strftime_now('%1000d' * 50000) | length }}",
    "{{ '{:\u0669\u0669\u0669\u0669\u0669\u0669\u0669\u0669}'.format(1) }}",
    "{{ (('x' * 9999) | escape).replace('x', 'y' * 9999) | length }}",
    "{{ ([1] * 9999) | tojson(separators=('y' * 9999, ':')) | length }}",
    "{{ ('\ufdfa' * 99999).encode('ascii', 'namereplace') | length }}",
    "{{ ([(('x' * 99999) | escape).join] * 999) ~ '' }}",
]


@pytest.mark.parametrize("source", LARGE)
def test_a_result_is_not_made_before_it_is_counted(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(SecurityError):
            render(source)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 22


def test_each_thread_has_bounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST", 1 << 20)
    template, lengths = compiled("{{ ('x' * 100000) | length }}"), list[int]()
    for _ in range(5):
        thread = threading.Thread(target=lambda: lengths.append(int(template.render())))
        thread.start()
        thread.join()
    assert lengths == [100000] * 5
