#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "palimpsest/model.h"
#include "runtime/model_bench.h"

namespace palimpsest::cli {

/// What this machine can do with some number of threads, measured in the same run. Bytes and F32 operations a second.
struct MachineLimits {
  double read_small_pages = 0;  ///< as files are mapped
  double read_huge_pages = 0;
  double multiply_adds = 0;  ///< a multiply-add counts two
  double read() const { return read_small_pages > read_huge_pages ? read_small_pages : read_huge_pages; }
};

struct BenchReport {
  std::shared_ptr<const Model> model;
  double load_seconds = 0;
  std::int64_t buffer_bytes = 0;  ///< that reads were measured over
  std::map<int, MachineLimits> limits;  ///< by threads
  std::vector<BenchResult> results;
};

/// "pp512", "tg128": the names that llama-bench gives them.
std::string bench_name(const BenchCase& what);

// The parts of the printed report in their order, each ending in a line break.
std::string bench_heading(const BenchReport& report);
std::string limits_text(const BenchReport& report, int threads);
std::string row_heading();
std::string row_text(const BenchReport& report, const BenchResult& result);
std::string profile_text(const BenchReport& report, const BenchResult& result);

nlohmann::ordered_json to_json(const BenchReport& report);

/// Whether rows differ in threads, tokens of a pass or sequences alone, so that there is something to draw.
bool varies(const std::vector<BenchCase>& cases);
/// Tokens a second over what varies.
std::string to_svg(const BenchReport& report);

}  // namespace palimpsest::cli
