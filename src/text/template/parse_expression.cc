#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "text/template/characters.h"
#include "text/template/parser.h"
#include "text/template/registry.h"

namespace palimpsest::text::jinja {

using Token_ = Token::Kind;

void Parser::raise_height(Expression& node, const Expression* child) const {
  if (child == nullptr) return;
  node.height = std::max(node.height, child->height + 1);
  if (node.height > kMaxDepth)
    refuse(ErrorCode::kUnsupported, "an expression is more than {} operators deep", kMaxDepth);
}

Value Parser::text_value(std::string_view text) {
  return Value::of_text(program_->arena.make<TextObject>(text, count_characters(text)));
}

Expression* Parser::binary(Operator op, int line, Expression* left, Expression* right) {
  auto* node = make<Binary>(ExpressionKind::kBinary, line, {left, right});
  node->op = op;
  node->left = left;
  node->right = right;
  return node;
}

Sequence* Parser::sequence(ExpressionKind kind, int line, const std::vector<Expression*>& items) {
  auto* node = make<Sequence>(kind, line);
  for (const Expression* item : items) raise_height(*node, item);
  node->items = program_->arena.copy(items);
  return node;
}

// ---- operators, from the loosest
// ----------------------------------------------------------------------------------------

Expression* Parser::parse_expression() {
  const Nesting nesting(*this);
  Expression* node = parse_or();
  while (is_name("if")) {
    const int line = take().line;
    Expression* test = parse_or();
    Expression* otherwise = skip_name("else") ? parse_expression() : nullptr;
    node = sequence(ExpressionKind::kConditional, line, {node, test, otherwise});
  }
  return node;
}

Expression* Parser::parse_or() {
  Expression* node = parse_and();
  while (is_name("or")) {
    const int line = take().line;
    node = sequence(ExpressionKind::kOr, line, {node, parse_and()});
  }
  return node;
}

Expression* Parser::parse_and() {
  Expression* node = parse_not();
  while (is_name("and")) {
    const int line = take().line;
    node = sequence(ExpressionKind::kAnd, line, {node, parse_not()});
  }
  return node;
}

Expression* Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = take().line;
  Expression* operand = parse_not();
  auto* node = make<Unary>(ExpressionKind::kUnary, line, {operand});
  node->op = Operator::kNot;
  node->operand = operand;
  return node;
}

Expression* Parser::parse_compare() {
  const int line = current().line;
  Expression* first = parse_sum();
  std::vector<Operator> ops;
  std::vector<Expression*> rest;
  for (;;) {
    if (skip_operator("==")) {
      ops.push_back(Operator::kEqual);
    } else if (skip_operator("!=")) {
      ops.push_back(Operator::kNotEqual);
    } else if (skip_operator("<")) {
      ops.push_back(Operator::kLess);
    } else if (skip_operator("<=")) {
      ops.push_back(Operator::kLessEqual);
    } else if (skip_operator(">")) {
      ops.push_back(Operator::kGreater);
    } else if (skip_operator(">=")) {
      ops.push_back(Operator::kGreaterEqual);
    } else if (skip_name("in")) {
      ops.push_back(Operator::kIn);
    } else if (is_name("not") && ahead().kind == Token_::kName && ahead().text == "in") {
      take();
      take();
      ops.push_back(Operator::kNotIn);
    } else {
      break;
    }
    rest.push_back(parse_sum());
  }
  if (ops.empty()) return first;
  auto* node = make<Compare>(ExpressionKind::kCompare, line, {first});
  for (const Expression* operand : rest) raise_height(*node, operand);
  node->first = first;
  node->ops = program_->arena.copy(ops);
  node->rest = program_->arena.copy(rest);
  return node;
}

Expression* Parser::parse_sum() {
  Expression* node = parse_concat();
  while (is_operator("+") || is_operator("-")) {
    const Token& token = take();
    node = binary(token.text == "+" ? Operator::kAdd : Operator::kSubtract, token.line, node,
                  parse_concat());
  }
  return node;
}

Expression* Parser::parse_concat() {
  const int line = current().line;
  std::vector<Expression*> items = {parse_product()};
  while (skip_operator("~")) items.push_back(parse_product());
  return items.size() == 1 ? items[0] : sequence(ExpressionKind::kConcat, line, items);
}

