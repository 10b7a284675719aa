#include "kernels/harness.h"

#include <cuda_bf16.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace palimpsest::bench {
namespace {

constexpr double kRmsAllowed = 0.005;  ///< RMS ratio that published suites hold outputs and states to

__device__ std::uint64_t mix(std::uint64_t x) {  // SplitMix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ double read(const Tensor& t, std::int64_t i) {
  if (t.dtype == DType::kF64) return static_cast<const double*>(t.data)[i];
  if (t.dtype == DType::kF32) return static_cast<const float*>(t.data)[i];
  return __bfloat162float(static_cast<const __nv_bfloat16*>(t.data)[i]);
}
__device__ void write(const Tensor& t, std::int64_t i, double x) {
  if (t.dtype == DType::kF64) static_cast<double*>(t.data)[i] = x;
  else if (t.dtype == DType::kF32) static_cast<float*>(t.data)[i] = static_cast<float>(x);
  else if (t.dtype == DType::kI8) static_cast<std::int8_t*>(t.data)[i] = static_cast<std::int8_t>(x);
  else static_cast<__nv_bfloat16*>(t.data)[i] = __double2bfloat16(x);
}

__global__ void fill_random(Tensor t, std::int64_t n, bool normal, float a, float b, std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::uint64_t bits = mix(mix(seed) + static_cast<std::uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f, w = static_cast<float>((bits >> 8) & 0xffffff) * 0x1p-24f;
    write(t, i, normal ? a + b * sqrtf(-2 * logf(u)) * cospif(2 * w) : a + (b - a) * u);
  }
}

__global__ void convert_kernel(Tensor from, Tensor to, std::int64_t n) {
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    write(to, i, read(from, i));
  }
}

struct Sums {
  double difference, want;
  unsigned long long worst;  ///< bits of a non-negative double order as integers
  unsigned long long compared;
  int not_finite;
};
__global__ void compare_kernel(Tensor got, Tensor want, std::int64_t n, Sums* sums) {
  double difference = 0, squares = 0, worst = 0;
  unsigned long long compared = 0;
  bool bad = false;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const double g = read(got, i), w = read(want, i), d = fabs(g - w);
    bad = bad || !isfinite(g);
    if (isnan(w)) continue;
    ++compared;
    difference += d * d;
    squares += w * w;
    worst = fmax(worst, d);
  }
  atomicAdd(&sums->difference, difference);
  atomicAdd(&sums->want, squares);
  atomicAdd(&sums->compared, compared);
  atomicMax(&sums->worst, __double_as_longlong(worst));
  if (bad) atomicExch(&sums->not_finite, 1);
}

__global__ void copy_kernel(const float4* from, float4* to, std::int64_t n) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < n; i += 4 * stride) {
    float4 x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = i + j * stride < n ? from[i + j * stride] : float4{};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j * stride < n) to[i + j * stride] = x[j];
    }
  }
}

}  // namespace

Selection& selection() {
  static Selection chosen;
  return chosen;
}

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

DeviceTensor::DeviceTensor(DType dtype, std::initializer_list<std::int64_t> sizes, Fill fill, float a, float b, std::uint64_t seed) {
  tensor_ = Tensor::contiguous(nullptr, dtype, sizes, DeviceKind::kCuda);
  check(cudaMalloc(&tensor_.data, static_cast<std::size_t>(std::max<std::int64_t>(tensor_.bytes(), 1))), "cudaMalloc");
  if (fill == Fill::kZero) check(cudaMemset(tensor_.data, 0, static_cast<std::size_t>(tensor_.bytes())), "cudaMemset");
  else fill_random<<<1024, 256>>>(tensor_, tensor_.numel(), fill == Fill::kNormal, a, b, seed);
  check(cudaGetLastError(), "fill");
}
DeviceTensor::~DeviceTensor() { cudaFree(tensor_.data); }
DeviceTensor& DeviceTensor::operator=(DeviceTensor&& other) noexcept {
  std::swap(tensor_, other.tensor_);
  return *this;
}
void DeviceTensor::upload(const void* host) const {
  check(cudaMemcpy(tensor_.data, host, static_cast<std::size_t>(tensor_.bytes()), cudaMemcpyHostToDevice), "upload");
}

void convert(const Tensor& from, const Tensor& to) {
  convert_kernel<<<2048, 256>>>(from, to, from.numel());
  check(cudaGetLastError(), "convert");
}

Difference compare(const Tensor& got, const Tensor& want) {
  Sums* sums = nullptr;
  check(cudaMalloc(&sums, sizeof(Sums)), "cudaMalloc");
  check(cudaMemset(sums, 0, sizeof(Sums)), "cudaMemset");
  compare_kernel<<<1024, 256>>>(got, want, want.numel(), sums);
  Sums found;
  check(cudaMemcpy(&found, sums, sizeof(Sums), cudaMemcpyDeviceToHost), "compare");
  cudaFree(sums);
  const double scale = std::sqrt(found.want / static_cast<double>(found.compared));
  return {std::sqrt(found.difference / found.want), std::bit_cast<double>(found.worst) / scale, found.not_finite == 0 && found.compared > 0};
}

