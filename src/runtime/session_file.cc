#include "runtime/session_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>

#include "formats/atomic_file.h"

namespace palimpsest {
namespace {

static_assert(std::endian::native == std::endian::little, "session files are little-endian");

constexpr std::array<char, 8> kMagic = {'P', 'A', 'L', 'S', 'E', 'S', 'S', '\n'};
/// 1: without records of snapshots. 2: model fingerprints knew nothing of routed experts; pages were
/// always F32.
constexpr std::uint32_t kVersion = 3;
constexpr std::uint64_t kAlignment = 64;
/// More than any model has; sums of so many stay far below 64 bits.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 32, kMostSnapshots = 1 << 20,
                        kMostBytes = std::uint64_t{1} << 62;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion, header_bytes = sizeof(Header);
  std::uint64_t file_bytes = 0;
  ModelFingerprint fingerprint{};
  std::uint64_t fixed_bytes = 0, row_bytes = 0, tokens = 0, computed = 0, snapshots = 0,
                sampler_seed = 0, sampler_sequence = 0, text_bytes = 0;
  std::uint32_t list_type = 0;  ///< of the rows: 0 no lists, else 1 + index into kListTypes
  std::uint32_t activations = 0;   ///< 0 no matter, else 1 + the form
  std::uint64_t border_bytes = 0;  ///< 0: pages are not rounded
  std::uint64_t checksum = 0;      ///< of all before
};
static_assert(sizeof(Header) == 128);

struct Record {
  std::uint64_t position = 0, rows_from = 0;
  std::uint32_t kind = 0, canonical = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(Record) == 32);

enum Section { kTokens, kRecords, kFixed, kRows, kText, kSections };
constexpr std::array<std::string_view, kSections> kSectionNames = {"tokens", "records", "fixed",
                                                                   "rows", "text"};
using Footer = std::array<std::uint64_t, kSections>;

constexpr std::array<DType, 3> kListTypes = {DType::kF32, DType::kBF16, DType::kI8};
std::uint32_t list_code(std::optional<DType> type) {
  const auto at = std::find(kListTypes.begin(), kListTypes.end(), type);
  return type ? static_cast<std::uint32_t>(at - kListTypes.begin()) + 1 : 0;
}

std::uint32_t activations_code(std::optional<Activations> form) {
  return form ? static_cast<std::uint32_t>(*form) + 1 : 0;
}

std::uint64_t header_checksum(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, checksum));
}

