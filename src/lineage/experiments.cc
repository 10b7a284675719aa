#include "lineage/experiments.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace palimpsest::lineage {
namespace {

constexpr double kNear = 0.1;

double distance(const Vector& a, const Vector& b) {
  Vector difference = a;
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

/// One of the questions at the end of the story.
struct Question {
  Act act;
  std::int64_t number;
  Vector key, value;
};

/// Writes and questions, act by act.
class Script {
 public:
  explicit Script(const Choices& choices)
      : K_(choices.key_dim), m_(K_ / 8), keys_(choices.seed, 0), values_(Directions(choices.seed, 1).orthonormal(7 * m_, K_, 0, K_)) {}

  std::vector<Write> writes;
  std::vector<Question> questions;

  void build() {
    const std::vector<Vector> standing = keys_.orthonormal(3 * m_, K_, 0, K_ / 2);
    const auto part = [&](std::int64_t from) { return std::vector<Vector>(standing.begin() + from, standing.begin() + from + m_); };
    say(Act::kDistinct, part(0));
    overlap(part(m_));
    overwrite(part(2 * m_));
    say(Act::kOldTopic, keys_.orthonormal(2 * m_, K_, K_ / 2, K_ / 2));
    const std::size_t turn = writes.size();
    say(Act::kNewTopic, keys_.orthonormal(m_, K_, K_ / 2, K_ / 2));
    writes[turn].head_decay = kSwitchDecay;
    writes[turn].decay = Vector(static_cast<std::size_t>(K_));
    std::fill(writes[turn].decay.begin() + K_ / 2, writes[turn].decay.end(), kSwitchDecay);
  }

 private:
  void write(const Vector& key) { writes.push_back({key, values_[next_value_++], {}, 0}); }

  /// Writes a value under each key and asks for it.
  void say(Act act, const std::vector<Vector>& keys) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      write(keys[i]);
      questions.push_back({act, static_cast<std::int64_t>(i) + 1, keys[i], writes.back().value});
    }
  }

  /// Of each pair of basis vectors a, b the keys are a and (a + sqrt(3) b) / 2, with a cosine of 1/2.
  void overlap(std::vector<Vector> basis) {
    for (std::size_t i = 0; i + 1 < basis.size(); i += 2) {
      for (std::size_t c = 0; c < basis[i].size(); ++c) basis[i + 1][c] = 0.5f * basis[i][c] + std::sqrt(0.75f) * basis[i + 1][c];
    }
    const std::size_t first = writes.size();
    say(Act::kOverlapping, basis);
    const std::vector<Write> again(writes.begin() + static_cast<std::ptrdiff_t>(first), writes.end());
    writes.insert(writes.end(), again.begin(), again.end());
  }

  void overwrite(const std::vector<Vector>& keys) {
    for (const Vector& key : keys) write(key);
    say(Act::kOverwritten, keys);
  }

  std::int64_t K_, m_;
  Directions keys_;
  std::vector<Vector> values_;  // orthonormal
  std::size_t next_value_ = 0;
};

void judge(KeyReads& key, std::size_t memory, Vector returned) {
  const bool closed = key.act == Act::kOldTopic;
  const double error = closed ? std::abs(dot(returned, key.value)) : distance(returned, key.value);
  key.error[memory] = error;
  key.recall[memory] = error < kNear              ? Recall::kRight
                       : closed                   ? Recall::kStale
                       : norm(returned) < kNear   ? Recall::kNothing
                                                  : Recall::kBlurred;
  key.returned[memory] = std::move(returned);
}

double mean_error(const std::vector<Vector>& returned, const std::vector<Write>& truth, std::size_t first) {
  double sum = 0;
  for (std::size_t i = first; i < truth.size(); ++i) sum += distance(returned[i], truth[i].value);
  return sum / static_cast<double>(truth.size() - first);
}

/// Steps of K/8 up to 2K, then wider ones, and always K and the end.
std::vector<std::int64_t> stops(const Choices& choices) {
  std::vector<std::int64_t> at;
  for (std::int64_t n = choices.key_dim / 8; n < choices.max_pairs; n += std::max(choices.key_dim / 8, n / choices.key_dim * choices.key_dim / 16)) {
    at.push_back(n);
  }
  at.push_back(choices.max_pairs);
  return at;
}

}  // namespace

std::string_view act_name(Act act) {
  constexpr std::array<std::string_view, kActs> names = {"distinct", "overlapping", "overwritten", "old topic", "new topic"};
  return names[static_cast<std::size_t>(act)];
}

double Story::error(Act act, int memory) const {
  double sum = 0, n = 0;
  for (const KeyReads& key : keys) {
    if (key.act != act) continue;
    sum += key.error[static_cast<std::size_t>(memory)];
    ++n;
  }
  return sum / n;
}

Story tell_story(ExecContext& ctx, const Choices& choices) {
  Script script(choices);
  script.build();
  Story story;
  story.writes = static_cast<std::int64_t>(script.writes.size());
  std::vector<Vector> queries;
  for (const Question& q : script.questions) {
    queries.push_back(q.key);
    story.keys.push_back({.act = q.act, .number = q.number, .value = q.value});
  }
  for (std::size_t m = 0; m < kLine.size(); ++m) {
    const auto memory = make_memory(ctx, kLine[m], choices.key_dim, choices.key_dim, story.writes);
    memory->write(script.writes);
    std::vector<Vector> returned = memory->read(queries);
    for (std::size_t i = 0; i < returned.size(); ++i) judge(story.keys[i], m, std::move(returned[i]));
    story.bytes[m] = memory->bytes();
  }
  return story;
}

Capacity measure_capacity(ExecContext& ctx, const Choices& choices) {
  Directions keys(choices.seed, 2), values(choices.seed, 3);
  std::vector<Write> pairs;
  while (static_cast<std::int64_t>(pairs.size()) < choices.max_pairs) {
    for (Vector& key : keys.orthonormal(choices.key_dim, choices.key_dim, 0, choices.key_dim)) {
      pairs.push_back({std::move(key), values.unit(choices.key_dim), {}, 0});
    }
  }
  Capacity capacity;
  capacity.pairs = stops(choices);
  for (std::size_t m = 0; m < kLine.size(); ++m) {
    const auto memory = make_memory(ctx, kLine[m], choices.key_dim, choices.key_dim, choices.max_pairs);
    std::vector<Write> written;
    std::vector<Vector> queries;
    for (const std::int64_t n : capacity.pairs) {
      const std::vector<Write> more(pairs.begin() + static_cast<std::ptrdiff_t>(written.size()), pairs.begin() + n);
      memory->write(more);
      for (const Write& w : more) {
        written.push_back(w);
        queries.push_back(w.key);
      }
      const std::vector<Vector> returned = memory->read(queries);
      capacity.all[m].push_back(mean_error(returned, written, 0));
      capacity.newest[m].push_back(mean_error(returned, written, static_cast<std::size_t>(std::max<std::int64_t>(0, n - choices.key_dim / 4))));
      capacity.bytes[m].push_back(memory->bytes());
    }
  }
  return capacity;
}

}  // namespace palimpsest::lineage
