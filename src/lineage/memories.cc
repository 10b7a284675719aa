#include "lineage/memories.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "ops/ops.h"

namespace palimpsest::lineage {
namespace {

std::int64_t count(const auto& items) { return static_cast<std::int64_t>(items.size()); }

Tensor f32(std::vector<float>& x, std::initializer_list<std::int64_t> sizes) { return Tensor::contiguous(x.data(), DType::kF32, sizes); }

/// One sequence in slot 0.
struct OneSequence {
  OneSequence(std::int64_t rows, std::int64_t past) : cu{0, rows}, past_length(past) {}
  RaggedRows rows() { return {Tensor::contiguous(cu, DType::kI64, {2}), Tensor::contiguous(&slot, DType::kI32, {1})}; }
  Tensor past() { return Tensor::contiguous(&past_length, DType::kI64, {1}); }

  std::int64_t cu[2];
  std::int32_t slot = 0;
  std::int64_t past_length;
};

std::vector<Vector> split(const std::vector<float>& rows, std::int64_t width) {
  std::vector<Vector> parts;
  for (auto at = rows.begin(); at != rows.end(); at += width) parts.emplace_back(at, at + width);
  return parts;
}

class PageMemory final : public Memory {
 public:
  PageMemory(ExecContext& ctx, const MemoryKind& kind, std::int64_t key_dim, std::int64_t value_dim)
      : ctx_(ctx), kind_(kind), key_dim_(key_dim), value_dim_(value_dim), page_(static_cast<std::size_t>(key_dim * value_dim)) {}

  void write(const std::vector<Write>& writes) override {
    Rows rows;
    for (const Write& w : writes) {
      append(rows.k, w.key);
      append(rows.v, w.value);
      rows.beta.push_back(1);
      if (kind_.decay == PageDecay::kHead) rows.g.push_back(w.head_decay);
      if (kind_.decay == PageDecay::kChannel) append(rows.g, w.decay.empty() ? Vector(w.key.size()) : w.decay);
    }
    rows.q = rows.k;
    run(rows);
  }

  /// Rows that only read: write strength 0, no decay.
  std::vector<Vector> read(const std::vector<Vector>& queries) override {
    Rows rows;
    for (const Vector& q : queries) append(rows.q, q);
    const auto n = queries.size(), width = static_cast<std::size_t>(key_dim_);
    rows.k.assign(n * width, 0);
    rows.v.assign(n * static_cast<std::size_t>(value_dim_), 0);
    rows.beta.assign(n, 0);
    if (kind_.decay == PageDecay::kHead) rows.g.assign(n, 0);
    if (kind_.decay == PageDecay::kChannel) rows.g.assign(n * width, 0);
    return split(run(rows), value_dim_);
  }

  std::int64_t bytes() const override { return count(page_) * dtype_size(DType::kF32); }

 private:
  struct Rows {
    std::vector<float> q, k, v, g, beta;
  };

  static void append(std::vector<float>& rows, const Vector& row) { rows.insert(rows.end(), row.begin(), row.end()); }

  std::vector<float> run(Rows& rows) {
    const std::int64_t n = count(rows.beta);
    std::vector<float> o(static_cast<std::size_t>(n * value_dim_));
    OneSequence sequence(n, past_);
    Tensor g;
    if (kind_.decay == PageDecay::kHead) g = f32(rows.g, {n, 1});
    if (kind_.decay == PageDecay::kChannel) g = f32(rows.g, {n, 1, key_dim_});
    ops::page_memory(ctx_, {.q = f32(rows.q, {n, 1, key_dim_}), .k = f32(rows.k, {n, 1, key_dim_}), .v = f32(rows.v, {n, 1, value_dim_}), .g = g,
                            .beta = f32(rows.beta, {n, 1}), .pages = f32(page_, {1, 1, value_dim_, key_dim_}), .rows = sequence.rows(),
                            .past = sequence.past(), .o = f32(o, {n, 1, value_dim_}), .decay = kind_.decay, .write = kind_.write});
    past_ += n;
    return o;
  }

