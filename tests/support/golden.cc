#include "support/golden.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace palimpsest::test {

Golden::Golden(const std::filesystem::path& path) : file_(value_or_throw(formats::Checkpoint::open(path), path.string())) {}

bool Golden::has(const std::string& name) const { return file_.find(name) != nullptr; }

Tensor Golden::view(const std::string& name, DType dtype) const {
  const Tensor t = file_.view(name);
  if (!t.defined() || t.dtype != dtype) throw make_error(ErrorCode::kInvalidFile, "no {} tensor '{}'", dtype_name(dtype), name);
  return t;
}

std::vector<std::int64_t> Golden::shape(const std::string& name) const {
  const Tensor t = file_.view(name);
  return {t.sizes, t.sizes + t.rank};
}

std::vector<float> Golden::floats(const std::string& name) const {
  const Tensor t = view(name, DType::kF32);
  std::vector<float> values(static_cast<std::size_t>(t.numel()));
  std::memcpy(values.data(), t.data, values.size() * sizeof(float));
  return values;
}

Golden::Rows Golden::rows(const std::string& name, const std::vector<float>& got) const {
  if (has(name)) return {got, floats(name)};
  const std::vector<std::int64_t> of = shape(name + ".every5");
  const auto width = static_cast<std::size_t>(of.back());
  Rows rows{{}, floats(name + ".every5")};
  for (std::size_t i = 0; i < got.size(); i += 5 * width) rows.got.insert(rows.got.end(), got.begin() + static_cast<std::ptrdiff_t>(i), got.begin() + static_cast<std::ptrdiff_t>(i + width));
  return rows;
}

std::vector<std::int32_t> Golden::ids(const std::string& name) const {
  const Tensor t = view(name, DType::kI64);
  std::vector<std::int64_t> wide(static_cast<std::size_t>(t.numel()));
  std::memcpy(wide.data(), t.data, wide.size() * sizeof(std::int64_t));
  return {wide.begin(), wide.end()};
}

WorstDifference worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) throw make_error(ErrorCode::kInternal, "{} values against {}", a.size(), b.size());
  WorstDifference worst;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]);
    worst.largest = std::max(worst.largest, std::abs(static_cast<double>(b[i])));
    if (!(difference <= worst.value)) worst = {difference, i, worst.largest};  // NaN counts as worst
  }
  return worst;
}

}  // namespace palimpsest::test