std::uint64_t padded(std::uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

/// a * b, or kMostBytes where that is more.
std::uint64_t capped_product(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMostBytes : std::min(product, kMostBytes);
}

std::uint64_t capped_sum(std::uint64_t a, std::uint64_t b) {
  return std::min(kMostBytes, std::min(a, kMostBytes) + std::min(b, kMostBytes));
}

/// Bytes of pages, tails and logits after so many tokens.
std::uint64_t fixed_size(const Header& header, std::uint64_t position) {
  const bool at_border =
      header.border_bytes > 0 && position % static_cast<std::uint64_t>(kPageBorder) == 0;
  return at_border ? header.border_bytes : header.fixed_bytes;
}

template <class T>
T read(std::span<const std::byte> bytes, std::uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Cuts the file into its sections one after the other.
class SectionCutter {
 public:
  using Checked = std::function<void(std::span<const std::byte>)>;
  SectionCutter(std::span<const std::byte> bytes, const Checked& checked)
      : bytes_(bytes), checked_(checked) {}

  Result<std::span<const std::byte>> next(Section section, std::uint64_t size) {
    const std::uint64_t end = bytes_.size() - sizeof(Footer);
    if (size > end - at_ || padded(size) > end - at_) {
      return fail(ErrorCode::kInvalidFile,
                  "section '{}' of {} bytes at {} goes beyond the end at {}",
                  kSectionNames[section], size, at_, end);
    }
    const auto part = bytes_.subspan(at_, size);
    at_ += padded(size);
    const auto footer = read<Footer>(bytes_, end);
    if (checksum(part) != footer[section]) {
      return fail(ErrorCode::kInvalidFile, "section '{}' fails its checksum",
                  kSectionNames[section]);
    }
    return part;
  }
  bool at_end() const { return at_ == bytes_.size() - sizeof(Footer); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };

  /// XXH3_64bits(), a piece at a time.
  std::uint64_t checksum(std::span<const std::byte> part) {
    constexpr std::size_t kPiece = 4 << 20;
    XXH3_64bits_reset(state_.get());
    while (!part.empty()) {
      const auto piece = part.first(std::min(part.size(), kPiece));
      XXH3_64bits_update(state_.get(), piece.data(), piece.size());
      if (checked_) checked_(piece);
      part = part.subspan(piece.size());
    }
    return XXH3_64bits_digest(state_.get());
  }

  std::span<const std::byte> bytes_;
  const Checked& checked_;
  std::unique_ptr<XXH3_state_t, Free> state_{XXH3_createState()};
  std::uint64_t at_ = sizeof(Header);
};

Result<Header> parse_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(Header) + sizeof(Footer))
    return fail(ErrorCode::kInvalidFile, "{} bytes are too few for a session", bytes.size());
  const auto header = read<Header>(bytes, 0);
  if (header.magic != kMagic) return fail(ErrorCode::kInvalidFile, "not a session file");
  if (header.version == kVersion && header.header_bytes != sizeof(Header))
    return fail(ErrorCode::kInvalidFile, "a header of {} bytes; of version {} it has {}", header.header_bytes, kVersion, sizeof(Header));
  if (header.version != kVersion) {
    return fail(ErrorCode::kInvalidFile, "a session of version {}; this build reads version {}{}",
                header.version, kVersion,
                header.version < kVersion
                    ? ": older ones do not say which model they belong to closely enough"
                    : "");
  }
  if (header.checksum != header_checksum(header))
    return fail(ErrorCode::kInvalidFile, "the header fails its checksum");
  if (header.file_bytes != bytes.size())
    return fail(ErrorCode::kInvalidFile, "{} bytes, but the header says {}", bytes.size(),
                header.file_bytes);
  if (header.tokens > kMostTokens || header.computed > header.tokens ||
      header.snapshots > kMostSnapshots) {
    return fail(ErrorCode::kInvalidFile,
                "{} tokens, {} of them computed, and {} snapshots cannot be", header.tokens,
                header.computed, header.snapshots);
  }
  if (header.list_type > kListTypes.size())
    return fail(ErrorCode::kInvalidFile, "lists of the unknown type {}", header.list_type);
  if (header.activations > kActivationNames.size()) {
    return fail(ErrorCode::kInvalidFile, "activations of the unknown form {}",
                header.activations);
  }
  return header;
}

Result<std::vector<Record>> parse_records(std::span<const std::byte> bytes, const Header& header) {
  std::vector<Record> records;
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < header.snapshots; ++i) {
    const auto record = read<Record>(bytes, i * sizeof(Record));
    if (record.position <= before || record.position >= header.computed ||
        record.rows_from > record.position ||
        record.kind > static_cast<std::uint32_t>(MarkKind::kEnd) || record.canonical > 1) {
      return fail(ErrorCode::kInvalidFile, "snapshot {} at position {} with rows from {} cannot be",
                  i, record.position, record.rows_from);
    }
    before = record.position;
    records.push_back(record);
  }
  return records;
}

}  // namespace

