#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/unique_fd.hpp"
#include "soft/channel.hpp"
#include "soft/write_ways.hpp"

// The verbs objects of the software HCA. Each begins with the structure that verbs.h shows to its user, so a
// pointer to one is a pointer to the other (as a provider's objects are in libibverbs).
//
// Locks, in the order they are taken: CompletionQueue::poll_mutex, Instance::registry, QueuePair::mutex, and
// then the leaves: the mutexes of entries, events and shared receive queues, which guard nothing else.

namespace rdmatx::soft {

class Instance;
class Peer;
struct QueuePair;
struct TcpLink;

/// What this device can do, as query_device tells it. Sizes of queues, lists and messages are held to; of the
/// numbers of objects only that of regions is bounded here, the others by memory.
struct Limits {
  static constexpr int max_queue_pairs = 65534, max_work_requests = 32768, max_sges = 32, max_inline = 1024;
  static constexpr int max_completion_queues = 65536, max_completions = 4194303, max_shared_queues = 65536;
  static constexpr int max_outstanding_reads = 128;
  static constexpr uint32_t max_message_bytes = 1u << 31;
  static constexpr uint64_t max_region_bytes = uint64_t{1} << 47;
};

/// A queue of events behind a file descriptor that is readable while there are any.
template <class Event>
class EventQueue {
 public:
  EventQueue();
  int fd() const noexcept { return fd_.get(); }
  void push(const Event& event);
  /// Waits unless the descriptor was made non-blocking; nullopt with errno set (EAGAIN, EINTR).
  std::optional<Event> pop();
  template <class Predicate>
  void remove_if(Predicate predicate);

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  std::deque<Event> events_;
};

struct Context {
  ibv_context base{};
  std::shared_ptr<Instance> instance;
  EventQueue<ibv_async_event> events;
  std::atomic<int> children{0};
};

struct ProtectionDomain {
  ibv_pd base{};
  Context* context;
  uint32_t number;
  std::atomic<int> children{0};
};

struct MemoryRegion {
  ibv_mr base{};
  std::shared_ptr<SharedMemory> segment;  // keeps memory of rdmatx.empty mappable by peers while registered
  std::shared_ptr<void> mapping;          // of a dma-buf
};

struct CompletionQueue;

struct CompletionChannel {
  ibv_comp_channel base{};
  EventQueue<CompletionQueue*> events;
  std::atomic<int> children{0};
};

struct CompletionQueue {
  ibv_cq base{};
  Context* context;
  std::mutex poll_mutex;  // one thread at a time drives the engine through this queue
  std::vector<QueuePair*> queue_pairs;

  std::mutex entries_mutex;
  std::vector<ibv_wc> entries;  // a ring
  size_t first = 0;
  std::atomic<size_t> count{0};
  bool overrun = false;

  enum Armed : int { not_armed, armed_solicited, armed_any };
  std::atomic<int> armed{not_armed};
  std::atomic<uint64_t> polls{0};  // tells the background thread that somebody polls
  std::atomic<int> children{0};
};

struct ReceiveEntry {
  uint64_t id;
  uint32_t sge_count;
};

/// A ring of posted receives with room for each one's scatter list. Not locked.
class ReceiveRing {
 public:
  ReceiveRing(uint32_t capacity, uint32_t max_sges)
      : entries_(capacity), sges_(size_t{capacity} * max_sges), max_sges_(max_sges) {}
  size_t size() const noexcept { return count_; }
  bool push(const ibv_recv_wr& work) noexcept;
  /// Takes the oldest: its identifier, and its scatter list into `sges`.
  uint64_t pop(std::vector<ibv_sge>& sges);
  /// Keeps what is posted; false where that would not fit.
  bool resize(uint32_t capacity);
  uint32_t capacity() const noexcept { return static_cast<uint32_t>(entries_.size()); }
  uint32_t max_sges() const noexcept { return max_sges_; }