double time_graph(int rotations, const std::function<void(int, cudaStream_t)>& launch) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int i = 0; i < rotations; ++i) launch(i, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  double spent = 0;
  for (int repeat = 0; repeat < 5 || (spent < 3e5 && repeat < 200); ++repeat) {
    check(cudaEventRecord(begin, stream), "event");
    check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    check(cudaEventRecord(end, stream), "event");
    check(cudaEventSynchronize(end), "kernel");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (repeat >= 2) times.push_back(1000.0 * ms / rotations);  // the first two warm up
    spent += 1000.0 * ms;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

namespace {

/// cuBLAS where it is installed: the build needs no more than its name.
double measure_gemm() {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  }
  if (library == nullptr) return 0;
  using Create = int (*)(void**);
  using SetStream = int (*)(void*, cudaStream_t);
  using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*, void*, int, int, int, int);
  const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
  const auto set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
  const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
  void* handle = nullptr;
  if (create == nullptr || set_stream == nullptr || gemm == nullptr || create(&handle) != 0) return 0;
  constexpr int kN = 8192, kTransposed = 1, kPlain = 0, kBf16 = 14, kCompute32 = 68, kDefault = -1;
  const DeviceTensor a(DType::kBF16, {kN, kN}, DeviceTensor::Fill::kNormal, 0, 1, 1), b(DType::kBF16, {kN, kN}, DeviceTensor::Fill::kNormal, 0, 1, 2), c(DType::kBF16, {kN, kN});
  const float one = 1, zero = 0;
  int status = 0;
  const double us = time_graph(4, [&](int, cudaStream_t stream) {
    status |= set_stream(handle, stream);
    status |= gemm(handle, kTransposed, kPlain, kN, kN, kN, &one, a.get().data, kBf16, kN, b.get().data, kBf16, kN, &zero, c.get().data, kBf16, kN, kCompute32, kDefault);
  });
  if (status != 0) return 0;
  const double tflops = 2.0 * kN * kN * kN / us * 1e-6;
  std::printf("BF16 product of %d^3 by cuBLAS: %.0f TFLOP/s\n", kN, tflops);
  return tflops;
}

}  // namespace

const Ceilings& ceilings() {
  static const Ceilings measured = [] {
    constexpr std::int64_t kBytes = 4ll << 30;
    const DeviceTensor from(DType::kF32, {kBytes / 4}, DeviceTensor::Fill::kNormal), to(DType::kF32, {kBytes / 4});
    const double us = time_graph(4, [&](int, cudaStream_t stream) {
      check(cudaMemcpyAsync(to.get().data, from.get().data, kBytes, cudaMemcpyDeviceToDevice, stream), "copy");
    });
    const double own_us = time_graph(4, [&](int, cudaStream_t stream) {
      copy_kernel<<<132 * 8, 256, 0, stream>>>(from.get().as<const float4>(), to.get().as<float4>(), kBytes / 16);
    });
    std::printf("copy of %lld bytes: %.2f TB/s by the runtime, %.2f TB/s by a kernel\n", static_cast<long long>(kBytes), 2e-6 * kBytes / us,
                2e-6 * kBytes / own_us);
    return Ceilings{2e-6 * kBytes / std::min(us, own_us), measure_gemm()};
  }();
  return measured;
}

void Report::add(const Result& r) {
  const double tbs = r.bytes / r.microseconds * 1e-6;
  const bool right = r.output.finite && r.state.finite && r.output.rms <= kRmsAllowed && r.state.rms <= kRmsAllowed;
  all_right_ = all_right_ && right;
  std::printf("%-58s %10.2f us  %5.2f TB/s = %3.0f%% of copy", r.name.c_str(), r.microseconds, tbs, 100 * tbs / ceilings().copy_tbs);
  if (r.flops > 0) {
    const double tflops = r.flops / r.microseconds * 1e-6;
    std::printf("  %6.1f TFLOP/s", tflops);
    if (ceilings().gemm_tflops > 0) std::printf(" = %2.0f%% of a product", 100 * tflops / ceilings().gemm_tflops);
  }
  if (r.target_us > 0) std::printf("  target %8.2f us: %s", r.target_us, r.microseconds <= r.target_us ? "met" : "missed");
  if (selection().check) std::printf("  error o %.1e S %.1e%s\n", r.output.rms, r.state.rms, right ? "" : "  WRONG");
  else std::printf("  not checked\n");
  std::fflush(stdout);
  results_.push_back(r);
}

void Report::write_json(const char* path) const {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) {
    std::fprintf(stderr, "%s: cannot be written\n", path);
    std::exit(1);
  }
  std::fprintf(file, "{\"copy_tbs\": %.4f, \"gemm_tflops\": %.2f, \"results\": [", ceilings().copy_tbs, ceilings().gemm_tflops);
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Result& r = results_[i];
    std::fprintf(file, "%s\n  {\"name\": \"%s\", \"us\": %.4f, \"bytes\": %.0f, \"flops\": %.0f, \"target_us\": %.4f, \"rms_output\": %.3e, \"rms_state\": %.3e}",
                 i == 0 ? "" : ",", r.name.c_str(), r.microseconds, r.bytes, r.flops, r.target_us, r.output.rms, r.state.rms);
  }
  std::fprintf(file, "\n]}\n");
  std::fclose(file);
}

}  // namespace palimpsest::bench
