#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/export.hpp"
#include "base/recycling.hpp"
#include "base/small_vector.hpp"
#include "messaging/device_memory.hpp"
#include "messaging/device_operation.hpp"
#include "messaging/matcher.hpp"
#include "messaging/planner.hpp"
#include "messaging/protocol.hpp"
#include "messaging/registration_cache.hpp"
#include "messaging/staging.hpp"
#include "messaging/strided.hpp"
#include "rdma/memory_region.hpp"

namespace rdmatx {

enum class RequestKind : uint8_t {
  send,
  receive,
  write,
  read,
  write_many,
  fetch_add,
  compare_swap,
  flush,
};
/// "send", "recv", "write_many", ...: as users call them.
RDMATX_API const char* request_kind_name(RequestKind kind) noexcept;

inline bool is_atomic(RequestKind kind) noexcept {
  return kind == RequestKind::fetch_add || kind == RequestKind::compare_swap;
}

/// Memory that was handed to an operation, and what keeps it alive: dense bytes, or an array of strides.
struct OperationMemory {
  void* data = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<void> keepalive;
  /// Where the memory lies in a region that the user registered.
  std::shared_ptr<const RailRegions> region;
  /// Where its elements lie, `bytes` together, if not one after another; `data` means nothing then.
  std::shared_ptr<const StridedLayout> layout;
  /// Whose memory it is, where that is known: then its registration may be kept.
  std::shared_ptr<MemoryOwner> owner;
  /// Of a GPU's memory: no processor may touch `data`, and `region` has the registrations of each piece.
  std::shared_ptr<const DeviceMemory> device;
};

/// One of the blocks of a write_many: its own memory, and where in the peer's it goes.
struct WriteBlock {
  OperationMemory memory;
  RemotePart remote;
  /// Where the peer's memory is of several pieces (a GPU's): the others.
  std::vector<RemotePart> more;
};

/// Of a fetch_add the value to add; of a compare_swap what is expected and what to store then.
struct AtomicOperands {
  uint64_t value = 0;
  uint64_t expected = 0;
};

/// A part of an operation's memory under one registration. Keys are 0 where bytes travel inline.
struct LocalPart {
  std::byte* data;
  uint64_t bytes;
  RailKeys local_keys{};  ///< by the rail of the connection
  RailKeys remote_keys{};
};

/// The protection domains of a connection's rails; memory is registered in each.
using RailDomainList = std::vector<std::shared_ptr<ProtectionDomain>>;

/// One operation from its start to its one terminal state, succeeded or failed.
///
/// A strided array is moved as one message of its elements in order: through a dense copy, made when the
/// request is and before anybody waits for it, or, where it is few large blocks, as they lie. What was
/// received or read is put in its place before the request counts as finished.
///
/// Owns, until its completion is seen: the registrations of its memory and what keeps that memory alive. The
/// state is written under the lock of its connection and may be read from any thread; everything else belongs
/// to that lock until the request has finished, and is constant afterwards.
class RDMATX_API Request {
 public:
  /// Packs a strided array that is sent or written. Throws UsageError for one that nothing can be received
  /// into, since elements of it share memory.
  Request(RequestKind kind, TagChoice tag, OperationMemory memory)
      : kind_(kind), choice_(tag), memory_(std::move(memory)), bytes_(memory_.bytes) {
    if (memory_.layout) settle_layout(memory_);
  }
  /// A write_many.
  explicit Request(std::vector<WriteBlock> blocks);
  /// An atomic.
  Request(RequestKind kind, AtomicOperands operands)
      : kind_(kind), operands_(operands), bytes_(sizeof(uint64_t)) {
    parts_.push_back({nullptr, sizeof(uint64_t)});  // the value goes through a slot
  }

  bool finished() const noexcept { return state_.load(std::memory_order_acquire) != State::pending; }
  bool succeeded() const noexcept { return state_.load(std::memory_order_acquire) == State::succeeded; }
  /// Bytes moved; of a receive, what came. Meaningful once it has succeeded.
  uint64_t bytes() const noexcept { return bytes_; }
  /// Throws what made the request fail; returns where it succeeded.
  void check() const {
    if (state_.load(std::memory_order_acquire) == State::failed) std::rethrow_exception(failure_);
  }
  RequestKind kind() const noexcept { return kind_; }
  /// What a receive asked for.
  TagChoice choice() const noexcept { return choice_; }
  /// Of a message; of a receive of any tag, that of the message it met.
  uint64_t tag() const noexcept { return choice_ ? *choice_ : matched_tag_; }
  /// Of an atomic: what was there before.
  uint64_t value() const noexcept { return value_; }

  /// Of memory of a GPU: before the request is started.
  void set_device(std::shared_ptr<DeviceOperation> device) noexcept { device_ = std::move(device); }
  DeviceOperation* device() const noexcept { return device_.get(); }
  /// Whether it may begin: the work before it in its stream is done.
  bool ready() const { return !device_ || device_->ready(); }

