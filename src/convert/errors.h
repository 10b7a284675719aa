#pragma once

#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "convert/convert.h"
#include "convert/encode.h"

namespace palimpsest::convert {

/// How far the numbers of matrices moved.
struct Errors {
  double max_error = 0, max_value = 0, errors = 0, values = 0;  ///< largest magnitudes; sums of squares

  void add(std::span<const float> before, std::span<const float> after);
  void add(const Errors& other);
};

/// One entry for each role and pair of forms, in the order in which they come.
class RoleTable {
 public:
  /// One weight, or a stack of `matrices` of them, of the role that `report` names.
  void add(const RoleReport& report, const Errors& errors);
  std::vector<RoleReport> reports() const;

 private:
  std::vector<RoleReport> reports_;
  std::vector<Errors> errors_;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> index_;
};

/// Decodes every converted matrix of the new checkpoint, as its loader finds it, and compares it with the old one. One entry for each role and
/// pair of forms, in the order of the model. Throws Error{kInvalidFile} when the new checkpoint lacks a weight.
std::vector<RoleReport> measure_errors(const ModelConfig& config, const Plan& plan, const formats::Checkpoint& before,
                                       const formats::Checkpoint& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled);

}  // namespace palimpsest::convert
