#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/shared_memory.hpp"

// The memory that two connected queue pairs share, one channel a direction. The responder creates it and
// hands it to the one requester it is connected to. Nothing in it is a pointer, nothing in it is trusted:
// either side checks what it reads, since the other may have died or gone wild at any instruction.

namespace rdmatx::soft {

enum class RecordKind : uint8_t {
  pad,           ///< fills the end of the ring
  send,          ///< a piece of a SEND's payload
  write,         ///< a piece of an RDMA WRITE's payload, for `address`
  write_last,    ///< ends an RDMA WRITE; with `with_immediate` it consumes a receive
  read,          ///< asks for `length` bytes at `address`
  fetch_add,     ///< operand
  compare_swap,  ///< operand is compared, `swap` stored
  response,      ///< a piece of the answer to a read or an atomic (response ring only)
  fault,         ///< the requester found the access refused and tells the responder, as a NAK would
};

enum RecordFlags : uint8_t { record_last = 1, record_immediate = 2, record_solicited = 4 };

/// Precedes every payload in a ring. One cache line.
struct alignas(64) Record {
  uint32_t bytes;  ///< of payload that follow
  RecordKind kind;
  uint8_t flags;
  uint16_t unused;
  uint32_t immediate;  ///< in network byte order, as ibv_send_wr::imm_data
  uint32_t key;
  uint64_t address;
  uint64_t length;
  uint64_t operand;
  uint64_t swap;
};
static_assert(sizeof(Record) == 64);

/// The two ends of a ring of records, each on a cache line of its own. Counts of bytes, never wrapped.
struct RingEnds {
  alignas(64) std::atomic<uint64_t> head;  ///< written by the producer
  alignas(64) std::atomic<uint64_t> tail;  ///< written by the consumer
};

/// One side's view of a ring: single producer, single consumer, records contiguous and 64-byte aligned.
/// Each side keeps one for itself and calls it under its queue pair's lock.
///
/// Memory that still lies in the other processor's cache is slow to write. So a ring of payload is larger
/// than such a cache, and large payloads go round all of it; small ones stay at its beginning where they can,
/// so that a ring of them alone takes no more memory than that.
class Ring {
 public:
  Ring() = default;
  Ring(RingEnds* ends, std::byte* data, uint64_t capacity) : ends_(ends), data_(data), capacity_(capacity) {}

  /// Producer: room for a record with `payload` bytes behind it, or null while the ring is too full.
  Record* reserve(size_t payload) noexcept;
  /// Producer: publishes the record reserved last.
  void commit() noexcept;
  /// Consumer: the oldest record or null. `corrupt` is set where the ring's contents make no sense.
  const Record* front(bool* corrupt) noexcept;
  /// Consumer: payload bytes of the record that front() returned, as they were checked; what stands in the
  /// record may have changed since.
  uint32_t front_bytes() const noexcept { return front_bytes_; }
  /// Consumer: frees the record that front() returned.
  void pop() noexcept;
  bool empty() const noexcept {
    return !ends_ ||
           ends_->tail.load(std::memory_order_relaxed) == ends_->head.load(std::memory_order_acquire);
  }
  /// Producer: whether the ring has been gone round, so that its memory has been touched before.
  bool is_warm() const noexcept { return position_ >= capacity_; }
  /// The largest payload that always fits an empty ring; a record of it divides the capacity evenly.
  static constexpr size_t max_payload = 64 * 1024 - sizeof(Record);
  /// Where small payloads stay.
  static constexpr uint64_t small_bytes = 512 * 1024;

 private:
  uint64_t gap_before(uint64_t need) noexcept;

