#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/gguf_writer.h"
#include "model/gguf/gguf_names.h"
#include "palimpsest/model_config.h"
#include "support/temp_folder.h"

namespace palimpsest::test {

/// A llama model of zeros, two layers of two heads of four channels, whose file a test may spoil.
class TinyGguf {
 public:
  using Items = std::vector<formats::GgufWriter::Item>;

  std::string architecture = "llama";
  /// Keys below "ARCHITECTURE."; a test changes, removes or adds.
  struct Number {
    std::string key;
    std::int64_t value;
  };
  std::vector<Number> numbers = {{"vocab_size", 6},          {"context_length", 16},     {"embedding_length", 8}, {"block_count", 2},
                                 {"feed_forward_length", 4}, {"attention.head_count", 2}, {"attention.head_count_kv", 1}};
  std::function<void(formats::GgufPairs&)> more = [](formats::GgufPairs&) {};
  std::function<void(Items&)> edit = [](Items&) {};

  void set(const std::string& key, std::int64_t value) {
    for (Number& number : numbers) {
      if (number.key == key) number.value = value;
    }
  }
  void erase(const std::string& key) {
    std::erase_if(numbers, [&](const Number& number) { return number.key == key; });
  }

  std::filesystem::path write(const TempFolder& folder) const {
    formats::GgufPairs pairs;
    pairs.add("general.architecture", architecture);
    for (const Number& number : numbers) pairs.add(architecture + "." + number.key, number.value);
    pairs.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    more(pairs);
    Items items;
    const auto* f32 = formats::find_ggml_type(DType::kF32);
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) { items.push_back({name, f32, std::move(shape)}); };
    add("token_embd.weight", {6, 8});
    add("output_norm.weight", {8});
    for (int l = 0; l < 2; ++l) {
      const std::string layer = "blk." + std::to_string(l) + ".";
      add(layer + "attn_norm.weight", {8});
      add(layer + "ffn_norm.weight", {8});
      add(layer + "attn_q.weight", {8, 8});
      add(layer + "attn_k.weight", {4, 8});
      add(layer + "attn_v.weight", {4, 8});
      add(layer + "attn_output.weight", {8, 8});
      add(layer + "ffn_gate.weight", {4, 8});
      add(layer + "ffn_up.weight", {4, 8});
      add(layer + "ffn_down.weight", {8, 4});
    }
    edit(items);
    const auto path = folder / "tiny.gguf";
    formats::GgufWriter writer(path, pairs, items);
    for (const auto& item : items) {
      std::int64_t values = 1;
      for (const auto size : item.shape) values *= size;
      const std::vector<std::byte> zeros(static_cast<std::size_t>(values / item.type->columns() * item.type->bytes()));
      writer.append(zeros);
    }
    writer.commit();
    return path;
  }
};

}  // namespace palimpsest::test
