#include "messaging/connection.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {

namespace {

constexpr Access receiving_access = Access::local_write | Access::remote_write;

/// Small, dense and the host's: copied out of the call itself.
bool goes_at_once(const OperationMemory& memory) {
  return Exchange::is_eager(memory.bytes) && !memory.layout && !memory.device;
}

std::vector<Path> paths_of(const std::vector<Lane>& lanes) {
  std::vector<Path> paths;
  for (const Lane& lane : lanes) paths.push_back(lane.path);
  return paths;
}

std::vector<size_t> remote_rails_of(const std::vector<Lane>& lanes) {
  std::vector<size_t> rails;
  for (const Lane& lane : lanes) rails.push_back(lane.remote_rail);
  return rails;
}

}  // namespace

std::shared_ptr<Connection> Connection::create(const ContextResources& resources, ConnectionParts parts) {
  std::shared_ptr<Connection> connection(new Connection(resources, std::move(parts)));
  connection->waiting_.progress->add(connection, connection->socket_.fd());
  return connection;
}

Connection::Connection(const ContextResources& resources, ConnectionParts parts)
    : waiting_(resources.waiting),
      peer_(std::move(parts.peer)),
      paths_(paths_of(parts.lanes)),
      remote_rails_(remote_rails_of(parts.lanes)),
      verify_(parts.verify),
      is_listener_(parts.is_listener),
      gpus_(resources.gpus),
      lanes_(std::move(parts.lanes)),
      domains_(std::make_shared<const RailDomainList>(lanes_.domains())),
      queues_(lanes_.size()),
      limits_(lanes_.limits()),
      exchange_(lanes_, parts.peer_slots, verify_, peer_),
      socket_(std::move(parts.socket)) {
  for (size_t i = 0; i < lanes_.size(); ++i) queues_[i] = lanes_[i].channel->completion_queue().get();
}

bool Connection::owns(const CompletionQueue* queue) const noexcept {
  for (const auto& own : queues_)
    if (own.load(std::memory_order_relaxed) == queue) return true;
  return false;
}

void Connection::check_usable() const {
  check_not_forked(waiting_.generation);
}

void Connection::check_open() const {
  if (state_ == State::closed || closing_)
    throw ClosedError("the connection to " + peer_ + " was closed: ctx.connect() opens a new one");
  if (failure_) std::rethrow_exception(failure_);
}

std::shared_ptr<const RailDomainList> Connection::usable_domains() {
  const CallerLock lock(mutex_);
  if (state_ != State::peer_closed) check_open();
  return domains_;
}

// Registrations take long, and so does the checksum of a large message.
bool Connection::starts_quickly(const OperationMemory& memory, Access access) const {
  if (memory.layout || memory.device) return false;
  if (Exchange::is_eager(memory.bytes)) return true;
  if (!memory.region || verify_) return false;
  return std::all_of(memory.region->begin(), memory.region->end(),
                     [&](const auto& region) { return has_access(region->access(), access); });
}

bool Connection::try_send(OperationMemory& memory, uint64_t tag) {
  check_usable();
  if (!goes_at_once(memory) || !mutex_.try_lock()) return false;
  const CallerLock lock(mutex_, std::adopt_lock);
  return send_at_once(memory, tag);
}

void Connection::check_may_send() {
  check_open();
  exchange_.check_late_refusal();
}

bool Connection::send_at_once(const OperationMemory& memory, uint64_t tag) {
  check_may_send();
  bool sent = false;
  guarded([&] { sent = exchange_.try_send(tag, memory.data, memory.bytes); });
  return sent;
}

std::shared_ptr<Request> Connection::try_isend(OperationMemory& memory, uint64_t tag) {
  check_usable();
  if (!starts_quickly(memory, Access::none) || !mutex_.try_lock()) return nullptr;
  const CallerLock lock(mutex_, std::adopt_lock);
  if (Exchange::is_eager(memory.bytes)) {
    if (!send_at_once(memory, tag)) return nullptr;
    auto request = make_request(RequestKind::send, tag, OperationMemory{nullptr, memory.bytes});
    request->succeed(memory.bytes);
    return request;
  }
  check_may_send();
  auto request = make_request(RequestKind::send, tag, std::move(memory));
  request->register_memory(*domains_, Access::none, limits_);
  guarded([&] { exchange_.send(request); });
  return request;
}

// What came before the peer closed is still received.
void Connection::check_may_receive(TagChoice tag) {
  if (state_ != State::peer_closed || !exchange_.waiting_message(tag)) check_open();
}

std::shared_ptr<Request> Connection::try_ireceive(OperationMemory& memory, TagChoice tag) {
  check_usable();
  if (!starts_quickly(memory, receiving_access) || !mutex_.try_lock()) return nullptr;
  const CallerLock lock(mutex_, std::adopt_lock);
  check_may_receive(tag);
  auto request = make_request(RequestKind::receive, tag, std::move(memory));
  if (!Exchange::is_eager(request->capacity()))
    request->register_memory(*domains_, receiving_access, limits_);
  guarded([&] { exchange_.receive(request); });
  return request;
}