  // For the connection, under its lock.
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data); }
  /// Bytes of its memory, of all blocks together.
  uint64_t capacity() const noexcept { return memory_.bytes; }
  /// Copies in what came in a message of its own.
  void place(std::span<const std::byte> payload);
  void match(uint64_t tag) noexcept { matched_tag_ = tag; }
  const AtomicOperands& operands() const noexcept { return operands_; }
  void set_value(uint64_t value) noexcept { value_ = value; }
  /// Makes the memory reachable for the device: the user's region where it grants `access`, else
  /// registrations of at most `max_region_bytes` each. May take long and throw; done before the lock is
  /// taken.
  void register_memory(RailDomains domains, Access access, const TransferLimits& limits);
  /// For memory whose bytes are copied into the work request.
  void use_inline() { parts_.push_back({data(), capacity()}); }
  const SmallVector<LocalPart, 1>& parts() const noexcept { return parts_; }
  /// Where the bytes go to, or come from, at the peer.
  void set_remote(SmallVector<RemotePart, 1> remote) noexcept { remote_ = std::move(remote); }
  void add_remote(const RemotePart& part) { remote_.push_back(part); }
  const SmallVector<RemotePart, 1>& remote() const noexcept { return remote_; }
  /// What a one-sided write tells the peer when its bytes are there.
  void set_notification(std::optional<uint32_t> immediate) noexcept { notification_ = immediate; }
  std::optional<uint32_t> notification() const noexcept { return notification_; }
  /// Of a rendezvous: the peer's receive, which is told when all is written. 0 of everything else.
  void set_finish_id(uint64_t id) noexcept { finish_id_ = id; }
  uint64_t finish_id() const noexcept { return finish_id_; }
  /// Pieces of it went over other rails than the messages': they have to complete before the peer is told.
  void set_scattered() noexcept { scattered_ = true; }
  bool scattered() const noexcept { return scattered_; }
  /// All are posted; once they have completed, the finish message is due.
  void await_pieces() noexcept { awaits_pieces_ = true; }
  bool take_awaited_pieces() noexcept { return std::exchange(awaits_pieces_, false); }
  /// All its pieces are posted, and its notification is due.
  void set_notification_due(bool due) noexcept { notification_due_ = due; }
  bool notification_due() const noexcept { return notification_due_; }
  /// Its pieces are posted anew, after a rail failed.
  void start_again() noexcept { all_posted_ = awaits_pieces_ = notification_due_ = false; }
  /// The crc32c of its first `bytes` bytes; and of a send, once computed, of them all.
  uint32_t checksum_of(uint64_t bytes) const noexcept;
  void compute_checksum() noexcept { checksum_ = checksum_of(capacity()); }
  uint32_t checksum() const noexcept { return checksum_; }
  /// Pieces and messages that were posted for it and have not completed; `all_posted`: none are to follow.
  void add_outstanding() noexcept { ++outstanding_; }
  void remove_outstanding() noexcept { --outstanding_; }
  uint32_t outstanding() const noexcept { return outstanding_; }
  void set_all_posted(bool all) noexcept { all_posted_ = all; }
  bool all_posted() const noexcept { return all_posted_; }
  /// Names the request on the wire.
  uint64_t id() const noexcept { return id_; }
  void set_id(uint64_t id) noexcept { id_ = id; }
  /// Of a receive that the peer was cleared to write to: how much it will write.
  uint64_t expected() const noexcept { return bytes_; }
  void expect(uint64_t bytes) noexcept { bytes_ = bytes; }
  void succeed(uint64_t bytes) noexcept {
    bytes_ = bytes;
    finish(State::succeeded);
  }
  void fail(std::exception_ptr failure) noexcept {
    failure_ = std::move(failure);
    finish(State::failed);
  }

 private:
  enum class State : uint8_t { pending, succeeded, failed };

  void finish(State state) noexcept {
    // No completion can touch the memory any more: let it go, then tell.
    if (state == State::failed) discard_registrations();
    regions_.clear();
    if (staging_) land(state == State::succeeded);
    memory_.keepalive.reset();
    memory_.region.reset();
    device_.reset();
    blocks_.clear();
    state_.store(state, std::memory_order_release);
  }

  void settle_layout(OperationMemory& memory);
  void land(bool succeeded) noexcept;
  void discard_registrations() noexcept;
  void add_parts(const OperationMemory& memory, RailDomains domains, Access access,
                 const TransferLimits& limits);
  void add_blocks(const OperationMemory& memory, RailDomains domains, Access access,
                  const TransferLimits& limits);
  void add_registered(const OperationMemory& memory, std::byte* data, uint64_t bytes, RailDomains domains,
                      Access access, const TransferLimits& limits);

  const RequestKind kind_;
  const TagChoice choice_;
  uint64_t matched_tag_ = 0;
  const AtomicOperands operands_;
  uint64_t value_ = 0;
  OperationMemory memory_;
  std::vector<WriteBlock> blocks_;
  std::shared_ptr<const StridedLayout> landing_;  // where the staging's bytes go once all came
  std::shared_ptr<Staging> staging_;
  std::shared_ptr<DeviceOperation> device_;
  std::vector<std::shared_ptr<MemoryRegion>> regions_;
  SmallVector<LocalPart, 1> parts_;
  SmallVector<RemotePart, 1> remote_;
  std::optional<uint32_t> notification_;
  uint32_t checksum_ = 0;
  uint64_t finish_id_ = 0;
  uint32_t outstanding_ = 0;
  bool all_posted_ = false;
  bool scattered_ = false;
  bool awaits_pieces_ = false;
  bool notification_due_ = false;
  uint64_t bytes_;
  uint64_t id_ = 0;
  std::exception_ptr failure_;
  std::atomic<State> state_{State::pending};
};

/// A request from memory that requests leave behind.
template <typename... Arguments>
std::shared_ptr<Request> make_request(Arguments&&... arguments) {
  return std::allocate_shared<Request>(RecyclingAllocator<Request>(), std::forward<Arguments>(arguments)...);
}

}  // namespace rdmatx
