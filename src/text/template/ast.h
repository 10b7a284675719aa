#pragma once

// The syntax tree of a template. Nodes live in the arena of their Program and own nothing; they are
// tagged structs, told apart by `kind`, so that walking them is a switch.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/template/arena.h"
#include "text/template/value.h"

namespace palimpsest::text::jinja {

/// Index of a variable name in Program::names.
using Symbol = std::uint32_t;

// ---- expressions
// ------------------------------------------------------------------------------------------------------

enum class ExpressionKind : std::uint8_t {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,
  kUnary,
  kBinary,
  kConcat,
  kAnd,
  kOr,
  kCompare,
  kConditional,
  kAttribute,
  kItem,
  kSlice,
  kCall,
  kFilter,
  kTest,
};

struct Expression {
  ExpressionKind kind;
  int line;
  int height;  // of the tree below, bounded by the parser
};

struct Literal : Expression {
  Value value;
};
struct Name : Expression {
  Symbol symbol;
};
/// kList, kTuple, kConcat (the operands of ~), kAnd and kOr (two), kConditional (then, test, else
/// or null).
struct Sequence : Expression {
  std::span<Expression*> items;
};
struct DictLiteral : Expression {
  std::span<Expression*> keys, values;
};

enum class Operator : std::uint8_t {
  kNot,
  kNegate,
  kPlus,  // unary
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};
struct Unary : Expression {
  Operator op;
  Expression* operand;
};
struct Binary : Expression {
  Operator op;
  Expression *left, *right;
};
/// first ops[0] rest[0] ops[1] rest[1] ...: a chain, as in Python.
struct Compare : Expression {
  Expression* first;
  std::span<Operator> ops;
  std::span<Expression*> rest;
};

struct Attribute : Expression {
  Expression* object;
  Value name;
};
struct Item : Expression {
  Expression *object, *index;
};
struct Slice : Expression {
  Expression *object, *start, *stop, *step;
};  // bounds may be null

struct NamedArgument {
  std::string_view name;
  Expression* value;
};
struct CallArguments {
  std::span<Expression*> positional;
  std::span<NamedArgument> named;
  Expression* star = nullptr;         // *expression
  Expression* double_star = nullptr;  // **expression
};
struct Call : Expression {
  Expression* callee;
  CallArguments arguments;
};

struct FilterFunction;
struct TestFunction;
struct FilterUse : Expression {
  Expression* input;
  const FilterFunction* filter;
  CallArguments arguments;
};  // input null in {% filter %}
struct TestUse : Expression {
  Expression* input;
  const TestFunction* test;
  CallArguments arguments;
};

// ---- statements
// -------------------------------------------------------------------------------------------------------

enum class StatementKind : std::uint8_t {
  kText,
  kOutput,
  kIf,
  kFor,
  kSet,
  kBlockSet,
  kWith,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kScope,
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  int line;
};
using Body = std::span<Statement*>;

/// What is assigned to: a name, an attribute of a namespace, or several of these.
struct Target {
  enum class Kind : std::uint8_t { kName, kNamespace, kTuple } kind;
  Symbol symbol;               // kName; the namespace's variable
  std::string_view attribute;  // kNamespace
  std::span<Target*> items;    // kTuple
};

struct Text : Statement {
  std::string_view text;
};
struct Output : Statement {
  Expression* value;
};
struct If : Statement {
  Expression* test;
  Body then, otherwise;
};
struct For : Statement {
  Target* target;
  Expression *iterable, *condition;
  Body body, otherwise;
};
struct Set : Statement {
  Target* target;
  Expression* value;
};
struct BlockSet : Statement {
  Target* target;
  std::span<FilterUse*> filters;
  Body body;
};
struct With : Statement {
  std::span<Target*> targets;
  std::span<Expression*> values;
  Body body;
};

struct Parameter {
  Symbol symbol;
  std::string_view name;
  Expression* default_value;
};
struct MacroDefinition : Statement {
  Symbol symbol;
  std::string_view name;
  std::span<Parameter> parameters;
  Body body;
  bool takes_caller, takes_varargs, takes_kwargs;  // the body names `caller`, `varargs`, `kwargs`
};
struct CallBlock : Statement {
  Call* call;
  MacroDefinition* caller;
};
struct FilterBlock : Statement {
  std::span<FilterUse*> filters;
  Body body;
};
struct ScopeBlock : Statement {
  Body body;
};  // {% generation %}: text that knows no meaning here, in a scope of its own

// ---- the whole
// --------------------------------------------------------------------------------------------------------

/// Names with a meaning of their own; interned first, in this order.
enum WellKnownSymbol : Symbol {
  kLoopSymbol,
  kCallerSymbol,
  kVarargsSymbol,
  kKwargsSymbol,
  kWellKnownSymbols
};

struct Program {
  Arena arena;
  std::vector<std::string_view> names;  // by Symbol
  Body body;
};

}  // namespace palimpsest::text::jinja
