#include <algorithm>

#include "text/template/evaluator.h"
#include "text/template/operators.h"

namespace palimpsest::text::jinja {

Evaluator::ArgumentLists Evaluator::evaluate_arguments(const CallArguments& arguments) {
  ArgumentLists lists;
  for (const Expression* argument : arguments.positional)
    lists.positional.push_back(evaluate(*argument));
  if (arguments.star != nullptr) {
    const auto items = iterate(evaluate(*arguments.star), heap_);
    lists.positional.insert(lists.positional.end(), items.begin(), items.end());
  }
  for (const NamedArgument& argument : arguments.named)
    lists.named.push_back({argument.name, evaluate(*argument.value)});
  if (arguments.double_star != nullptr) {
    const Value mapping = evaluate(*arguments.double_star);
    if (!mapping.is(Kind::kDict))
      raise("argument after ** must be a mapping, not {}", type_name(mapping));
    for (const DictEntry& entry : mapping.dict->entries) {
      if (!entry.key.is_text()) raise("keywords must be strings");
      budget_.step(lists.named.size());
      for (const NamedValue& other : lists.named) {
        if (other.name == entry.key.text())
          raise("got multiple values for keyword argument '{}'", other.name);
      }
      lists.named.push_back({entry.key.text(), entry.value});
    }
  }
  return lists;
}

Value Evaluator::evaluate_call(const Call& node) {
  const Value callee = evaluate(*node.callee);
  const ArgumentLists arguments = evaluate_arguments(node.arguments);
  return call(callee, arguments.view());
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind) {
    case Kind::kMacro:
      return call_macro(*callee.macro, arguments);
    case Kind::kMethod:
      return callee.method->entry->function(*this, callee.method->self, arguments);
    case Kind::kFunction:
      return callee.function->entry->function(*this, Value(), arguments);
    case Kind::kLoop:
      raise_unsupported("recursive loops are not supported");
    default:
      require_defined(callee);
      raise("'{}' object is not callable", type_name(callee));
  }
}

Value Evaluator::make_macro(const MacroDefinition& definition) {
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent)
    scope->captured = true;
  Value macro = Value::of(Kind::kMacro);
  macro.macro = heap_.make<MacroObject>(&definition, scope_);
  return macro;
}

Value Evaluator::call_macro(const MacroObject& macro, const Arguments& arguments) {
  Level level(*this, line_);
  Scope* const caller_scope = scope_;
  Scope* const scope = scope_ = enter_scope(macro.scope);
  bind_parameters(*macro.definition, arguments);
  const Value text = capture(macro.definition->body);
  leave_scope(scope);
  scope_ = caller_scope;
  level.leave();
  return text;
}

void Evaluator::bind_parameters(const MacroDefinition& macro, const Arguments& arguments) {
  std::vector<NamedValue> named(arguments.named.begin(), arguments.named.end());
  const auto take = [&](std::string_view name) {
    const auto at = std::find_if(named.begin(), named.end(),
                                 [&](const NamedValue& n) { return n.name == name; });
    if (at == named.end()) return Value();
    const Value value = at->value;
    named.erase(at);
    return value;
  };
  std::vector<Value> given(macro.parameters.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    given[i] =
        i < arguments.positional.size() ? arguments.positional[i] : take(macro.parameters[i].name);
  }
  if (macro.takes_caller) {
    const Value caller = take("caller");
    set_variable(kCallerSymbol,
                 caller.is(Kind::kMissing) ? heap_.undefined("No caller defined") : caller);
  }
  if (macro.takes_kwargs) {
    std::vector<DictEntry> entries;
    for (const NamedValue& n : named) entries.push_back({heap_.text(n.name), n.value});
    set_variable(kKwargsSymbol, heap_.dict(entries));
  } else if (!named.empty()) {
    raise("macro '{}' takes no keyword argument '{}'", macro.name, named[0].name);
  }
  if (macro.takes_varargs) {
    const std::size_t from = std::min(macro.parameters.size(), arguments.positional.size());
    set_variable(kVarargsSymbol, heap_.list(arguments.positional.subspan(from), Kind::kTuple));
  } else if (arguments.positional.size() > macro.parameters.size()) {
    raise("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
  }
  // First all, then the defaults: one that names a later parameter must not see a variable of that
  // name outside.
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    set_variable(parameter.symbol, !given[i].is(Kind::kMissing)
                                       ? given[i]
                                       : heap_.undefined(fmt::format(
                                             "parameter '{}' was not provided", parameter.name)));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    if (given[i].is(Kind::kMissing) && parameter.default_value != nullptr) {
      set_variable(parameter.symbol, evaluate(*parameter.default_value));
    }
  }
}

void read_arguments_into(std::string_view function, const Arguments& arguments,
                         std::span<const std::string_view> names, std::size_t required,
                         std::span<Value> out) {
  if (arguments.positional.size() > names.size()) {
    raise("{}() takes at most {} argument(s), {} are given", function, names.size(),
          arguments.positional.size());
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), out.begin());
  for (const NamedValue& named : arguments.named) {
    const auto at = std::find(names.begin(), names.end(), named.name);
    if (at == names.end())
      raise("{}() got an unexpected keyword argument '{}'", function, named.name);
    Value& slot = out[static_cast<std::size_t>(at - names.begin())];
    if (!slot.is(Kind::kMissing))
      raise("{}() got multiple values for argument '{}'", function, named.name);
    slot = named.value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (out[i].is(Kind::kMissing)) raise("{}() misses the argument '{}'", function, names[i]);
  }
}

}  // namespace palimpsest::text::jinja
