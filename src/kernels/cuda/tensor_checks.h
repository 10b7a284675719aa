#pragma once

#include <initializer_list>
#include <string>

#include "base/error.h"
#include "palimpsest/tensor.h"

/// What the checks of device kernels have in common. `what` names the kernels, `field` the member of their arguments.
namespace palimpsest::cuda {

struct TensorChecks {
  const char* what;

  [[noreturn]] void refuse(const char* field, std::string_view why) const;
  void sizes(const char* field, const Tensor& t, std::initializer_list<std::int64_t> sizes) const;
  void type(const char* field, const Tensor& t, std::initializer_list<DType> types) const;
  /// Begins at a multiple of `bytes`, as does every step of every dimension but the last, whose stride is one.
  void aligned(const char* field, const Tensor& t, std::int64_t bytes) const;
  void contiguous(const char* field, const Tensor& t) const;
};

}  // namespace palimpsest::cuda
