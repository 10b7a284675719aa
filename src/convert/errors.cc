#include "convert/errors.h"

#include <algorithm>
#include <cmath>

#include "convert/matrix_rows.h"

namespace palimpsest::convert {
namespace {

/// Row by row, summed in the order of the rows, so that the figures do not depend on the number of threads.
Errors compare(const MatrixRows& before, const MatrixRows& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled) {
  Errors total;
  const std::int64_t rows = before.rows(), block = std::min(rows, block_rows(before.cols()));
  std::vector<Errors> of_row(static_cast<std::size_t>(block));
  for (std::int64_t first = 0; first < rows; first += block) {
    check_cancelled(cancelled);
    const std::int64_t count = std::min(block, rows - first);
    pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::vector<float> old_row(static_cast<std::size_t>(before.cols())), new_row(old_row.size());
      for (std::int64_t r = begin; r < end; ++r) {
        before.read(first + r, old_row.data());
        after.read(first + r, new_row.data());
        of_row[static_cast<std::size_t>(r)] = {};
        of_row[static_cast<std::size_t>(r)].add(old_row, new_row);
      }
    });
    for (std::int64_t r = 0; r < count; ++r) total.add(of_row[static_cast<std::size_t>(r)]);
    before.release(first + count);
    after.release(first + count);
  }
  return total;
}

std::string role_name(const ModelConfig& config, const WeightSpec& spec) {
  std::string name(weight_leaf(config, spec.role));
  if (name.ends_with(".weight")) name.resize(name.size() - 7);
  return spec.expert >= 0 ? "experts." + name : name;
}

std::uint64_t stored_bytes(const StoredWeight& stored) {
  return stored.dense ? stored.dense->bytes() : stored.codes->bytes() + stored.scales->bytes();
}

}  // namespace

void Errors::add(std::span<const float> before, std::span<const float> after) {
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double value = static_cast<double>(before[i]), error = static_cast<double>(after[i]) - value;
    max_error = std::max(max_error, std::abs(error));
    max_value = std::max(max_value, std::abs(value));
    errors += error * error;
    values += value * value;
  }
}

void Errors::add(const Errors& other) {
  max_error = std::max(max_error, other.max_error);
  max_value = std::max(max_value, other.max_value);
  errors += other.errors;
  values += other.values;
}

void RoleTable::add(const RoleReport& report, const Errors& errors) {
  const auto [at, is_new] = index_.try_emplace({report.role, report.from, report.to}, reports_.size());
  if (is_new) {
    reports_.push_back({.role = report.role, .from = report.from, .to = report.to});
    errors_.emplace_back();
  }
  RoleReport& sum = reports_[at->second];
  sum.matrices += report.matrices;
  sum.parameters += report.parameters;
  sum.bytes_before += report.bytes_before;
  sum.bytes_after += report.bytes_after;
  if (errors.max_value > 0) sum.max_error = std::max(sum.max_error, errors.max_error / errors.max_value);
  errors_[at->second].add(errors);
}

std::vector<RoleReport> RoleTable::reports() const {
  std::vector<RoleReport> reports = reports_;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (errors_[i].values > 0) reports[i].rms_error = std::sqrt(errors_[i].errors / errors_[i].values);
  }
  return reports;
}

std::vector<RoleReport> measure_errors(const ModelConfig& config, const Plan& plan, const formats::Checkpoint& before,
                                       const formats::Checkpoint& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled) {
  RoleTable table;
  for (const PlannedWeight& weight : plan.weights) {
    if (!weight.form) continue;
    const StoredWeight now = value_or_throw(locate_weight(config, *weight.spec, after));
    const MatrixRows old_rows(before, weight.source, weight.turned()), new_rows(after, now, false);
    table.add({.role = role_name(config, *weight.spec),
               .from = std::string(stored_name(weight.source)),
               .to = std::string(stored_name(now)),
               .matrices = 1,
               .parameters = weight.spec->parameters(),
               .bytes_before = stored_bytes(weight.source),
               .bytes_after = stored_bytes(now)},
              compare(old_rows, new_rows, pool, cancelled));
  }
  return table.reports();
}

}  // namespace palimpsest::convert
