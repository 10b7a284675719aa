#include "ops/host_experts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/experts.h"
#include "ops/front_door.h"
#include "ops/ops.h"

namespace palimpsest::ops {
namespace {

constexpr std::int64_t kWord = 4;  // of F32 and I32 alike

RowMove move(const Tensor& to, const Tensor& from, std::int64_t from_row = 0, std::int64_t to_row = 0) {
  return {to.at<std::int32_t>(to_row), to.stride(0) * kWord, from.at<std::int32_t>(from_row), from.stride(0) * kWord, from.size(1) * kWord};
}

}  // namespace

int HostExperts::threads_or_default(int threads) { return threads > 0 ? threads : std::max(1, base::ThreadPool::default_size() - 1); }
std::int64_t HostExperts::pinned_bytes(const ExpertShapes& s) { return kRows * (2 * s.width + 2 * s.top_k) * kWord; }
std::int64_t HostExperts::workspace_bytes(const ExpertShapes& s, int threads) {
  return cpu::experts_workspace_bytes(kRows, s.top_k, s.width, s.inter, s.num_experts) + threads_or_default(threads) * cpu::experts_scratch_bytes(s.width, s.inter);
}

HostExperts::HostExperts(Device& device, const ExpertShapes& shapes, SendHome send_home, int threads)
    : device_(device), shapes_(shapes), send_home_(std::move(send_home)), ctx_(threads_or_default(threads)), pinned_(pinned_bytes(shapes), device, MemoryKind::kPinnedHost),
      home_(static_cast<std::size_t>(shapes.num_experts)) {
  static_assert(kRows * kWord % Arena::kAlignment == 0, "what lies behind rows of pinned memory is aligned too");
  ctx_.workspace.reserve(cpu::experts_workspace_bytes(kRows, shapes.top_k, shapes.width, shapes.inter, shapes.num_experts));
  for (int share = 0; share < ctx_.pool.size(); ++share) ctx_.thread_scratch(share, cpu::experts_scratch_bytes(shapes.width, shapes.inter));
  std::byte* at = pinned_.data();
  const auto take = [&](DType dtype, std::int64_t columns) {
    const Tensor t = Tensor::contiguous(at, dtype, {kRows, columns});
    at += t.bytes();
    return t;
  };
  x_ = take(DType::kF32, shapes.width);
  y_ = take(DType::kF32, shapes.width);
  weights_ = take(DType::kF32, shapes.top_k);
  ids_ = take(DType::kI32, shapes.top_k);
}

HostExperts::~HostExperts() {
  try {
    device_.wait();
  } catch (const Error&) {  // a device that refuses to wait calls nobody either
  }
}

const HostExperts::Job& HostExperts::job(std::int64_t layer, std::int64_t rows, Activations activations, const ExpertsArgs& args) {
  std::unique_ptr<Job>& job = jobs_[{layer, rows, activations}];
  if (!job) job = std::make_unique<Job>(Job{this, layer, rows, activations, args.experts, args.glu});
  PALIMPSEST_CHECK(job->experts == args.experts, "the experts of a layer stay where they are");
  return *job;
}

void HostExperts::compute(ExecContext& ctx, CopyQueue& queue, std::int64_t layer, const ExpertsArgs& args, const Tensor& rows) {
  PALIMPSEST_CHECK(args.num_experts == shapes_.num_experts && args.ids.size(1) == shapes_.top_k && args.x.size(1) == shapes_.width, "experts are those of the model");
  const Entered op = enter(ctx, Op::kExperts, [&] { return moves(args.x, args.y); });
  const std::int64_t count = rows.defined() ? rows.numel() : args.x.size(0);
  for (std::int64_t begin = 0; begin < count; begin += kRows) {
    const std::int64_t n = std::min(kRows, count - begin), first = rows.defined() ? 0 : begin;
    const std::int32_t* const chosen = rows.defined() ? rows.as<std::int32_t>() + begin : nullptr;
    const RowMove there[] = {move(x_, args.x, first), move(weights_, args.weights, first), move(ids_, args.ids, first)}, back[] = {move(args.y, y_, 0, first)};
    queue.gather(there, chosen, n);
    queue.call([](void* job) { run(job); }, const_cast<Job*>(&job(layer, n, ctx.activations, args)));
    queue.scatter(back, chosen, n);
  }
}

void HostExperts::run(void* job) noexcept {
  const Job& asked = *static_cast<const Job*>(job);
  try {
    asked.self->run(asked);
  } catch (...) {  // nothing may be thrown through whoever called
    std::fill_n(asked.self->y_.as<float>(), asked.rows * asked.self->shapes_.width, std::numeric_limits<float>::quiet_NaN());
  }
}

void HostExperts::run(const Job& job) {
  const auto front = [&](Tensor t) { return t.sizes[0] = job.rows, t; };
  const std::int32_t* const ids = ids_.as<std::int32_t>();
  for (std::int64_t i = 0; i < job.rows * shapes_.top_k; ++i) {
    PALIMPSEST_CHECK(ids[i] >= 0 && ids[i] < shapes_.num_experts, "an expert id is out of range");
    ExpertMatrices& home = home_[static_cast<std::size_t>(ids[i])];
    home = job.experts[ids[i]];
    for (Matrix* m : {&home.w1, &home.w3, &home.w2}) send_home_(job.layer, *m);
  }
  ctx_.activations = job.activations;
  experts(ctx_, {.x = front(x_), .ids = front(ids_), .weights = front(weights_), .experts = home_.data(), .num_experts = shapes_.num_experts, .glu = job.glu, .y = front(y_)});
}

}  // namespace palimpsest::ops
