"""Chat templates of our own in the styles that models use, small templates for each construct, and what
`jinja2`, set up as `transformers` does it, renders."""

import json
import pathlib
import shutil

import jinja2
from transformers.utils.chat_template_utils import _compile_jinja_template

TEMPLATES = pathlib.Path(__file__).parent / "templates"

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather \"now\" in a city; <b>°C</b> & more",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "default": 1}},
            "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "parameters": {}}},
]
CALL = {"id": "c1", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "x": [1.5, None, True]}}}

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "  Be brief.\n"}, {"role": "user", "content": " Hi \n"}],
    [{"role": "user", "content": "1+1?"},
     {"role": "assistant", "content": "<think>\neasy\n</think>\n\n2"},
     {"role": "user", "content": "And 2+2?"}],
    [{"role": "system", "content": "S"}, {"role": "user", "content": "Weather?"},
     {"role": "assistant", "content": "", "reasoning_content": "call it", "tool_calls": [CALL]},
     {"role": "tool", "content": "{\"t\": 21}"}, {"role": "tool", "content": "second"},
     {"role": "assistant", "content": "21 °C", "reasoning_content": "done"}],
    [{"role": "user", "content": [{"type": "text", "text": "part 1 "}, {"type": "text", "text": "part 2"}]}],
    [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    [{"role": "robot", "content": "x"}],
    [{"role": "user", "content": "q"},
     {"role": "assistant", "content": "text", "tool_calls": [CALL, {"name": "noop", "arguments": {}}]},
     {"role": "tool", "content": None}],
    [{"role": "user", "content": "ünïcode 今天 😀 'quotes' \"double\" \\ back\\nslash <tag> & \t tab"}],
]

