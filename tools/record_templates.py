#!/usr/bin/env python3
"""Records what jinja2, set up as for Hugging Face chat templates, renders: the truth of tests/text/template_*_test.cc.

    python3 -m venv VENV && VENV/bin/pip install jinja2==3.1.6
    VENV/bin/python tools/record_templates.py [FOLDER_OF_PUBLISHED_TEMPLATES]

Writes into tests/data/templates: chats.json (115 chats made here, from a fixed seed), own.json (full text of the templates that lie
there), matrix.json (operators, tests and filters on values of every type), errors.json (errors and their lines), unicode.json (digests of
string methods over all code points), and, with a
folder given, published.json: for each of its *.jinja and each chat only the length and FNV-1a digest of the text, or that there is
an error, since those templates are other people's.
"""

import datetime
import json
import pathlib
import random
import sys
import traceback

import jinja2
import jinja2.ext
import jinja2.sandbox

FOLDER = pathlib.Path(__file__).parent.parent / "tests" / "data" / "templates"
NOW = datetime.datetime(2025, 3, 9, 14, 5, 6)


class Generation(jinja2.ext.Extension):
    """{% generation %}: rendered through a call block, as where it marks the assistant's text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def fnv(data):
    digest = 0xCBF29CE484222325
    for byte in data:
        digest = ((digest ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{digest:016x}"


def error_line(error):
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return lines[-1] if lines else 0


def render(source, context):
    """(text, None) or (None, the exception)."""
    try:
        return ENV.from_string(source).render(**context), None
    except Exception as error:  # noqa: BLE001: a template may raise anything
        return None, error


def write(name, value):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # One record a line: differences can be read.
    (FOLDER / name).write_text(text.replace('},{"', '},\n{"').replace('],[', '],\n[') + "\n", encoding="utf-8")


# ---- chats ----------------------------------------------------------------------------------------------------------------

TEXTS = [
    "Hello", "", "What is 2 + 2?", "Grüße, 世界! 😀", "line one\nline two\n", "  spaces around  ", "<tool_response>\nfake\n</tool_response>",
    "tabs\tand \"quotes\" and 'single' & <angle> \\ backslash", "{{ not a template }} {% if %}", "مرحبا\u200f", "\u2028 separator \u00a0",
    "<think>inner</think>answer", "\n\n<think>\nplan\n</think>\n\nresult\n", "e\u0301 combining", "0", "null", "a" * 120, "\r\nwindows\r\n", "\x7f\x01",
]
REASONING = ["Let me think.", "", "\nstep 1\nstep 2\n", "考える", None]
ARGUMENTS = [
    {}, {"city": "Rome"}, {"n": 1, "x": 1.5, "ok": True, "none": None}, {"list": [1, "a", {"b": []}], "text": "Grüße \"q\"\n"},
    {"z": 1, "a": {"y": 2.0, "b": -3}, "M": 1e20}, '{"city": "Rome"}', "", "not json", '{"a":1, "b" : [ ]}', {"nested": {"deep": {"er": [[], {}]}}},
]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. \"Köln\""}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "add", "description": "", "parameters": {
        "type": "object", "properties": {"b": {"type": "number", "minimum": 0.5}, "a": {"type": "integer", "enum": [1, 2, 3]}}}}},
    {"type": "function", "function": {"name": "搜索", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}, "strict": True},
]


def content(rng):
    kind = rng.random()
    if rng.plain or kind < 0.72:
        return rng.choice(TEXTS)
    if kind < 0.78:
        return None
    parts = []
    for _ in range(rng.randint(0, 3)):
        parts.append(rng.choice([
            {"type": "text", "text": rng.choice(TEXTS)}, {"type": "text", "text": rng.choice(TEXTS)}, {"type": "image", "image": "x.png"},
            {"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}, {"type": "video", "video": "x.mp4"}]))
    return parts


def tool_call(rng, number):
    call = {"id": f"call_{number}", "type": "function",
            "function": {"name": rng.choice(["get_weather", "add", "搜索"]), "arguments": rng.choice(ARGUMENTS)}}
    if rng.random() < 0.15:
        del call["id"]
    if rng.random() < 0.1:
        call = call["function"]
    return call


def assistant_turn(rng, messages):
    message = {"role": "assistant", "content": content(rng)}
    if rng.random() < 0.4:
        message["reasoning_content"] = rng.choice(REASONING)
    if rng.random() < 0.1:
        del message["content"]
    messages.append(message)
    if rng.random() < 0.45:
        message["tool_calls"] = [tool_call(rng, len(messages) * 10 + i) for i in range(rng.randint(0, 3))]
        results = [
            {"role": "tool", "tool_call_id": call.get("id", "call_x"), "content": content(rng)} for call in message["tool_calls"]]
        if rng.random() < 0.3:
            rng.shuffle(results)
        for result in results:
            if rng.random() < 0.3:
                result["name"] = "get_weather"
        messages.extend(results)
        if rng.random() < 0.6:
            messages.append({"role": "assistant", "content": rng.choice(TEXTS)})


def chat(rng):
    messages = []
    rng.plain = rng.random() < 0.6  # a chat of texts alone, as most are
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": content(rng)})
    for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3])):
        user = {"role": "user", "content": content(rng)}
        if rng.random() < 0.1:
            user["name"] = "Ann \"A\" & Co"
        messages.append(user)
        if rng.random() < 0.8:
            assistant_turn(rng, messages)
    if rng.random() < 0.1:
        messages.append({"role": "system", "content": "late", "tools": TOOLS[:1]} if rng.random() < 0.5 else {"role": "developer", "content": "x"})
    context = {"messages": messages}
    if rng.random() < 0.5:
        context["tools"] = rng.sample(TOOLS, rng.randint(0, 3))
    if rng.random() < 0.1:
        context["tools"] = None
    for name, values, chance in [
        ("add_generation_prompt", [True, True, False], 0.8), ("enable_thinking", [True, False], 0.4), ("thinking", [True, False], 0.4),
        ("thinking_effort", ["low", "high", "max", "extreme", None], 0.2), ("add_vision_id", [True], 0.2),
        ("tool_choice", ["required", "none", "auto"], 0.2), ("tools_ts_str", ["namespace functions {}"], 0.1),
        ("response_format", [{"type": "json_object"}, "json_object", {"type": "json_schema", "json_schema": {"name": "n", "schema": {"b": 1, "A": [True, 1.0]}}}], 0.15),
        ("image_prompts", [["<i1>", "<i2>"], []], 0.07), ("strict", [True], 0.3), ("bos_token", ["<s>"], 0.5),
    ]:
        if rng.random() < chance:
            context[name] = rng.choice(values)
    return context


def record_chats():
    rng = random.Random(20250309)
    chats = [chat(rng) for _ in range(115)]
    write("chats.json", chats)
    return chats


# ---- our own templates ------------------------------------------------------------------------------------------------------

OWN_CONTEXT = {
    "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": None}],
    "d": {"a": 1},
    "users": [
        {"name": "Ann", "age": 41, "admin": True, "nick": "A", "address": {"city": "Rome"}},
        {"name": "Bob", "age": 29, "admin": False, "address": {"city": "Oslo"}},
        {"name": "Cy", "age": 35, "admin": True, "nick": None, "address": {"city": "Rome"}}],
    "value": {"z": 1, "a": "Grüße 😀 \"q\" \\ \n", "float": 1.0, "big": 9007199254740993, "neg": -1.5e-9, "t": True, "n": None, "e": {}, "l": [],
              "nested": {"deep": [{"x": [1, 2]}, []], "B": "</script>", "é": "ключ"}},
    "tools": TOOLS,
}


def record_own(chats):
    records = []
    for path in sorted(FOLDER.glob("*.jinja")):
        contexts = chats[:40] if path.name == "chat.jinja" else [OWN_CONTEXT]
        for index, context in enumerate(contexts):
            text, error = render(path.read_text(encoding="utf-8"), context)
            if error is not None and not isinstance(error, jinja2.TemplateError):
                print(f"{path.name}: chat {index}: {type(error).__name__}: {error}", file=sys.stderr)
            record = {"template": path.name, "chat": index if path.name == "chat.jinja" else None}
            record["text" if error is None else "error"] = text if error is None else str(error)
            records.append(record)
    write("own.json", {"context": OWN_CONTEXT, "records": records})


# ---- operators, tests and filters on every type -----------------------------------------------------------------------------

VALUES = ["none", "true", "0", "2", "-3", "1.5", "''", "'ab'", "[]", "[1, 'a']", "(1, 2)", "{}", "{'a': 1}", "range(3)", "nothing"]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
UNARY = ["{{ -v }}", "{{ +v }}", "{{ not v }}", "{{ v[0] }}", "{{ v[1:] }}", "{{ v.a }}", "{{ v['a'] }}", "{{ v[1] }}", "{{ v.b }}|{{ v.b is defined }}", "{{ v() }}",
         "{% for x in v %}{{ x }},{% endfor %}", "{% set a, b = v %}{{ a }}", "{{ v.items()|list }}", "{{ v.upper() }}", "{{ [v, v] }}",
         "{{ {v: 1} }}", "{{ 'x'.join(v) }}", "{{ v.append(1) }}", "{{ v.append }}", "{{ v.__class__ }}", "{{ v.__class__.x }}", "{{ v|int(base=16) }}",
         "{{ v|join('-') }}", "{{ v|default('D', true) }}", "{{ v|replace('a', 'b') }}", "{{ v|select|list }}", "{{ v|map('string')|list }}", "{{ v|batch(2)|list }}",
         "{{ v|sort(reverse=true) }}", "{{ v|reverse|list }}", "{{ v|unique|list }}", "{{ v|map(attribute='a')|list }}", "{{ v|items|list }}"]
FILTERS = ["abs", "capitalize", "count", "dictsort", "e", "first", "float", "indent", "int", "join", "last", "length", "list", "lower", "max", "min",
           "round", "safe", "sort", "string", "sum", "title", "tojson", "trim", "upper", "wordcount"]
TESTS = ["boolean", "callable", "defined", "even", "odd", "false", "float", "integer", "iterable", "lower", "mapping", "none", "number", "sequence", "string",
         "true", "undefined", "upper"]


def record_matrix():
    """Tables of [row beginnings, row ends, results]: a template is a beginning and an end; its result a text, null for an error, or false: left out."""
    tables = [
        ([f"{{{{ ({a}) {op} " if a.startswith("-") else f"{{{{ {a} {op} " for op in BINARY for a in VALUES], [f"{b} }}}}" for b in VALUES]),
        ([f"{{% set v = {v} %}}" for v in VALUES], UNARY + ["{{ v|" + f + " }}" for f in FILTERS] + ["{{ v is " + t + " }}" for t in TESTS]),
    ]

    def result(source):
        text = render(source, {})[0]
        # Complex numbers, memory addresses, and the class of an undefined value.
        out = (text or "").endswith("j)") or " object at 0x" in (text or "") or "= nothing %}{{ v.__class__ }}" in source
        return False if out else text

    write("matrix.json", [[begins, ends, [[result(begin + end) for end in ends] for begin in begins]] for begins, ends in tables])


ERRORS = [
    "a\n{{ nothing.x }}", "{{ d.x.y }}", "{{ d['x']['y'] }}", "\n\n{{ nothing() }}", "{{ 1 +\n\n 'a' }}", "{{ 'a' + 1 }}", "{{ [1] + 'a' }}", "{{ none + 1 }}",
    "{{ 1 < 'a' }}", "{{ nothing + 1 }}", "{{ 1 in none }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ [].append(1) }}", "{% set x = [] %}\n{{ x.append(1) }}",
    "{{ d.update({}) }}", "{{ d.pop('a') }}", "{{ d.__class__.__name__ }}", "{{ raise_exception('stop ' ~ 1) }}", "{% if true %}\n{{ raise_exception('inner') }}\n{% endif %}",
    "{% macro m() %}\n\n{{ raise_exception('in macro') }}{% endmacro %}\n\n{{ m() }}", "{% for x in 5 %}{% endfor %}", "{% for a, b in [1] %}{% endfor %}",
    "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}", "{{ 'a'|nofilter }}", "{{ 'a' is notest }}", "{% if %}{% endif %}", "{% if true %}", "{% for x in y %}{% endif %}",
    "{% unknown %}", "{{ 'a }}", "{{ a b }}", "{{ }}", "{{ (1 }}", "{{ 1 ] }}", "{% endif %}", "{{ a.'b' }}", "{% set 1 = 2 %}", "{% set x.y.z = 2 %}", "{% set x.y = 2 %}",
    "{% set d.y = 2 %}", "{% break %}", "{% macro m( %}{% endmacro %}", "{# open", "{% raw %} open", "{{ x", "{{ 'a'.index('z') }}", "{{ 'a'.split('') }}", "{{ 'abc'[1:2:0] }}",
    "{{ d[1:] }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % (1, 2) }}", "{{ range(1000000) }}", "{{ range('a') }}", "{{ 'a'.join([1]) }}",
    "{{ namespace|tojson }}", "{{ nothing|tojson }}", "{{ [[]]|sort + [1, 'a']|sort }}", "{{ {[]: 1} }}", "{{ d.items()[0].x }}", "{{ not }}", "{{ 1 is string is number }}",
    "{{ f(a=1, a=2) }}", "{{ f(a=1, 2) }}", "{{ loop.index }}", "{% for x in [1] %}{{ loop.nextitem.y }}{% endfor %}", "{{ 'x' * 'y' }}", "{{ -'x' }}", "{{ 5|length }}",
    "{{ 5|list }}", "{{ [1]|last|first }}", "{{ 5|dictsort }}", "{{ 'a'|int + none|float + [] }}", "{{ ('x' if false).y }}", "{% include 'x' %}", "{% set x %}",
    "{{ {'a' 1} }}", "{{ [1, 2 }}", "{% for x in [1] %}{% else %}{% else %}{% endfor %}", "{{ @ }}", "{{ 1.5.x.y }}", "{{ true.x.y }}", "{{ nothing|int }}",
]


def record_errors():
    records = []
    for source in ERRORS:
        text, error = render(source, {"d": {"a": 1}, "x": {"y": 1}})
        if error is None:
            print(f"no error: {source!r} gives {text!r}", file=sys.stderr)
            continue
        records.append({"source": source, "type": type(error).__name__, "message": str(error), "line": error_line(error)})
    write("errors.json", records)


def record_unicode():
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    write("unicode.json", {
        name: fnv("".join(map(function, characters)).encode())
        for name, function in [("upper", str.upper), ("lower", str.lower), ("capitalize", str.capitalize),
                               ("printable", lambda c: "1" if c.isprintable() else "0"), ("space", lambda c: "1" if c.isspace() else "0")]})


# ---- published templates ----------------------------------------------------------------------------------------------------


def record_published(folder, chats):
    records = {}
    for path in sorted(pathlib.Path(folder).glob("*.jinja")):
        results = []
        for context in chats:
            text, error = render(path.read_text(encoding="utf-8"), context)
            if error is not None:
                raised = type(error) is jinja2.exceptions.TemplateError
                results.append("raised " + fnv(str(error).encode()) if raised else "error")
            else:
                data = text.encode()
                results.append(f"{len(data)} {fnv(data)}")
        records[path.name] = results
        print(path.name, sum(r[0] not in "re" for r in results), "of", len(results), "rendered")
    write("published.json", records)


def main():
    chats = record_chats()
    record_own(chats)
    record_matrix()
    record_errors()
    record_unicode()
    if len(sys.argv) > 1:
        record_published(sys.argv[1], chats)


if __name__ == "__main__":
    main()
