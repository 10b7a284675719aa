#include "tensor/buffer.h"

#include "base/check.h"

namespace palimpsest {

Buffer::Buffer(std::int64_t bytes, Device& device, MemoryKind kind) : device_(&device), kind_(kind) {
  PALIMPSEST_CHECK(bytes >= 0, "a buffer has no negative size");
  if (bytes == 0) return;
  data_ = device.allocate(bytes, kind);
  bytes_ = bytes;
}

Buffer::~Buffer() {
  if (data_) device_->release(data_, bytes_, kind_);
}

Tensor Buffer::view(DType dtype, std::initializer_list<std::int64_t> sizes) const {
  const bool on_device = device_ && kind_ == MemoryKind::kDevice;
  const Tensor t = Tensor::contiguous(data_, dtype, sizes, on_device ? device_->kind() : DeviceKind::kCpu);
  PALIMPSEST_CHECK(t.bytes() <= bytes_, "view larger than its buffer");
  return t;
}

}  // namespace palimpsest
