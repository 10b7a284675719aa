#include "tensor/exec_context.h"

#include <cstring>

namespace palimpsest {

std::string_view op_name(Op op) noexcept {
  static constexpr std::array<std::string_view, static_cast<std::size_t>(Op::kCount)> kNames = {
      "embedding",        "matmul",     "rms_norm", "gated_rms_norm",     "l2_norm",    "short_conv", "decay_gate",
      "page_memory",      "latent_append", "latent_attention", "glu",     "multiply_sigmoid", "add", "attention_residual",
      "router",           "experts",    "multiply", "add_bias",           "scale",      "unary",      "layer_norm",
      "positions",        "rotary_table", "rotary", "softmax_attention",
      "divide_rows", "append_one", "features"};
  return kNames[static_cast<std::size_t>(op)];
}

namespace {

std::int64_t staged_bytes(const Tensor& t) { return (t.bytes() + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment; }

}  // namespace

void ExecContext::stage(std::initializer_list<Tensor*> arrays) {
  if (!on_device() || planning()) return;
  std::int64_t bytes = 0;
  for (const Tensor* t : arrays) bytes += t->defined() ? staged_bytes(*t) : 0;
  if (bytes == 0) return;
  device.wait();  // an earlier copy may still be on its way
  if (staged_.bytes() < bytes) {
    staged_ = Buffer(2 * bytes, device);
    staged_host_ = Buffer(2 * bytes, device, MemoryKind::kPinnedHost);
  }
  std::int64_t at = 0;
  for (Tensor* t : arrays) {
    if (!t->defined()) continue;
    PALIMPSEST_CHECK(t->device == DeviceKind::kCpu && t->is_contiguous(), "what is staged are contiguous arrays of the host");
    std::memcpy(staged_host_.data() + at, t->data, static_cast<std::size_t>(t->bytes()));
    t->host = staged_host_.data() + at;
    t->data = staged_.data() + at;
    t->device = device.kind();
    at += staged_bytes(*t);
  }
  device.copy(staged_.data(), staged_host_.data(), bytes);
}

Tensor ExecContext::to_host(const Tensor& t) {
  if (!on_device() || planning()) return t;
  PALIMPSEST_CHECK(t.is_contiguous(), "results are contiguous");
  if (results_.bytes() < t.bytes()) results_ = Buffer(t.bytes(), device, MemoryKind::kPinnedHost);
  device.copy(results_.data(), t.data, t.bytes());
  device.wait();
  return Tensor::contiguous(results_.data(), t.dtype, t.sizes, t.rank);
}

}  // namespace palimpsest
