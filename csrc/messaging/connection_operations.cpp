// One-sided operations, notifications and probes of a connection; see connection.hpp.

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "messaging/connection.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {

std::shared_ptr<Request> Connection::start_one_sided(std::shared_ptr<Request> request) {
  const CallerLock lock(mutex_);
  check_open();
  guarded([&] { exchange_.transfer(request); });
  return request;
}

// The key of a region, for each rail of this connection.
RemotePart Connection::remote_part(const RemoteKey& key, uint64_t offset, uint64_t bytes) const {
  return {key.address + offset, bytes, keys_of_rails(key.keys, key.key_count)};
}

RailKeys Connection::keys_of_rails(const RailKeys& keys, uint8_t count) const {
  RailKeys own{};
  for (size_t rail = 0; rail < remote_rails_.size(); ++rail) {
    if (remote_rails_[rail] >= count)
      throw UsageError("this key is of a context with " + std::to_string(count) +
                       " devices, and the peer of this connection has more: it is of another context");
    own[rail] = keys[remote_rails_[rail]];
  }
  return own;
}

std::vector<RemotePart> Connection::remote_parts(const RemoteKey& key, uint64_t offset,
                                                 uint64_t bytes) const {
  std::vector<RemotePart> parts;
  uint64_t begin = 0;  // of the piece, in the region
  for (const RemoteKey::Piece& piece : key.pieces) {
    const uint64_t first = std::max(offset, begin);
    const uint64_t end = std::min(offset + bytes, begin + piece.bytes);
    if (first < end)
      parts.push_back({key.address + first, end - first, keys_of_rails(piece.keys, key.key_count)});
    begin += piece.bytes;
  }
  return parts;
}

std::shared_ptr<Request> Connection::write(OperationMemory memory, const RemoteKey& key, uint64_t offset,
                                           std::optional<uint32_t> notify) {
  check_usable();
  key.check(offset, memory.bytes, RemoteAccess::write, "write");
  std::shared_ptr<DeviceOperation> device;
  prepare(memory, Access::none, device);
  auto request = make_request(RequestKind::write, TagChoice{}, std::move(memory));
  request->set_device(std::move(device));
  const uint64_t bytes = request->capacity();
  if (bytes <= limits_.inline_bytes && !request->device())
    request->use_inline();
  else
    request->register_memory(*usable_domains(), Access::none, limits_);
  if (bytes > 0) add_remote(*request, key, offset, bytes);
  request->set_notification(notify);
  return start_one_sided(std::move(request));
}

std::shared_ptr<Request> Connection::read(OperationMemory memory, const RemoteKey& key, uint64_t offset) {
  check_usable();
  key.check(offset, memory.bytes, RemoteAccess::read, "read");
  std::shared_ptr<DeviceOperation> device;
  prepare(memory, Access::local_write, device);
  auto request = make_request(RequestKind::read, TagChoice{}, std::move(memory));
  request->set_device(std::move(device));
  const uint64_t bytes = request->capacity();
  request->register_memory(*usable_domains(), Access::local_write, limits_);
  if (bytes > 0) add_remote(*request, key, offset, bytes);
  return start_one_sided(std::move(request));
}

std::shared_ptr<Request> Connection::write_many(std::vector<Block> blocks, std::optional<uint32_t> notify) {
  check_usable();
  std::vector<WriteBlock> planned;
  planned.reserve(blocks.size());
  std::shared_ptr<DeviceOperation> device;
  uint64_t at = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Block& block = blocks[i];
    const uint64_t bytes = block.memory.bytes;
    block.key.check(block.offset, bytes, RemoteAccess::write,
                    ("block " + std::to_string(i) + " of write_many").c_str());
    prepare(block.memory, Access::none, device, at);
    at += bytes;
    planned.push_back({std::move(block.memory), remote_part(block.key, block.offset, bytes), {}});
    if (block.key.pieces.empty() || bytes == 0) continue;
    std::vector<RemotePart> parts = remote_parts(block.key, block.offset, bytes);
    planned.back().remote = parts.front();
    planned.back().more.assign(parts.begin() + 1, parts.end());
  }
  auto request = make_request(std::move(planned));
  request->set_device(std::move(device));
  request->register_memory(*usable_domains(), Access::none, limits_);
  request->set_notification(notify);
  return start_one_sided(std::move(request));
}

