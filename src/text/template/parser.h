#pragma once

#include <initializer_list>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace palimpsest::text::jinja {

/// The syntax tree of `source`. Throws Error, its text beginning with the line.
std::shared_ptr<const Program> parse_program(std::string_view source);

/// Recursive descent with bounded depth. Expressions are in parse_expression.cc, statements in
/// parse_statement.cc.
class Parser {
 public:
  explicit Parser(std::string_view source);
  std::shared_ptr<const Program> run();

 private:
  /// Nesting of the source, and height of an expression's tree.
  static constexpr int kMaxDepth = 200;

  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth)
        parser_.refuse(ErrorCode::kUnsupported, "nested more than {} deep", kMaxDepth);
    }
    ~Nesting() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  // ---- tokens ----
  const Token& current() const { return tokens_[position_]; }
  const Token& ahead() const {
    return tokens_[position_ + (current().kind == Token::Kind::kEnd ? 0 : 1)];
  }
  const Token& take() {
    return tokens_[current().kind == Token::Kind::kEnd ? position_ : position_++];
  }
  bool is_operator(std::string_view text) const {
    return current().kind == Token::Kind::kOperator && current().text == text;
  }
  bool is_name(std::string_view text) const {
    return current().kind == Token::Kind::kName && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);
  std::string_view expect_identifier();
  void expect_block_end();
  std::string describe_current() const;

  template <class... Args>
  [[noreturn]] void refuse(ErrorCode code, fmt::format_string<Args...> format,
                           Args&&... args) const {
    throw make_error(code, "line {}: {}", current().line,
                     fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_current() const;

  // ---- nodes ----
  template <class T>
  T* make(ExpressionKind kind, int line, std::initializer_list<const Expression*> children = {}) {
    T* node = program_->arena.make<T>();
    node->kind = kind;
    node->line = line;
    node->height = 1;
    for (const Expression* child : children) raise_height(*node, child);
    return node;
  }
  void raise_height(Expression& node, const Expression* child) const;
  template <class T>
  T* make_statement(StatementKind kind, int line) {
    T* node = program_->arena.make<T>();
    node->kind = kind;
    node->line = line;
    return node;
  }
  Symbol intern(std::string_view name);
  Value text_value(std::string_view text);

  // ---- expressions ----
  Expression* parse_expression();  // with `if`
  Expression* parse_or();
  Expression* parse_and();
  Expression* parse_not();
  Expression* parse_compare();
  Expression* parse_sum();
  Expression* parse_concat();
  Expression* parse_product();
  Expression* parse_power();
  Expression* parse_unary(bool with_filter = true);
  Expression* parse_primary();
  Expression* parse_name();
  Expression* parse_list();
  Expression* parse_dict();
  Expression* parse_postfix(Expression* node);
  Expression* parse_subscript(Expression* node);
  Expression* parse_index(int line, Expression* object);
  Expression* parse_filter_chain(Expression* node);
  FilterUse* parse_filter(Expression* input);
  Expression* parse_test(Expression* input);
  Call* parse_call(Expression* callee);
  CallArguments parse_arguments(Expression& owner);
  /// One expression, or several with commas as a tuple. `stop`: a name that ends it.
  Expression* parse_tuple(bool with_condition, std::string_view stop = {},
                          bool in_parentheses = false);
  bool ends_tuple(std::string_view stop) const;
  Literal* parse_integer();
  Literal* parse_float();
  Expression* binary(Operator op, int line, Expression* left, Expression* right);
  Sequence* sequence(ExpressionKind kind, int line, const std::vector<Expression*>& items);

  // ---- statements ----
  /// Up to a block that begins with one of `ends`; the block's name is left as the current token.
  Body parse_body(std::initializer_list<std::string_view> ends);
  Statement* parse_statement();
  Statement* parse_if();
  Statement* parse_for();
  Statement* parse_set();
  Statement* parse_with();
  Statement* parse_macro();
  Statement* parse_call_block();
  Statement* parse_filter_block();
  Statement* parse_generation();
  Statement* parse_print();
  Statement* parse_loop_control();
  [[noreturn]] void refuse_tag(std::string_view name) const;
  Target* parse_target(std::string_view stop, bool with_namespace);
  Target* parse_one_target(bool with_namespace);
  std::span<FilterUse*> parse_filters();
  std::span<Parameter> parse_parameters();
  void parse_macro_body(MacroDefinition& macro, std::string_view end);
  /// A body whose variables, loops and macros are apart from what surrounds it.
  Body parse_closed_body(std::string_view end);

  std::shared_ptr<Program> program_;
  std::vector<Token> tokens_;
  std::size_t position_ = 0;
  std::unordered_map<std::string_view, Symbol> symbols_;
  std::vector<MacroDefinition*> macros_;  // that surround the current token
  int depth_ = 0;
  int loops_ = 0;  // that `break` could leave
};

}  // namespace palimpsest::text::jinja
