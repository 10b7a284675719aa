#pragma once

#include <vector>

#include "kernels/ref/activations.h"

namespace palimpsest::test {

/// Each 32 numbers, which are F32 again without a rounding.
inline std::vector<float> mxfp8(const std::vector<float>& x) {
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); i += 32) ref::round_mxfp8(x.data() + i, 32, out.data() + i);
  return {out.begin(), out.end()};
}

}  // namespace palimpsest::test