Result<SessionImage> parse_session(
    std::span<const std::byte> bytes,
    const std::function<void(std::span<const std::byte>)>& checked) {
  const auto header = parse_header(bytes);
  if (!header) return tl::make_unexpected(header.error());
  SectionCutter cut(bytes, checked);
  const auto tokens = cut.next(kTokens, header->tokens * sizeof(std::int32_t));
  if (!tokens) return tl::make_unexpected(tokens.error());
  const auto record_bytes = cut.next(kRecords, header->snapshots * sizeof(Record));
  if (!record_bytes) return tl::make_unexpected(record_bytes.error());
  const auto records = parse_records(*record_bytes, *header);
  if (!records) return tl::make_unexpected(records.error());
  std::uint64_t rows_in_all = header->computed;
  for (const Record& record : *records) rows_in_all += record.position - record.rows_from;
  std::uint64_t fixed_in_all = fixed_size(*header, header->computed);
  for (const Record& record : *records)
    fixed_in_all = capped_sum(fixed_in_all, fixed_size(*header, record.position));
  const auto fixed = cut.next(kFixed, fixed_in_all);
  if (!fixed) return tl::make_unexpected(fixed.error());
  const auto rows = cut.next(kRows, capped_product(rows_in_all, header->row_bytes));
  if (!rows) return tl::make_unexpected(rows.error());
  const auto text = cut.next(kText, header->text_bytes);
  if (!text) return tl::make_unexpected(text.error());
  if (!cut.at_end())
    return fail(ErrorCode::kInvalidFile, "there are bytes behind the last section");

  SessionImage image;
  image.origin.model = header->fingerprint;
  if (header->activations > 0) image.origin.activations = static_cast<Activations>(header->activations - 1);
  image.fixed_bytes = static_cast<std::int64_t>(header->fixed_bytes);
  image.row_bytes = static_cast<std::int64_t>(header->row_bytes);
  image.border_bytes = static_cast<std::int64_t>(header->border_bytes);
  image.computed = static_cast<std::int64_t>(header->computed);
  image.tokens.resize(header->tokens);
  if (header->tokens > 0) std::memcpy(image.tokens.data(), tokens->data(), tokens->size());
  image.fixed = fixed->data();
  image.rows = rows->data();
  image.sampler_seed = header->sampler_seed;
  image.sampler_sequence = header->sampler_sequence;
  if (header->list_type > 0) image.list_type = kListTypes[header->list_type - 1];
  image.text = {reinterpret_cast<const char*>(text->data()), text->size()};
  std::uint64_t row = header->computed, at = fixed_size(*header, header->computed);
  for (const Record& r : *records) {
    image.snapshots.push_back({.position = static_cast<std::int64_t>(r.position),
                               .rows_from = static_cast<std::int64_t>(r.rows_from),
                               .kind = static_cast<MarkKind>(r.kind),
                               .canonical = r.canonical == 1,
                               .fixed = fixed->data() + at,
                               .rows = rows->data() + row * header->row_bytes});
    row += r.position - r.rows_from;
    at += fixed_size(*header, r.position);
  }
  return image;
}

// -- writing ----------------------------------------------------------------------------------

namespace {

/// Writes sections in order and remembers their checksums.
class SectionWriter {
 public:
  explicit SectionWriter(formats::AtomicFile& file) : file_(file), state_(XXH3_createState()) {
    XXH3_64bits_reset(state_);
  }
  ~SectionWriter() { XXH3_freeState(state_); }
  SectionWriter(const SectionWriter&) = delete;
  SectionWriter& operator=(const SectionWriter&) = delete;

  void write(const void* data, std::uint64_t size) {
    if (size == 0) return;
    XXH3_64bits_update(state_, data, size);
    file_.write(data, size);
    written_ += size;
  }
  void end(Section section) {
    static constexpr std::array<std::byte, kAlignment> kZeros{};
    checksums_[section] = XXH3_64bits_digest(state_);
    file_.write(kZeros.data(), padded(written_) - written_);
    XXH3_64bits_reset(state_);
    written_ = 0;
  }
  const Footer& checksums() const { return checksums_; }

