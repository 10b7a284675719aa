// Around the kernels for prompts: which rows are theirs, inputs in BF16, and the rows of a list that they read.

#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/prompt_kernels.h"
#include "kernels/cuda/sm90/hopper.cuh"
#include "kernels/delta_args.h"

namespace palimpsest::cuda {
namespace {

using namespace plain;

constexpr int kMostRoundings = 5;
constexpr std::int64_t kLatent = 512, kShared = 64, kPieces = (kLatent + kShared) / 8;

struct Split {
  RaggedRows rows;
  Tensor past;
  PromptRule rule;
  PromptSplit split;
  __device__ void operator()(std::int64_t n) const {
    const auto* cu = as<const std::int64_t>(rows.cu_seqlens);
    const std::int64_t before = as<const std::int64_t>(past)[n], prompt = rule(before, cu[n + 1] - cu[n]);
    const std::int32_t slot = as<const std::int32_t>(rows.slots)[n];
    auto* const to = as<std::int64_t>(split.cu_seqlens) + 2 * n;
    to[0] = cu[n];
    to[1] = cu[n] + prompt;
    if (n + 1 == rows.slots.sizes[0]) to[2] = cu[n + 1];
    as<std::int64_t>(split.past)[2 * n] = before;
    as<std::int64_t>(split.past)[2 * n + 1] = before + prompt;
    as<std::int32_t>(split.prompts)[2 * n] = prompt > 0 ? slot : kRowsOfOthers;
    as<std::int32_t>(split.others)[2 * n + 1] = slot;
    as<std::int32_t>(split.prompts)[2 * n + 1] = as<std::int32_t>(split.others)[2 * n] = kRowsOfOthers;
  }
};

/// Eight numbers a thread.
struct Round {
  const float* from[kMostRoundings];
  std::uint16_t* to[kMostRoundings];
  std::int64_t counts[kMostRoundings], ends[kMostRoundings];  ///< numbers; threads up to the end of each
  bool vectors;
  __device__ void operator()(std::int64_t i) const {
    int which = 0;
    while (i >= ends[which]) ++which;
    const std::int64_t first = 8 * (which == 0 ? i : i - ends[which - 1]), left = counts[which] - first;
    const float* const x = from[which] + first;
    std::uint16_t* const y = to[which] + first;
    if (!vectors || left < 8) {
      for (std::int64_t j = 0; j < left && j < 8; ++j) y[j] = float_to_bf16(x[j]);
      return;
    }
    const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
    *reinterpret_cast<uint4*>(y) = make_uint4(sm90::pack_bf16(a.x, a.y), sm90::pack_bf16(a.z, a.w), sm90::pack_bf16(b.x, b.y), sm90::pack_bf16(b.z, b.w));
  }
};

/// Every thread adds up what lies before its sequence: they are few.
struct KeyEnds {
  LatentWindowArgs a;
  __device__ void operator()(std::int64_t i) const {
    const auto *cu = as<const std::int64_t>(a.split.cu_seqlens), *past = as<const std::int64_t>(a.split.past);
    std::int64_t before = 0;
    for (std::int64_t n = 0; n < i; n += 2) {
      const std::int64_t rows = cu[n + 1] - cu[n], keys = rows == 0 ? 0 : past[n] + rows - a.first;
      before += keys < 0 ? 0 : keys < a.count ? keys : a.count;
    }
    as<std::int64_t>(a.cu_keys)[i] = before;
  }
};

/// Eight numbers of a list row a thread; codes times their scale are rounded to BF16, as latent_decode reads them.
struct Gather {
  LatentWindowArgs a;
  __device__ uint4 eight(std::int64_t block, std::int64_t token, std::int64_t tokens, int column) const {
    const Q8Rows& q8 = a.list.q8;
    if (!q8.defined()) return *reinterpret_cast<const uint4*>(as<const std::uint16_t>(a.list.blocks) + (block * tokens + token) * (kLatent + kShared) + column);
    const auto* const bytes = as<const std::byte>(a.list.blocks) + block * a.list.blocks.strides[0];
    const auto* const codes = reinterpret_cast<const std::int8_t*>(q8_codes(q8, bytes, token)) + column;
    const float scale = bf16_to_float(reinterpret_cast<const std::uint16_t*>(q8_scales(q8, bytes, tokens, token))[q8.group_of(column)]);
    std::uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = sm90::pack_bf16(static_cast<float>(codes[2 * i]) * scale, static_cast<float>(codes[2 * i + 1]) * scale);
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
  __device__ void operator()(std::int64_t i) const {
    const std::int64_t row = i / kPieces, piece = i % kPieces, tokens = a.list.blocks.sizes[1];
    const auto* ends = as<const std::int64_t>(a.cu_keys);
    const std::int64_t n = sequence_of(ends, a.split.prompts.sizes[0], row), position = a.first + row - ends[n];
    const std::int64_t slot = as<const std::int32_t>(a.split.prompts)[n];
    const std::int64_t block = as<const std::int32_t>(a.list.table)[slot * a.list.table.strides[0] + position / tokens];
    const uint4 x = eight(block, position % tokens, tokens, 8 * static_cast<int>(piece));
    if (piece >= kLatent / 8) {
      *reinterpret_cast<uint4*>(as<std::uint16_t>(a.k_pe) + row * kShared + 8 * (piece - kLatent / 8)) = x;
      return;
    }
    const float2 p = sm90::unpack_bf16(x.x), q = sm90::unpack_bf16(x.y), r = sm90::unpack_bf16(x.z), s = sm90::unpack_bf16(x.w);
    auto* const to = reinterpret_cast<float4*>(as<float>(a.latents) + row * kLatent + 8 * piece);
    to[0] = make_float4(p.x, p.y, q.x, q.y);
    to[1] = make_float4(r.x, r.y, s.x, s.y);
  }
};

}  // namespace

void split_prompts(const RaggedRows& rows, const Tensor& past, const PromptRule& rule, const PromptSplit& split, void* stream) {
  for_each(rows.slots.sizes[0], Split{rows, past, rule, split}, stream, "split_prompts");
}

void round_to_bf16(std::span<const Rounding> all, void* stream) {
  Round round{};
  round.vectors = true;
  std::int64_t threads = 0;
  for (int i = 0; i < kMostRoundings; ++i) {
    if (i < static_cast<int>(all.size())) {
      const Rounding& r = all[static_cast<std::size_t>(i)];
      round.from[i] = as<const float>(r.from);
      round.to[i] = as<std::uint16_t>(r.to);
      round.counts[i] = r.from.numel();
      threads += (round.counts[i] + 7) / 8;
      round.vectors = round.vectors && (reinterpret_cast<std::uintptr_t>(r.from.data) | reinterpret_cast<std::uintptr_t>(r.to.data)) % 16 == 0;
    }
    round.ends[i] = threads;
  }
  for_each(threads, round, stream, "round_to_bf16");
}

void latent_window(const LatentWindowArgs& args, void* stream) {
  for_each(args.cu_keys.sizes[0], KeyEnds{args}, stream, "latent_window");
  for_each(args.latents.sizes[0] * kPieces, Gather{args}, stream, "latent_window");
}

}  // namespace palimpsest::cuda
