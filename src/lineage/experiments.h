#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lineage/memories.h"

// What is done to the five memories. Keys have length 1, values too; the error of a read o is |o - v| with v the newest value under the key:
// 1 is as bad as no memory at all, and a wrong value on top of nothing is more than that. Of a key whose value should be forgotten the error
// is the part of that value which still comes back, |o . v|.

namespace palimpsest::lineage {

struct Choices {
  std::int64_t key_dim = 32;    ///< K, a multiple of 16; values have as many channels
  std::uint64_t seed = 1;
  std::int64_t max_pairs = 96;  ///< of the capacity experiment
};

/// What the switch of topics does to channels that are to forget: K3's gate cannot say less in one token. exp(-5) = 0.0067.
inline constexpr float kSwitchDecay = -5;

/// What a read amounts to.
enum class Recall : std::uint8_t {
  kRight,    ///< error below 0.1
  kNothing,  ///< about zero, though there was a value to know
  kStale,    ///< more than 0.1 of a value that should be forgotten
  kBlurred,  ///< something else
};

enum class Act : std::uint8_t { kDistinct, kOverlapping, kOverwritten, kOldTopic, kNewTopic };
inline constexpr int kActs = 5;
std::string_view act_name(Act act);

struct KeyReads {
  Act act = Act::kDistinct;
  std::int64_t number = 0;  ///< within its act, from 1
  Vector value;             ///< [V], the newest; in the old topic the one that should be forgotten
  std::array<Vector, kMemories> returned;
  std::array<double, kMemories> error{};
  std::array<Recall, kMemories> recall{};
};

/// One stream of K writes of orthogonal values, then a question for every key. With m = K / 8, in this order:
///   distinct     m orthogonal keys;
///   overlapping  m keys in pairs, the two of a pair with a cosine of 1/2, all said twice;
///   overwritten  m orthogonal keys, then all again with other values;
///   old topic    2m orthogonal keys. Afterwards the topic is closed: nothing of it should be known;
///   new topic    m orthogonal keys in the channels of the old topic, oblique to the old keys.
/// The first three acts live in the first K/2 channels, the topics in the others: what separates them is what a model has to learn for a decay
/// per channel to be of use. With the first write of the new topic KDA decays the topics' channels by kSwitchDecay, Gated DeltaNet the
/// whole page; nothing else decays.
struct Story {
  std::vector<KeyReads> keys;
  std::int64_t writes = 0;
  std::array<std::int64_t, kMemories> bytes{};
  /// Mean error of the keys of one act.
  double error(Act act, int memory) const;
};
Story tell_story(ExecContext& ctx, const Choices& choices);

/// Pairs with keys as far apart as they can be (bases of R^K, each turned at random against the one before), gates open.
struct Capacity {
  std::vector<std::int64_t> pairs;                        ///< stored when asked
  std::array<std::vector<double>, kMemories> all;         ///< mean error over all pairs
  std::array<std::vector<double>, kMemories> newest;      ///< over the newest quarter of a basis, K / 4 pairs or what there is
  std::array<std::vector<std::int64_t>, kMemories> bytes;
};
Capacity measure_capacity(ExecContext& ctx, const Choices& choices);

}  // namespace palimpsest::lineage
