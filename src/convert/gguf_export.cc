#include "convert/gguf_export.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/disk_space.h"
#include "convert/byte_sum.h"
#include "convert/encode.h"
#include "convert/errors.h"
#include "convert/gguf_encode.h"
#include "convert/output_folder.h"
#include "convert/plan.h"
#include "formats/gguf.h"
#include "formats/gguf_writer.h"
#include "formats/quote.h"
#include "model/gguf/gguf_metadata_export.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_tokenizer.h"
#include "model/gguf/matrix_floats.h"
#include "model/weight_fields.h"
#include "model/weights.h"
#include "palimpsest/model.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;
using formats::GgmlType;

Matrix as_matrix(const Tensor& vector) {
  Matrix matrix;
  matrix.dense = vector.rank == 1 ? vector.reshape({1, vector.numel()}) : vector;
  return matrix;
}

const GgmlType& dense_type(DType dtype) { return *formats::find_ggml_type(dtype); }

/// Some rows of some matrix, in the order they are written.
struct Run {
  Matrix matrix;
  std::int64_t begin = 0, count = 0;
};

/// One tensor of the file: runs of rows, or values that are made when their turn comes.
struct OutTensor {
  formats::GgufWriter::Item entry;
  std::vector<Run> runs;
  std::function<std::vector<float>()> values;
  /// Of a matrix (or a stack of as many): what it was.
  std::string_view from;
  std::int64_t matrices = 0;
  std::uint64_t bytes_before = 0;
};

std::string_view stored_name(const Matrix& matrix) {
  if (matrix.is_blocks()) return block_type_name(matrix.blocks.type);
  return matrix.is_mx() ? "MXFP4" : matrix.is_int8() ? "I8" : dtype_name(matrix.dense.dtype);
}

class Exporter {
 public:
  /// Views and fields only; nothing is decoded here.
  Exporter(const Model& model, const GgufExportOptions& options)
      : config_(model.config()), weights_(model.weights()), layers_(weights_.layers), options_(options) {}

  std::vector<OutTensor> items() {
    for (const WeightSpec& spec : gguf_weight_spec(config_)) {
      if (spec.expert > 0) continue;
      add(spec);
    }
    return std::move(items_);
  }
  void add_rope_factors(const std::vector<float>& factors) {
    if (factors.empty()) return;
    items_.push_back({.entry = {"rope_freqs.weight", &dense_type(DType::kF32), {static_cast<std::int64_t>(factors.size())}},
                      .runs = {},
                      .values = [factors] { return factors; },
                      .from = {}});
  }

 private:
  const GgmlType& type_of(const WeightSpec& spec, const Matrix& stored, std::int64_t cols) const {
    const bool always_f32 = spec.rank != 2 || spec.role == WeightRole::kRouter || spec.role == WeightRole::kSharedExpertGate ||
                            spec.role == WeightRole::kPositions;
    if (always_f32) return dense_type(DType::kF32);
    GgufType wanted = spec.expert >= 0 ? options_.experts : options_.matrices;
    const bool small = wanted == GgufType::kQ8_0 || wanted == GgufType::kMxfp4;
    if ((small && stays_dense(spec.role)) || (wanted == GgufType::kQ8_0 && stored.is_mx())) wanted = GgufType::kAsStored;
    const auto block = [&](BlockType type) -> const GgmlType& {
      return cols % block_columns(type) == 0 ? formats::ggml_type(type) : dense_type(DType::kF16);
    };
    switch (wanted) {
      case GgufType::kF32: return dense_type(DType::kF32);
      case GgufType::kF16: return dense_type(DType::kF16);
      case GgufType::kBF16: return dense_type(DType::kBF16);
      case GgufType::kQ8_0: return block(BlockType::kQ8_0);
      case GgufType::kMxfp4: return block(BlockType::kMxfp4);
      case GgufType::kAsStored: break;
    }
    return stored.is_mx() ? block(BlockType::kMxfp4) : stored.is_int8() ? block(BlockType::kQ8_0) : dense_type(stored.dense.dtype);
  }

  OutTensor& add_item(const WeightSpec& spec, std::string name, std::vector<std::int64_t> shape, const Matrix& stored) {
    const GgmlType& type = type_of(spec, stored, shape.back());
    OutTensor& item = items_.emplace_back(OutTensor{.entry = {std::move(name), &type, std::move(shape)}, .runs = {}, .values = {}, .from = {}});
    if (spec.rank == 2) {
      item.from = stored_name(stored);
      item.matrices = spec.expert >= 0 ? config_.moe.num_experts : 1;
    }
    return item;
  }
  void add_runs(const WeightSpec& spec, std::vector<Run> runs) {
    std::vector<std::int64_t> shape(spec.sizes, spec.sizes + spec.rank);
    if (spec.role == WeightRole::kPageConv) shape = {shape[0], shape[2]};
    if (spec.role == WeightRole::kSharedExpertGate) shape = {shape[1]};
    add_item(spec, gguf_name(config_, spec), std::move(shape), runs.front().matrix).runs = std::move(runs);
  }