 private:
  formats::AtomicFile& file_;
  XXH3_state_t* state_;
  std::uint64_t written_ = 0;
  Footer checksums_{};
};

/// Reads list rows [begin, end).
using RowReader = std::function<void(std::int64_t begin, std::int64_t end, std::byte* out)>;

/// What goes into a file, wherever it lies.
struct Contents {
  struct Snapshot {
    Record record;
    std::function<void(std::byte*)> fixed;
    RowReader rows;
  };
  std::vector<std::int32_t> tokens;  ///< of the memories
  std::function<void(std::byte*)> fixed;
  RowReader rows;
  std::vector<Snapshot> snapshots;
};

/// Rows [begin, end), some at a time.
void write_rows(SectionWriter& out, std::int64_t row_bytes, const RowReader& read,
                std::int64_t begin, std::int64_t end) {
  if (row_bytes == 0) return;
  const std::int64_t step = std::max<std::int64_t>(1, (1 << 20) / row_bytes);
  std::vector<std::byte> rows(static_cast<std::size_t>(step * row_bytes));
  for (; begin < end; begin += step) {
    const std::int64_t stop = std::min(end, begin + step);
    read(begin, stop, rows.data());
    out.write(rows.data(), static_cast<std::uint64_t>((stop - begin) * row_bytes));
  }
}

struct ChosenSnapshots {
  std::vector<const Mark*> marks;
  std::vector<Record> records;
};

/// Snapshots in memory on the way of a slot, the most useful ones within `bytes`.
ChosenSnapshots choose_snapshots(const SequenceCache& cache, std::int32_t slot,
                                 std::int64_t bytes) {
  const StatePool& pool = cache.pool();
  const std::int64_t length = pool.length(slot);
  ChosenSnapshots all, chosen;
  std::vector<SavedCandidate> candidates;
  for (const Mark* mark : cache.marks(slot)) {
    if (!mark->state.defined() || mark->position >= length) continue;
    const std::int64_t from = pool.common_rows(slot, mark->state);
    all.marks.push_back(mark);
    all.records.push_back({.position = static_cast<std::uint64_t>(mark->position),
                           .rows_from = static_cast<std::uint64_t>(from),
                           .kind = static_cast<std::uint32_t>(mark->kind),
                           .canonical = mark->canonical});
    candidates.push_back(
        {.position = mark->position,
         .age = cache.age(*mark),
         .hits = mark->hits,
         .bytes = pool.fixed_bytes(mark->position) + (mark->position - from) * pool.row_bytes()});
  }
  for (const std::size_t i : most_useful(candidates, length, bytes)) {
    chosen.marks.push_back(all.marks[i]);
    chosen.records.push_back(all.records[i]);
  }
  return chosen;
}

Header header_of(const StatePool& pool, const Contents& contents, const SessionOrigin& origin,
                 const SessionNote& note) {
  const auto length = static_cast<std::int64_t>(contents.tokens.size());
  std::int64_t rows = length, fixed_in_all = pool.fixed_bytes(length);
  for (const auto& [record, fixed, own_rows] : contents.snapshots) {
    rows += static_cast<std::int64_t>(record.position - record.rows_from);
    fixed_in_all += pool.fixed_bytes(static_cast<std::int64_t>(record.position));
  }
  Header header;
  header.fingerprint = origin.model;
  header.activations = activations_code(origin.activations);
  header.fixed_bytes = static_cast<std::uint64_t>(pool.fixed_bytes());
  header.border_bytes =
      pool.page_rounding() > 0 ? static_cast<std::uint64_t>(pool.fixed_bytes(0)) : 0;
  header.row_bytes = static_cast<std::uint64_t>(pool.row_bytes());
  header.tokens = contents.tokens.size() + note.pending.size();
  header.computed = static_cast<std::uint64_t>(length);
  header.snapshots = contents.snapshots.size();
  header.sampler_seed = note.sampler_seed;
  header.sampler_sequence = note.sampler_sequence;
  header.text_bytes = note.text.size();
  header.list_type = list_code(pool.list_type());
  header.file_bytes = sizeof(Header) + padded(header.tokens * sizeof(std::int32_t)) +
                      padded(header.snapshots * sizeof(Record)) +
                      padded(static_cast<std::uint64_t>(fixed_in_all)) +
                      padded(static_cast<std::uint64_t>(rows) * header.row_bytes) +
                      padded(header.text_bytes) + sizeof(Footer);
  header.checksum = header_checksum(header);
  return header;
}

void write_session(const std::filesystem::path& path, const StatePool& pool,
                   const Contents& contents, const SessionOrigin& origin,
                   const SessionNote& note) {
  const Header header = header_of(pool, contents, origin, note);
  formats::AtomicFile file(path, 0600);
  file.write(&header, sizeof(header));
  SectionWriter out(file);
  out.write(contents.tokens.data(), contents.tokens.size() * sizeof(std::int32_t));
  out.write(note.pending.data(), note.pending.size() * sizeof(std::int32_t));
  out.end(kTokens);
  for (const auto& snapshot : contents.snapshots) out.write(&snapshot.record, sizeof(Record));
  out.end(kRecords);
  const auto length = static_cast<std::int64_t>(contents.tokens.size());
  std::vector<std::byte> fixed(static_cast<std::size_t>(pool.fixed_bytes()));
  contents.fixed(fixed.data());
  out.write(fixed.data(), static_cast<std::uint64_t>(pool.fixed_bytes(length)));
  for (const auto& snapshot : contents.snapshots) {
    snapshot.fixed(fixed.data());
    out.write(fixed.data(), fixed_size(header, snapshot.record.position));
  }
  out.end(kFixed);
  write_rows(out, pool.row_bytes(), contents.rows, 0, length);
  for (const auto& [record, ignored, rows] : contents.snapshots) {
    write_rows(out, pool.row_bytes(), rows, static_cast<std::int64_t>(record.rows_from),
               static_cast<std::int64_t>(record.position));
  }
  out.end(kRows);
  out.write(note.text.data(), note.text.size());
  out.end(kText);
  file.write(out.checksums().data(), sizeof(Footer));
  file.commit(true);
}

std::vector<std::int32_t> computed_tokens(const SequenceCache& cache, std::int32_t slot) {
  const auto tokens = cache.tokens(slot);
  return {tokens.begin(), tokens.begin() + cache.length(slot)};
}

}  // namespace

