#!/usr/bin/env python3
"""Writes src/text/template/unicode_tables.h: Python's str.upper, str.lower, str.title and str.isprintable as runs of code points.

    python3 tools/write_case_tables.py > src/text/template/unicode_tables.h
"""

import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def mapping(function):
    """(runs (first, last, stride, delta) of one-to-one mappings, list of (code point, mapped string))."""
    runs, special = [], []
    for c in CODE_POINTS:
        mapped = function(chr(c))
        if mapped == chr(c):
            continue
        if len(mapped) != 1:
            special.append((c, mapped))
            continue
        delta = ord(mapped) - c
        if runs:
            first, last, stride, run_delta = runs[-1]
            if run_delta == delta and (c - last == stride if last != first else c - last in (1, 2)):
                runs[-1] = (first, c, c - last, delta)
                continue
        runs.append((c, c, 1, delta))
    return runs, special


def unprintable():
    ranges = []
    for c in CODE_POINTS:
        if chr(c).isprintable():
            continue
        if ranges and (ranges[-1][1] == c - 1 or (c == 0xE000 and ranges[-1][1] == 0xD7FF)):
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def utf8(text):
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'


def rows(items, width=150):
    line = ""
    for item in items:
        if len(line) + len(item) + 1 > width:
            print(line)
            line = ""
        line += f"{item},"
    print(line)


def array(kind, name, items):
    print(f"inline constexpr {kind} {name}[] = {{")
    rows(items)
    print("};")


def main():
    print("#pragma once\n")
    print(f"// Written by tools/write_case_tables.py from Unicode {unicodedata.unidata_version}; not edited by hand.\n")
    print("#include <cstdint>\n\nnamespace palimpsest::text::jinja {\n\n// clang-format off")
    print("/// Every stride-th code point of first..last maps to itself plus delta.")
    print("struct CaseRun { std::uint32_t first, last, stride; std::int32_t delta; };")
    print("/// One that maps to several.")
    print("struct CaseSpecial { std::uint32_t code; const char* utf8; };")
    print("struct CodeRange { std::uint32_t first, last; };\n")
    for name, function in (("Upper", str.upper), ("Lower", str.lower)):
        runs, special = mapping(function)
        array("CaseRun", f"k{name}Runs", [f"{{{a},{b},{s},{d}}}" for a, b, s, d in runs])
        array("CaseSpecial", f"k{name}Specials", [f"{{{c},{utf8(m)}}}" for c, m in special])
    differ = [(c, chr(c).title()) for c in CODE_POINTS if chr(c).title() != chr(c).upper()]
    print("/// Where title case is not upper case.")
    array("CaseSpecial", "kTitleSpecials", [f"{{{c},{utf8(m)}}}" for c, m in differ])
    print("/// What repr() of a string escapes.")
    array("CodeRange", "kUnprintable", [f"{{{a},{b}}}" for a, b in unprintable()])
    print("// clang-format on\n\n}  // namespace palimpsest::text::jinja")


if __name__ == "__main__":
    main()
