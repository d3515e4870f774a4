# ruff: noqa: E501
"""Templates that try to take all time, memory or stack of whoever renders them.

    python -m tests.runtimes.templates.hostile 3.0

renders each in this process and prints a line of JSON: its number, seconds of processor time,
the most memory in MB since the start, and what came of it.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from runtimes.chat import render_chat
from runtimes.errors import RequestError
from runtimes.templates import budget

_DOUBLED = (
    "{% set n = namespace(x=START) %}{% for i in range(LOOPS) %}{% set n.x = STEP %}{% endfor %}"
)


def _doubled(start: str, step: str, then: str, loops: int = 60) -> str:
    text = _DOUBLED.replace("START", start).replace("LOOPS", str(loops)).replace("STEP", step)
    return text + then


_NESTED = _doubled("[1]", "[n.x, n.x]", "THEN")
_BIG = "{% set s = 'abcdefgh' * 1000000 %}"
_HUGE = "{% set s = 'a' * 8000000 %}"

HOSTILE = (
    # Loops
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) if [1] | map('string') | list | length > 5 %}{% endfor %}" * 60,
    "{% for a in range(99999) %}{% for b in range(99999) recursive %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | map('abs') | sum }}{% endfor %}",
    "{% for a in range(99999) %}{{ range(99999) | select('odd') | first }}{% endfor %}",
    "{% for a in range(99999) %}{{ 5 in range(99999) | map('string') }}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% if b == 0 %}{{ loop.length }}{% endif %}"
    "{% break %}{% endfor %}{% endfor %}" * 9,
    "{{ range(9999999999) | list }}",
    _BIG + "{% for c in s %}{% for d in s %}{% endfor %}{% endfor %}",
    _BIG + "{% for a in range(99999) %}{% if s == s ~ 'x' %}y{% endif %}{% endfor %}",
    _BIG + "{% for a in range(99999) %}{{ s.count('b') }}{% endfor %}",
    _BIG + "{% for a in range(99999) %}{{ s.upper() | length }}{% endfor %}",
    _BIG + "{{ s.find('x') }}" * 1000,
    _BIG + "{% set t = s %}{% if s in t %}{% endif %}" * 500,
    "{% for a in range(99999) %}" * 15 + "{% endfor %}" * 15,
    # Macros
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 18 + "x" + "{% endcall %}" * 18,
    "{% block a %}{{ self.a() }}{% endblock %}",
    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% macro m() %}{% for a in range(99999) %}" + "x" * 50_000 + "{% endfor %}{% endmacro %}{{ m() | length }}",
    "{% set x %}{% for a in range(99999) %}" + "x" * 50_000 + "{% endfor %}{% endset %}",
    "{% filter upper %}{% for a in range(99999) %}" + "x" * 50_000 + "{% endfor %}{% endfilter %}",
    _BIG + "{% set x %}" + "{{ s }}" * 400 + "{% endset %}{{ x | length }}",
    # Texts that grow
    "{{ ('a' * 3000000000) | length }}",
    "{{ (3000000000 * 'a') | length }}",
    "{{ ([1] * 3000000000) | length }}",
    "{{ ((1, 2) * 3000000000) | length }}",
    _doubled("'ab'", "n.x ~ n.x", "{{ n.x | length }}"),
    _doubled("'ab'", "n.x + n.x", "{{ n.x | length }}"),
    _doubled("'ab'", "n.x * 2", "{{ n.x | length }}"),
    _doubled("[1]", "n.x + n.x", "{{ n.x | length }}"),
    _doubled("[1]", "n.x * 2", "{{ n.x | length }}"),
    _doubled("'ab'", "n.x | replace('a', 'aa')", "{{ n.x | length }}", 90),
    _doubled("'ab'", "n.x.replace('b', 'bb')", "{{ n.x | length }}", 90),
    _doubled("'ab'", "[n.x, n.x] | join", "{{ n.x | length }}"),
    _doubled("'ab'", "''.join([n.x, n.x])", "{{ n.x | length }}"),
    _doubled("'ab'", "'%s%s' % (n.x, n.x)", "{{ n.x | length }}"),
    _doubled("'ab'", "'%s%s' | format(n.x, n.x)", "{{ n.x | length }}"),
    _doubled("'ab'", "'{0}{0}'.format(n.x)", "{{ n.x | length }}"),
    _doubled("'ab'", "'{a}{a}'.format_map({'a': n.x})", "{{ n.x | length }}"),
    _doubled("'ab'", "[n.x, n.x] | tojson", "{{ n.x | length }}"),
    _doubled("'ab'", "[n.x, n.x] | string", "{{ n.x | length }}"),
    _doubled("'&'", "n.x | escape", "{{ n.x | length }}"),
    _doubled("'&'", "n.x | urlencode", "{{ n.x | length }}"),
    _doubled("[]", "n.x + range(9999) | list", "{{ n.x | length }}", 99999),
    _doubled("[]", "n.x + ['x' * 100000 ~ i]", "{{ n.x | length }}", 99999),
    _doubled("[]", "[n.x, '%09999d' % i]", "", 99999),
    _BIG + "{{ s.replace('a', s) | length }}",
    _BIG + "{{ s | replace('', s) | length }}",
    _BIG + "{{ s.join(s) | length }}",
    _BIG + "{{ s | join(s) | length }}",
    _BIG + "{{ s | list | length }}{{ s | list | join | length }}" * 40,
    _BIG + "{{ [s, s, s, s, s, s, s, s] * 1000 | join }}",
    _BIG + "{{ ([s] * 100000) | string | length }}",
    _BIG + "{{ ([s] * 100000) | join | length }}",
    _BIG + "{{ [s] * 100000 }}",
    _BIG + "{{ ([s] * 100000) | tojson | length }}",
    _BIG + "{{ [s] * 100000 ~ '' }}",
    _BIG + "{{ {'a': s, 'b': s}.items() | list | tojson }}" * 30,
    _BIG + "{{ s.split('') }}{{ s.split('a') | length }}",
    _BIG + "{{ s.split() | length }}" * 500,
    _BIG + "{{ (s | replace('h', '\\n')).splitlines() | length }}",
    _BIG + "{{ (s | replace('h', '\\n')) | indent(100) | length }}",
    _BIG + "{{ (s | replace('h', '\\n')) | indent(s) | length }}",
    _BIG + "{{ s | wordwrap(1) | length }}",
    _BIG + "{{ s | wordcount }}",
    _BIG + "{{ s | title | length }}{{ s | truncate(5) }}",
    _BIG + "{{ (s | replace('h', ' ')) | wordwrap(1, wrapstring=s) | length }}",
    _BIG + "{{ s | batch(1) | list | length }}{{ s | slice(5) | list | length }}" * 9,
    _BIG + "{{ s | sort | length }}{{ s | unique | list | length }}{{ s | groupby('x') }}" * 9,
    _BIG + "{{ s | pprint | length }}{{ [s] | pprint | length }}",
    _BIG + "{{ s.encode('utf-32') | length }}{{ s.translate({97: s}) | length }}",
    _BIG + "{{ s.strip(s[::-1]) }}{{ s | trim('xyz' ~ s) | length }}",
    _HUGE + "{{ s.strip('b' * 4000000 ~ 'a') | length }}",
    _HUGE + "{{ s.rfind('b' ~ s[:4000000]) }}",
    _HUGE + "{{ s.rsplit('b' ~ s[:4000000]) | length }}",
    _HUGE + "{{ s.rpartition('b' ~ s[:4000000]) | length }}",
    _HUGE + "{{ s.find('b' ~ s[:4000000]) }}{{ s.count(s[:4000000] ~ 'b') }}",
    _HUGE + "{{ s.expandtabs(999999999) | length }}{{ (s | replace('a', '\\t')).expandtabs(9999) | length }}",
    _HUGE + "{{ s[::1] ~ s[::-1] }}" * 500,
    # Widths
    "{{ 'a' | center(3000000000) | length }}",
    "{{ 'a'.center(3000000000) | length }}",
    "{{ 'a'.ljust(3000000000) ~ 'a'.rjust(3000000000) ~ 'a'.zfill(3000000000) }}",
    "{{ 'a\\nb' | indent(3000000000) | length }}",
    "{{ '\\t'.expandtabs(3000000000) | length }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' % 1.5 }}",
    "{{ '%1000000000s' | format('x') | length }}",
    "{{ '{:1000000000}'.format(1) | length }}",
    "{{ '{:{w}}'.format(1, w=1000000000) | length }}",
    "{{ '{0:{1}}'.format('a', '>1000000000') | length }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) | length }}",
    "{{ '%(a)s' * 3000 % {'a': 'x' * 1000000} }}",
    "{{ strftime_now('%Y' * 3000000) | length }}",
    "{{ strftime_now('%1000000000Y') | length }}",
    "{{ strftime_now('%_^999999999d') | length }}",
    "{{ [1, [2, [3]]] | tojson(indent=1000000000) }}",
    "{{ [1, [2, [3]]] | tojson(indent='x' * 10000000) }}",
    "{{ (range(9999) | list) | tojson(separators=('x' * 1000000, ':')) | length }}",
    "{{ 1.5 | round(1000000000, 'floor') }}{{ 1.5 | round(-1000000000) }}",
    "{{ [1] | batch(1000000000, 0) | list | length }}",
    "{{ [1] | slice(1000000000) | list | length }}",
    # Numbers
    "{{ 10 ** 10 ** 10 }}",
    "{{ 10 ** (10 ** 10) > 1 }}",
    _doubled("7", "n.x * n.x", "{{ n.x > 1 }}"),
    _doubled("7", "n.x ** 2", "{{ n.x > 1 }}"),
    "{{ 1 / 0 }}",
    "{{ 1e308 * 10 | int }}{{ (1e308 * 10) | int }}",
    "{{ ('9' * 4000000) | int }}{{ ('f' * 8000000) | int(0, 16) > 1 }}",
    "{% set a = 0x" + "f" * 100_000 + " %}{{ a // (a - 1) * a ** a }}",
    "{{ 1.0.hex() }}{{ (5).to_bytes(1000000000, 'big') | length }}",
    # Values within values
    _NESTED.replace("THEN", "{{ n.x }}"),
    _NESTED.replace("THEN", "{{ n.x | string | length }}"),
    _NESTED.replace("THEN", "{{ n.x | tojson | length }}"),
    _NESTED.replace("THEN", "{{ n.x | pprint | length }}"),
    _NESTED.replace("THEN", "{{ n.x ~ '' }}"),
    _NESTED.replace("THEN", "{{ '%s' % (n.x,) }}"),
    _NESTED.replace("THEN", "{{ '{}'.format(n.x) }}"),
    _NESTED.replace("THEN", "{{ '{!r}'.format(n.x) }}"),
    _NESTED.replace("THEN", "{{ raise_exception(n.x) }}"),
    _NESTED.replace("THEN", "{% set a = n.x %}{{ [a[0], a[1]] == [a[1] + [], a[0] + []] }}"),
    _NESTED.replace("THEN", "{{ n.x | upper }}{{ n.x | join }}"),
    _NESTED.replace("THEN", "{{ {'a': n.x}.values() }}"),
    _NESTED.replace("THEN", "{{ [{'a': n.x}.items()] }}"),
    _NESTED.replace("THEN", "{{ dict(a=n.x) }}"),
    _NESTED.replace("THEN", "{{ [n.x] | map('string') | list | length }}"),
    _NESTED.replace("THEN", "{{ [n.x, n.x] | sort | length }}{{ [n.x] | max }}"),
    _NESTED.replace("THEN", "{{ n.x in [n.x[0] + n.x[1]] }}"),
    _NESTED.replace("THEN", "{{ [n.x[0] + n.x[1]] | select('in', [[n.x[1] + n.x[0]]]) | list }}"),
    _doubled("(1, 2)", "(n.x, n.x)", "{{ {n.x: 1} | length }}"),
    _doubled("(1, 2)", "(n.x, n.x)", "{{ {'a': 1}.get(n.x) }}"),
    _doubled("(1, 2)", "(n.x, n.x)", "{{ {'a': 1}[n.x] }}"),
    _doubled("(1, 2)", "(n.x, n.x)", "{{ n.x in {'a': 1} }}"),
    _doubled("(1, 2)", "(n.x, n.x)", "{{ [n.x] | unique | list }}"),
    _doubled("(1, 2)", "(n.x, 1)", "{{ {n.x: 1} | length }}", 99999),
    _doubled("(1, 2)", "(n.x, 1)", "{{ [n.x] | unique | list | length }}", 99999),
    _doubled("(1, 2)", "(n.x, 1)", "{{ dict([(n.x, 1)]) | length }}", 99999),
    _doubled("(1, 2)", "(n.x, 1)", "{{ {}.fromkeys([n.x]) | length }}", 99999),
    _doubled("(1, 2)", "(n.x, 1)", "{{ n.x }}", 99999),
    _doubled("[1]", "[n.x]", "{{ n.x }}", 99999),
    _doubled("[1]", "[n.x]", "{{ n.x == [n.x] }}", 99999),
    _doubled("[1]", "n.x | batch(1) | list", "{{ n.x }}", 99999),
    _doubled("[1]", "n.x | map('abs')", "{{ n.x | list }}", 99999),
    "{% set a = namespace(x=1) %}{% set b = namespace(x=a) %}{% set a.x = [b, b] %}{{ a }}{{ [a] }}",
    "".join(f"{{% set a{i} = namespace() %}}" for i in range(40))
    + "".join(f"{{% set a{i + 1}.x = [a{i}, a{i}] %}}" for i in range(39)) + "{{ a39 }}{{ [a39] }}",
    # Code
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 5000 + "1" + "]" * 5000 + " }}",
    "{{ 1" + " + 1" * 20_000 + " }}",
    "{{ a" + ".b" * 40_000 + " }}",
    "{{ a" + " | abs" * 9_000 + " }}",
    "{% if a %}" * 5000 + "{% endif %}" * 5000,
    "{% if a %}" + "{% elif b %}" * 3000 + "{% endif %}",
    "{{ a }}" * 4_000,
    "{{ x" + " ~ x" * 6_000 + " }}",
    "{% set " + ",".join(f"a{i}" for i in range(2000)) + " = 1 %}",
    "".join(f"{{% if a %}}{{% set b{i} = 1 %}}{{% endif %}}" for i in range(700)),
    "{% macro m(" + ",".join(f"a{i}=1" for i in range(2000)) + ") %}{% endmacro %}{{ m() }}",
    "{{ [" + "1," * 10_000 + "] | length }}",
    "{% for i in range(99999) %}{% set x = [" + "1," * 10_000 + "] %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = {" + "'a':1," * 5_000 + "} %}{% endfor %}",
    "{#" * 60_000,
    "{{ '" * 40_000,
    "{% raw %}" * 14_000,
    "x" * 5_000_000,
    # What it reaches
    "{% include '/etc/passwd' %}",
    "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}{{ (''|attr('__class__')).x }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ messages.append(1) }}{{ messages.clear() }}",
    "{{ cycler.__init__.__globals__ }}{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception('x' * 10000000) }}",
    "{{ lipsum(100000) | length }}",
    "{{ joiner('x' * 1000000) }}{{ cycler(*range(99999)).next() }}",
    "{{ messages[0].content.format(*messages) }}{{ (messages | map('tojson')).throw(1) }}",
)  # fmt: skip


def main() -> None:
    budget.MOST_SECONDS = float(sys.argv[1])
    budget._VALUES = int(100_000 * budget.MOST_SECONDS)
    wanted = [int(number) for number in sys.argv[2:]] or range(len(HOSTILE))
    said = [{"role": "user", "content": "Hello {} there"}]
    render_chat("{{ messages[0].content }}", said)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in wanted:
        begun = time.process_time()
        try:
            text = render_chat(HOSTILE[number], said)
            came = f"{len(text):,} characters"
        except RequestError as error:
            came = f"refused: {str(error)[:300]}"
        took = time.process_time() - begun
        most = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024
        print(json.dumps([number, round(took, 2), round(most), came]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