  ExecContext& ctx_;
  MemoryKind kind_;
  std::int64_t key_dim_, value_dim_, past_ = 0;
  std::vector<float> page_;  // [V, K]
};

class ListMemory final : public Memory {
 public:
  ListMemory(ExecContext& ctx, std::int64_t key_dim, std::int64_t value_dim, std::int64_t capacity)
      : ctx_(ctx), key_dim_(key_dim), value_dim_(value_dim), capacity_(capacity), rows_(static_cast<std::size_t>(capacity * width())) {}

  void write(const std::vector<Write>& writes) override {
    const std::int64_t n = count(writes);
    PALIMPSEST_CHECK(length_ + n <= capacity_, "the list was made for fewer pairs");
    std::vector<float> keys, values;
    for (std::int64_t i = 0; i < n; ++i) {
      const Write& w = writes[static_cast<std::size_t>(i)];
      keys.insert(keys.end(), w.key.begin(), w.key.end());
      keys.push_back(static_cast<float>(length_ + i));
      values.insert(values.end(), w.value.begin(), w.value.end());
    }
    OneSequence sequence(n, length_);
    std::int32_t block = 0;
    ops::latent_append(ctx_, {.latent = f32(keys, {n, key_dim_ + 1}), .k_pe = f32(values, {n, value_dim_}), .list = list(&block, 1),
                              .rows = sequence.rows(), .past = sequence.past()});
    length_ += n;
  }

  /// Every query is a sequence of its own over the same list, so that each sees all of it.
  std::vector<Vector> read(const std::vector<Vector>& queries) override {
    const std::int64_t n = count(queries);
    // Logits: a few nats a position decide between equal keys; a cosine of less than 1 - kNewer / kSharpness costs more than any age.
    constexpr float kNewer = 4, kSharpness = 64;
    const float sharpness = kSharpness * static_cast<float>(capacity_);
    std::vector<float> q, o(static_cast<std::size_t>(n * value_dim_));
    for (const Vector& query : queries) {
      std::transform(query.begin(), query.end(), std::back_inserter(q), [&](float x) { return sharpness * x; });
      q.push_back(kNewer);
    }
    std::vector<std::int64_t> cu, past(queries.size(), length_ - 1);
    std::vector<std::int32_t> slots, table(queries.size(), 0);
    for (std::int64_t i = 0; i <= n; ++i) cu.push_back(i);
    for (std::int32_t i = 0; i < n; ++i) slots.push_back(i);
    ops::softmax_attention(ctx_, {.q = f32(q, {n, 1, key_dim_ + 1}), .list = list(table.data(), n),
                                  .rows = {Tensor::contiguous(cu.data(), DType::kI64, {n + 1}), Tensor::contiguous(slots.data(), DType::kI32, {n})},
                                  .past = Tensor::contiguous(past.data(), DType::kI64, {n}), .num_kv_heads = 1, .scale = 1,
                                  .o = f32(o, {n, 1, value_dim_})});
    return split(o, value_dim_);
  }

  std::int64_t bytes() const override { return length_ * width() * dtype_size(DType::kF32); }

 private:
  std::int64_t width() const { return key_dim_ + 1 + value_dim_; }
  /// The list is one block, which all slots share.
  PagedList list(std::int32_t* table, std::int64_t slots) {
    return {f32(rows_, {1, capacity_, width()}), Tensor::contiguous(table, DType::kI32, {slots, 1})};
  }

  ExecContext& ctx_;
  std::int64_t key_dim_, value_dim_, capacity_, length_ = 0;
  std::vector<float> rows_;  // [capacity, K + 1 + V]
};

}  // namespace

std::unique_ptr<Memory> make_memory(ExecContext& ctx, const MemoryKind& kind, std::int64_t key_dim, std::int64_t value_dim, std::int64_t capacity) {
  if (kind.list) return std::make_unique<ListMemory>(ctx, key_dim, value_dim, capacity);
  return std::make_unique<PageMemory>(ctx, kind, key_dim, value_dim);
}

}  // namespace palimpsest::lineage
