#include "hub/checksum.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <iterator>
#include <new>

#include "base/check.h"
#include "hub/model_id.h"

namespace palimpsest::hub {
namespace {

constexpr std::size_t kSha256Digits = 64, kSha1Digits = 40;

}  // namespace

struct Checksum::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  Context() = default;
  ~Context() { EVP_MD_CTX_free(evp); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
};

Checksum::Checksum(std::string_view name, std::uint64_t size)
    : context_(std::make_unique<Context>()) {
  PALIMPSEST_CHECK(is_name(name), "whoever asks for a sum has checked its name");
  if (!context_->evp) throw std::bad_alloc();
  const bool git = name.size() == kSha1Digits;
  if (EVP_DigestInit_ex(context_->evp, git ? EVP_sha1() : EVP_sha256(), nullptr) != 1)
    throw std::bad_alloc();
  if (!git) return;
  const std::string head = fmt::format("blob {}", size);
  update(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
}

Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

bool Checksum::is_name(std::string_view name) {
  return is_hex(name, kSha256Digits) || is_hex(name, kSha1Digits);
}

std::string_view Checksum::kind(std::string_view name) {
  return name.size() == kSha256Digits ? "SHA-256" : "git SHA-1";
}

void Checksum::update(std::span<const std::byte> bytes) {
  const int done = EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size());
  PALIMPSEST_CHECK(done == 1, "a digest takes any bytes");
}

std::string Checksum::finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  unsigned length = 0;
  const int done = EVP_DigestFinal_ex(context_->evp, sum.data(), &length);
  PALIMPSEST_CHECK(done == 1, "a digest ends once");
  std::string text;
  for (unsigned i = 0; i < length; ++i) fmt::format_to(std::back_inserter(text), "{:02x}", sum[i]);
  return text;
}

}  // namespace palimpsest::hub
