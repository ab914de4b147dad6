#include "gpu/buffer.hpp"

#include <utility>

namespace rdmatx {

std::shared_ptr<HostBuffer> HostBuffer::create(size_t bytes) {
  auto memory = SharedMemory::create(bytes, "rdmatx-buffer");
  publish_segment(memory);
  return std::shared_ptr<HostBuffer>(new HostBuffer(std::move(memory), bytes));
}

HostBuffer::HostBuffer(std::shared_ptr<SharedMemory> memory, size_t bytes)
    : memory_(std::move(memory)), bytes_(bytes) {}

}  // namespace rdmatx
