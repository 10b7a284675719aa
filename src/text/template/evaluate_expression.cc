#include <nlohmann/json.hpp>

#include "text/template/evaluator.h"
#include "text/template/operators.h"
#include "text/template/printing.h"

namespace palimpsest::text::jinja {

Evaluator::Evaluator(const Program& program, const nlohmann::ordered_json& context,
                     const TemplateOptions& options)
    : program_(program),
      options_(options),
      budget_(options.limits),
      heap_(budget_),
      globals_(program.names.size()) {
  for (const Arena::Block& block : program.arena.blocks()) {
    heap_.origins().add({reinterpret_cast<const char*>(block.bytes.get()), block.size});
  }
  for (const std::string_view text : options.own) heap_.origins().add(text);
  for (std::size_t symbol = 0; symbol < globals_.size(); ++symbol) {
    const auto member = context.find(std::string(program.names[symbol]));
    if (member != context.end()) globals_[symbol] = heap_.from_json(*member);
  }
}

RenderedTemplate Evaluator::run() {
  execute(program_.body);
  return output_.take();
}

void Evaluator::refuse_depth() const {
  raise("the template nests more than {} levels of blocks, expressions and macro calls",
        budget_.limits().depth);
}

Value Evaluator::evaluate(const Expression& expression) {
  Level level(*this, expression.line);
  const Value value = evaluate_kind(expression);
  level.leave();
  return value;
}

Value Evaluator::evaluate_kind(const Expression& expression) {
  switch (expression.kind) {
    case ExpressionKind::kLiteral:
      return static_cast<const Literal&>(expression).value;
    case ExpressionKind::kName:
      return evaluate_name(static_cast<const Name&>(expression));
    case ExpressionKind::kList:
      return evaluate_sequence(static_cast<const Sequence&>(expression), Kind::kList);
    case ExpressionKind::kTuple:
      return evaluate_sequence(static_cast<const Sequence&>(expression), Kind::kTuple);
    case ExpressionKind::kDict:
      return evaluate_dict(static_cast<const DictLiteral&>(expression));
    case ExpressionKind::kUnary:
      return evaluate_unary(static_cast<const Unary&>(expression));
    case ExpressionKind::kBinary: {
      const auto& binary = static_cast<const Binary&>(expression);
      const Value left = evaluate(*binary.left);
      return arithmetic(binary.op, left, evaluate(*binary.right), heap_);
    }
    case ExpressionKind::kConcat:
      return evaluate_concat(static_cast<const Sequence&>(expression));
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      const auto& operands = static_cast<const Sequence&>(expression).items;
      const Value left = evaluate(*operands[0]);
      return is_true(left) == (expression.kind == ExpressionKind::kOr) ? left
                                                                       : evaluate(*operands[1]);
    }
    case ExpressionKind::kCompare:
      return evaluate_compare(static_cast<const Compare&>(expression));
    case ExpressionKind::kConditional:
      return evaluate_conditional(static_cast<const Sequence&>(expression));
    case ExpressionKind::kAttribute: {
      const auto& attribute = static_cast<const Attribute&>(expression);
      return get_attribute(evaluate(*attribute.object), attribute.name);
    }
    case ExpressionKind::kItem: {
      const auto& item = static_cast<const Item&>(expression);
      const Value object = evaluate(*item.object);
      return get_item(object, evaluate(*item.index));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(static_cast<const Slice&>(expression));
    case ExpressionKind::kCall:
      return evaluate_call(static_cast<const Call&>(expression));
    case ExpressionKind::kFilter:
      return evaluate_filter(static_cast<const FilterUse&>(expression));
    case ExpressionKind::kTest:
      return evaluate_test(static_cast<const TestUse&>(expression));
  }
  return Value::none();
}

Value Evaluator::evaluate_name(const Name& name) {
  if (const Value* value = lookup(name.symbol)) return *value;
  const std::string_view text = program_.names[name.symbol];
  if (const MethodEntry* global = find_global(text)) {
    Value function = Value::of(Kind::kFunction);
    function.function = heap_.make<FunctionObject>(global);
    return function;
  }
  return heap_.undefined(Value(), heap_.text_view(text));
}

Value Evaluator::evaluate_sequence(const Sequence& sequence, Kind kind) {
  const std::span<Value> items = heap_.make_span<Value>(sequence.items.size());
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = evaluate(*sequence.items[i]);
  return heap_.list_view(items, kind);
}

Value Evaluator::evaluate_dict(const DictLiteral& literal) {
  std::vector<DictEntry> entries(literal.keys.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    entries[i].key = evaluate(*literal.keys[i]);
    entries[i].value = evaluate(*literal.values[i]);
  }
  return heap_.dict(entries);
}

Value Evaluator::evaluate_unary(const Unary& unary) {
  const Value operand = evaluate(*unary.operand);
  switch (unary.op) {
    case Operator::kNot:
      return Value::of_bool(!is_true(operand));
    case Operator::kNegate:
      return negate(operand);
    default:
      return positive(operand);
  }
}

Value Evaluator::evaluate_concat(const Sequence& concat) {
  TextBuilder out(heap_);
  for (const Expression* item : concat.items) out.append(evaluate(*item));
  return out.value();
}

Value Evaluator::evaluate_compare(const Compare& compare) {
  Value left = evaluate(*compare.first);
  bool result = true;
  for (std::size_t i = 0; result && i < compare.ops.size(); ++i) {
    const Value right = evaluate(*compare.rest[i]);
    switch (compare.ops[i]) {
      case Operator::kEqual:
        result = equal(left, right, budget_);
        break;
      case Operator::kNotEqual:
        result = !equal(left, right, budget_);
        break;
      case Operator::kIn:
        result = contains(right, left, heap_);
        break;
      case Operator::kNotIn:
        result = !contains(right, left, heap_);
        break;
      default:
        result = ordered(compare.ops[i], left, right, budget_);
    }
    left = right;
  }
  return Value::of_bool(result);
}

Value Evaluator::evaluate_conditional(const Sequence& conditional) {
  if (is_true(evaluate(*conditional.items[1]))) return evaluate(*conditional.items[0]);
  if (conditional.items[2] != nullptr) return evaluate(*conditional.items[2]);
  return heap_.undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.",
      conditional.line));
}

Value Evaluator::evaluate_slice(const Slice& node) {
  const Value object = evaluate(*node.object);
  const Value start = evaluate_optional(node.start);
  const Value stop = evaluate_optional(node.stop);
  return slice(object, start, stop, evaluate_optional(node.step), heap_);
}

Value Evaluator::evaluate_filter(const FilterUse& filter) {
  return apply_filter(filter, evaluate(*filter.input));
}

Value Evaluator::apply_filter(const FilterUse& filter, const Value& input) {
  const ArgumentLists arguments = evaluate_arguments(filter.arguments);
  return filter.filter->function(*this, input, arguments.view());
}

Value Evaluator::evaluate_test(const TestUse& test) {
  const Value input = evaluate(*test.input);
  const ArgumentLists arguments = evaluate_arguments(test.arguments);
  return Value::of_bool(test.test->function(*this, input, arguments.view()));
}

}  // namespace palimpsest::text::jinja
