// Writes, reads, atomics and notifications; see exchange.hpp.

#include "messaging/exchange.hpp"

namespace rdmatx {

void Exchange::transfer(std::shared_ptr<Request> request) {
  note_device(request);
  if (!gated_one_sided_.empty() || !request->ready()) return gated_one_sided_.push_back(std::move(request));
  begin_transfer(std::move(request));
  if (!transfers_.empty()) flush();
}

void Exchange::begin_transfer(std::shared_ptr<Request> request) {
  one_sided_.push_back(request);
  if (request->notification()) notifying_.push_back(request);
  ++active_;
  if (transfers_.empty() && post_at_once(request)) return;
  transfers_.push_back(std::make_unique<Transfer>(std::move(request), lanes_.limits()));
}

// Most are one work request: no need to keep a plan of it.
bool Exchange::post_at_once(const std::shared_ptr<Request>& request) {
  const bool one_part = request->parts().size() <= 1 && request->remote().size() <= 1;
  Channel* channel = lanes_.messages();
  if (!one_part || request->device() || is_atomic(request->kind()) || !channel || !channel->can_post_piece())
    return false;
  if (request->notification() && !may_notify(request)) return false;
  const uint64_t bytes = request->capacity();
  if (lanes_.stripes(bytes)) return false;
  TransferPlan plan({&bytes, 1}, {&bytes, 1}, lanes_.limits(), direction_of(request->kind()));
  const PlannedWork work = *plan.next();
  if (!work.last) return false;
  request->add_outstanding();
  request->set_all_posted(true);
  lanes_[lanes_.message_lane()].stats.bytes += bytes;
  channel->post_piece(request, work, lanes_.message_lane(), request->notification());
  if (request->notification()) sent_notification();
  return true;
}

void Exchange::flush_one_sided(std::shared_ptr<Request> request) {
  if (!gated_one_sided_.empty()) return gated_one_sided_.push_back(std::move(request));
  begin_flush(std::move(request));
}

void Exchange::begin_flush(std::shared_ptr<Request> request) {
  if (one_sided_.empty()) return request->succeed(0);
  one_sided_.push_back(std::move(request));
}

void Exchange::flush_transfers() {
  while (!transfers_.empty() && transfers_.front()->post(lanes_, may_notify(transfers_.front()->request()))) {
    const std::unique_ptr<Transfer> posted = std::move(transfers_.front());
    transfers_.pop_front();
    end_of_posting(*posted);
  }
}

void Exchange::end_of_posting(const Transfer& transfer) {
  const std::shared_ptr<Request>& request = transfer.request();
  if (request->finish_id() != 0) {
    // Posted behind the pieces, so the peer sees it when they are in its memory; what went over other rails
    // has to arrive first.
    if (!request->scattered() || request->outstanding() == 0) {
      queue_finish(request);
      flush_control();
    } else {
      request->await_pieces();
    }
  } else if (request->notification() && !transfer.notified()) {
    request->set_notification_due(true);
  } else {
    if (transfer.notified()) sent_notification();
    request->set_all_posted(true);
    if (request->outstanding() == 0) end_of_pieces(request);
  }
}

void Exchange::queue_finish(const std::shared_ptr<Request>& request) {
  MessageHeader header{MessageKind::finish};
  header.id = request->finish_id();
  header.peer_id = request->checksum();
  control_.push_back({header, {}, request});
}

void Exchange::sent_notification() noexcept {
  credits_.spend_data();
  notifying_.pop_front();
  ++stats_.notifications_sent;
}

// A write of nothing behind the write it belongs to: on one queue pair it arrives after it. What went over
// other rails has to arrive first.
void Exchange::flush_notifications() {
  Channel* channel = lanes_.messages();
  while (channel && !notifying_.empty() && credits_.has_data() && channel->can_post_piece()) {
    const std::shared_ptr<Request> request = notifying_.front();
    if (!request->notification_due() || (request->scattered() && request->outstanding() > 0)) return;
    PlannedWork nothing;
    nothing.offset = request->capacity();
    nothing.signalled = true;
    request->add_outstanding();
    request->set_all_posted(true);
    channel->post_piece(request, nothing, lanes_.message_lane(), request->notification());
    sent_notification();
  }
}

void Exchange::notified(uint32_t immediate) {
  ++stats_.notifications_received;
  notifications_.push_back(immediate);
  // While too many wait here the credit is held back, so that a peer that runs ahead stops.
  if (notifications_.size() > ProtocolSizes::waiting_notifications)
    ++notification_credits_held_;
  else
    credits_.owe_data();
}

std::optional<uint32_t> Exchange::take_notification() {
  if (notifications_.empty()) return std::nullopt;
  const uint32_t immediate = notifications_.front();
  notifications_.pop_front();
  if (notification_credits_held_ > 0) {
    --notification_credits_held_;
    credits_.owe_data();
    flush();
  }
  return immediate;
}

void Exchange::complete(const std::shared_ptr<Request>& request) {
  request->remove_outstanding();
  if (request->outstanding() > 0) return;
  if (request->all_posted()) return end_of_pieces(request);
  // Posted by the next flush: what is posted here would return credit for slots that are not posted again
  // yet.
  if (request->take_awaited_pieces()) queue_finish(request);
}

void Exchange::end_of_pieces(const std::shared_ptr<Request>& request) {
  --active_;
  const uint64_t bytes = request->capacity();
  switch (request->kind()) {
    case RequestKind::write:
    case RequestKind::write_many:
      stats_.bytes_written += bytes;
      break;
    case RequestKind::read:
      stats_.bytes_read += bytes;
      break;
    case RequestKind::fetch_add:
    case RequestKind::compare_swap:
      ++stats_.atomics;
      break;
    default:
      ++stats_.messages_sent;
      stats_.bytes_sent += bytes;
  }
  if (request->kind() == RequestKind::read)
    end_arrival(request, bytes);
  else
    request->succeed(bytes);
  end_flushes();
}

void Exchange::end_flushes() {
  while (!one_sided_.empty()) {
    const auto& oldest = one_sided_.front();
    if (!oldest->finished() && oldest->kind() != RequestKind::flush) break;
    if (!oldest->finished()) oldest->succeed(0);
    one_sided_.pop_front();
  }
}

}  // namespace rdmatx
