#include <fmt/format.h>

#include <algorithm>

#include "text/template/parser.h"

namespace palimpsest::text::jinja {

using Token_ = Token::Kind;

Parser::Parser(std::string_view source) : program_(std::make_shared<Program>()) {
  tokens_ = tokenize(source, program_->arena);
  for (const std::string_view name : {"loop", "caller", "varargs", "kwargs"}) intern(name);
}

std::shared_ptr<const Program> Parser::run() {
  program_->body = parse_body({});
  return program_;
}

std::shared_ptr<const Program> parse_program(std::string_view source) {
  return Parser(source).run();
}

// ---- tokens
// -------------------------------------------------------------------------------------------------------------

bool Parser::skip_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view text) {
  if (!is_name(text)) return false;
  take();
  return true;
}

void Parser::expect_operator(std::string_view text) {
  if (!skip_operator(text))
    refuse(ErrorCode::kInvalidFile, "expected '{}', found {}", text, describe_current());
}

void Parser::expect_name(std::string_view text) {
  if (!skip_name(text))
    refuse(ErrorCode::kInvalidFile, "expected '{}', found {}", text, describe_current());
}

std::string_view Parser::expect_identifier() {
  if (current().kind != Token_::kName)
    refuse(ErrorCode::kInvalidFile, "expected a name, found {}", describe_current());
  return take().text;
}

void Parser::expect_block_end() {
  if (current().kind != Token_::kBlockEnd)
    refuse(ErrorCode::kInvalidFile, "expected the end of the block, found {}", describe_current());
  take();
}

std::string Parser::describe_current() const {
  switch (current().kind) {
    case Token_::kVariableEnd:
      return "the end of the print statement";
    case Token_::kBlockEnd:
      return "the end of the block";
    case Token_::kString:
      return "a string";
    case Token_::kEnd:
      return "the end of the template";
    default:
      return fmt::format("'{}'", current().text);
  }
}

void Parser::refuse_current() const {
  refuse(ErrorCode::kInvalidFile, "unexpected {}", describe_current());
}

Symbol Parser::intern(std::string_view name) {
  const auto [at, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(program_->names.size()));
  if (is_new) program_->names.push_back(name);
  return at->second;
}

// ---- bodies
// -------------------------------------------------------------------------------------------------------------

Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  std::vector<Statement*> statements;
  const int opened_at = current().line;
  for (;;) {
    const Token& token = take();
    if (token.kind == Token_::kData) {
      auto* text = make_statement<Text>(StatementKind::kText, token.line);
      text->text = token.text;
      statements.push_back(text);
    } else if (token.kind == Token_::kVariableBegin) {
      auto* output = make_statement<Output>(StatementKind::kOutput, token.line);
      output->value = parse_tuple(true);
      if (current().kind != Token_::kVariableEnd) {
        refuse(ErrorCode::kInvalidFile, "expected the end of the print statement, found {}",
               describe_current());
      }
      take();
      statements.push_back(output);
    } else if (token.kind == Token_::kBlockBegin) {
      if (current().kind == Token_::kName &&
          std::find(ends.begin(), ends.end(), current().text) != ends.end())
        break;
      statements.push_back(parse_statement());
    } else {
      if (ends.size() == 0) break;
      refuse(ErrorCode::kInvalidFile, "the block opened in line {} is not closed: '{}' is missing",
             opened_at, *(ends.end() - 1));
    }
  }
  return program_->arena.copy(statements);
}

Body Parser::parse_closed_body(std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  const Body body = parse_body({end});
  loops_ = loops;
  take();
  expect_block_end();
  return body;
}

Statement* Parser::parse_statement() {
  if (current().kind != Token_::kName)
    refuse(ErrorCode::kInvalidFile, "expected the name of a tag, found {}", describe_current());
  const std::string_view name = current().text;
  if (name == "if") return parse_if();
  if (name == "for") return parse_for();
  if (name == "set") return parse_set();
  if (name == "with") return parse_with();
  if (name == "macro") return parse_macro();
  if (name == "call") return parse_call_block();
  if (name == "filter") return parse_filter_block();
  if (name == "generation") return parse_generation();
  if (name == "print") return parse_print();
  if (name == "break" || name == "continue") return parse_loop_control();
  refuse_tag(name);
}