Expression* Parser::parse_product() {
  Expression* node = parse_power();
  for (;;) {
    Operator op;
    if (is_operator("*")) {
      op = Operator::kMultiply;
    } else if (is_operator("/")) {
      op = Operator::kDivide;
    } else if (is_operator("//")) {
      op = Operator::kFloorDivide;
    } else if (is_operator("%")) {
      op = Operator::kModulo;
    } else {
      return node;
    }
    const int line = take().line;
    node = binary(op, line, node, parse_power());
  }
}

Expression* Parser::parse_power() {
  Expression* node = parse_unary();
  while (is_operator("**")) {
    const int line = take().line;
    node = binary(Operator::kPower, line, node, parse_unary());
  }
  return node;
}

Expression* Parser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  Expression* node = nullptr;
  if (is_operator("-") || is_operator("+")) {
    const Token& token = take();
    Expression* operand = parse_unary(false);
    auto* unary = make<Unary>(ExpressionKind::kUnary, token.line, {operand});
    unary->op = token.text == "-" ? Operator::kNegate : Operator::kPlus;
    unary->operand = operand;
    node = unary;
  } else {
    node = parse_primary();
  }
  node = parse_postfix(node);
  return with_filter ? parse_filter_chain(node) : node;
}

// ---- operands
// -----------------------------------------------------------------------------------------------------------

Expression* Parser::parse_primary() {
  const Token& token = current();
  switch (token.kind) {
    case Token_::kName:
      return parse_name();
    case Token_::kInteger:
      return parse_integer();
    case Token_::kFloat:
      return parse_float();
    case Token_::kString: {
      auto* node = make<Literal>(ExpressionKind::kLiteral, token.line);
      std::string text(take().text);
      while (current().kind == Token_::kString) text += take().text;
      node->value = text_value(program_->arena.copy(text));
      return node;
    }
    case Token_::kOperator:
      if (token.text == "(") {
        take();
        Expression* node = parse_tuple(true, {}, true);
        expect_operator(")");
        return node;
      }
      if (token.text == "[") return parse_list();
      if (token.text == "{") return parse_dict();
      refuse_current();
    default:
      refuse_current();
  }
}

Expression* Parser::parse_name() {
  const Token& token = take();
  const std::string_view text = token.text;
  const bool is_bool = text == "true" || text == "True" || text == "false" || text == "False";
  if (is_bool || text == "none" || text == "None") {
    auto* node = make<Literal>(ExpressionKind::kLiteral, token.line);
    node->value = is_bool ? Value::of_bool(text == "true" || text == "True") : Value::none();
    return node;
  }
  auto* node = make<Name>(ExpressionKind::kName, token.line);
  node->symbol = intern(text);
  for (MacroDefinition* macro : macros_) {
    macro->takes_caller = macro->takes_caller || node->symbol == kCallerSymbol;
    macro->takes_varargs = macro->takes_varargs || node->symbol == kVarargsSymbol;
    macro->takes_kwargs = macro->takes_kwargs || node->symbol == kKwargsSymbol;
  }
  return node;
}

Literal* Parser::parse_integer() {
  const Token& token = take();
  std::string digits;
  for (const char c : token.text) {
    if (c != '_') digits += c;
  }
  int base = 10;
  std::string_view rest = digits;
  if (rest.size() > 1 && rest[0] == '0' && (rest[1] | 0x20) > '9') {
    const char letter = static_cast<char>(rest[1] | 0x20);
    base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
    rest.remove_prefix(2);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value, base);
  if (error == std::errc::result_out_of_range)
    refuse(ErrorCode::kUnsupported, "the integer {} has more than 63 bits", token.text);
  if (error != std::errc() || end != rest.data() + rest.size())
    refuse(ErrorCode::kInvalidFile, "invalid integer '{}'", token.text);
  auto* node = make<Literal>(ExpressionKind::kLiteral, token.line);
  node->value = Value::of_int(value);
  return node;
}

Literal* Parser::parse_float() {
  const Token& token = take();
  std::string digits;
  for (const char c : token.text) {
    if (c != '_') digits += c;
  }
  auto* node = make<Literal>(ExpressionKind::kLiteral, token.line);
  node->value = Value::of_float(std::strtod(digits.c_str(), nullptr));
  return node;
}

