#pragma once

#include <array>
#include <ctime>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/template/ast.h"
#include "text/template/loop.h"
#include "text/template/macro.h"
#include "text/template/registry.h"
#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// One rendering: walks the tree, holds the variables, writes the text. Throws Error; line() is
/// then where. Expressions are in evaluate_expression.cc, statements in evaluate_statement.cc,
/// calls in evaluate_call.cc, attributes and elements in access.cc.
class Evaluator {
 public:
  Evaluator(const Program& program, const nlohmann::ordered_json& context,
            const TemplateOptions& options);
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  RenderedTemplate run();
  int line() const { return line_; }

  // ---- what filters, tests, methods and functions use ----
  Heap& heap() { return heap_; }
  Budget& budget() { return budget_; }
  const std::tm& now() const { return options_.now; }
  /// object.name and object[key], with jinja2's order of attribute and element; undefined if there
  /// is none.
  Value get_attribute(const Value& object, const Value& name);
  Value get_item(const Value& object, const Value& key);

 private:
  enum class Flow : std::uint8_t { kNormal, kBreak, kContinue };

  /// One level of nesting; not undone by an exception, after which nothing is evaluated any more.
  class Level {
   public:
    Level(Evaluator& evaluator, int line) : evaluator_(evaluator), line_(evaluator.line_) {
      if (++evaluator_.depth_ > evaluator_.budget_.limits().depth) evaluator_.refuse_depth();
      evaluator_.line_ = line;
      evaluator_.budget_.step();
    }
    void leave() {
      evaluator_.line_ = line_;
      --evaluator_.depth_;
    }

   private:
    Evaluator& evaluator_;
    const int line_;
  };
  [[noreturn]] void refuse_depth() const;

  // ---- expressions ----
  Value evaluate(const Expression& expression);
  Value evaluate_kind(const Expression& expression);
  Value evaluate_optional(const Expression* expression) {
    return expression ? evaluate(*expression) : Value();
  }
  Value evaluate_name(const Name& name);
  Value evaluate_sequence(const Sequence& sequence, Kind kind);
  Value evaluate_dict(const DictLiteral& literal);
  Value evaluate_unary(const Unary& unary);
  Value evaluate_concat(const Sequence& concat);
  Value evaluate_compare(const Compare& compare);
  Value evaluate_conditional(const Sequence& conditional);
  Value evaluate_slice(const Slice& slice);
  Value evaluate_call(const Call& call);
  Value evaluate_filter(const FilterUse& filter);
  Value apply_filter(const FilterUse& filter, const Value& input);
  Value evaluate_test(const TestUse& test);

  // ---- calls ----
  struct ArgumentLists {
    std::vector<Value> positional;
    std::vector<NamedValue> named;
    Arguments view() const { return {positional, named}; }
  };
  ArgumentLists evaluate_arguments(const CallArguments& arguments);
  Value call(const Value& callee, const Arguments& arguments);
  Value call_macro(const MacroObject& macro, const Arguments& arguments);
  void bind_parameters(const MacroDefinition& macro, const Arguments& arguments);
  Value make_macro(const MacroDefinition& definition);

  // ---- statements ----
  Flow execute(Body body);
  Flow execute_kind(const Statement& statement);
  Flow execute_for(const For& loop);
  Flow execute_in_scope(Body body);
  void execute_block_set(const BlockSet& set);
  Flow execute_with(const With& with);
  void execute_call_block(const CallBlock& block);
  void execute_filter_block(const FilterBlock& block);
  /// What `body` writes, in a scope of its own.
  Value capture(Body body);
  void assign(const Target& target, const Value& value);
  void assign_attribute(const Target& target, const Value& value);
  void write(std::string_view text);
  void write_value(const Value& value);

  // ---- attributes ----
  Value loop_attribute(LoopState& loop, const Value& loop_value, const Value& name);
  /// A method, a namespace's or loop's attribute; kMissing if there is none.
  Value python_attribute(const Value& object, const Value& name);
  Value element(const Value& object, const Value& key);

  // ---- variables ----
  Value* lookup(Symbol symbol);
  void set_variable(Symbol symbol, const Value& value);
  Scope* enter_scope(Scope* parent);
  void leave_scope(Scope* scope);

  const Program& program_;
  const TemplateOptions& options_;
  Budget budget_;
  Heap heap_;
  std::vector<Value>
      globals_;  // by Symbol: the context, then what the template sets outside every block
  Scope* scope_ = nullptr;  // the innermost block; null outside all
  std::vector<Scope*> free_scopes_;
  std::vector<Binding*> free_bindings_;
  std::deque<LoopState> loops_;  // kept: a template may keep `loop` in a namespace
  TextBuilder output_{heap_};
  TextBuilder* out_ = &output_;
  std::uint32_t depth_ = 0;
  int line_ = 1;
};

/// `arguments` in the order of `names`; kMissing where not given. Raises for too many, unknown or
/// doubly given ones, and where one of the first `required` is missing. `function` is named in the
/// error.
template <std::size_t N>
std::array<Value, N> read_arguments(std::string_view function, const Arguments& arguments,
                                    const std::array<std::string_view, N>& names,
                                    std::size_t required = 0);
void read_arguments_into(std::string_view function, const Arguments& arguments,
                         std::span<const std::string_view> names, std::size_t required,
                         std::span<Value> out);

template <std::size_t N>
std::array<Value, N> read_arguments(std::string_view function, const Arguments& arguments,
                                    const std::array<std::string_view, N>& names,
                                    std::size_t required) {
  std::array<Value, N> out;
  read_arguments_into(function, arguments, names, required, out);
  return out;
}

}  // namespace palimpsest::text::jinja
