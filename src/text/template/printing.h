#pragma once

// Values as text: Python's str(), repr() and json.dumps().

#include <string>
#include <string_view>

#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// Appends str(value). An undefined value is nothing. Raises for what Python prints with a memory
/// address.
void append_str(const Value& value, std::string& out, Budget& budget);
/// Appends repr(value).
void append_repr(const Value& value, std::string& out, Budget& budget, int depth = 0);
std::string to_str(const Value& value, Budget& budget);
/// str(value) as a value; texts are returned as they are.
Value to_text(const Value& value, Heap& heap);

/// repr(float), also what JSON and str use: "1.0", "1e+16", "inf".
std::string float_repr(double value);

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool has_indent = false;
  std::string indent;  ///< of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// Appends json.dumps(value).
void append_json(const Value& value, const JsonFormat& format, std::string& out, Heap& heap,
                 int depth = 0);

/// & < > ' " as markupsafe writes them.
std::string escape_html(std::string_view text);

}  // namespace palimpsest::text::jinja