void Parser::refuse_tag(std::string_view name) const {
  for (const std::string_view known :
       {"include", "import", "from", "extends", "block", "autoescape", "do", "trans", "debug"}) {
    if (name == known) refuse(ErrorCode::kUnsupported, "the tag '{}' is not supported", name);
  }
  refuse(ErrorCode::kInvalidFile, "unknown tag '{}'", name);
}

// ---- statements
// ---------------------------------------------------------------------------------------------------------

Statement* Parser::parse_if() {
  const Nesting nesting(*this);
  auto* node = make_statement<If>(StatementKind::kIf, take().line);
  node->test = parse_tuple(false);
  expect_block_end();
  node->then = parse_body({"elif", "else", "endif"});
  if (is_name("elif")) {
    node->otherwise = program_->arena.copy(std::vector<Statement*>{parse_if()});
    return node;
  }
  if (skip_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endif"});
  }
  expect_name("endif");
  expect_block_end();
  return node;
}

Statement* Parser::parse_for() {
  auto* node = make_statement<For>(StatementKind::kFor, take().line);
  node->target = parse_target("in", false);
  expect_name("in");
  node->iterable = parse_tuple(false, "recursive");
  if (skip_name("if")) node->condition = parse_expression();
  if (is_name("recursive")) refuse(ErrorCode::kUnsupported, "recursive loops are not supported");
  expect_block_end();
  ++loops_;
  node->body = parse_body({"else", "endfor"});
  --loops_;
  if (skip_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endfor"});
  }
  expect_name("endfor");
  expect_block_end();
  return node;
}

Statement* Parser::parse_set() {
  const int line = take().line;
  Target* target = parse_target({}, true);
  if (skip_operator("=")) {
    auto* node = make_statement<Set>(StatementKind::kSet, line);
    node->target = target;
    node->value = parse_tuple(true);
    expect_block_end();
    return node;
  }
  auto* node = make_statement<BlockSet>(StatementKind::kBlockSet, line);
  node->target = target;
  if (skip_operator("|")) node->filters = parse_filters();
  expect_block_end();
  node->body = parse_closed_body("endset");
  return node;
}

Statement* Parser::parse_with() {
  auto* node = make_statement<With>(StatementKind::kWith, take().line);
  std::vector<Target*> targets;
  std::vector<Expression*> values;
  while (current().kind != Token_::kBlockEnd) {
    if (!targets.empty()) expect_operator(",");
    targets.push_back(parse_one_target(false));
    expect_operator("=");
    values.push_back(parse_expression());
  }
  expect_block_end();
  node->targets = program_->arena.copy(targets);
  node->values = program_->arena.copy(values);
  node->body = parse_body({"endwith"});
  take();
  expect_block_end();
  return node;
}

Statement* Parser::parse_macro() {
  auto* node = make_statement<MacroDefinition>(StatementKind::kMacro, take().line);
  node->name = expect_identifier();
  node->symbol = intern(node->name);
  node->parameters = parse_parameters();
  expect_block_end();
  parse_macro_body(*node, "endmacro");
  return node;
}

void Parser::parse_macro_body(MacroDefinition& macro, std::string_view end) {
  macros_.push_back(&macro);
  macro.body = parse_closed_body(end);
  macros_.pop_back();
  // A parameter of that name is an ordinary variable.
  for (const Parameter& parameter : macro.parameters) {
    if (parameter.symbol == kCallerSymbol) macro.takes_caller = false;
    if (parameter.symbol == kVarargsSymbol) macro.takes_varargs = false;
    if (parameter.symbol == kKwargsSymbol) macro.takes_kwargs = false;
  }
}