# One construct each. `v` holds the variables below.
VARIABLES = {
    "s": "  Hello, Wörld!  ", "word": "straße", "multi": "line one\n  line two\n\nline four\n", "n": 7, "f": 2.5,
    "neg": -3, "yes": True, "no": False, "nil": None, "empty": "", "nums": [3, 1, 2, 3],
    "words": ["b", "A", "c"], "d": {"b": 1, "a": [1, {"x": None}], "c d": "e"}, "items_": [
        {"name": "x", "ok": True, "v": 3, "deep": {"k": "p"}}, {"name": "Y", "ok": False, "v": 1},
        {"name": "z", "v": 2, "ok": True, "deep": {"k": "q"}}],
    "html": "<a href='x'>&\"</a>", "emoji": "a😀é今", "big": 12345678901234567, "tiny": 1e-7, "huge": 1e22,
}
SMALL = [
    "{{ s }}|{{ s|trim }}|{{ s.strip() }}|{{ s.lstrip() }}|{{ s.rstrip() }}|{{ s.strip(' !') }}|{{ 'xxaxx'.strip('x') }}",
    "{{ s.upper() }}{{ s|lower }}{{ word|upper }}{{ word.title() }}{{ 'hello wORLD it\\'s'.title() }}{{ 'hELLO wORLD'|capitalize }}",
    "{{ s.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a  b '.split(None, 1) }}{{ ''.split() }}{{ ''.split(',') }}",
    "{{ s.replace('l', 'L') }}{{ s|replace('l', 'L', 1) }}{{ 'abc'.replace('', '-') }}{{ 'aaa'.replace('a', 'b', 2) }}",
    "{{ s.startswith('  H') }}{{ s.endswith(('x', '  ')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('z') }}{{ 'abcabc'.rfind('b') }}{{ 'aXbX'.count('X') }}",
    "{{ multi.splitlines() }}{{ multi|indent }}|{{ multi|indent(2, true) }}|{{ multi|indent(2, blank=true) }}|{{ multi|indent('>>', first=true) }}",
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ (1 + 2) * 3 }}",
    "{{ 1.0 }} {{ 2.50 }} {{ 1e3 }} {{ tiny }} {{ huge }} {{ big }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1_000 }} {{ 100000.0 * 10 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 2.5 ~ [1, 'x'] ~ {'k': 'v'} }}",
    "{{ 'a' 'b' \"c\" }}{{ 'a\\tb\\n\\x41\\u00e9\\'\\\"\\\\ \\q' }}",
    "{{ 1 < 2 }}{{ 1 < 2 < 3 }}{{ 3 > 2 >= 2 }}{{ 'a' < 'b' }}{{ 1 == 1.0 }}{{ true == 1 }}{{ none == none }}{{ [1, 2] == [1, 2] }}{{ 'x' != 'y' }}{{ {'a': 1} == {'a': 1} }}",
    "{{ 'a' in 'cat' }}{{ 2 in nums }}{{ 'b' in d }}{{ 5 not in nums }}{{ not yes }}{{ not (yes and no) }}{{ yes or no }}{{ no or 'x' }}{{ nil and 'x' }}{{ 'y' and 'z' }}",
    "{{ 'A' if yes else 'B' }}{{ 'A' if no }}|{{ 'A' if no else 'B' if no else 'C' }}{{ ('p' if yes) ~ 'q' }}",
    "{{ missing }}|{{ missing is defined }}{{ missing is undefined }}{{ missing|default('dflt') }}{{ nil|default('x') }}{{ empty|default('y', true) }}{{ nil|d('z', boolean=true) }}{{ d.nope is defined }}",
    "{{ nil is none }}{{ s is string }}{{ d is mapping }}{{ nums is sequence }}{{ nums is iterable }}{{ s is iterable }}{{ n is number }}{{ yes is boolean }}{{ n is integer }}{{ f is float }}{{ d is iterable }}{{ nil is iterable }}{{ n is iterable }}{{ d is sequence }}",
    "{{ yes is true }}{{ no is false }}{{ n is odd }}{{ n is even }}{{ n is divisibleby(7) }}{{ n is divisibleby 2 }}{{ n is eq 7 }}{{ n is equalto(7) }}{{ n is ne 7 }}{{ n is gt 3 }}{{ 'a' is in 'abc' }}{{ n is not none }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 1 is true }}",
    "{{ nums|length }}{{ s|length }}{{ d|length }}{{ emoji|length }}{{ nums|count }}{{ nums|first }}{{ nums|last }}{{ emoji|first }}{{ emoji|last }}{{ []|first is defined }}",
    "{{ nums|join(', ') }}|{{ words|join }}|{{ items_|join('/', attribute='name') }}|{{ ', '.join(words) }}",
    "{{ nums|sort }}{{ nums|sort(reverse=true) }}{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ items_|sort(attribute='v')|map(attribute='name')|list }}{{ nums|unique|list }}{{ nums|reverse|list }}{{ 'abc'|reverse }}",
    "{{ items_|selectattr('ok')|map(attribute='name')|list }}{{ items_|rejectattr('ok')|map(attribute='name')|join }}{{ items_|selectattr('v', 'gt', 1)|map(attribute='v')|list }}{{ items_|selectattr('name', 'equalto', 'x')|list|length }}{{ items_|selectattr('deep', 'defined')|list|length }}{{ items_|map(attribute='deep.k', default='?')|join(',') }}",
    "{{ nums|select('odd')|list }}{{ nums|reject('odd')|list }}{{ words|map('upper')|list }}{{ [0, 1, '', 'x']|select|list }}{{ nums|sum }}{{ items_|sum(attribute='v') }}{{ nums|min }}{{ nums|max }}{{ words|max }}",
    "{{ d.b }}{{ d['b'] }}{{ d['c d'] }}{{ d.a[1].x }}{{ d.get('b') }}{{ d.get('q') }}{{ d.get('q', 5) }}{{ d.a.0 }}{{ nums[0] }}{{ nums[-1] }}{{ nums[9] is defined }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }},{% endfor %}{{ d.keys()|list }}{{ d.values()|list }}{% for k, v in d|items %}{{ k }}{% endfor %}{% for k, v in d|dictsort %}{{ k }}{% endfor %}{{ d|list }}",
    "{{ nums[1:] }}{{ nums[:2] }}{{ nums[::-1] }}{{ nums[1:3] }}{{ nums[-2:] }}{{ nums[::2] }}{{ nums[5:] }}{{ emoji[1:3] }}{{ emoji[::-1] }}{{ s[2:7] }}{{ emoji[1] }}{{ emoji[-1] }}{{ nums[3:0:-1] }}{{ nums[-10:10] }}{{ nums[-100:-50] }}",
    "{{ d|tojson }}{{ nums|tojson }}{{ s|tojson }}{{ nil|tojson }}{{ yes|tojson }}{{ f|tojson }}{{ html|tojson }}{{ emoji|tojson }}{{ emoji|tojson(ensure_ascii=true) }}{{ '\\x7f\\x01'|tojson }}",
    "{{ d|tojson(indent=2) }}{{ []|tojson(indent=2) }}{{ {}|tojson(indent=4) }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(sort_keys=true) }}{{ tiny|tojson }}{{ [[], [1]]|tojson(indent=1) }}",
    "{{ '3'|int }}{{ ' 42 '|int + 1 }}{{ '3.7'|int }}{{ 'x'|int }}{{ 'x'|int(9) }}{{ 2.9|int }}{{ '2.5'|float }}{{ 'x'|float }}{{ 3|float }}{{ 5|string + '!' }}{{ neg|abs }}{{ -2.5|abs }}{{ 2.567|round(2) }}{{ 2.5|round }}{{ 2.1|round(0, 'ceil')|int }}",
    "{{ range(5)|list }}{{ range(2, 5)|list }}{{ range(5, 0, -2)|list }}{% for i in range(3) %}{{ i }}{% endfor %}{{ 'ab' * 3 }}{{ [1] * 2 }}{{ [1] + [2] }}{{ (1, 2)|list }}{{ dict(a=1, b='x') }}",
    "{% for x in nums %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem is defined }}/{{ loop.nextitem if loop.nextitem is defined else '-' }} {% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}{% for x in nums if x > 1 %}{{ loop.index }}:{{ x }} {% endfor %}{% for x in missing %}x{% else %}m{% endfor %}{% for x in nums if x > 99 %}{% else %}nothing{% endfor %}",
    "{% for x in nums %}{% if x == 1 %}{% continue %}{% endif %}{% if loop.index == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for a in [1, 2] %}{% for b in [3, 4] %}{{ a }}{{ b }}{{ loop.index }}{{ loop.depth }} {% endfor %}{{ loop.index }}{% endfor %}{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(a=1, l=[]) %}{% for i in nums %}{% set ns.a = ns.a + i %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.a }}{{ ns.l }}{{ ns.nope is defined }}{% set ns.new = 'n' %}{{ ns.new }}{{ ns['a'] }}",
    "{% set x %}block {{ n }}{% endset %}[{{ x }}]{% set y = x|upper %}{{ y }}",
    "{% macro m(a, b='B', c=none) %}<{{ a }}{{ b }}{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(a=3, c=4) }}{{ m() }}{{ m(1)|upper }}{{ m(1) ~ m(2) }}",
    "{% set g = 'G' %}{% macro outer(x) %}{{ g }}{{ inner(x) }}{% endmacro %}{% macro inner(y) %}({{ y }}{{ n }}){% endmacro %}{{ outer(5) }}{% for n in [1, 2] %}{{ inner(n) }}{% endfor %}",
    "  {% if yes %}\n  a\n  {% endif %}\n  b\n{% for i in [1, 2] %}\n  - {{ i }}\n{% endfor %}\nend\n",
    "a  {%- if yes -%}  b  {%- endif -%}  c\n\n{{- ' d ' -}}\n\ne {#- comment -#} f\n  {# comment #}\ng {{ 'h' -}}   i",
    "x {%+ if yes %}\n  y{% endif +%}\nz\n   {%+ if yes %}q{% endif %}\n",
    "{% raw %}{{ not rendered }} {% if %}{% endraw %} after{% raw -%}   x {%- endraw %}",
    "\n\nleading\n{{ n }}\n\n\ntrailing\n\n",
    "line\r\n{% if yes %}\r\nx\r\n{% endif %}\r\ny\rz",
    "{{ '{{' }}{{ \"%}\" }}{{ '}}' }}{{ {'a': {'b': 1}} }}{{ {} }}{{ [] }}{{ [[]] }}",
    "{{ ['a', \"it's\", 'q\"', 'b\\\\', '\\n', 'é', none, true, 1.5] }}{{ {'k': [1, {'z': 'y'}]} }}",
    "{{ n|string|length }}{{ (n + 1)|string }}{{ -n|abs }}{{ n is odd and yes }}{{ not n is even }}{{ -n ** 2 }}{{ 2 ** 3 ** 2 }}",
    "{{ 'a' if n > 5 and n < 9 else 'b' }}{{ (n > 5) == true }}{{ n in [7] and 'in' }}{{ 'x' ~ (1 if no else 2) ~ 'y' }}{{ 1 ~ 2 * 3 ~ '' }}{{ ('1' ~ 2 + '3') }}{{ '%s' ~ 1 }}",
    "{% if n == 1 %}1{% elif n == 7 %}7{% elif n == 7 %}no{% else %}else{% endif %}{% if nil %}x{% elif empty %}y{% endif %}{% if nums %}z{% endif %}",
    "{{ messages is defined }}{{ s|safe }}{{ 'abc'.removeprefix('a').removesuffix('c') }}{{ ' \\t\\n'.isspace() }}{{ '12'.isdigit() }}{{ 'a'.isdigit() }}",
    "{{ raise_exception('stop: ' ~ n) }}",
    "{% if no %}{{ raise_exception('never') }}{% endif %}ok",
    "{# multi\nline {{ ignored }} #}x{#- y -#} z",
    "{{ d.a|length if d.a is defined and d.a is sequence else 0 }}{{ (d.get('zz') or {}).get('q', 'none') }}{{ items_[0]['deep']['k'] }}{{ items_[-1].name }}",
    "{% generation %}gen {{ n }}{% endgeneration %}\nafter",
]


def render(source, variables):
    """The text, or the message that the template raised."""
    try:
        return {"text": _compile_jinja_template(source).render(**variables)}
    except jinja2.TemplateError as error:
        return {"error": str(error)}


def cases():
    for path in sorted(TEMPLATES.glob("*.jinja")):
        source = path.read_text()
        for messages in CONVERSATIONS:
            for extra in ({}, {"add_generation_prompt": True, "tools": TOOLS},
                          {"add_generation_prompt": True, "enable_thinking": False}):
                variables = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>", **extra}
                try:
                    result = render(source, variables)
                except TypeError:
                    continue  # a conversation that is not for this template
                yield {"template": path.name, "variables": variables, **result}
    for source in SMALL:
        yield {"source": source, "variables": VARIABLES, **render(source, VARIABLES)}


def write_all(out):
    out.mkdir(parents=True, exist_ok=True)
    for path in TEMPLATES.glob("*.jinja"):
        shutil.copy(path, out / path.name)
    lines = [json.dumps(case) for case in cases()]
    (out / "cases.jsonl").write_text("\n".join(lines) + "\n")
    print("templates", len(lines), "cases", "jinja2", jinja2.__version__)
