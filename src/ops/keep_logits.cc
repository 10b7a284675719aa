#include "ops/keep_logits.h"

#include <limits>

#include "base/check.h"

namespace palimpsest::ops {

void keep_logits(ExecContext& ctx, const KeepLogitsArgs& args, std::vector<LogitFacts>& facts) {
  const std::int64_t rows = args.logits.size(0);
  PALIMPSEST_CHECK(ctx.on_device() && args.logits.is_contiguous() && args.kept.size(1) == args.logits.size(1) && args.kept.stride(1) == 1 &&
                       args.room.bytes() >= logit_room_bytes(rows),
                   "logits on a device, slots of their width");
  PALIMPSEST_CHECK(args.slots.numel() == rows && args.inverse.numel() == rows && args.inverse.host, "a slot and a temperature for each row");
  cuda::keep_logits(args, ctx.device.stream());
  const auto* inverse = args.inverse.on_host<double>();
  bool all = false;
  for (std::int64_t n = 0; n < rows; ++n) all = all || inverse[n] > 0;
  const std::int64_t bytes = all ? logit_room_bytes(rows) : logit_heads_bytes(rows);
  const Tensor room = ctx.to_host(Tensor::contiguous(args.room.data, DType::kU8, {bytes}, args.room.device));
  const auto* heads = room.as<const LogitHead>();
  const auto* candidates = reinterpret_cast<const LogitCandidate*>(reinterpret_cast<const std::int32_t*>(heads + rows) + rows * kLogitBins);
  facts.assign(static_cast<std::size_t>(rows), {});
  for (std::int64_t n = 0; n < rows; ++n) {
    LogitFacts& f = facts[static_cast<std::size_t>(n)];
    if (heads[n].odd > 0) f.odd = std::numeric_limits<std::int32_t>::max() - heads[n].odd;
    f.best = static_cast<std::int32_t>(~static_cast<std::uint32_t>(heads[n].best));
    if (f.odd >= 0 || inverse[n] == 0) continue;
    for (const double part : heads[n].sums) f.sum += part;
    f.candidates = {candidates + n * kMostCandidates, static_cast<std::size_t>(heads[n].count)};
  }
}

}  // namespace palimpsest::ops
