#include "palimpsest/kernels_c.h"

#include <cstring>
#include <string>

#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/delta_kernels.h"
#include "kernels/cuda/latent_kernels.h"
#include "palimpsest/error.h"

namespace palimpsest {
namespace {

thread_local std::string last_error;

static_assert(static_cast<int>(DType::kF64) == PALIMPSEST_F64 && static_cast<int>(DType::kBF16) == PALIMPSEST_BF16 && static_cast<int>(DType::kI64) == PALIMPSEST_I64);
static_assert(static_cast<int>(DeltaGate::kNone) == PALIMPSEST_GATE_NONE && static_cast<int>(DeltaGate::kSoftplus) == PALIMPSEST_GATE_SOFTPLUS);

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kUnsupported, why); }

/// Runs f; what it throws becomes a code and a text.
template <class F>
int guarded(F f) noexcept {
  try {
    f();
    return PALIMPSEST_OK;
  } catch (const Error& error) {
    last_error = error.what();
    if (error.code() == ErrorCode::kOutOfMemory) return PALIMPSEST_OUT_OF_MEMORY;
    return error.code() == ErrorCode::kInternal ? PALIMPSEST_DEVICE_FAILED : PALIMPSEST_UNSUPPORTED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return PALIMPSEST_DEVICE_FAILED;
  }
}

/// The caller's struct, which may be an older, shorter one: what it lacks is zero.
template <class Args>
Args known(const Args* args, const char* name) {
  if (args == nullptr) refuse(std::string(name) + ": no arguments");
  if (args->size < sizeof(std::size_t) || args->size > sizeof(Args)) {
    refuse(std::string(name) + ": size is " + std::to_string(args->size) + ", expected at most " + std::to_string(sizeof(Args)));
  }
  Args all{};
  std::memcpy(&all, args, args->size);
  return all;
}

Tensor view(const char* field, const palimpsest_tensor& t, bool required = false) {
  if (t.data == nullptr) {
    if (required) refuse(std::string(field) + ": absent");
    return {};
  }
  if (t.rank < 0 || t.rank > 4) refuse(std::string(field) + ": rank " + std::to_string(t.rank) + ", expected 0 to 4");
  if (t.dtype < PALIMPSEST_F64 || t.dtype > PALIMPSEST_I64) refuse(std::string(field) + ": type " + std::to_string(t.dtype) + " is not known");
  Tensor view;
  view.data = t.data, view.dtype = static_cast<DType>(t.dtype), view.device = DeviceKind::kCuda, view.rank = static_cast<std::int8_t>(t.rank);
  for (int d = 0; d < t.rank; ++d) {
    if (t.sizes[d] < 0) refuse(std::string(field) + ": size " + std::to_string(t.sizes[d]));
    view.sizes[d] = t.sizes[d], view.strides[d] = t.strides[d];
  }
  return view;
}

Tensor required(const char* field, const palimpsest_tensor* t) {
  if (t == nullptr) refuse(std::string(field) + ": absent");
  return view(field, *t, true);
}

// A member of `a` by its name; one that must be there; a parameter that must be there.
#define VIEW(field) view(#field, a.field)
#define NEED(field) view(#field, a.field, true)
#define GIVEN(field) required(#field, field)

DeltaInputs inputs_of(const palimpsest_delta& a) {
  DeltaInputs in;
  in.q = NEED(q), in.k = NEED(k), in.v = NEED(v), in.f = VIEW(f), in.b = VIEW(b);
  in.a_log = VIEW(a_log), in.dt_bias = VIEW(dt_bias);
  if (a.gate < PALIMPSEST_GATE_NONE || a.gate > PALIMPSEST_GATE_SOFTPLUS) refuse("gate: " + std::to_string(a.gate) + " is not known");
  in.gate = static_cast<DeltaGate>(a.gate);
  in.lower_bound = a.lower_bound == 0 ? -5 : a.lower_bound;
  in.l2_norm = a.no_l2_norm == 0, in.l2_eps = a.l2_eps == 0 ? 1e-6f : a.l2_eps;
  in.q_scale = a.q_scale == 0 ? 1 : a.q_scale;
  in.beta_sigmoid = a.no_beta_sigmoid == 0, in.beta_scale = a.beta_scale == 0 ? 1 : a.beta_scale;
  in.write = a.plain_write != 0 ? PageWrite::kPlain : PageWrite::kDelta;
  return in;
}

DeltaStepArgs step_of(const palimpsest_delta& a) {
  DeltaStepArgs s;
  s.in = inputs_of(a);
  s.conv = {VIEW(conv_weight), VIEW(conv_tails)};
  s.norm = {VIEW(norm_weight), VIEW(norm_gate), a.norm_silu != 0 ? Unary::kSilu : Unary::kSigmoid, a.norm_eps};
  s.pages = NEED(pages), s.cu_seqlens = VIEW(cu_seqlens), s.slots = NEED(slots);
  s.snapshots = VIEW(snapshots), s.snapshot_slots = VIEW(snapshot_slots), s.o = NEED(o);
  return s;
}