std::shared_ptr<Request> Connection::start_send(OperationMemory memory, uint64_t tag) {
  std::shared_ptr<DeviceOperation> device;
  prepare(memory, Access::none, device);
  auto request = make_request(RequestKind::send, tag, std::move(memory));
  request->set_device(std::move(device));
  // Outside the lock: it may take long.
  if (!Exchange::is_eager(request->capacity())) {
    request->register_memory(*usable_domains(), Access::none, limits_);
    if (verify_ && !request->device()) request->compute_checksum();
  }
  const CallerLock lock(mutex_);
  check_may_send();
  guarded([&] { exchange_.send(request); });
  return request;
}

std::shared_ptr<Request> Connection::start_receive(OperationMemory memory, TagChoice tag) {
  std::shared_ptr<DeviceOperation> device;
  prepare(memory, receiving_access, device);
  auto request = make_request(RequestKind::receive, tag, std::move(memory));
  request->set_device(std::move(device));
  if (!Exchange::is_eager(request->capacity()))
    request->register_memory(*usable_domains(), receiving_access, limits_);
  const CallerLock lock(mutex_);
  check_may_receive(tag);
  guarded([&] { exchange_.receive(request); });
  return request;
}

void Connection::send(OperationMemory memory, uint64_t tag, std::optional<double> timeout) {
  check_usable();
  if (goes_at_once(memory)) {
    const CallerLock lock(mutex_);
    if (send_at_once(memory, tag)) return;
  }
  const Deadline deadline = waiting_.deadline(timeout);
  finish(start_send(std::move(memory), tag), deadline, true);
}

uint64_t Connection::receive(OperationMemory memory, TagChoice tag, std::optional<double> timeout) {
  check_usable();
  {
    const CallerLock lock(mutex_);
    if (state_ == State::open) poll();
    uint64_t bytes = 0;
    bool received = false;
    if (state_ != State::closed && state_ != State::failed && !memory.layout && !memory.device)
      guarded([&] { received = exchange_.try_receive(tag, memory.data, memory.bytes, bytes); });
    if (received) return bytes;
    if (!exchange_.waiting_message(tag)) check_open();
  }
  const Deadline deadline = waiting_.deadline(timeout);
  const std::shared_ptr<Request> request = start_receive(std::move(memory), tag);
  finish(request, deadline, true);
  return request->bytes();
}

std::shared_ptr<Request> Connection::isend(OperationMemory memory, uint64_t tag) {
  check_usable();
  return start_send(std::move(memory), tag);
}

std::shared_ptr<Request> Connection::ireceive(OperationMemory memory, TagChoice tag) {
  check_usable();
  return start_receive(std::move(memory), tag);
}

void Connection::wait(const std::shared_ptr<Request>& request, std::optional<double> timeout) {
  check_usable();
  finish(request, waiting_.deadline(timeout), false);
}

bool Connection::done(const Request& request) {
  check_usable();
  if (!request.finished()) progress();
  return request.finished();
}

bool Connection::withdraw(const std::shared_ptr<Request>& request) {
  const CallerLock lock(mutex_);
  return exchange_.withdraw(request);
}

void Connection::finish(const std::shared_ptr<Request>& request, const Deadline& deadline, bool withdraw) {
  const auto finished = [pending = request.get()] { return pending->finished(); };
  const auto take_back = [&] { return withdraw && this->withdraw(request); };
  bool in_time = false;
  try {
    in_time = waiting_.progress->wait(this, finished, deadline);
  } catch (...) {
    // Interrupted: nobody will ask for this operation any more.
    take_back();
    throw;
  }
  if (!in_time) {
    const bool withdrawn = take_back();
    if (!request->finished()) time_out(*request, deadline.seconds(), withdrawn);
  }
  request->check();
}

void Connection::time_out(const Request& request, double seconds, bool withdrawn) {
  const bool sending = request.kind() == RequestKind::send;
  const bool receiving = request.kind() == RequestKind::receive;
  const std::string operation = request_kind_name(request.kind());
  std::string text = operation;
  if (request.capacity() > 0 || sending || receiving)
    text += " of " + std::to_string(request.capacity()) + " bytes";
  text += receiving                              ? " from "
          : request.kind() == RequestKind::read  ? " from memory of "
          : request.kind() == RequestKind::flush ? " with "
                                                 : " to ";
  text += peer_;
  if (sending || (receiving && request.choice())) text += " (tag " + std::to_string(request.tag()) + ")";
  if (receiving && !request.choice()) text += " (any tag)";
  text += " was not done within " + seconds_text(seconds);
  if (withdrawn) {
    text += receiving ? "; no such message came, and the receive was withdrawn"
                      : "; the peer takes no more messages for now, and this one was withdrawn";
  } else {
    text += "; it goes on, and its memory is held until it ends";
  }
  const ConnectionStats now = stats();
  if (receiving && now.unexpected_messages > 0)
    text += ". " + std::to_string(now.unexpected_messages) + " messages with other tags (" +
            std::to_string(now.unexpected_bytes) + " bytes) wait to be received";
  throw TimeoutError(text, peer_, operation, seconds);
}

ConnectionStats Connection::stats() {
  const CallerLock lock(mutex_);
  return exchange_.stats();
}

std::vector<RailStats> Connection::rail_stats() {
  const CallerLock lock(mutex_);
  std::vector<RailStats> stats;
  for (const Lane& lane : lanes_) {
    stats.push_back(lane.stats);
    stats.back().alive = state_ == State::open && lane.alive();
  }
  return stats;
}

uint64_t Work::bytes() const {
  if (!request_->finished()) throw UsageError("the operation is still pending: wait() for it first");
  request_->check();
  return request_->bytes();
}

}  // namespace rdmatx
