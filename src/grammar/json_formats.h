#pragma once

#include <string>

#include "grammar/json_schema.h"

namespace palimpsest::grammar {

/// A regular expression (RegexMatch::kWhole) for strings of the schema's `format`; empty where
/// there is none, or none that is known: then it is an annotation, as JSON Schema has it.
std::string format_regex(const SchemaJson& schema);

}  // namespace palimpsest::grammar
