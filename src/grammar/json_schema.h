#pragma once

#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/characters.h"

namespace palimpsest::grammar {

using SchemaJson = nlohmann::ordered_json;

/// JSON from text. Error{kInvalidRequest} for what is none or nested more than kDeepestNesting
/// deep.
SchemaJson parse_schema_text(std::string_view text);

/// Rules for JSON texts that a JSON Schema allows (docs/constraints.md lists the keywords). Not all
/// that are valid are written: members stand in the order of `properties`, white space as in usual
/// layouts; but all that is written is valid. What cannot be kept is refused, with
/// Error{kInvalidRequest} naming the place in the schema as a JSON pointer.
///
/// One object for one document: $ref looks up places in it. Not thread-safe.
class SchemaRules {
 public:
  SchemaRules(Grammar& grammar, SchemaJson document, std::string name);

  /// The rule for values of the whole document.
  RuleId root();
  /// Any JSON value, any JSON object.
  RuleId any_value();
  RuleId any_object();

  /// What members the objects of the document have; for formats that write them in their own way.
  struct Member {
    std::string name;
    bool required = false;
    const SchemaJson* schema = nullptr;  ///< true: anything
    std::string path;
  };
  struct Members {
    std::vector<Member> list;
    bool open = false;  ///< others may follow
    Member others;      ///< if open: what they must be
    const SchemaJson* names = nullptr;  ///< of others, if not any: strings that this describes
  };
  /// Error{kInvalidRequest} where the document does not describe objects alone and in one way.
  Members members();
  /// The values of a member by their JSON type ("string", "number", "boolean", "null", "object",
  /// "array"): strings as they are, without quotes and escapes; others as JSON.
  std::vector<std::pair<std::string, ExprId>> typed_values(const Member& member);
  /// The values of a member as JSON.
  ExprId json_values(const Member& member) { return g_.call(rule_of(*member.schema, member.path)); }
  /// To be called after the last of the others: makes the rules that were only asked for.
  void finish();

 private:
  using Json = SchemaJson;
  struct Pending {
    RuleId rule;
    const Json* schema;
    std::string path;
  };

  RuleId rule_of(const Json& schema, const std::string& path);
  const Json& keep(Json schema);
  /// A copy; Error where all of them together grow too large.
  Json copied(const Json& schema);
  void step();

  // schemas to simpler schemas
  const Json& target(const Json& schema, const std::string& path);
  Json follow(const Json& schema, const std::string& path);
  Json merged(Json a, const Json& b, const std::string& path);
  void merge_member(Json& into, const std::string& key, const Json& value, const std::string& path);
  void check_exclusive(const Json& ways, const std::string& path);
  struct Way;
  Way way_of(const Json& schema, const std::string& path);
  std::vector<std::pair<Json, std::string>> flatten(const Json& schema, const std::string& path);

  // schemas to expressions
  ExprId value(const Json& schema, const std::string& path);
  void flat_values(const Json& schema, const std::string& path, std::vector<ExprId>& ways);
  ExprId values_of_type(const Json& schema, const std::string& type, const std::string& path);
  std::vector<Json> listed_values(const Json& schema, const std::string& path);
  ExprId string(const Json& schema, const std::string& path, Spelling spelling);
  ExprId number(const Json& schema, const std::string& path, bool whole);
  ExprId array(const Json& schema, const std::string& path);
  ExprId unique_items(const Json& schema, const std::string& path, std::int64_t least,
                      std::int64_t most);
  struct List;
  ExprId in_order(const List& list, const std::string& path);
  ExprId object(const Json& schema, const std::string& path);
  Members members_of(const Json& schema, const std::string& path);
  void restrict_names(const Json& schema, const std::string& path, Members& members);
  ExprId other_key(const std::vector<Member>& declared);

  // words
  ExprId space();
  ExprId comma() { return g_.sequence({g_.literal(","), space()}); }
  ExprId member(ExprId key, ExprId value);
  ExprId string_word();
  ExprId number_word(bool whole);
  ExprId json_character();

  Grammar& g_;
  std::string name_;
  std::deque<Json> kept_;
  std::map<const Json*, RuleId> rules_;
  std::deque<Pending> pending_;
  std::optional<RuleId> space_, string_, number_, integer_, value_, object_, array_;
  std::optional<ExprId> character_;
  std::string inner_id_;  ///< where a schema below the top has an $id; empty: nowhere
  int steps_ = 0;
  std::size_t copied_ = 0, pattern_work_ = 0;
  std::set<std::string> too_large_;  ///< formats with lengths for which there is no automaton
};

}  // namespace palimpsest::grammar
