#include "messaging/exchange.hpp"

#include <cstring>

#include "base/error.hpp"

namespace rdmatx {

bool Exchange::try_send(uint64_t tag, const void* data, uint64_t bytes) {
  if (!is_eager(bytes) || !data_.empty() || !credits_.has_data() || !channel_.can_post_message(bytes))
    return false;
  MessageHeader header{MessageKind::eager};
  header.tag = tag;
  header.bytes = bytes;
  credits_.spend_data();
  post(header, data, bytes);
  ++stats_.messages_sent;
  stats_.bytes_sent += bytes;
  return true;
}

void Exchange::send(std::shared_ptr<Request> request) {
  data_.push_back(std::move(request));
  flush();
}

bool Exchange::try_receive(uint64_t tag, void* data, uint64_t capacity, uint64_t& bytes) {
  const Unexpected* first = matcher_.peek_arrived(tag);
  if (!first || first->id != 0 || first->bytes > capacity) return false;
  const Unexpected message = std::move(*matcher_.take_arrived(tag));
  settle(message);
  bytes = message.bytes;
  if (bytes > 0) std::memcpy(data, message.payload.data(), bytes);
  ++stats_.messages_received;
  stats_.bytes_received += bytes;
  return true;
}

void Exchange::receive(std::shared_ptr<Request> request) {
  const uint64_t tag = request->tag();
  auto arrived = matcher_.take_arrived(tag);
  if (!arrived) {
    matcher_.post(tag, std::move(request));
    return;
  }
  settle(*arrived);
  MessageHeader header{};
  header.tag = tag;
  header.bytes = arrived->bytes;
  header.id = arrived->id;
  if (arrived->id == 0)
    deliver(*request, header, arrived->payload);
  else
    grant(request, header);
  flush();
}

bool Exchange::withdraw(const std::shared_ptr<Request>& request) {
  if (request->kind() == RequestKind::receive) return matcher_.withdraw(request->tag(), request);
  return std::erase(data_, request) > 0;
}

void Exchange::transfer(std::shared_ptr<Request> request, const RemotePart& remote) {
  if (transfers_.empty() && channel_.can_post_piece() && request->parts().size() <= 1) {
    // Most are one work request: no need to keep a plan of it.
    const uint64_t bytes = remote.bytes;
    TransferPlan plan({&bytes, 1}, {&bytes, 1}, limits_, direction_of(request->kind()));
    if (const PlannedWork work = *plan.next(); work.last) {
      channel_.post_piece(*request, work, remote.address, remote.key, request);
      ++active_;
      return;
    }
  }
  std::vector<RemotePart> parts;
  if (remote.bytes > 0) parts.push_back(remote);
  transfers_.push_back(std::make_unique<Transfer>(std::move(request), std::move(parts), limits_, 0));
  flush();
}

void Exchange::complete(const std::shared_ptr<Request>& request) {
  --active_;
  const uint64_t bytes = request->capacity();
  switch (request->kind()) {
    case RequestKind::write:
      stats_.bytes_written += bytes;
      break;
    case RequestKind::read:
      stats_.bytes_read += bytes;
      break;
    default:
      ++stats_.messages_sent;
      stats_.bytes_sent += bytes;
  }
  request->succeed(bytes);
}

void Exchange::post(MessageHeader header, const void* payload, size_t payload_bytes,
                    std::shared_ptr<Request> completes) {
  const Credits::Returned returned = credits_.collect();
  header.data_credits = returned.data;
  header.control_credits = returned.control;
  channel_.post_message(header, payload, payload_bytes, std::move(completes));
}

void Exchange::post_data(const std::shared_ptr<Request>& request) {
  const uint64_t bytes = request->capacity();
  MessageHeader header{is_eager(bytes) ? MessageKind::eager : MessageKind::request};
  header.tag = request->tag();
  header.bytes = bytes;
  credits_.spend_data();
  if (header.kind == MessageKind::eager) {
    post(header, request->data(), bytes);
    ++stats_.messages_sent;
    stats_.bytes_sent += bytes;
    request->succeed(bytes);  // copied out: the memory is free again
    return;
  }
  request->set_id(header.id = next_id_++);
  asked_.emplace(header.id, request);
  post(header, nullptr, 0);
}

void Exchange::flush() {
  if (ended_) return;
  flush_control();
  while (!transfers_.empty() && transfers_.front()->post(channel_)) {
    const std::unique_ptr<Transfer> posted = std::move(transfers_.front());
    transfers_.pop_front();
    ++active_;
    if (posted->finish_id() == 0) continue;
    // Posted behind the pieces, so the peer sees it when they are in its memory.
    MessageHeader header{MessageKind::finish};
    header.id = posted->finish_id();
    control_.push_back({header, {}, posted->request()});
    flush_control();
  }
  while (!data_.empty() && credits_.has_data()) {
    const uint64_t bytes = data_.front()->capacity();
    if (!channel_.can_post_message(is_eager(bytes) ? bytes : 0)) break;
    const std::shared_ptr<Request> request = std::move(data_.front());
    data_.pop_front();
    post_data(request);
  }
  if (credits_.due() && channel_.can_post_message(0)) post({MessageKind::credit}, nullptr, 0);
}

void Exchange::flush_control() {
  while (!control_.empty() && credits_.has_control()) {
    Control& next = control_.front();
    const size_t bytes = next.parts.size() * sizeof(RemotePart);
    if (!channel_.can_post_message(bytes)) break;
    credits_.spend_control();
    post(next.header, next.parts.data(), bytes, std::move(next.completes));
    control_.pop_front();
  }
}

bool Exchange::post_goodbye() {
  if (!channel_.can_post_message(0)) return false;
  channel_.ask_for_completion();
  post({MessageKind::goodbye}, nullptr, 0);
  return true;
}

void Exchange::fail_all(const std::exception_ptr& failure) {
  ended_ = true;
  const auto fail = [&](const std::shared_ptr<Request>& request) {
    if (request && !request->finished()) request->fail(failure);
  };
  channel_.drain(fail);
  for (const auto& transfer : transfers_) fail(transfer->request());
  for (const Control& control : control_) fail(control.completes);
  for (const auto& request : data_) fail(request);
  for (const auto& [id, request] : asked_) fail(request);
  for (const auto& [id, request] : writing_) fail(request);
  matcher_.drain_posted(fail);
  transfers_.clear();
  control_.clear();
  data_.clear();
  asked_.clear();
  writing_.clear();
  active_ = 0;
  // A message that only asked to be sent never comes any more.
  matcher_.drop_arrived([&](const Unexpected& message) { return message.id != 0; });
}

void Exchange::check_late_refusal() {
  if (late_refusal_) std::rethrow_exception(std::exchange(late_refusal_, nullptr));
}

ConnectionStats Exchange::stats() const {
  ConnectionStats stats = stats_;
  stats.unexpected_messages = matcher_.arrived_count();
  stats.unexpected_bytes = unexpected_bytes_;
  return stats;
}

}  // namespace rdmatx