std::shared_ptr<Request> Connection::start_atomic(RequestKind kind, const RemoteKey& key, uint64_t offset,
                                                  AtomicOperands operands) {
  check_usable();
  constexpr uint64_t bytes = sizeof(uint64_t);
  const char* name = request_kind_name(kind);
  key.check(offset, bytes, RemoteAccess::atomic, name);
  if ((key.address + offset) % bytes != 0)
    throw UsageError(
        std::string(name) + " at offset " + std::to_string(offset) +
        ": the 8 bytes must lie at an address that is a multiple of 8, and the region starts at " +
        std::to_string(key.address % bytes) + " beyond one");
  const auto domains = usable_domains();
  const DeviceAttributes& device = domains->front()->device()->attributes();
  if (!device.limits.atomics)
    throw UnavailableError(std::string(name) + ": device " + device.name +
                           " has no atomic operations; use messages instead");
  auto request = make_request(kind, operands);
  add_remote(*request, key, offset, bytes);
  return start_one_sided(std::move(request));
}

std::shared_ptr<Request> Connection::fetch_add(const RemoteKey& key, uint64_t offset, uint64_t value) {
  return start_atomic(RequestKind::fetch_add, key, offset, {value, 0});
}

std::shared_ptr<Request> Connection::compare_swap(const RemoteKey& key, uint64_t offset, uint64_t expected,
                                                  uint64_t desired) {
  return start_atomic(RequestKind::compare_swap, key, offset, {desired, expected});
}

std::shared_ptr<Request> Connection::flush() {
  check_usable();
  auto request = make_request(RequestKind::flush, TagChoice{}, OperationMemory{});
  const CallerLock lock(mutex_);
  check_open();
  exchange_.flush_one_sided(request);
  return request;
}

template <typename Look>
auto Connection::wait_for_arrival(const Deadline& deadline, Look look) {
  for (;;) {
    const uint64_t seen = arrivals_.load(std::memory_order_acquire);
    {
      const CallerLock lock(mutex_);
      if (state_ == State::open) poll();
      if (auto found = look()) return found;
      check_open();
    }
    if (arrivals_.load(std::memory_order_acquire) != seen) continue;
    const auto changed = [&] { return arrivals_.load(std::memory_order_acquire) != seen; };
    if (!waiting_.progress->wait(this, changed, deadline)) return decltype(look()){};
  }
}

WaitingMessage Connection::probe(TagChoice tag, std::optional<double> timeout) {
  check_usable();
  const Deadline deadline = waiting_.deadline(timeout);
  if (const auto found = wait_for_arrival(deadline, [&] { return exchange_.waiting_message(tag); }))
    return *found;
  throw TimeoutError("probe: no message " + (tag ? "with tag " + std::to_string(*tag) : "of any tag") +
                         " came from " + peer_ + " within " + seconds_text(deadline.seconds()),
                     peer_, "probe", deadline.seconds());
}

std::optional<WaitingMessage> Connection::iprobe(TagChoice tag) {
  check_usable();
  const CallerLock lock(mutex_);
  if (state_ == State::open) poll();
  auto found = exchange_.waiting_message(tag);
  if (!found) check_open();
  return found;
}

uint32_t Connection::next_notification(std::optional<double> timeout) {
  check_usable();
  const Deadline deadline = waiting_.deadline(timeout);
  if (const auto found = wait_for_arrival(deadline, [&] { return look_for_notification(); })) return *found;
  throw TimeoutError(
      "next_notification: no write of " + peer_ + " brought one within " + seconds_text(deadline.seconds()),
      peer_, "next_notification", deadline.seconds());
}

std::optional<uint32_t> Connection::take_notification() {
  check_usable();
  const CallerLock lock(mutex_);
  if (state_ == State::open) poll();
  auto found = look_for_notification();
  if (!found) check_open();
  return found;
}

std::optional<uint32_t> Connection::look_for_notification() {
  std::optional<uint32_t> found;
  if (state_ != State::closed) guarded([&] { found = flushed(exchange_.take_notification()); });
  return found;
}

}  // namespace rdmatx