  RingEnds* ends_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t position_ = 0;    // of this side: head for the producer, tail for the consumer
  uint64_t other_ = 0;       // the other side's end as last seen
  uint64_t pending_ = 0;     // bytes reserved, or in the record at the front
  uint64_t last_large_ = 0;  // of the producer: where a large payload began last
  uint32_t front_bytes_ = 0;
};

constexpr uint64_t rnr_cancelled = ~uint64_t{0};

/// A large write that both sides carry out: the requester copies piece after piece into the responder's
/// memory, and a responder that polls takes pieces too and copies them out of the requester's. Each piece is
/// claimed by one of the two.
///
/// `claims` holds the write's generation (high half) and the next unclaimed piece (low half). The requester
/// changes the description only while no piece is left to claim, and then publishes it by a new generation,
/// so whoever claims a piece by compare-and-exchange read the description that belongs to it.
struct SharedWrite {
  static constexpr uint64_t smallest_piece = 128 * 1024, largest_piece = 512 * 1024;
  static constexpr uint64_t closed = 0xffffffff;  ///< as the next piece: none is left

  alignas(64) std::atomic<uint64_t> source;  ///< in the requester's process
  std::atomic<uint64_t> target;              ///< in the responder's
  std::atomic<uint64_t> length;
  std::atomic<uint32_t> key;
  alignas(64) std::atomic<uint64_t> claims;
  // Written by the responder.
  alignas(64)
      std::atomic<uint64_t> helped;  ///< generation, and how many of its pieces the responder put in place
  std::atomic<uint64_t> failed;      ///< the generation of which it could not copy a piece

  /// Large ones cost fewer calls of the kernel, small ones have both sides end together.
  static constexpr uint64_t piece_bytes(uint64_t length) {
    return std::clamp(std::bit_floor(length / 32), smallest_piece, largest_piece);
  }
  static constexpr uint64_t pieces(uint64_t length) {
    return (length + piece_bytes(length) - 1) / piece_bytes(length);
  }
};

/// Fields by who writes them; each group on cache lines of its own. Messages are numbered from 1.
struct ChannelState {
  RingEnds requests;   ///< requester → responder
  RingEnds responses;  ///< responder → requester

  // Written by the responder.
  alignas(64) std::atomic<uint32_t> open;          ///< 1 while the responder accepts requests
  std::atomic<uint32_t> protection_domain;         ///< of the responder's queue pair
  std::atomic<uint32_t> access;                    ///< its IBV_ACCESS_* flags
  std::atomic<uint32_t> rnr_timer_ns;              ///< what a requester waits before it tries again
  alignas(64) std::atomic<uint64_t> acknowledged;  ///< the last message executed
  std::atomic<uint64_t> refused;                   ///< the message that failed, 0 for none
  std::atomic<uint32_t> refused_status;            ///< its ibv_wc_status at the requester
  /// The message that waits for a receive, 0 for none. The responder resumes by exchanging it for 0, the
  /// requester gives up by exchanging it for rnr_cancelled: exactly one of the two succeeds.
  std::atomic<uint64_t> receiver_not_ready;

  // Written by the requester.
  /// The key through which the requester moves data right now. The responder waits for it to change before a
  /// deregistration returns (a hazard pointer).
  alignas(64) std::atomic<uint32_t> accessing_key;

  SharedWrite shared_write;

  // Set by a side before it sleeps, taken by the other, which then rings the sleeper's doorbell.
  alignas(64) std::atomic<uint32_t> responder_asleep;
  alignas(64) std::atomic<uint32_t> requester_asleep;
};

/// Owns the mapping of one channel. Immutable; the state is shared with the peer.
class Channel {
 public:
  static constexpr uint64_t request_bytes = 4 * 1024 * 1024;
  static constexpr uint64_t response_bytes = 256 * 1024;
  static constexpr size_t header_bytes = 4096;
  static constexpr size_t total_bytes = header_bytes + request_bytes + response_bytes;

  static std::shared_ptr<Channel> create();
  static std::shared_ptr<Channel> map(UniqueFd fd);

  ChannelState& state() const noexcept { return *reinterpret_cast<ChannelState*>(memory_->data()); }
  Ring requests() const noexcept {
    return Ring(&state().requests, memory_->data() + header_bytes, request_bytes);
  }
  Ring responses() const noexcept {
    return Ring(&state().responses, memory_->data() + header_bytes + request_bytes, response_bytes);
  }
  int fd() const noexcept { return memory_->fd(); }

 private:
  explicit Channel(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<SharedMemory> memory_;
};
static_assert(sizeof(ChannelState) <= Channel::header_bytes);

}  // namespace rdmatx::soft
