#include "text/template/evaluator.h"
#include "text/template/operators.h"
#include "text/template/printing.h"

namespace palimpsest::text::jinja {

Evaluator::Flow Evaluator::execute(Body body) {
  for (const Statement* statement : body) {
    Level level(*this, statement->line);
    const Flow flow = execute_kind(*statement);
    level.leave();
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_kind(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      write(static_cast<const Text&>(statement).text);
      break;
    case StatementKind::kOutput:
      write_value(evaluate(*static_cast<const Output&>(statement).value));
      break;
    case StatementKind::kIf: {
      const auto& node = static_cast<const If&>(statement);
      return execute(is_true(evaluate(*node.test)) ? node.then : node.otherwise);
    }
    case StatementKind::kFor:
      return execute_for(static_cast<const For&>(statement));
    case StatementKind::kSet: {
      const auto& node = static_cast<const Set&>(statement);
      assign(*node.target, evaluate(*node.value));
      break;
    }
    case StatementKind::kBlockSet:
      execute_block_set(static_cast<const BlockSet&>(statement));
      break;
    case StatementKind::kWith:
      return execute_with(static_cast<const With&>(statement));
    case StatementKind::kMacro: {
      const auto& node = static_cast<const MacroDefinition&>(statement);
      set_variable(node.symbol, make_macro(node));
      break;
    }
    case StatementKind::kCallBlock:
      execute_call_block(static_cast<const CallBlock&>(statement));
      break;
    case StatementKind::kFilterBlock:
      execute_filter_block(static_cast<const FilterBlock&>(statement));
      break;
    case StatementKind::kScope:
      return execute_in_scope(static_cast<const ScopeBlock&>(statement).body);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Evaluator::Flow Evaluator::execute_in_scope(Body body) {
  Scope* const outer = scope_;
  Scope* const scope = scope_ = enter_scope(outer);
  const Flow flow = execute(body);
  scope_ = outer;
  leave_scope(scope);
  return flow;
}

Evaluator::Flow Evaluator::execute_for(const For& node) {
  Scope* const outer = scope_;
  const auto source = iterate(evaluate(*node.iterable), heap_);
  LoopState::Condition accepts;
  if (node.condition != nullptr) {
    accepts = [this, &node, outer](const Value& item) {
      Scope* const current = scope_;
      Scope* const scope = scope_ = enter_scope(outer);
      assign(*node.target, item);
      const bool accepted = is_true(evaluate(*node.condition));
      leave_scope(scope);
      scope_ = current;
      return accepted;
    };
  }
  budget_.charge(sizeof(LoopState) + (accepts ? source.size_bytes() : 0));
  LoopState& loop = loops_.emplace_back(source, std::move(accepts));
  Value loop_value = Value::of(Kind::kLoop);
  loop_value.loop = &loop;
  bool any = false;
  Flow flow = Flow::kNormal;
  while (flow != Flow::kBreak) {
    const Value* item = loop.next();
    if (item == nullptr) break;
    budget_.step();
    any = true;
    Scope* const scope = scope_ = enter_scope(outer);
    set_variable(kLoopSymbol, loop_value);
    assign(*node.target, *item);
    flow = execute(node.body);
    scope_ = outer;
    leave_scope(scope);
  }
  loop.close();
  return any ? Flow::kNormal : execute_in_scope(node.otherwise);
}

void Evaluator::execute_block_set(const BlockSet& node) {
  Scope* const outer = scope_;
  Scope* const scope = scope_ = enter_scope(outer);
  Value value = capture(node.body);
  for (const FilterUse* filter : node.filters) value = apply_filter(*filter, value);
  scope_ = outer;
  leave_scope(scope);
  assign(*node.target, value);
}

Evaluator::Flow Evaluator::execute_with(const With& node) {
  std::vector<Value> values;
  for (const Expression* value : node.values) values.push_back(evaluate(*value));
  Scope* const outer = scope_;
  Scope* const scope = scope_ = enter_scope(outer);
  for (std::size_t i = 0; i < values.size(); ++i) assign(*node.targets[i], values[i]);
  const Flow flow = execute(node.body);
  scope_ = outer;
  leave_scope(scope);
  return flow;
}

void Evaluator::execute_call_block(const CallBlock& block) {
  const Value caller = make_macro(*block.caller);
  const Value callee = evaluate(*block.call->callee);
  ArgumentLists arguments = evaluate_arguments(block.call->arguments);
  arguments.named.push_back({"caller", caller});
  write_value(call(callee, arguments.view()));
}

void Evaluator::execute_filter_block(const FilterBlock& block) {
  Scope* const outer = scope_;
  Scope* const scope = scope_ = enter_scope(outer);
  Value value = capture(block.body);
  for (const FilterUse* filter : block.filters) value = apply_filter(*filter, value);
  scope_ = outer;
  leave_scope(scope);
  write_value(value);
}

Value Evaluator::capture(Body body) {
  TextBuilder buffer(heap_);
  TextBuilder* const outer = std::exchange(out_, &buffer);
  execute(body);
  out_ = outer;
  return buffer.value();
}

void Evaluator::write_value(const Value& value) {
  value.is_text() ? write(value.text()) : write(to_str(value, budget_));
}

void Evaluator::write(std::string_view text) {
  const std::uint64_t limit = budget_.limits().output_bytes;
  if (text.size() > limit || out_->size() > limit - text.size()) {
    raise("the rendered text is longer than {} bytes", limit);
  }
  if (out_ != &output_) budget_.charge(text.size());
  out_->append(text);
}

// ---- variables
// ----------------------------------------------------------------------------------------------------------

void Evaluator::assign(const Target& target, const Value& value) {
  switch (target.kind) {
    case Target::Kind::kName:
      set_variable(target.symbol, value);
      return;
    case Target::Kind::kNamespace:
      assign_attribute(target, value);
      return;
    case Target::Kind::kTuple: {
      const auto items = iterate(value, heap_);
      if (items.size() < target.items.size()) {
        raise("not enough values to unpack (expected {}, got {})", target.items.size(),
              items.size());
      }
      if (items.size() > target.items.size())
        raise("too many values to unpack (expected {})", target.items.size());
      for (std::size_t i = 0; i < items.size(); ++i) assign(*target.items[i], items[i]);
    }
  }
}

void Evaluator::assign_attribute(const Target& target, const Value& value) {
  const Value* object = lookup(target.symbol);
  if (object == nullptr) raise("'{}' is undefined", program_.names[target.symbol]);
  if (!object->is(Kind::kNamespace)) raise("cannot assign attribute on non-namespace object");
  NamespaceEntry** entry = &object->name_space->first;
  for (; *entry != nullptr; entry = &(*entry)->next) {
    budget_.step();
    if ((*entry)->name == target.attribute) {
      (*entry)->value = value;
      return;
    }
  }
  *entry = heap_.make<NamespaceEntry>(target.attribute, value, nullptr);
}

Value* Evaluator::lookup(Symbol symbol) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (Binding* binding = scope->first; binding != nullptr; binding = binding->next) {
      if (binding->symbol == symbol && !binding->value.is(Kind::kMissing)) return &binding->value;
    }
  }
  return globals_[symbol].is(Kind::kMissing) ? nullptr : &globals_[symbol];
}

void Evaluator::set_variable(Symbol symbol, const Value& value) {
  if (scope_ == nullptr) {
    globals_[symbol] = value;
    return;
  }
  for (Binding* binding = scope_->first; binding != nullptr; binding = binding->next) {
    if (binding->symbol == symbol) {
      binding->value = value;
      return;
    }
  }
  Binding* binding = nullptr;
  if (free_bindings_.empty()) {
    binding = heap_.make<Binding>();
  } else {
    binding = free_bindings_.back();
    free_bindings_.pop_back();
  }
  *binding = {symbol, value, scope_->first};
  scope_->first = binding;
}

Scope* Evaluator::enter_scope(Scope* parent) {
  Scope* scope = nullptr;
  if (free_scopes_.empty()) {
    scope = heap_.make<Scope>();
  } else {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  }
  *scope = {parent, nullptr, false};
  return scope;
}

void Evaluator::leave_scope(Scope* scope) {
  if (scope->captured) return;
  for (Binding* binding = scope->first; binding != nullptr; binding = binding->next)
    free_bindings_.push_back(binding);
  free_scopes_.push_back(scope);
}

}  // namespace palimpsest::text::jinja
