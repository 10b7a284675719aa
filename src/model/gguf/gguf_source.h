#pragma once

#include <string>
#include <vector>

#include "formats/gguf.h"
#include "model/weight_copies.h"
#include "model/weight_source.h"

namespace palimpsest {

/// The weights of a GGUF file. Quantised matrices are used in place; copied are only
///   - rows of llama's rotated projections, into the order of other files (llama_rope_row),
///   - attn_k_b and attn_v_b, which together are one matrix here: k_b is stored transposed, so it is decoded where it is quantised,
///   - A, stored as -exp(A_log).
class GgufSource final : public WeightSource {
 public:
  /// `outline`: for plans; find() reads and copies no values, what would be copied has a shape and an address that nobody may read.
  GgufSource(const ModelConfig& config, formats::Gguf file, bool outline = false);

  const std::vector<WeightSpec>& specs() const override { return specs_; }
  Result<Matrix> find(const WeightSpec& spec) override;
  Result<bool> check(const WeightSpec& spec) const override;
  Result<Census> census() const override;
  std::vector<std::string> unused() const override { return {}; }
  std::map<std::string, Amount> stored_types() const override;
  std::size_t file_count() const override { return file_.parts().size(); }
  std::uint64_t file_bytes() const override { return file_.file_bytes(); }
  std::int64_t owned_bytes() const override { return copies_.bytes(); }
  std::vector<Mapping> mappings() const override;
  void will_need() const override;

 private:
  struct Stored {
    std::vector<const formats::GgufTensor*> tensors;  ///< one; two for k_b and v_b
    std::int64_t first_row = 0;                       ///< of an expert in its layer's stack
  };
  Result<Stored> locate(const WeightSpec& spec) const;
  Result<const formats::GgufTensor*> tensor(const WeightSpec& spec, const std::string& name, std::vector<std::int64_t> shape) const;
  Result<Stored> locate_latent(const WeightSpec& spec) const;
  Result<Stored> locate_expert(const WeightSpec& spec) const;
  /// [heads * (nope + value), rank]: of each head its keys, then its values.
  Matrix join_latent(const WeightSpec& spec, const Matrix& k_b, const Matrix& v_b);
  Result<Matrix> logarithm(const WeightSpec& spec, const formats::GgufTensor& stored);

  const ModelConfig& config_;
  formats::Gguf file_;
  std::vector<WeightSpec> specs_;
  bool outline_;
  WeightCopies copies_;
};

}  // namespace palimpsest
