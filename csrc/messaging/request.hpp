#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "base/export.hpp"
#include "messaging/planner.hpp"
#include "rdma/memory_region.hpp"

namespace rdmatx {

enum class RequestKind : uint8_t { send, receive, write, read };
/// "send", "recv", "write", "read": as users call them.
RDMATX_API const char* request_kind_name(RequestKind kind) noexcept;

/// Memory that was handed to an operation: dense bytes, and what keeps them alive.
struct OperationMemory {
  void* data = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<void> keepalive;
  /// Where the memory lies in a region that the user registered.
  std::shared_ptr<MemoryRegion> region;
};

/// A part of an operation's memory under one registration. Keys are 0 where bytes travel inline.
struct LocalPart {
  std::byte* data;
  uint64_t bytes;
  uint32_t local_key;
  uint32_t remote_key;
};

/// One operation from its start to its one terminal state, succeeded or failed.
///
/// Owns, until its completion is seen: the registrations of its memory and what keeps that memory alive. The
/// state is written under the lock of its connection and may be read from any thread; everything else belongs
/// to that lock until the request has finished, and is constant afterwards.
class RDMATX_API Request {
 public:
  Request(RequestKind kind, uint64_t tag, OperationMemory memory)
      : kind_(kind), tag_(tag), memory_(std::move(memory)), bytes_(memory_.bytes) {}

  bool finished() const noexcept { return state_.load(std::memory_order_acquire) != State::pending; }
  bool succeeded() const noexcept { return state_.load(std::memory_order_acquire) == State::succeeded; }
  /// Bytes moved; of a receive, what came. Meaningful once it has succeeded.
  uint64_t bytes() const noexcept { return bytes_; }
  /// Throws what made the request fail; returns where it succeeded.
  void check() const {
    if (state_.load(std::memory_order_acquire) == State::failed) std::rethrow_exception(failure_);
  }
  RequestKind kind() const noexcept { return kind_; }
  uint64_t tag() const noexcept { return tag_; }

  // For the connection, under its lock.
  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.data); }
  uint64_t capacity() const noexcept { return memory_.bytes; }
  /// Makes the memory reachable for the device: the user's region where it grants `access`, else
  /// registrations of at most `max_region_bytes` each. May take long and throw; done before the lock is
  /// taken.
  void register_memory(const std::shared_ptr<ProtectionDomain>& domain, Access access,
                       const TransferLimits& limits);
  /// For memory whose bytes are copied into the work request.
  void use_inline() { parts_ = {{data(), capacity(), 0, 0}}; }
  const std::vector<LocalPart>& parts() const noexcept { return parts_; }
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
    regions_.clear();
    memory_.keepalive.reset();
    memory_.region.reset();
    state_.store(state, std::memory_order_release);
  }

  const RequestKind kind_;
  const uint64_t tag_;
  OperationMemory memory_;
  std::vector<std::shared_ptr<MemoryRegion>> regions_;
  std::vector<LocalPart> parts_;
  uint64_t bytes_;
  uint64_t id_ = 0;
  std::exception_ptr failure_;
  std::atomic<State> state_{State::pending};
};

}  // namespace rdmatx
