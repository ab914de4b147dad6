#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/export.hpp"
#include "base/unique_fd.hpp"

namespace rdmatx {

/// Memory backed by an anonymous file (memfd), so that another process that is handed the file descriptor can
/// map the same pages. No name in any file system: the kernel frees it with its last user, also after kill
/// -9.
///
/// Owns the mapping and, where it made the memory, the descriptor. Immutable after construction; may be used
/// from any thread.
class RDMATX_API SharedMemory {
 public:
  /// Creates `bytes` (rounded up to whole pages) of zeroed memory. Throws Error with the reason.
  static std::shared_ptr<SharedMemory> create(size_t bytes, const char* name);
  /// Maps memory that another process created; the descriptor is closed. `bytes` must not exceed the file.
  static std::shared_ptr<SharedMemory> map(UniqueFd fd, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const noexcept { return data_; }
  size_t size() const noexcept { return bytes_; }
  /// What another process needs to map it; -1 where another process made it.
  int fd() const noexcept { return fd_.get(); }
  /// Names the segment within this process; never reused. 0 is no segment.
  uint64_t id() const noexcept { return id_; }

 private:
  SharedMemory(UniqueFd fd, std::byte* data, size_t bytes);
  UniqueFd fd_;
  std::byte* data_;
  size_t bytes_;
  uint64_t id_;
};

/// Memory that users allocate to be reached by same-host peers with one plain copy (`rdmatx.empty`).
/// Published segments can be found by address. Thread-safe.
RDMATX_API void publish_segment(const std::shared_ptr<SharedMemory>& segment);

/// The published segment that holds [address, address + bytes), or null.
RDMATX_API std::shared_ptr<SharedMemory> find_segment(const void* address, size_t bytes);

/// The published segment with this id, or null where it is gone.
RDMATX_API std::shared_ptr<SharedMemory> find_segment(uint64_t id);

}  // namespace rdmatx