  void add(const WeightSpec& spec) {
    if (spec.layer < 0) return add_runs(spec, whole({top_level(spec.role)}));
    LayerWeights& layer = layers_[static_cast<std::size_t>(spec.layer)];
    if (spec.expert == 0) return add_experts(spec);
    if (spec.role == WeightRole::kKdaALog || spec.role == WeightRole::kPageALog) return add_decay(spec, *vector_field(layer, spec.role));
    if (spec.role == WeightRole::kMlaKvUp) return add_latent(spec, std::get<MlaWeights>(layer.mixer).kv_b_proj);
    if (has_rope_rows(config_, spec.role)) return add_rotated(spec, rotated(layer, spec.role));
    if (std::vector<Run> joint = joined(layer, spec.role); !joint.empty()) return add_runs(spec, std::move(joint));
    if (const Matrix* matrix = matrix_field(layer, spec.role)) return add_runs(spec, whole({*matrix}));
    add_runs(spec, whole({as_matrix(*vector_field(layer, spec.role))}));
  }

  Matrix top_level(WeightRole role) const {
    switch (role) {
      case WeightRole::kEmbedTokens: return weights_.embed_tokens;
      case WeightRole::kPositions: return weights_.positions;
      case WeightRole::kLmHead: return weights_.lm_head;
      case WeightRole::kFinalNorm: return as_matrix(weights_.norm.weight);
      case WeightRole::kFinalNormBias: return as_matrix(weights_.norm.bias);
      default: return as_matrix(weights_.output_attn_res);
    }
  }

  static std::vector<Run> whole(std::initializer_list<Matrix> matrices) {
    std::vector<Run> runs;
    for (const Matrix& matrix : matrices) runs.push_back({matrix, 0, matrix.rows()});
    return runs;
  }
  /// Of each of `groups` heads its rows of `a`, then its rows of `b`.
  static std::vector<Run> interleaved(std::int64_t groups, const Matrix& a, const Matrix& b) {
    std::vector<Run> runs;
    const std::int64_t rows_a = a.rows() / groups, rows_b = b.rows() / groups;
    for (std::int64_t g = 0; g < groups; ++g) {
      runs.push_back({a, g * rows_a, rows_a});
      runs.push_back({b, g * rows_b, rows_b});
    }
    return runs;
  }

  /// Tensors that hold several fields of a layer; empty for others.
  std::vector<Run> joined(const LayerWeights& layer, WeightRole role) const {
    const auto* attention = std::get_if<SoftmaxAttentionWeights>(&layer.mixer);
    const auto* page = std::get_if<PageMixerWeights>(&layer.mixer);
    switch (role) {
      case WeightRole::kAttentionQ:
        return attention->g_proj.defined() ? interleaved(config_.attention.num_heads, attention->q_proj, attention->g_proj) : whole({attention->q_proj});
      case WeightRole::kAttentionQkv: return whole({attention->q_proj, attention->k_proj, attention->v_proj});
      case WeightRole::kAttentionQkvBias:
        return whole({as_matrix(attention->q_bias), as_matrix(attention->k_bias), as_matrix(attention->v_bias)});
      case WeightRole::kPageQkv: return whole({page->q_proj, page->k_proj, page->v_proj});
      case WeightRole::kPageBa: return interleaved(config_.page.num_heads, page->b_proj, page->a_proj);
      case WeightRole::kPageConv: return whole({as_matrix(page->q_conv1d), as_matrix(page->k_conv1d), as_matrix(page->v_conv1d)});
      default: return {};
    }
  }

  static const Matrix& rotated(const LayerWeights& layer, WeightRole role) {
    const auto& attention = std::get<SoftmaxAttentionWeights>(layer.mixer);
    return role == WeightRole::kAttentionQ ? attention.q_proj : attention.k_proj;
  }
  void add_rotated(const WeightSpec& spec, const Matrix& matrix) {
    std::vector<Run> runs(static_cast<std::size_t>(matrix.rows()));
    for (std::int64_t row = 0; row < matrix.rows(); ++row) {
      runs[static_cast<std::size_t>(llama_rope_row(row, config_.attention.head_dim))] = {matrix, row, 1};
    }
    add_runs(spec, std::move(runs));
  }

