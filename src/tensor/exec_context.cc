#include "tensor/exec_context.h"

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

}  // namespace palimpsest
