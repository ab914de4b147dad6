#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace rdmatx {

/// What a device and its port allow; always read from them, never assumed.
struct TransferLimits {
  uint64_t max_message_bytes = uint64_t{1} << 31;  ///< of one work request (ibv_port_attr::max_msg_sz)
  uint64_t max_region_bytes = UINT64_MAX;          ///< of one registration (ibv_device_attr::max_mr_size)
  uint32_t max_sge = 1;                            ///< gather entries of one work request
  uint32_t queue_depth = 1;                        ///< work requests a send queue holds
  uint32_t inline_bytes = 0;                       ///< payload that may travel inside a work request
};

/// The registrations that `bytes` of memory need: all of max_region_bytes but the last. 0 bytes need none.
std::vector<uint64_t> plan_regions(uint64_t bytes, const TransferLimits& limits);

/// Which way the bytes go: a read cannot be inlined, since its bytes are not here yet.
enum class TransferDirection { write, read };

/// One gather (or scatter) entry: bytes [offset, offset + bytes) of the local part with this index.
struct PlannedEntry {
  uint32_t part;
  uint64_t offset;
  uint64_t bytes;
};

/// One work request of a transfer. A remote range always lies within one remote part: it has one key.
struct PlannedWork {
  static constexpr uint32_t max_entries = 16;  ///< more gather entries bring nothing and cost stack
  std::array<PlannedEntry, max_entries> entries;
  uint32_t entry_count = 0;
  uint32_t remote_part = 0;
  uint64_t remote_offset = 0;
  uint64_t offset = 0;  ///< of the transfer, where its bytes begin
  uint64_t bytes = 0;
  bool inlined = false;
  bool signalled = false;
  bool last = false;
};

/// Bytes [begin, end) of a transfer.
struct TransferRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Cuts one transfer, or a range of it, into work requests: (sizes of the local and the remote parts, limits)
/// to a sequence of PlannedWork, in order, each byte once. Pure logic: no device, no allocation while
/// planning.
///
/// The parts of both sides add up to the same number of bytes; a transfer of 0 bytes is one empty request,
/// since something has to complete. Every request is within max_message_bytes and max_sge; one in a quarter
/// of the queue depth is signalled, and the last one. Not thread-safe; the caller keeps the spans alive.
class TransferPlan {
 public:
  TransferPlan(std::span<const uint64_t> local_parts, std::span<const uint64_t> remote_parts,
               const TransferLimits& limits, TransferDirection direction);
  TransferPlan(std::span<const uint64_t> local_parts, std::span<const uint64_t> remote_parts,
               const TransferLimits& limits, TransferDirection direction, TransferRange range);

  /// The next work request, or nothing where all are planned.
  std::optional<PlannedWork> next();
  bool finished() const noexcept { return finished_; }
  uint64_t total_bytes() const noexcept { return total_; }

 private:
  void skip(uint64_t bytes);
  void gather(PlannedWork& work, uint64_t limit);

  std::span<const uint64_t> local_;
  std::span<const uint64_t> remote_;
  TransferLimits limits_;
  TransferDirection direction_;
  uint64_t total_ = 0;
  uint64_t planned_ = 0;  // the next byte
  uint64_t end_ = 0;
  uint32_t local_part_ = 0;
  uint64_t local_offset_ = 0;
  uint32_t remote_part_ = 0;
  uint64_t remote_offset_ = 0;
  uint32_t unsignalled_ = 0;
  uint32_t signal_interval_;
  bool finished_ = false;
};

}  // namespace rdmatx
