#include "convert/shards.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/mapped_file.h"
#include "convert/byte_sum.h"
#include "convert/disk.h"
#include "convert/output_folder.h"
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

std::uint64_t joint_sum(const ShardSums& sums) {
  ByteSum joint;
  for (const std::uint64_t sum : sums) joint.add(sum);
  return joint.value();
}

ShardSums write_shard(const ShardJob& job, const Shard& shard, const fs::path& path) {
  const std::pair<std::string, std::string> metadata[] = {{"format", "pt"}};
  const std::vector<Item> items = items_of(job, shard);
  ShardSums sums;
  {
    formats::SafetensorsWriter writer(path, items, metadata);
    ByteSum sum;
    std::uint64_t left = items.empty() ? 0 : item_bytes(items[0]);  // of the tensor that the next byte belongs to
    const auto end_tensors = [&] {
      while (sums.size() < items.size() && left == 0) {
        sums.push_back(std::exchange(sum, ByteSum()).value());
        if (sums.size() < items.size()) left = item_bytes(items[sums.size()]);
      }
    };
    end_tensors();
    for (const PlannedWeight& weight : weights_of(job, shard)) {
      if (weight.spec) value_or_throw(check_values(job.config, *weight.spec, weight.source, job.source));
      encode(weight, job.source, job.pool, job.options.cancelled, [&](std::span<const std::byte> bytes) {
        writer.append(bytes);
        job.advance(bytes.size());
        while (!bytes.empty()) {
          const auto part = bytes.first(std::min<std::uint64_t>(bytes.size(), left));
          sum.add(part);
          left -= part.size();
          bytes = bytes.subspan(part.size());
          end_tensors();
        }
      });
    }
    writer.commit();
  }
  sync_file(path);
  return sums;
}

ShardSums read_shard(const ShardJob& job, const Shard& shard, const fs::path& path) {
  const auto file = value_or_throw(base::MappedFile::open(path));
  const auto header = formats::parse_safetensors(file.bytes());
  if (!header) throw damaged(path, header.error().text());
  check_header(*header, items_of(job, shard), path);
  ShardSums sums;
  for (const formats::TensorEntry& tensor : header->entries) {
    ByteSum sum;
    in_pieces(file.bytes().subspan(tensor.offset, tensor.bytes()), job.options.cancelled, [&](std::span<const std::byte> piece) {
      sum.add(piece);
      job.advance(piece.size());
    });
    file.release(tensor.offset, tensor.bytes());
    sums.push_back(sum.value());
  }
  return sums;
}

void check_sums(const ShardJob& job, const Shard& shard, const fs::path& path, const ShardSums& written, const ShardSums& found) {
  const auto differs = std::ranges::mismatch(written, found).in1 - written.begin();
  if (differs == std::ssize(written)) return;
  throw damaged(path, fmt::format("tensor {}: its bytes differ", formats::quote(items_of(job, shard)[static_cast<std::size_t>(differs)].name)));
}

FinishedShards::FinishedShards(const fs::path& folder, std::string fingerprint) : path_(folder / kFileName), fingerprint_(std::move(fingerprint)) {
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != fingerprint_) return;
  std::string name;
  std::uint64_t sum = 0;
  while (file >> name >> std::hex >> sum) sums_[name] = sum;
}

std::optional<std::uint64_t> FinishedShards::find(const std::string& shard) const {
  const auto found = sums_.find(shard);
  return found == sums_.end() ? std::nullopt : std::optional(found->second);
}

void FinishedShards::add(const std::string& shard, std::uint64_t sum) {
  sums_[shard] = sum;
  std::string text = fingerprint_ + "\n";
  for (const auto& [name, joint] : sums_) text += fmt::format("{} {:016x}\n", name, joint);
  write_text_file(path_, text);
}

void FinishedShards::remove_file() const { fs::remove(path_); }

std::string fingerprint(const Plan& plan, const formats::Checkpoint& source, std::string_view config_json) {
  ByteSum hash;
  hash.add(config_json);
  for (const auto& shard : source.shards()) {
    hash.add(shard.file.size());
    std::error_code error;
    hash.add(static_cast<std::uint64_t>(fs::last_write_time(shard.path, error).time_since_epoch().count()));
  }
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
