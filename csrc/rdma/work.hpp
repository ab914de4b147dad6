#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "rdma/memory_region.hpp"
#include "rdma/types.hpp"

namespace rdmatx {

/// The scatter/gather list of a work request. Four elements lie inside, more on the heap.
class RDMATX_API ScatterGatherList {
 public:
  /// `local_key` 0 is for inline work only, which needs no registration. Zero bytes add nothing.
  void add(const void* address, uint32_t bytes, uint32_t local_key);
  int size() const noexcept { return static_cast<int>(count_); }
  uint64_t total_bytes() const noexcept;

 private:
  friend class SendWork;
  friend class ReceiveWork;
  static constexpr size_t inside = 4;
  ibv_sge* data() noexcept { return more_.empty() ? elements_.data() : more_.data(); }
  const ibv_sge* data() const noexcept { return more_.empty() ? elements_.data() : more_.data(); }

  std::array<ibv_sge, inside> elements_{};
  std::vector<ibv_sge> more_;
  size_t count_ = 0;
};

/// One work request for a send queue (ibv_post_send(3)). A value: copy, keep and post it as often as you
/// like. It does not hold the regions it names: they must live until its completion is seen.
class RDMATX_API SendWork {
 public:
  static SendWork send(uint64_t work_id = 0) { return SendWork(SendOpcode::send, work_id); }
  static SendWork write(uint64_t remote_address, uint32_t remote_key, uint64_t work_id = 0);
  static SendWork read(uint64_t remote_address, uint32_t remote_key, uint64_t work_id = 0);
  /// Adds to the 8 aligned bytes at the remote address; the value before goes to the 8 local bytes.
  static SendWork fetch_add(uint64_t remote_address, uint32_t remote_key, uint64_t value,
                            uint64_t work_id = 0);
  /// Stores `desired` where the 8 aligned bytes equal `expected`; the value before goes to the 8 local bytes.
  static SendWork compare_swap(uint64_t remote_address, uint32_t remote_key, uint64_t expected,
                               uint64_t desired, uint64_t work_id = 0);

  SendWork& add(const void* address, uint32_t bytes, uint32_t local_key);
  /// A part of a region. Throws UsageError where it reaches beyond the region.
  SendWork& add(const MemoryRegion& region, size_t offset, uint32_t bytes);
  /// Asks for a completion; without it only a failure gives one.
  SendWork& signaled(bool on = true) { return flag(IBV_SEND_SIGNALED, on); }
  /// Waits for the reads and atomics posted before it.
  SendWork& fenced(bool on = true) { return flag(IBV_SEND_FENCE, on); }
  /// Wakes a receiver that armed its queue for solicited events only.
  SendWork& solicited(bool on = true) { return flag(IBV_SEND_SOLICITED, on); }
  /// Copies the payload while posting: the memory is free at once and needs no registration. At most the
  /// queue pair's max_inline_bytes; for sends and writes only.
  SendWork& inlined(bool on = true) { return flag(IBV_SEND_INLINE, on); }
  /// 32 bits that the receiver's completion carries; makes a write consume a receive. Throws UsageError for
  /// anything but a send or a write.
  SendWork& immediate(uint32_t value);
  SendWork& id(uint64_t work_id) noexcept;

  uint64_t work_id() const noexcept { return request_.wr_id; }
  SendOpcode opcode() const noexcept { return static_cast<SendOpcode>(request_.opcode); }
  uint64_t total_bytes() const noexcept { return elements_.total_bytes(); }
  bool is_signaled() const noexcept { return (request_.send_flags & IBV_SEND_SIGNALED) != 0; }
  /// "rdma_write of 4096 bytes in 1 element to 0x7f… key 0x1234, signaled".
  std::string text() const;

 private:
  friend class QueuePair;
  SendWork(SendOpcode opcode, uint64_t work_id);
  SendWork& flag(unsigned bit, bool on) noexcept;
  /// The request as the verbs want it, pointing into this object.
  ibv_send_wr* link(ibv_send_wr* next) noexcept;

  ibv_send_wr request_{};
  ScatterGatherList elements_;
};

/// One work request for a receive queue or a shared one (ibv_post_recv(3)). A value, as SendWork is.
class RDMATX_API ReceiveWork {
 public:
  explicit ReceiveWork(uint64_t work_id = 0);
  ReceiveWork& add(void* address, uint32_t bytes, uint32_t local_key);
  ReceiveWork& add(const MemoryRegion& region, size_t offset, uint32_t bytes);
  ReceiveWork& id(uint64_t work_id) noexcept;

  uint64_t work_id() const noexcept { return request_.wr_id; }
  uint64_t total_bytes() const noexcept { return elements_.total_bytes(); }

 private:
  friend class QueuePair;
  friend class SharedReceiveQueue;
  ibv_recv_wr* link(ibv_recv_wr* next) noexcept;

  ibv_recv_wr request_{};
  ScatterGatherList elements_;
};

}  // namespace rdmatx