  void add_experts(const WeightSpec& spec) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(config_.moe.num_experts));
    for (std::size_t e = 0; e < ids.size(); ++e) ids[e] = static_cast<std::int32_t>(e);
    const ExpertMatrices* experts = weights_.experts->acquire(spec.layer, ids);
    std::vector<Run> runs;
    for (std::size_t e = 0; e < ids.size(); ++e) {
      const Matrix& matrix = spec.role == WeightRole::kExpertGate ? experts[e].w1 : spec.role == WeightRole::kExpertUp ? experts[e].w3 : experts[e].w2;
      runs.push_back({matrix, 0, matrix.rows()});
    }
    weights_.experts->release(spec.layer, ids);  // views of mapped files, which stay
    add_item(spec, gguf_name(config_, spec), {config_.moe.num_experts, spec.sizes[0], spec.sizes[1]}, runs.front().matrix).runs = std::move(runs);
  }

  void add_decay(const WeightSpec& spec, const Tensor& a_log) {
    // llama.cpp reads Kimi-Linear's as a column.
    std::vector<std::int64_t> shape = {spec.parameters()};
    if (config_.family == Family::kKimiLinear) shape.push_back(1);
    add_item(spec, gguf_name(config_, spec), std::move(shape), as_matrix(a_log)).values = [a_log] {
      std::vector<float> values;
      for (std::int64_t i = 0; i < a_log.numel(); ++i) values.push_back(static_cast<float>(-std::exp(static_cast<double>(a_log.as<float>()[i]))));
      return values;
    };
  }

  /// attn_k_b [heads, rank, nope], turned, and attn_v_b [heads, value, rank].
  void add_latent(const WeightSpec& spec, const Matrix& kv_b) {
    const MlaConfig& mla = config_.mla;
    const std::int64_t rank = mla.kv_lora_rank, keys = mla.qk_nope_head_dim, values = mla.v_head_dim;
    OutTensor& turned_keys = add_item(spec, gguf_layer_name(spec.layer, "attn_k_b.weight"), {mla.num_heads, rank, keys}, kv_b);
    turned_keys.bytes_before = static_cast<std::uint64_t>(kv_b.bytes() / (keys + values) * keys);
    turned_keys.values = [=, heads = mla.num_heads] {
      std::vector<float> turned;
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto rows = matrix_floats(kv_b, head * (keys + values), keys);
        for (std::int64_t col = 0; col < rank; ++col) {
          for (std::int64_t row = 0; row < keys; ++row) turned.push_back(rows[static_cast<std::size_t>(row * rank + col)]);
        }
      }
      return turned;
    };
    std::vector<Run> runs;
    for (std::int64_t head = 0; head < mla.num_heads; ++head) runs.push_back({kv_b, head * (keys + values) + keys, values});
    add_item(spec, gguf_layer_name(spec.layer, "attn_v_b.weight"), {mla.num_heads, values, rank}, kv_b).runs = std::move(runs);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  std::vector<LayerWeights> layers_;  ///< a copy of the views: weight_fields.h hands out mutable ones
  const GgufExportOptions& options_;
  std::vector<OutTensor> items_;
};

constexpr std::int64_t kRowsAtOnce = 64;

/// Writes the items and reads them again.
class Export {
 public:
  Export(std::vector<OutTensor> items, const GgufExportOptions& options)
      : items_(std::move(items)), options_(options), pool_(options.threads > 0 ? options.threads : base::ThreadPool::default_size()) {
    for (OutTensor& item : items_) {
      std::uint64_t bytes = static_cast<std::uint64_t>(item.entry.type->bytes());
      for (const std::int64_t size : item.entry.shape) bytes *= static_cast<std::uint64_t>(size);
      bytes_ += bytes / static_cast<std::uint64_t>(item.entry.type->columns());
      for (const Run& run : item.runs) item.bytes_before += static_cast<std::uint64_t>(run.matrix.row_range(run.begin, run.count).bytes());
    }
  }

  std::vector<RoleReport> write(const fs::path& file, const formats::GgufPairs& pairs) {
    base::require_free_space(file, bytes_ + pairs.bytes().size());
    std::vector<formats::GgufWriter::Item> entries;
    for (const OutTensor& item : items_) entries.push_back(item.entry);
    formats::GgufWriter writer(file, pairs, entries);
    std::vector<std::uint64_t> sums;
    for (const OutTensor& item : items_) {
      ByteSum sum;
      encode_item(item, [&](std::span<const std::byte> bytes) {
        writer.append(bytes);
        sum.add(bytes);
        advance(bytes.size());
      });
      sums.push_back(sum.value());
    }
    std::vector<RoleReport> reports = verify(writer.finish(), sums);
    writer.commit();
    return reports;
  }

