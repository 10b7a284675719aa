#include "kernels/cuda/tensor_checks.h"

namespace palimpsest::cuda {

void TensorChecks::refuse(const char* field, std::string_view why) const {
  throw make_error(ErrorCode::kUnsupported, "{}: {}: {}", what, field, why);
}

void TensorChecks::sizes(const char* field, const Tensor& t, std::initializer_list<std::int64_t> sizes) const {
  bool same = t.defined() && t.rank == static_cast<int>(sizes.size());
  int d = 0;
  std::string want, got;
  for (const std::int64_t size : sizes) {
    same = same && t.sizes[d++] == size;
    want += (want.empty() ? "" : ", ") + std::to_string(size);
  }
  for (d = 0; d < t.rank; ++d) got += (d == 0 ? "" : ", ") + std::to_string(t.sizes[d]);
  if (!same) refuse(field, fmt::format("shape [{}], expected [{}]", got, want));
}

void TensorChecks::type(const char* field, const Tensor& t, std::initializer_list<DType> types) const {
  for (const DType type : types) {
    if (t.dtype == type) return;
  }
  refuse(field, fmt::format("type {} is not supported", dtype_name(t.dtype)));
}

void TensorChecks::aligned(const char* field, const Tensor& t, std::int64_t bytes) const {
  const std::int64_t unit = std::max<std::int64_t>(1, bytes / dtype_size(t.dtype));
  bool fits = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0 && (t.sizes[t.rank - 1] == 1 || t.strides[t.rank - 1] == 1);
  for (int d = 0; d + 1 < t.rank; ++d) fits = fits && (t.sizes[d] == 1 || t.strides[d] % unit == 0);
  if (!fits) refuse(field, fmt::format("rows must be contiguous and begin at multiples of {} bytes", bytes));
}

void TensorChecks::contiguous(const char* field, const Tensor& t) const {
  if (!t.is_contiguous()) refuse(field, "must be contiguous");
}

}  // namespace palimpsest::cuda
