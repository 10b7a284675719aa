#include "tensor/buffer.h"

#include <sys/mman.h>

#include "base/check.h"
#include "base/error.h"

namespace palimpsest {

Buffer::Buffer(std::int64_t bytes) : bytes_(bytes) {
  PALIMPSEST_CHECK(bytes >= 0, "a buffer has no negative size");
  if (bytes == 0) return;
  void* data = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    bytes_ = 0;
    throw make_error(ErrorCode::kOutOfMemory, "the system refused {} bytes of memory", bytes);
  }
  data_ = static_cast<std::byte*>(data);
}

Buffer::~Buffer() {
  if (data_) ::munmap(data_, static_cast<std::size_t>(bytes_));
}

Tensor Buffer::view(DType dtype, std::initializer_list<std::int64_t> sizes) const {
  const Tensor t = Tensor::contiguous(data_, dtype, sizes);
  PALIMPSEST_CHECK(t.bytes() <= bytes_, "view larger than its buffer");
  return t;
}

}  // namespace palimpsest
