#include "messaging/connection.hpp"

#include <utility>

#include "base/error.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {

std::shared_ptr<Connection> Connection::create(const ContextResources& resources,
                                               std::unique_ptr<Channel> channel, BootstrapSocket socket,
                                               Path path, SlotCounts peer_slots, std::string peer) {
  std::shared_ptr<Connection> connection(new Connection(resources, std::move(channel), std::move(socket),
                                                        std::move(path), peer_slots, std::move(peer)));
  connection->waiting_.progress->add(connection, connection->socket_.fd());
  return connection;
}

Connection::Connection(const ContextResources& resources, std::unique_ptr<Channel> channel,
                       BootstrapSocket socket, Path path, SlotCounts peer_slots, std::string peer)
    : waiting_(resources.waiting),
      domain_(resources.domain),
      peer_(std::move(peer)),
      path_(std::move(path)),
      channel_(std::move(channel)),
      completion_queue_(channel_->completion_queue().get()),
      limits_(channel_->limits(path_.max_message_bytes)),
      verify_(path_.verify),
      exchange_(*channel_, peer_),
      socket_(std::move(socket)) {
  exchange_.configure(peer_slots, limits_, verify_);
}

void Connection::check_usable() const {
  check_not_forked(waiting_.generation);
}

void Connection::check_open() const {
  if (state_ == State::closed || closing_)
    throw ClosedError("the connection to " + peer_ + " was closed: ctx.connect() opens a new one");
  if (failure_) std::rethrow_exception(failure_);
}

std::shared_ptr<ProtectionDomain> Connection::usable_domain() {
  const CallerLock lock(*this);
  if (state_ != State::peer_closed) check_open();
  return domain_;
}

std::shared_ptr<Request> Connection::start_send(OperationMemory memory, uint64_t tag) {
  auto request = std::make_shared<Request>(RequestKind::send, tag, std::move(memory));
  // Outside the lock: it may take long.
  if (!Exchange::is_eager(request->capacity())) {
    request->register_memory(usable_domain(), Access::none, limits_);
    if (verify_) request->compute_checksum();
  }
  const CallerLock lock(*this);
  check_open();
  exchange_.check_late_refusal();
  guarded([&] { exchange_.send(request); });
  return request;
}

std::shared_ptr<Request> Connection::start_receive(OperationMemory memory, TagChoice tag) {
  auto request = std::make_shared<Request>(RequestKind::receive, tag, std::move(memory));
  if (!Exchange::is_eager(request->capacity()))
    request->register_memory(usable_domain(), Access::local_write | Access::remote_write, limits_);
  const CallerLock lock(*this);
  if (state_ != State::peer_closed || !exchange_.waiting_message(tag)) check_open();
  guarded([&] { exchange_.receive(request); });
  return request;
}

void Connection::send(OperationMemory memory, uint64_t tag, std::optional<double> timeout) {
  check_usable();
  if (Exchange::is_eager(memory.bytes) && !memory.layout) {
    const CallerLock lock(*this);
    check_open();
    exchange_.check_late_refusal();
    bool sent = false;
    guarded([&] { sent = exchange_.try_send(tag, memory.data, memory.bytes); });
    if (sent) return;
  }
  const Deadline deadline = waiting_.deadline(timeout);
  finish(start_send(std::move(memory), tag), deadline, true);
}

uint64_t Connection::receive(OperationMemory memory, TagChoice tag, std::optional<double> timeout) {
  check_usable();
  {
    const CallerLock lock(*this);
    if (state_ == State::open) poll();
    uint64_t bytes = 0;
    bool received = false;
    if (state_ != State::closed && state_ != State::failed && !memory.layout)
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

void Connection::finish(const std::shared_ptr<Request>& request, const Deadline& deadline, bool withdraw) {
  const auto finished = [pending = request.get()] { return pending->finished(); };
  const auto take_back = [&] {
    const CallerLock lock(*this);
    return withdraw && exchange_.withdraw(request);
  };
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
  const CallerLock lock(*this);
  return exchange_.stats();
}

uint64_t Work::bytes() const {
  if (!request_->finished()) throw UsageError("the operation is still pending: wait() for it first");
  request_->check();
  return request_->bytes();
}

}  // namespace rdmatx
