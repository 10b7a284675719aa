#pragma once

// Timing of device kernels: every case is checked against the truth in double before it is timed, inputs rotate through more memory than
// the L2 cache holds unless a case says otherwise, and results are printed beside the ceilings measured in the same run.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "palimpsest/tensor.h"

namespace palimpsest::bench {

void check(cudaError_t status, const char* what);

/// Device memory with random contents, freed with its owner. Movable.
class DeviceTensor {
 public:
  enum class Fill { kZero, kNormal, kUniform };
  DeviceTensor() = default;
  /// kNormal: mean a, deviation b. kUniform: from a to b. Deterministic for a seed; F64, F32, BF16 and I8 only (others: kZero).
  DeviceTensor(DType dtype, std::initializer_list<std::int64_t> sizes, Fill fill = Fill::kZero, float a = 0, float b = 1, std::uint64_t seed = 0);
  ~DeviceTensor();
  DeviceTensor(DeviceTensor&& other) noexcept { *this = static_cast<DeviceTensor&&>(other); }
  DeviceTensor& operator=(DeviceTensor&& other) noexcept;

  const Tensor& get() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }
  /// From host memory of the same type and size.
  void upload(const void* host) const;

 private:
  Tensor tensor_;
};

/// to[i] = from[i], between F64, F32 and BF16.
void convert(const Tensor& from, const Tensor& to);

struct Difference {
  double rms = 0;        ///< sqrt(sum (a-b)^2 / sum b^2)
  double worst = 0;      ///< max |a-b| / sqrt(mean b^2)
  bool finite = true;
};
/// `got` of any float type against `want` in F64. Where `want` is NaN there is nothing to compare with; `got` must be finite everywhere.
Difference compare(const Tensor& got, const Tensor& want);

/// Median microseconds of one launch: `launch(i, stream)` for i = 0..rotations-1 is captured into one graph, which is replayed.
double time_graph(int rotations, const std::function<void(int, cudaStream_t)>& launch);

/// What this device can do, measured.
struct Ceilings {
  double copy_tbs = 0;     ///< device-to-device copy, bytes read plus bytes written
  double gemm_tflops = 0;  ///< BF16 product of 8192^3 by cuBLAS; 0 where its library is not found (LD_LIBRARY_PATH)
};
const Ceilings& ceilings();

/// What the command line asks for.
struct Selection {
  std::string text;   ///< cases whose name holds it
  bool check = true;  ///< false: timed without the truth
};
Selection& selection();
inline bool wanted(const std::string& name) { return name.find(selection().text) != std::string::npos; }

struct Result {
  std::string name;      ///< kernel and shape
  double microseconds = 0;
  double bytes = 0;      ///< least bytes that must move through device memory
  double flops = 0;      ///< 0 where it is not what bounds
  double target_us = 0;  ///< 0: none
  Difference output, state;
};

class Report {
 public:
  /// Prints the row at once; remembers it for the JSON file.
  void add(const Result& result);
  void write_json(const char* path) const;
  bool all_right() const { return all_right_; }

 private:
  std::vector<Result> results_;
  bool all_right_ = true;
};

}  // namespace palimpsest::bench