DeltaPrefillArgs prefill_of(const palimpsest_delta& a) {
  DeltaPrefillArgs p;
  p.in = inputs_of(a);
  p.pages = NEED(pages), p.cu_seqlens = NEED(cu_seqlens), p.slots = NEED(slots);
  p.past = VIEW(past), p.snapshots = VIEW(snapshots), p.snapshot_slots = VIEW(snapshot_slots);
  p.o = NEED(o), p.workspace = VIEW(workspace);
  if (a.conv_weight.data != nullptr || a.norm_weight.data != nullptr) refuse("conv_weight and norm_weight: of delta_step only");
  return p;
}

}  // namespace
}  // namespace palimpsest

using namespace palimpsest;  // NOLINT: definitions of functions without a namespace

extern "C" {

const char* palimpsest_last_error(void) { return last_error.c_str(); }

palimpsest_tensor palimpsest_contiguous(void* data, std::int32_t dtype, std::int32_t rank, std::int64_t n0, std::int64_t n1, std::int64_t n2, std::int64_t n3) {
  palimpsest_tensor t{data, dtype, rank, {n0, n1, n2, n3}, {}};
  std::int64_t stride = 1;
  for (int d = rank < 4 ? rank - 1 : 3; d >= 0; --d) t.strides[d] = stride, stride *= t.sizes[d];
  return t;
}

int palimpsest_delta_step(const palimpsest_delta* args, std::int64_t max_rows, void* stream) {
  return guarded([&] { cuda::delta_step(step_of(known(args, "delta_step")), max_rows, stream); });
}
int palimpsest_delta_prefill_workspace(const palimpsest_delta* args, std::int64_t* least, std::int64_t* all) {
  return guarded([&] {
    const cuda::DeltaWorkspace bytes = cuda::delta_prefill_workspace(prefill_of(known(args, "delta_prefill_workspace")));
    if (least != nullptr) *least = bytes.least;
    if (all != nullptr) *all = bytes.all;
  });
}
int palimpsest_delta_prefill(const palimpsest_delta* args, void* stream) {
  return guarded([&] { cuda::delta_prefill(prefill_of(known(args, "delta_prefill")), stream); });
}

std::int64_t palimpsest_latent_decode_workspace(std::int64_t rows, std::int64_t heads, std::int64_t max_length) {
  const auto check = [](const char* name, std::int64_t size, std::int64_t least, std::int64_t most) {
    if (size >= least && size <= most) return;
    refuse(std::string("latent_decode_workspace: ") + name + ": " + std::to_string(size) + ", expected " + std::to_string(least) + " to " + std::to_string(most));
  };
  std::int64_t bytes = 0;
  guarded([&] {
    check("rows", rows, 0, INT32_MAX), check("heads", heads, 1, 128), check("max_length", max_length, 1, INT32_MAX - 63);
    bytes = cuda::latent_decode_workspace(rows, heads, max_length);
  });
  return bytes;
}
int palimpsest_latent_decode(const palimpsest_latent_list* args, std::int64_t max_length, void* stream) {
  return guarded([&] {
    const palimpsest_latent_list a = known(args, "latent_decode");
    LatentDecodeArgs d;
    d.q = NEED(q), d.kv_b = NEED(kv_b);
    d.list = {NEED(blocks), NEED(table), {}};
    if (d.list.blocks.dtype == DType::kI8) d.list.q8 = q8_latent_rows(512, 64);
    d.cu_seqlens = VIEW(cu_seqlens), d.slots = NEED(slots), d.past = NEED(past);
    d.scale = a.scale, d.gate = VIEW(gate), d.o = NEED(o), d.workspace = NEED(workspace);
    cuda::latent_decode(d, max_length, stream);
  });
}
int palimpsest_latent_prefill(const palimpsest_latent_rows* args, void* stream) {
  return guarded([&] {
    const palimpsest_latent_rows a = known(args, "latent_prefill");
    LatentPrefillArgs p;
    p.q = NEED(q), p.k = NEED(k), p.k_pe = NEED(k_pe), p.v = NEED(v);
    p.cu_seqlens = NEED(cu_seqlens), p.cu_keys = VIEW(cu_keys), p.gate = VIEW(gate), p.o = NEED(o);
    p.scale = a.scale;
    cuda::latent_prefill(p, stream);
  });
}

int palimpsest_gated_rms_norm(const palimpsest_tensor* x, const palimpsest_tensor* weight, const palimpsest_tensor* gate, int silu, float eps,
                              const palimpsest_tensor* y, void* stream) {
  return guarded([&] {
    cuda::gated_rms_norm({GIVEN(x), GIVEN(weight), GIVEN(gate), silu != 0 ? Unary::kSilu : Unary::kSigmoid, eps, GIVEN(y)}, stream);
  });
}
int palimpsest_short_conv(const palimpsest_tensor* x, const palimpsest_tensor* weight, const palimpsest_tensor* tails, const palimpsest_tensor* cu_seqlens,
                          const palimpsest_tensor* slots, const palimpsest_tensor* y, void* stream) {
  return guarded([&] {
    cuda::short_conv({GIVEN(x), GIVEN(weight), GIVEN(tails), {GIVEN(cu_seqlens), GIVEN(slots)}, GIVEN(y), true},
                     stream);
  });
}
int palimpsest_attention_residual(const palimpsest_tensor* sources, const palimpsest_tensor* w, float eps, const palimpsest_tensor* y,
                                  const palimpsest_tensor* p, void* stream) {
  return guarded([&] {
    cuda::attention_residual({GIVEN(sources), GIVEN(w), eps, GIVEN(y), p == nullptr ? Tensor{} : view("p", *p)}, stream);
  });
}

}  // extern "C"