 private:
  void advance(std::size_t bytes) {
    done_ += bytes;
    if (options_.on_progress) options_.on_progress(static_cast<std::int64_t>(done_), static_cast<std::int64_t>(2 * bytes_));
  }

  void encode_item(const OutTensor& item, const Sink& sink) {
    const GgmlType& type = *item.entry.type;
    const auto pieces = [&](std::span<const std::byte> bytes) { in_pieces(bytes, options_.cancelled, sink); };
    try {
      if (item.values) pieces(value_or_throw(encode_rows(type, item.values(), item.entry.shape.back())));
      for (const Run& run : item.runs) encode_matrix(type, run.matrix, run.begin, run.count, pool_, pieces);
    } catch (Error& error) {
      if (error.code() == ErrorCode::kInvalidFile) error.add_context("tensor " + formats::quote(item.entry.name));
      throw;
    }
  }

  /// Reads the file from the disk: every tensor must have the sum of what was written.
  std::vector<RoleReport> verify(const fs::path& path, const std::vector<std::uint64_t>& sums) {
    RoleTable table;
    const auto file = value_or_throw(formats::Gguf::open(path));
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const OutTensor& item = items_[i];
      const formats::GgufTensor* tensor = file.find(item.entry.name);
      ByteSum sum;
      const bool is_it = tensor && tensor->type == item.entry.type && std::ranges::equal(tensor->shape(), item.entry.shape);
      if (is_it) {
        in_pieces(file.parts()[tensor->part].file.bytes().subspan(tensor->offset, tensor->bytes), options_.cancelled,
                  [&](std::span<const std::byte> piece) {
                    sum.add(piece);
                    advance(piece.size());
                  });
      }
      if (!is_it || sum.value() != sums[i]) {
        throw make_error(ErrorCode::kIo, "'{}': tensor {} is not what was written", path.string(), formats::quote(item.entry.name));
      }
      if (item.matrices > 0 && item.from != tensor->type->name) table.add(report_of(item, *tensor), errors_of(item, file.matrix(*tensor)));
    }
    return table.reports();
  }

  static RoleReport report_of(const OutTensor& item, const formats::GgufTensor& tensor) {
    std::string_view role = item.entry.name;
    if (role.starts_with("blk.")) role = role.substr(role.find('.', 4) + 1);
    if (role.ends_with(".weight")) role.remove_suffix(7);
    return {.role = std::string(role),
            .from = std::string(item.from),
            .to = std::string(tensor.type->name),
            .matrices = item.matrices,
            .parameters = tensor.rows() * tensor.cols(),
            .bytes_before = item.bytes_before,
            .bytes_after = tensor.bytes};
  }

  /// In the order of the rows, so that the figures do not depend on the number of threads.
  Errors errors_of(const OutTensor& item, const Matrix& written) {
    if (item.values) {
      Errors errors;
      errors.add(item.values(), matrix_floats(written, 0, written.rows()));
      return errors;
    }
    Errors total;
    std::int64_t written_row = 0;
    for (const Run& run : item.runs) {
      check_cancelled(options_.cancelled);
      std::vector<Errors> pieces(static_cast<std::size_t>((run.count + kRowsAtOnce - 1) / kRowsAtOnce));
      pool_.parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t row = i * kRowsAtOnce, rows = std::min(kRowsAtOnce, run.count - row);
          pieces[static_cast<std::size_t>(i)].add(matrix_floats(run.matrix, run.begin + row, rows), matrix_floats(written, written_row + row, rows));
        }
      });
      for (const Errors& piece : pieces) total.add(piece);
      written_row += run.count;
    }
    return total;
  }

  std::vector<OutTensor> items_;
  const GgufExportOptions& options_;
  base::ThreadPool pool_;
  std::uint64_t bytes_ = 0;  ///< of all tensors
  std::uint64_t done_ = 0;
};

}  // namespace

Report export_gguf(const fs::path& path, const fs::path& file, const GgufExportOptions& options) {
  const fs::path folder = source_folder(path);
  const auto model = Model::load(path);
  formats::GgufPairs pairs;
  const std::vector<float> rope_factors = add_gguf_metadata(pairs, model->config(), folder);
  add_gguf_tokenizer(pairs, model->config(), folder);
  Exporter exporter(*model, options);
  exporter.add_rope_factors(rope_factors);
  Report report;
  report.roles = Export(exporter.items(), options).write(file, pairs);
  report.bytes_before = static_cast<std::uint64_t>(model->file_bytes());
  report.bytes_after = fs::file_size(file);
  report.shards = 1;
  return report;
}

}  // namespace palimpsest::convert
