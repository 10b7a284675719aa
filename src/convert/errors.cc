#include "convert/errors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "convert/matrix_rows.h"

namespace palimpsest::convert {
namespace {

struct Sums {
  double max_error = 0, max_value = 0, errors = 0, values = 0;  ///< largest magnitudes; sums of squares

  void add(const Sums& other) {
    max_error = std::max(max_error, other.max_error);
    max_value = std::max(max_value, other.max_value);
    errors += other.errors;
    values += other.values;
  }
};

Sums compare_rows(const std::vector<float>& before, const std::vector<float>& after) {
  Sums sums;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double value = static_cast<double>(before[i]), error = static_cast<double>(after[i]) - value;
    sums.max_error = std::max(sums.max_error, std::abs(error));
    sums.max_value = std::max(sums.max_value, std::abs(value));
    sums.errors += error * error;
    sums.values += value * value;
  }
  return sums;
}

/// Row by row, summed in the order of the rows, so that the figures do not depend on the number of threads.
Sums compare(const MatrixRows& before, const MatrixRows& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled) {
  Sums total;
  const std::int64_t rows = before.rows(), block = std::min(rows, block_rows(before.cols()));
  std::vector<Sums> of_row(static_cast<std::size_t>(block));
  for (std::int64_t first = 0; first < rows; first += block) {
    check_cancelled(cancelled);
    const std::int64_t count = std::min(block, rows - first);
    pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int) {
      std::vector<float> old_row(static_cast<std::size_t>(before.cols())), new_row(old_row.size());
      for (std::int64_t r = begin; r < end; ++r) {
        before.read(first + r, old_row.data());
        after.read(first + r, new_row.data());
        of_row[static_cast<std::size_t>(r)] = compare_rows(old_row, new_row);
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

std::vector<RoleReport> measure_errors(const ModelConfig& config, const Plan& plan, const formats::Checkpoint& before,
                                       const formats::Checkpoint& after, base::ThreadPool& pool, const std::atomic<bool>* cancelled) {
  std::vector<RoleReport> reports;
  std::vector<Sums> sums;
  std::map<std::tuple<std::string, std::string_view, std::string_view>, std::size_t> index;
  for (const PlannedWeight& weight : plan.weights) {
    if (!weight.form) continue;
    const StoredWeight now = value_or_throw(locate_weight(config, *weight.spec, after));
    const MatrixRows old_rows(before, weight.source, weight.turned()), new_rows(after, now, false);
    const Sums found = compare(old_rows, new_rows, pool, cancelled);

    const std::string role = role_name(config, *weight.spec);
    const auto [at, is_new] = index.try_emplace({role, stored_name(weight.source), stored_name(now)}, reports.size());
    if (is_new) {
      reports.push_back({.role = role, .from = std::string(stored_name(weight.source)), .to = std::string(stored_name(now))});
      sums.emplace_back();
    }
    RoleReport& report = reports[at->second];
    ++report.matrices;
    report.parameters += weight.spec->parameters();
    report.bytes_before += stored_bytes(weight.source);
    report.bytes_after += stored_bytes(now);
    if (found.max_value > 0) report.max_error = std::max(report.max_error, found.max_error / found.max_value);
    sums[at->second].add(found);
  }
  for (std::size_t i = 0; i < reports.size(); ++i) {
    if (sums[i].values > 0) reports[i].rms_error = std::sqrt(sums[i].errors / sums[i].values);
  }
  return reports;
}

}  // namespace palimpsest::convert
