#include "text/template/printing.h"

#include <cmath>

#include "text/template/characters.h"
#include "text/template/loop.h"
#include "text/template/macro.h"
#include "text/template/operators.h"
#include "text/utf8.h"

namespace palimpsest::text::jinja {
namespace {

void check(int depth, const std::string& out, Budget& budget) {
  if (depth > kMaxNesting) raise("a value nested more than {} deep is printed", kMaxNesting);
  budget.step();
  if (out.size() > budget.limits().value_bytes) budget.charge(out.size());
}

void append_code_escape(char32_t c, std::string& out) {
  const auto code = static_cast<std::uint32_t>(c);
  out += code < 0x100     ? fmt::format("\\x{:02x}", code)
         : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                          : fmt::format("\\U{:08x}", code);
}

void append_text_repr(std::string_view text, std::string& out) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  out += quote;
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    const char32_t c = unit.code_point;
    if (c == U'\n') {
      out += "\\n";
    } else if (c == U'\r') {
      out += "\\r";
    } else if (c == U'\t') {
      out += "\\t";
    } else if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (is_printable(c)) {
      out += text.substr(0, unit.size);
    } else {
      append_code_escape(c, out);
    }
    text.remove_prefix(unit.size);
  }
  out += quote;
}

void append_items(std::span<const Value> items, std::string& out, Budget& budget, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(items[i], out, budget, depth + 1);
  }
}

void append_dict(const DictObject& dict, std::string& out, Budget& budget, int depth) {
  out += '{';
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(dict.entries[i].key, out, budget, depth + 1);
    out += ": ";
    append_repr(dict.entries[i].value, out, budget, depth + 1);
  }
  out += '}';
}

void append_view(const ViewObject& view, std::string& out, Budget& budget, int depth) {
  for (std::size_t i = 0; i < view.dict->entries.size(); ++i) {
    const DictEntry& entry = view.dict->entries[i];
    if (i > 0) out += ", ";
    if (view.what == ViewObject::What::kItems) out += '(';
    if (view.what != ViewObject::What::kValues) append_repr(entry.key, out, budget, depth + 1);
    if (view.what == ViewObject::What::kItems) out += ", ";
    if (view.what != ViewObject::What::kKeys) append_repr(entry.value, out, budget, depth + 1);
    if (view.what == ViewObject::What::kItems) out += ')';
  }
}

void append_namespace(const NamespaceObject& names, std::string& out, Budget& budget, int depth) {
  out += "<Namespace {";
  for (const NamespaceEntry* entry = names.first; entry != nullptr; entry = entry->next) {
    if (entry != names.first) out += ", ";
    append_text_repr(entry->name, out);
    out += ": ";
    append_repr(entry->value, out, budget, depth + 1);
  }
  out += "}>";
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  std::string text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

void append_repr(const Value& value, std::string& out, Budget& budget, int depth) {
  check(depth, out, budget);
  switch (value.kind) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out += "Undefined";
      return;
    case Kind::kNone:
      out += "None";
      return;
    case Kind::kBool:
      out += value.boolean ? "True" : "False";
      return;
    case Kind::kInt:
      out += std::to_string(value.integer);
      return;
    case Kind::kFloat:
      out += float_repr(value.real);
      return;
    case Kind::kText:
      budget.step(value.text().size() / 32);
      if (value.is_markup) out += "Markup(";
      append_text_repr(value.text(), out);
      if (value.is_markup) out += ')';
      return;
    case Kind::kList:
      out += '[';
      append_items(value.list->items, out, budget, depth);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(value.list->items, out, budget, depth);
      out += value.list->items.size() == 1 ? ",)" : ")";
      return;
    case Kind::kDict:
      append_dict(*value.dict, out, budget, depth);
      return;
    case Kind::kView:
      out += fmt::format("{}([", type_name(value));
      append_view(*value.view, out, budget, depth);
      out += "])";
      return;
    case Kind::kRange:
      out += fmt::format("range({}, {}", value.range->start, value.range->stop);
      out += value.range->step == 1 ? ")" : fmt::format(", {})", value.range->step);
      return;
    case Kind::kNamespace:
      append_namespace(*value.name_space, out, budget, depth);
      return;
    case Kind::kLoop:
      out += fmt::format("<LoopContext {}/{}>", value.loop->index0() + 1, value.loop->length());
      return;
    case Kind::kMacro:
      out += fmt::format("<Macro '{}'>", value.macro->definition->name);
      return;
    default:
      raise_unsupported("printing a value of type '{}' is not supported", type_name(value));
  }
}