std::span<Parameter> Parser::parse_parameters() {
  std::vector<Parameter> parameters;
  expect_operator("(");
  while (!is_operator(")")) {
    if (!parameters.empty()) expect_operator(",");
    if (is_operator(")")) break;
    Parameter parameter{};
    parameter.name = expect_identifier();
    parameter.symbol = intern(parameter.name);
    if (skip_operator("=")) {
      parameter.default_value = parse_expression();
    } else if (!parameters.empty() && parameters.back().default_value != nullptr) {
      refuse(ErrorCode::kInvalidFile,
             "the parameter '{}' without a default follows one with a default", parameter.name);
    }
    parameters.push_back(parameter);
  }
  expect_operator(")");
  return program_->arena.copy(parameters);
}

Statement* Parser::parse_call_block() {
  auto* node = make_statement<CallBlock>(StatementKind::kCallBlock, take().line);
  auto* caller = make_statement<MacroDefinition>(StatementKind::kMacro, node->line);
  caller->name = "caller";
  caller->symbol = kCallerSymbol;
  if (is_operator("(")) caller->parameters = parse_parameters();
  Expression* call = parse_expression();
  if (call->kind != ExpressionKind::kCall)
    refuse(ErrorCode::kInvalidFile, "a call block needs a call");
  node->call = static_cast<Call*>(call);
  expect_block_end();
  parse_macro_body(*caller, "endcall");
  node->caller = caller;
  return node;
}

std::span<FilterUse*> Parser::parse_filters() {
  std::vector<FilterUse*> filters = {parse_filter(nullptr)};
  while (skip_operator("|")) filters.push_back(parse_filter(nullptr));
  return program_->arena.copy(filters);
}

Statement* Parser::parse_filter_block() {
  auto* node = make_statement<FilterBlock>(StatementKind::kFilterBlock, take().line);
  node->filters = parse_filters();
  expect_block_end();
  node->body = parse_closed_body("endfilter");
  return node;
}

Statement* Parser::parse_generation() {
  auto* node = make_statement<ScopeBlock>(StatementKind::kScope, take().line);
  expect_block_end();
  node->body = parse_closed_body("endgeneration");
  return node;
}

Statement* Parser::parse_print() {
  auto* node = make_statement<Output>(StatementKind::kOutput, take().line);
  node->value = parse_tuple(true);
  expect_block_end();
  return node;
}

Statement* Parser::parse_loop_control() {
  const Token& token = take();
  if (loops_ == 0) refuse(ErrorCode::kInvalidFile, "'{}' stands outside a loop", token.text);
  expect_block_end();
  return make_statement<Statement>(
      token.text == "break" ? StatementKind::kBreak : StatementKind::kContinue, token.line);
}

// ---- targets of assignments
// ---------------------------------------------------------------------------------------------

Target* Parser::parse_one_target(bool with_namespace) {
  const Nesting nesting(*this);
  if (skip_operator("(")) {
    Target* target = parse_target({}, false);
    expect_operator(")");
    return target;
  }
  auto* target = program_->arena.make<Target>();
  const std::string_view name = expect_identifier();
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) refuse(ErrorCode::kInvalidFile, "can't assign to '{}'", name);
  }
  target->symbol = intern(name);
  if (with_namespace && skip_operator(".")) {
    target->kind = Target::Kind::kNamespace;
    target->attribute = expect_identifier();
  }
  return target;
}

Target* Parser::parse_target(std::string_view stop, bool with_namespace) {
  Target* first = parse_one_target(with_namespace);
  if (!is_operator(",")) return first;
  std::vector<Target*> items = {first};
  while (skip_operator(",")) {
    if (ends_tuple(stop) || is_operator("=")) break;
    items.push_back(parse_one_target(with_namespace));
  }
  auto* target = program_->arena.make<Target>();
  target->kind = Target::Kind::kTuple;
  target->items = program_->arena.copy(items);
  return target;
}

}  // namespace palimpsest::text::jinja