void save_session(const std::filesystem::path& path, SequenceCache& cache, std::int32_t slot,
                  const SessionOrigin& origin, const SessionNote& note,
                  std::int64_t snapshot_bytes) {
  const StatePool& pool = cache.pool();
  const auto [marks, records] = choose_snapshots(cache, slot, snapshot_bytes);
  Contents contents;
  contents.tokens = computed_tokens(cache, slot);
  contents.fixed = [&pool, slot](std::byte* out) { pool.read_fixed(slot, out); };
  contents.rows = [&pool, slot](std::int64_t begin, std::int64_t end, std::byte* out) {
    pool.read_rows(slot, begin, end, out);
  };
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const StateSnapshot& state = marks[i]->state;
    contents.snapshots.push_back(
        {records[i], [&pool, &state](std::byte* out) { pool.read_fixed(state, out); },
         [&pool, &state](std::int64_t begin, std::int64_t end, std::byte* out) {
           pool.read_rows(state, begin, end, out);
         }});
  }
  write_session(path, pool, contents, origin, note);
}

std::optional<HeldSession> hold_session(SequenceCache& cache, std::int32_t slot,
                                        std::int64_t snapshot_bytes) {
  StatePool& pool = cache.pool();
  if (!cache.free_units(pool.snapshot_units(pool.length(slot)))) return std::nullopt;
  auto state = pool.snapshot(slot);
  if (!state) return std::nullopt;
  HeldSession held;
  held.tokens = computed_tokens(cache, slot);
  held.state = std::move(*state);
  const auto [marks, records] = choose_snapshots(cache, slot, snapshot_bytes);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const Mark& mark = *marks[i];
    const auto from = static_cast<std::int64_t>(records[i].rows_from);
    HeldSession::Snapshot& kept = held.snapshots.emplace_back();
    kept.position = mark.position;
    kept.rows_from = from;
    kept.kind = mark.kind;
    kept.canonical = mark.canonical;
    kept.fixed.resize(static_cast<std::size_t>(pool.fixed_bytes(mark.position)));
    kept.rows.resize(static_cast<std::size_t>((mark.position - from) * pool.row_bytes()));
    pool.read_fixed(mark.state, kept.fixed.data());
    pool.read_rows(mark.state, from, mark.position, kept.rows.data());
  }
  return held;
}

void save_session(const std::filesystem::path& path, const StatePool& pool,
                  const HeldSession& session, const SessionOrigin& origin,
                  const SessionNote& note) {
  Contents contents;
  contents.tokens = session.tokens;
  contents.fixed = [&](std::byte* out) { pool.read_fixed(session.state, out); };
  contents.rows = [&](std::int64_t begin, std::int64_t end, std::byte* out) {
    pool.read_rows(session.state, begin, end, out);
  };
  for (const HeldSession::Snapshot& kept : session.snapshots) {
    contents.snapshots.push_back(
        {{.position = static_cast<std::uint64_t>(kept.position),
          .rows_from = static_cast<std::uint64_t>(kept.rows_from),
          .kind = static_cast<std::uint32_t>(kept.kind),
          .canonical = kept.canonical},
         [&kept](std::byte* out) { std::copy(kept.fixed.begin(), kept.fixed.end(), out); },
         [&kept, row_bytes = pool.row_bytes()](std::int64_t begin, std::int64_t end,
                                               std::byte* out) {
           const std::byte* first = kept.rows.data() + (begin - kept.rows_from) * row_bytes;
           std::copy(first, first + (end - begin) * row_bytes, out);
         }});
  }
  write_session(path, pool, contents, origin, note);
}

}  // namespace palimpsest