void append_str(const Value& value, std::string& out, Budget& budget) {
  if (value.is_text()) {
    budget.step(value.text().size() / 64);
    out += value.text();
  } else if (!value.is(Kind::kUndefined)) {
    append_repr(value, out, budget);
  }
}

std::string to_str(const Value& value, Budget& budget) {
  std::string out;
  append_str(value, out, budget);
  return out;
}

Value to_text(const Value& value, Heap& heap) {
  return value.is_text() ? value : heap.text(to_str(value, heap.budget()));
}

// ---- JSON
// -------------------------------------------------------------------------------------------------------------

namespace {

void append_json_text(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    const auto code = static_cast<std::uint32_t>(unit.code_point);
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    if (const std::size_t at = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
        at != kEscaped.npos) {
      out += '\\';
      out += kLetters[at];
    } else if (code >= 0x10000 && ensure_ascii) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    } else if (code < 0x20 || (code > 0x7e && ensure_ascii)) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += text.substr(0, unit.size);
    }
    text.remove_prefix(unit.size);
  }
  out += '"';
}

void append_json_number(const Value& value, std::string& out) {
  if (value.is(Kind::kInt)) {
    out += std::to_string(value.integer);
  } else if (std::isnan(value.real)) {
    out += "NaN";
  } else if (std::isinf(value.real)) {
    out += value.real > 0 ? "Infinity" : "-Infinity";
  } else {
    out += float_repr(value.real);
  }
}

void append_json_key(const Value& key, const JsonFormat& format, std::string& out) {
  switch (key.kind) {
    case Kind::kText:
      append_json_text(key.text(), format.ensure_ascii, out);
      return;
    case Kind::kNone:
      out += "\"null\"";
      return;
    case Kind::kBool:
      out += key.boolean ? "\"true\"" : "\"false\"";
      return;
    case Kind::kInt:
    case Kind::kFloat:
      out += '"';
      append_json_number(key, out);
      out += '"';
      return;
    default:
      raise("keys must be str, int, float, bool or None, not {}", type_name(key));
  }
}

void append_line(const JsonFormat& format, int depth, std::string& out) {
  if (!format.has_indent) return;
  out += '\n';
  for (int i = 0; i < depth; ++i) out += format.indent;
}

void append_json_dict(const DictObject& dict, const JsonFormat& format, std::string& out,
                      Heap& heap, int depth) {
  std::vector<Value> keys;
  for (const DictEntry& entry : dict.entries) keys.push_back(entry.key);
  if (format.sort_keys) keys = sorted(keys, keys, false, heap.budget());
  out += '{';
  bool first = true;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!first) out += format.item_separator;
    first = false;
    append_line(format, depth + 1, out);
    append_json_key(keys[i], format, out);
    out += format.key_separator;
    append_json(format.sort_keys ? *find(dict, keys[i], heap.budget()) : dict.entries[i].value,
                format, out, heap, depth + 1);
  }
  if (!first) append_line(format, depth, out);
  out += '}';
}

void append_json_list(std::span<const Value> items, const JsonFormat& format, std::string& out,
                      Heap& heap, int depth) {
  out += '[';
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += format.item_separator;
    append_line(format, depth + 1, out);
    append_json(items[i], format, out, heap, depth + 1);
  }
  if (!items.empty()) append_line(format, depth, out);
  out += ']';
}

}  // namespace

void append_json(const Value& value, const JsonFormat& format, std::string& out, Heap& heap,
                 int depth) {
  check(depth, out, heap.budget());
  switch (value.kind) {
    case Kind::kNone:
      out += "null";
      return;
    case Kind::kBool:
      out += value.boolean ? "true" : "false";
      return;
    case Kind::kInt:
    case Kind::kFloat:
      append_json_number(value, out);
      return;
    case Kind::kText:
      heap.budget().step(value.text().size() / 32);
      append_json_text(value.text(), format.ensure_ascii, out);
      return;
    case Kind::kList:
    case Kind::kTuple:
      append_json_list(value.list->items, format, out, heap, depth);
      return;
    case Kind::kDict:
      append_json_dict(*value.dict, format, out, heap, depth);
      return;
    default:
      raise("Object of type {} is not JSON serializable", type_name(value));
  }
}

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace palimpsest::text::jinja
