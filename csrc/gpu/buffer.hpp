#pragma once

#include <cstddef>
#include <memory>

#include "base/export.hpp"
#include "base/shared_memory.hpp"

namespace rdmatx {

/// Zeroed host memory that same-host peers can map: what they write to it takes one plain copy.
/// Owns its pages; immutable; may be used from any thread.
class RDMATX_API HostBuffer {
 public:
  /// Page-aligned. Zero bytes are allowed. Throws Error where the memory is not there.
  static std::shared_ptr<HostBuffer> create(size_t bytes);

  std::byte* data() const noexcept { return memory_->data(); }
  size_t bytes() const noexcept { return bytes_; }

 private:
  HostBuffer(std::shared_ptr<SharedMemory> memory, size_t bytes);

  std::shared_ptr<SharedMemory> memory_;
  size_t bytes_;
};

}  // namespace rdmatx
