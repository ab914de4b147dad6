#include "messaging/exchange.hpp"

#include <cstring>

#include "base/crc32c.hpp"
#include "base/error.hpp"

namespace rdmatx {

bool Exchange::try_send(uint64_t tag, const void* data, uint64_t bytes) {
  if (!is_eager(bytes) || !data_.empty() || !credits_.has_data() || !can_post_message(bytes)) return false;
  MessageHeader header{MessageKind::eager};
  header.tag = tag;
  header.bytes = bytes;
  if (verify_) header.peer_id = crc32c(0, data, bytes);
  credits_.spend_data();
  post(header, data, bytes);
  ++stats_.messages_sent;
  stats_.bytes_sent += bytes;
  return true;
}

void Exchange::send(std::shared_ptr<Request> request) {
  note_device(request);
  data_.push_back(std::move(request));
  flush();
}

bool Exchange::try_receive(TagChoice tag, void* data, uint64_t capacity, uint64_t& bytes) {
  const Unexpected* first = matcher_.peek_arrived(tag);
  if (!first || first->id != 0 || first->bytes > capacity || !gated_receives_.empty()) return false;
  Unexpected message = std::move(*matcher_.take_arrived(tag));
  bytes = message.bytes;
  if (bytes > 0) std::memcpy(data, message.payload.data(), bytes);
  const bool credit_was_held = message.credit_held;
  settle(message);
  ++stats_.messages_received;
  stats_.bytes_received += bytes;
  // The sender may wait for it, and nothing else may ever say it.
  if (credit_was_held) flush();
  return true;
}

void Exchange::receive(std::shared_ptr<Request> request) {
  note_device(request);
  if (!gated_receives_.empty() || !request->ready()) return gated_receives_.push_back(std::move(request));
  if (meet(std::move(request))) flush();
}

// True where its message is here already.
bool Exchange::meet(std::shared_ptr<Request> request) {
  const TagChoice tag = request->choice();
  auto arrived = matcher_.take_arrived(tag);
  if (!arrived) {
    matcher_.post(tag, std::move(request));
    return false;
  }
  MessageHeader header{};
  header.tag = arrived->tag;
  header.bytes = arrived->bytes;
  header.id = arrived->id;
  if (arrived->id == 0)
    deliver(request, header, arrived->payload);
  else
    grant(request, header);
  settle(*arrived);
  return true;
}

std::optional<WaitingMessage> Exchange::waiting_message(TagChoice tag) {
  const Unexpected* first = matcher_.peek_arrived(tag);
  if (!first) return std::nullopt;
  return WaitingMessage{first->tag, first->bytes};
}

bool Exchange::withdraw(const std::shared_ptr<Request>& request) {
  const auto same = [&](const auto& waiting) { return waiting == request; };
  const bool withdrawn =
      request->kind() == RequestKind::receive
          ? gated_receives_.erase_if(same) > 0 || matcher_.withdraw(request->choice(), request)
          : data_.erase_if(same) > 0;
  if (withdrawn) std::erase_if(gpu_requests_, same);
  return withdrawn;
}

void Exchange::post(MessageHeader header, const void* payload, size_t payload_bytes,
                    std::shared_ptr<Request> request) {
  const Credits::Returned returned = credits_.collect();
  header.data_credits = returned.data;
  header.control_credits = returned.control;
  lanes_.messages()->post_message(header, payload, payload_bytes, std::move(request));
}

void Exchange::post_data(const std::shared_ptr<Request>& request) {
  const uint64_t bytes = request->capacity();
  MessageHeader header{is_eager(bytes) ? MessageKind::eager : MessageKind::request};
  header.tag = request->tag();
  header.bytes = bytes;
  credits_.spend_data();
  if (header.kind == MessageKind::eager) {
    if (verify_) header.peer_id = crc32c(0, request->data(), bytes);
    post(header, request->data(), bytes);
    ++stats_.messages_sent;
    stats_.bytes_sent += bytes;
    request->succeed(bytes);  // copied out: the memory is free again
    return;
  }
  if (verify_ && request->device()) request->compute_checksum();  // its bytes are here only now
  request->set_id(header.id = next_id_++);
  asked_.emplace(header.id, request);
  post(header, nullptr, 0);
}

void Exchange::flush() {
  if (ended_) return;
  if (awaits_gpu()) look_at_gpu();
  flush_notices();
  Channel* channel = lanes_.messages();
  if (!channel) return;
  channel->begin_batch();
  flush_again();
  flush_control();
  flush_transfers();
  flush_notifications();
  while (!data_.empty() && credits_.has_data()) {
    if (!data_.front()->ready()) break;
    const uint64_t bytes = data_.front()->capacity();
    if (!can_post_message(is_eager(bytes) ? bytes : 0)) break;
    const std::shared_ptr<Request> request = std::move(data_.front());
    data_.pop_front();
    post_data(request);
  }
  if (credits_.due() && can_post_message(0)) post({MessageKind::credit}, nullptr, 0);
  channel->end_batch();
}

void Exchange::flush_control() {
  while (!control_.empty() && credits_.has_control()) {
    Control& next = control_.front();
    const size_t bytes = next.parts.size() * RemotePart::wire_bytes(lanes_.size());
    if (!can_post_message(bytes)) break;
    credits_.spend_control();
    if (next.request) {  // its last
      next.request->add_outstanding();
      next.request->set_all_posted(true);
    }
    encode_parts(next.parts, lanes_.size(), encoded_parts_);
    post(next.header, encoded_parts_.data(), bytes, std::move(next.request));
    control_.pop_front();
  }
}

bool Exchange::post_goodbye() {
  if (!can_post_message(0)) return false;
  lanes_.messages()->ask_for_completion();
  post({MessageKind::goodbye}, nullptr, 0);
  return true;
}

void Exchange::fail_all(const std::exception_ptr& failure) {
  ended_ = true;
  const auto fail = [&](const std::shared_ptr<Request>& request) {
    if (request && !request->finished()) request->fail(failure);
  };
  for (Lane& lane : lanes_)
    if (lane.channel) lane.channel->drain(0, [&](Channel::Unfinished work) { fail(work.request); });
  again_.for_each([&](const Again& message) { fail(message.request); });
  transfers_.for_each([&](const auto& transfer) { fail(transfer->request()); });
  for (const auto& request : gpu_requests_) fail(request);
  gated_receives_.for_each(fail);
  gated_one_sided_.for_each(fail);
  notifying_.for_each(fail);
  one_sided_.for_each(fail);
  control_.for_each([&](const Control& control) { fail(control.request); });
  data_.for_each(fail);
  for (const auto& [id, request] : asked_) fail(request);
  for (const auto& [id, request] : writing_) fail(request);
  matcher_.drain_posted(fail);
  again_.clear();
  gpu_requests_.clear();
  gated_receives_.clear();
  gated_one_sided_.clear();
  landing_.clear();
  transfers_.clear();
  notifying_.clear();
  one_sided_.clear();
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
  stats.waiting_notifications = notifications_.size();
  return stats;
}

}  // namespace rdmatx
