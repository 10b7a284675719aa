#pragma once

// What a call can reach: macros with the scope they were defined in, methods with their object,
// global functions.

#include <span>

#include "text/template/ast.h"
#include "text/template/value.h"

namespace palimpsest::text::jinja {

class Evaluator;

struct Binding {
  Symbol symbol;
  Value value;
  Binding* next;
};

/// The variables of a block. The outermost scope of a template is not one of these: see Evaluator.
struct Scope {
  Scope* parent;
  Binding* first;
  bool captured;  ///< a macro may outlive the block
};

struct MacroObject {
  const MacroDefinition* definition;
  Scope* scope;
};

/// A method or function: gets its object (functions: nothing) and the arguments.
struct MethodEntry {
  std::string_view name;
  Value (*function)(Evaluator&, const Value& self, const Arguments& arguments);
};
struct MethodObject {
  Value self;
  const MethodEntry* entry;
};
struct FunctionObject {
  const MethodEntry* entry;
};

}  // namespace palimpsest::text::jinja
