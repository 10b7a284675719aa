#include "convert/shards.h"

#include <algorithm>
#include <cstring>

#include "base/mapped_file.h"
#include "convert/disk.h"
#include "formats/quote.h"

namespace palimpsest::convert {
namespace {

namespace fs = std::filesystem;

std::span<const PlannedWeight> weights_of(const ShardJob& job, const Shard& shard) {
  return std::span(job.plan.weights).subspan(shard.begin, shard.end - shard.begin);
}

std::vector<Item> items_of(const ShardJob& job, const Shard& shard) {
  std::vector<Item> items;
  for (const PlannedWeight& weight : weights_of(job, shard)) items.insert(items.end(), weight.items.begin(), weight.items.end());
  return items;
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
class Fnv {
 public:
  void add(std::string_view text) {
    for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash_ = (hash_ ^ 0xff) * 0x100000001b3u;  // a border that no text holds
  }
  void add(std::uint64_t number) { add({reinterpret_cast<const char*>(&number), sizeof number}); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325u;
};

Error damaged(const fs::path& path, std::string_view text) {
  return make_error(ErrorCode::kIo, "'{}' is not what was written: {}", path.string(), text);
}

void check_header(const formats::SafetensorsHeader& header, std::span<const Item> items, const fs::path& path) {
  const bool same = std::equal(header.entries.begin(), header.entries.end(), items.begin(), items.end(),
                               [](const formats::TensorEntry& entry, const Item& item) {
                                 return entry.name == item.name && entry.dtype == item.dtype &&
                                        std::equal(entry.shape().begin(), entry.shape().end(), item.shape.begin(), item.shape.end());
                               });
  if (!same) throw damaged(path, "its list of tensors differs");
}

}  // namespace

void write_shard(const ShardJob& job, const Shard& shard, const fs::path& path) {
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}, {std::string(kFingerprintKey), job.fingerprint}};
  {
    formats::SafetensorsWriter writer(path, items_of(job, shard), metadata);
    for (const PlannedWeight& weight : weights_of(job, shard)) {
      if (weight.spec) value_or_throw(check_values(job.config, *weight.spec, weight.source, job.source));
      encode(weight, job.source, job.pool, job.options.cancelled, [&](std::span<const std::byte> bytes) {
        writer.append(bytes);
        job.advance(bytes.size());
      });
    }
    writer.commit();
  }
  sync_file(path);
}

void verify_shard(const ShardJob& job, const Shard& shard, const fs::path& path) {
  const auto file = value_or_throw(base::MappedFile::open(path));
  const auto header = formats::parse_safetensors(file.bytes());
  if (!header) throw damaged(path, header.error().text());
  const std::vector<Item> items = items_of(job, shard);
  check_header(*header, items, path);

  std::size_t entry = 0;
  std::uint64_t at = 0;  // bytes of that entry already compared
  const auto compare = [&](std::span<const std::byte> bytes) {
    job.advance(bytes.size());
    while (!bytes.empty()) {
      const formats::TensorEntry& tensor = header->entries[entry];
      if (at == tensor.bytes()) {
        ++entry;
        at = 0;
        continue;
      }
      const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), tensor.bytes() - at));
      const std::byte* found = file.bytes().data() + tensor.offset + at;
      if (!std::equal(part.begin(), part.end(), found)) {
        const auto where = static_cast<std::uint64_t>(std::mismatch(part.begin(), part.end(), found).first - part.begin());
        throw damaged(path, fmt::format("tensor {}: byte {} differs", formats::quote(tensor.name), at + where));
      }
      at += part.size();
      file.release(tensor.offset, at);
      bytes = bytes.subspan(part.size());
    }
  };
  for (const PlannedWeight& weight : weights_of(job, shard)) {
    encode(weight, job.source, job.pool, job.options.cancelled, compare);
  }
}

bool is_finished_shard(const ShardJob& job, const fs::path& path) {
  const auto file = base::MappedFile::open(path);
  if (!file) return false;
  const auto header = formats::parse_safetensors(file->bytes());
  if (!header) return false;
  return std::any_of(header->metadata.begin(), header->metadata.end(),
                     [&](const auto& pair) { return pair.first == kFingerprintKey && pair.second == job.fingerprint; });
}

std::string fingerprint(const Plan& plan, const formats::Checkpoint& source, std::string_view config_json) {
  Fnv hash;
  hash.add(config_json);
  for (const auto& shard : source.shards()) hash.add(shard.file.size());
  for (const formats::TensorEntry& entry : source.entries()) {
    hash.add(entry.name);
    hash.add(static_cast<std::uint64_t>(entry.dtype));
    hash.add(entry.offset);
  }
  for (const Shard& shard : plan.shards) {
    hash.add(shard.name);
    hash.add(static_cast<std::uint64_t>(shard.end));
  }
  for (const PlannedWeight& weight : plan.weights) {
    for (const Item& item : weight.items) {
      hash.add(item.name);
      hash.add(static_cast<std::uint64_t>(item.dtype));
    }
  }
  return fmt::format("{:016x}", hash.value());
}

}  // namespace palimpsest::convert
