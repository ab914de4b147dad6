#pragma once

#include <cstddef>
#include <memory>

#include "base/export.hpp"
#include "base/memory_owner.hpp"
#include "base/shared_memory.hpp"

namespace rdmatx {

/// Zeroed host memory that same-host peers can map: what they write to it takes one plain copy.
/// Owns its pages, which come from a pool and go back to it: a buffer of a size that was used before is
/// mapped by peers and registered already. Immutable; may be used from any thread.
class RDMATX_API HostBuffer {
 public:
  /// Page-aligned. Zero bytes are allowed. Throws Error where the memory is not there.
  static std::shared_ptr<HostBuffer> create(size_t bytes);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() const noexcept { return segment_.memory->data(); }
  size_t bytes() const noexcept { return bytes_; }

  /// The pages, which outlive the buffer: they die when the pool lets them go.
  struct Segment {
    std::shared_ptr<SharedMemory> memory;
    std::shared_ptr<MemoryOwner> owner;
  };

 private:
  HostBuffer(Segment segment, size_t bytes);

  Segment segment_;
  size_t bytes_;
};

/// The owner of memory that lies in a HostBuffer, or null.
RDMATX_API std::shared_ptr<MemoryOwner> find_host_memory_owner(const void* data, size_t bytes);

/// Gives the pages that no buffer uses back to the system.
RDMATX_API void trim_host_buffers() noexcept;

}  // namespace rdmatx