Expression* Parser::parse_list() {
  const int line = take().line;
  std::vector<Expression*> items;
  while (!is_operator("]")) {
    if (!items.empty()) expect_operator(",");
    if (is_operator("]")) break;
    items.push_back(parse_expression());
  }
  expect_operator("]");
  return sequence(ExpressionKind::kList, line, items);
}

Expression* Parser::parse_dict() {
  const int line = take().line;
  std::vector<Expression*> keys, values;
  while (!is_operator("}")) {
    if (!keys.empty()) expect_operator(",");
    if (is_operator("}")) break;
    keys.push_back(parse_expression());
    expect_operator(":");
    values.push_back(parse_expression());
  }
  expect_operator("}");
  auto* node = make<DictLiteral>(ExpressionKind::kDict, line);
  for (const Expression* key : keys) raise_height(*node, key);
  for (const Expression* value : values) raise_height(*node, value);
  node->keys = program_->arena.copy(keys);
  node->values = program_->arena.copy(values);
  return node;
}

bool Parser::ends_tuple(std::string_view stop) const {
  const Token_ kind = current().kind;
  return kind == Token_::kVariableEnd || kind == Token_::kBlockEnd || is_operator(")") ||
         (!stop.empty() && is_name(stop));
}

Expression* Parser::parse_tuple(bool with_condition, std::string_view stop, bool in_parentheses) {
  const int line = current().line;
  std::vector<Expression*> items;
  bool is_tuple = false;
  while (!ends_tuple(stop)) {
    items.push_back(with_condition ? parse_expression() : parse_or());
    if (!is_operator(",")) break;
    take();
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return items[0];
  if (items.empty() && !in_parentheses)
    refuse(ErrorCode::kInvalidFile, "expected an expression, found {}", describe_current());
  return sequence(ExpressionKind::kTuple, line, items);
}

// ---- what follows an operand
// --------------------------------------------------------------------------------------------

Expression* Parser::parse_postfix(Expression* node) {
  for (;;) {
    if (is_operator(".") || is_operator("[")) {
      node = parse_subscript(node);
    } else if (is_operator("(")) {
      node = parse_call(node);
    } else {
      return node;
    }
  }
}

Expression* Parser::parse_subscript(Expression* object) {
  const Token& token = take();
  if (token.text == "[") return parse_index(token.line, object);
  if (current().kind == Token_::kInteger) {
    Literal* index = parse_integer();
    auto* node = make<Item>(ExpressionKind::kItem, token.line, {object, index});
    node->object = object;
    node->index = index;
    return node;
  }
  auto* node = make<Attribute>(ExpressionKind::kAttribute, token.line, {object});
  node->object = object;
  node->name = text_value(expect_identifier());
  return node;
}

Expression* Parser::parse_index(int line, Expression* object) {
  std::vector<Expression*> indices;
  while (!is_operator("]") && !is_operator(":")) {
    indices.push_back(parse_expression());
    if (!skip_operator(",")) break;
  }
  if (is_operator(":")) {
    if (indices.size() > 1)
      refuse(ErrorCode::kUnsupported, "an index of several slices is not supported");
    Expression* bounds[3] = {indices.empty() ? nullptr : indices[0], nullptr, nullptr};
    for (int i = 1; i < 3 && skip_operator(":"); ++i) {
      if (!is_operator("]") && !is_operator(":")) bounds[i] = parse_expression();
    }
    if (is_operator(","))
      refuse(ErrorCode::kUnsupported, "an index of several slices is not supported");
    expect_operator("]");
    auto* node =
        make<Slice>(ExpressionKind::kSlice, line, {object, bounds[0], bounds[1], bounds[2]});
    node->object = object;
    node->start = bounds[0];
    node->stop = bounds[1];
    node->step = bounds[2];
    return node;
  }
  expect_operator("]");
  if (indices.empty()) refuse(ErrorCode::kInvalidFile, "an index is empty");
  Expression* index =
      indices.size() == 1 ? indices[0] : sequence(ExpressionKind::kTuple, line, indices);
  auto* node = make<Item>(ExpressionKind::kItem, line, {object, index});
  node->object = object;
  node->index = index;
  return node;
}

Expression* Parser::parse_filter_chain(Expression* node) {
  for (;;) {
    if (skip_operator("|")) {
      node = parse_filter(node);
    } else if (is_name("is")) {
      take();
      node = parse_test(node);
    } else if (is_operator("(")) {
      node = parse_call(node);
    } else {
      return node;
    }
  }
}

FilterUse* Parser::parse_filter(Expression* input) {
  const int line = current().line;
  const std::string_view name = expect_identifier();
  auto* node = make<FilterUse>(ExpressionKind::kFilter, line, {input});
  node->input = input;
  try {
    node->filter = &require_filter(name);
  } catch (const Error& error) {
    refuse(error.code(), "{}", error.text());
  }
  if (is_operator("(")) node->arguments = parse_arguments(*node);
  return node;
}

Expression* Parser::parse_test(Expression* input) {
  const Nesting nesting(*this);
  const int line = current().line;
  const bool is_negated = skip_name("not");
  const std::string_view name = expect_identifier();
  auto* node = make<TestUse>(ExpressionKind::kTest, line, {input});
  node->input = input;
  try {
    node->test = &require_test(name);
  } catch (const Error& error) {
    refuse(error.code(), "{}", error.text());
  }
  const Token& next = current();
  const bool is_word =
      next.kind == Token_::kName && next.text != "else" && next.text != "or" && next.text != "and";
  if (is_operator("(")) {
    node->arguments = parse_arguments(*node);
  } else if (is_word || next.kind == Token_::kString || next.kind == Token_::kInteger ||
             next.kind == Token_::kFloat || is_operator("[") || is_operator("{")) {
    if (is_name("is")) refuse(ErrorCode::kInvalidFile, "tests with 'is' cannot be chained");
    Expression* argument = parse_postfix(parse_primary());
    raise_height(*node, argument);
    node->arguments.positional = program_->arena.copy(std::vector<Expression*>{argument});
  }
  if (!is_negated) return node;
  auto* negation = make<Unary>(ExpressionKind::kUnary, line, {node});
  negation->op = Operator::kNot;
  negation->operand = node;
  return negation;
}

Call* Parser::parse_call(Expression* callee) {
  auto* node = make<Call>(ExpressionKind::kCall, current().line, {callee});
  node->callee = callee;
  node->arguments = parse_arguments(*node);
  return node;
}

CallArguments Parser::parse_arguments(Expression& owner) {
  expect_operator("(");
  CallArguments arguments;
  std::vector<Expression*> positional;
  std::vector<NamedArgument> named;
  bool is_first = true;
  while (!is_operator(")")) {
    if (!is_first) expect_operator(",");
    is_first = false;
    if (is_operator(")")) break;
    Expression* value = nullptr;
    if (skip_operator("**")) {
      if (arguments.double_star != nullptr)
        refuse(ErrorCode::kInvalidFile, "a call has two ** arguments");
      value = arguments.double_star = parse_expression();
    } else if (arguments.double_star != nullptr) {
      refuse(ErrorCode::kInvalidFile, "an argument follows a ** argument");
    } else if (skip_operator("*")) {
      if (arguments.star != nullptr) refuse(ErrorCode::kInvalidFile, "a call has two * arguments");
      value = arguments.star = parse_expression();
    } else if (current().kind == Token_::kName && ahead().kind == Token_::kOperator &&
               ahead().text == "=") {
      const std::string_view name = take().text;
      take();
      value = parse_expression();
      for (const NamedArgument& other : named) {
        if (other.name == name)
          refuse(ErrorCode::kInvalidFile, "the argument '{}' is given twice", name);
      }
      named.push_back({name, value});
    } else {
      if (!named.empty() || arguments.star != nullptr)
        refuse(ErrorCode::kInvalidFile, "a positional argument follows a named one");
      value = parse_expression();
      positional.push_back(value);
    }
    raise_height(owner, value);
  }
  expect_operator(")");
  arguments.positional = program_->arena.copy(positional);
  arguments.named = program_->arena.copy(named);
  return arguments;
}

}  // namespace palimpsest::text::jinja
