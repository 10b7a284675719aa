#pragma once

// Functions of one number, without overflow on the way: small results keep their bits down to the least number.

#include "kernels/op_args.h"

namespace palimpsest::cuda::plain {

/// e / (1 + e) or 1 / (1 + e), e = exp(-|x|), rounded as a division is, but without its branches: nothing underflows in these steps unless 1 + e is 1.
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x)), over = x < 0 ? e : 1.0f, under = 1 + e;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(under));
  r = __fmaf_rn(__fmaf_rn(-under, r, 1.0f), r, r);
  float q = over * r;
  q = __fmaf_rn(__fmaf_rn(-under, q, over), r, q);
  q = __fmaf_rn(__fmaf_rn(-under, q, over), r, q);
  return e < 0x1p-25f ? over : q;
}

__device__ inline float apply(Unary function, float x) {
  switch (function) {
    case Unary::kSigmoid: return sigmoid(x);
    case Unary::kSilu: return x * sigmoid(x);
    case Unary::kRelu: return x > 0 ? x : 0.0f;
    case Unary::kEluPlus1: return x > 0 ? x + 1 : expf(x);
    // (1 + tanh(u)) / 2 is the sigmoid of 2u.
    case Unary::kGeluTanh: return x * sigmoid(2 * 0.79788456080286535588f * (x + 0.044715f * x * x * x));
  }
  return x;
}

__device__ inline float gated_unit(float gate, float up, const GluParams& params) {
  if (params.kind == Glu::kSwiglu) return gate * sigmoid(gate) * up;
  const float linear = params.linear_beta, bounded = linear > 0 ? linear * tanhf(up / linear) : up;
  return params.beta * tanhf(gate / params.beta) * sigmoid(gate) * bounded;
}

/// DecayGateArgs of one channel: rate = exp(a_log), x = f + dt_bias.
__device__ inline float log_decay(const DecayGateArgs& a, float rate, float x) {
  if (a.kind == DecayGateKind::kBounded) return a.lower_bound * sigmoid(rate * x);
  return -rate * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
}

}  // namespace palimpsest::cuda::plain
