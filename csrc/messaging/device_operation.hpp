#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/export.hpp"
#include "gpu/copies.hpp"

namespace rdmatx {

/// What an operation on memory of a GPU has besides: the work that it waits for, and the pinned memory that
/// its bytes go through where no NIC reaches the GPU, or where they are few.
///
/// Owns that memory, and what keeps the GPU's alive until the copies are done, also when the operation failed
/// before. Of one request, under the lock of its connection.
class RDMATX_API DeviceOperation {
 public:
  DeviceOperation();
  ~DeviceOperation();
  DeviceOperation(const DeviceOperation&) = delete;
  DeviceOperation& operator=(const DeviceOperation&) = delete;

  /// A range of a GPU's memory.
  struct Range {
    int gpu = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  /// A NIC moves the bytes by itself, once `event` is reached.
  void move_directly(const Range& range, std::vector<GpuEvent> event, bool incoming);
  /// The range is copied to pinned memory, behind what `after` has now; `at` is its place in the operation.
  std::shared_ptr<PinnedBuffer> stage_outgoing(const Range& range, std::optional<StreamHandle> after,
                                               uint64_t at, std::shared_ptr<void> keepalive);
  /// What comes into pinned memory is copied to the range by land(), behind what `after` has now.
  std::shared_ptr<PinnedBuffer> stage_incoming(const Range& range, std::optional<StreamHandle> after,
                                               std::shared_ptr<void> keepalive);
  /// It may begin only when all its bytes are copied, since a checksum is made of them.
  void begin_whole() noexcept { whole_ = true; }

  /// Whether it may begin. Throws CudaError where the work before it failed.
  bool ready();
  /// How many of its first bytes may be sent.
  uint64_t ready_bytes();
  /// Sent in pieces of at most this.
  uint64_t piece_bytes() const noexcept;

  /// Of a direct receive: bytes that came in a message of their own. land() brings them to their place.
  void place(std::span<const std::byte> payload);
  /// All of its first `bytes` bytes have come: makes them seen by the GPU. Done when landed().
  void land(uint64_t bytes);
  bool landed();

 private:
  struct Staged {
    Range range;
    uint64_t at = 0;
    std::shared_ptr<PinnedBuffer> pinned;
    std::vector<DeviceCopy> copy;  // one, once begun
    std::vector<GpuEvent> after;   // one, or none
    std::shared_ptr<void> keepalive;
    bool finished();
  };
  static void leave(std::vector<Staged> unfinished);

  std::vector<GpuEvent> gates_;
  std::vector<Staged> outgoing_;
  std::vector<Staged> incoming_;
  std::vector<Range> direct_;  // that a NIC writes to
  bool whole_ = false;
  bool ready_ = false;
};

}  // namespace rdmatx