 private:
  std::vector<ReceiveEntry> entries_;
  std::vector<ibv_sge> sges_;
  uint32_t max_sges_;
  size_t first_ = 0, count_ = 0;
};

struct SharedReceiveQueue {
  ibv_srq base{};
  Context* context;
  std::mutex mutex;
  ReceiveRing ring;
  uint32_t limit = 0;
  std::atomic<int> children{0};
  SharedReceiveQueue(uint32_t capacity, uint32_t sges) : ring(capacity, sges) {}
};

inline bool is_atomic(ibv_wr_opcode opcode) noexcept {
  return opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/// A posted send. The scatter list and the inline data lie in the queue's own arrays.
struct SendEntry {
  enum class Phase : uint8_t { queued, chosen, moving, awaiting, done, failed };
  uint64_t id;
  ibv_wr_opcode opcode;
  Phase phase;
  bool signaled, solicited, inline_data, fenced;
  bool only_ring;  // no direct copy: the kernel refused it, it would have to wait, or the ring is faster
  bool shared;     // the responder may help (SharedWrite)
  ibv_wc_status status;
  uint32_t immediate, remote_key, sge_count;
  uint64_t remote_address, operand, swap;
  uint64_t length;   // of the whole message, in bytes
  uint64_t offset;   // bytes that have been handed over
  uint64_t message;  // its number on the channel, once it is in the ring
  bool timed;        // what it takes is told to WriteWays
  uint64_t ns;       // of a timed write: when its copy began, or what putting it into the ring took so far
};

/// A reliable-connected queue pair. Everything below `mutex` is guarded by it; the engine (requester.cpp,
/// responder.cpp) runs under it in whichever thread polls, posts or steps in from the background.
struct QueuePair {
  ibv_qp base{};
  Context* context;
  ProtectionDomain* domain;
  CompletionQueue* send_cq;
  CompletionQueue* recv_cq;
  SharedReceiveQueue* srq;
  ibv_qp_init_attr initial{};

  std::mutex mutex;
  std::atomic<int> state{IBV_QPS_RESET};
  ibv_qp_attr attributes{};
  std::shared_ptr<Peer> peer;    // where it is on this host: then there are channels to it,
  std::unique_ptr<TcpLink> tcp;  // else this
  uint32_t incarnation = 0;      // counts resets, so that a grant meant for an earlier life is told apart

  // As requester.
  std::vector<SendEntry> sends;
  std::vector<ibv_sge> send_sges;
  std::vector<std::byte> inline_data;
  uint64_t send_head = 0, send_next = 0, send_tail = 0;  // oldest incomplete, next to start, next free
  std::shared_ptr<Channel> outbound;                     // the peer's channel, once it granted it
  Ring requests_out;
  Ring responses_in;
  uint64_t messages_sent = 0;
  uint64_t unreachable_since_ns = 0, not_ready_since_ns = 0;
  uint32_t shared_generation = 0;  // of the write that was shared last
  WriteWays ways;

  // As responder.
  std::shared_ptr<Channel> inbound;
  bool inbound_granted = false;
  uint32_t granted_incarnation = 0;  // of the peer's queue pair that was granted the channel
  Ring requests_in;
  Ring responses_out;
  ReceiveRing receives;
  uint64_t messages_received = 0, messages_told = 0;  // executed, and of them acknowledged to the peer
  std::optional<uint64_t> current_receive;  // identifier of the receive that a message is going into
  std::vector<ibv_sge> current_sges;
  uint64_t current_offset = 0, current_capacity = 0;
  uint64_t response_offset = 0;  // of the read that is being answered
  uint64_t helped = 0;           // as published last in SharedWrite::helped

  std::vector<iovec> pieces;  // of whatever is copied this moment: kept for its memory

  // For the background thread.
  uint64_t polls_seen = 0;

  uint32_t rnr_timer_ns = 0;  // what a requester waits before it tries again

  QueuePair(uint32_t max_receives, uint32_t receive_sges);
  ~QueuePair();
  SendEntry& send_at(uint64_t index) noexcept { return sends[index % sends.size()]; }
};

template <class Object, class Base>
Object* own(Base* base) noexcept {
  return reinterpret_cast<Object*>(base);
}

uint64_t now_ns() noexcept;

/// Adds a completion, wakes whoever waits for one, and handles an overrun.
void complete(CompletionQueue* cq, const ibv_wc& completion, bool solicited);
void raise_async_event(Context* context, ibv_event_type type, void* element);

}  // namespace rdmatx::soft
