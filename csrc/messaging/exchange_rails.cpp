// What a failed rail leaves to the others; see exchange.hpp.

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "messaging/exchange.hpp"

namespace rdmatx {
namespace {

MessageHeader header_of(std::span<const std::byte> message) {
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  return header;
}

}  // namespace

// The queue pairs of both sides are gone, so nothing of what was posted can arrive any more. What the peer
// got is known exactly, since both count. Writes and reads that may not have happened are done again: twice
// is as good as once. Atomics are not.
void Exchange::settle(Channel& failed, uint64_t delivered) {
  Leftovers leftovers;
  failed.drain(delivered, [&](Channel::Unfinished work) { take_over(std::move(work), leftovers); });
  resume(std::move(leftovers));
}

void Exchange::take_over(Channel::Unfinished work, Leftovers& leftovers) {
  if (!work.message.empty() && !work.delivered) return take_over_message(std::move(work), leftovers);
  if (!work.request) return;
  if (work.is_atomic) return take_over_atomic(work.request);
  // That a read was answered is not known by what came after it: its bytes come here.
  if (work.delivered && work.request->kind() != RequestKind::read) return complete(work.request);
  if (work.notifies) {  // its credit was spent on the rail that failed
    credits_.receive(1, 0);
    --stats_.notifications_sent;
    leftovers.notifying.push_back(work.request);
  }
  work.request->remove_outstanding();
  work.request->start_again();  // it is not to end with what else completes here
  const auto known = std::find_if(leftovers.transfers.begin(), leftovers.transfers.end(),
                                  [&](const Leftover& other) { return other.request == work.request; });
  if (known != leftovers.transfers.end())
    known->ranges.push_back(work.range);
  else
    leftovers.transfers.push_back({std::move(work.request), {work.range}});
}

void Exchange::take_over_message(Channel::Unfinished work, Leftovers& leftovers) {
  const MessageHeader header = header_of(work.message);
  const bool follows_pieces =
      header.kind == MessageKind::finish &&
      std::any_of(leftovers.transfers.begin(), leftovers.transfers.end(),
                  [&](const Leftover& other) { return other.request == work.request; });
  if (header.kind == MessageKind::notice) {  // also while no rail carries messages
    const auto record = work.message.subspan(sizeof header);
    leftovers.notices.emplace_back(record.begin(), record.end());
    return;
  }
  if (!follows_pieces) {
    leftovers.messages.push_back({{work.message.begin(), work.message.end()}, std::move(work.request)});
    return;
  }
  // It will be said anew, behind its pieces: the credit it cost comes back, and so does what it was to
  // return.
  credits_.receive(0, 1);
  for (uint32_t i = 0; i < header.data_credits; ++i) credits_.owe_data();
  for (uint32_t i = 0; i < header.control_credits; ++i) credits_.owe_control();
  work.request->remove_outstanding();
}

void Exchange::take_over_atomic(const std::shared_ptr<Request>& request) {
  request->remove_outstanding();
  --active_;
  const std::string name = request_kind_name(request->kind());
  request->fail(std::make_exception_ptr(CompletionError(
      name + " to " + peer_ +
          ": its rail failed, and whether it was performed cannot be known. The connection goes "
          "on over its other rails; read the value to find out",
      0, 0, peer_, name)));
  end_flushes();
}

// The one that has not posted all of the request's pieces yet.
Transfer* Exchange::find_transfer(const std::shared_ptr<Request>& request) {
  for (size_t i = 0; i < transfers_.size(); ++i)
    if (transfers_[i]->request() == request) return transfers_[i].get();
  return nullptr;
}

// Before what was started later, and in the order it was started.
void Exchange::resume(Leftovers leftovers) {
  for (auto notice = leftovers.notices.rbegin(); notice != leftovers.notices.rend(); ++notice)
    unsaid_.push_front(std::move(*notice));
  for (auto message = leftovers.messages.rbegin(); message != leftovers.messages.rend(); ++message)
    again_.push_front(std::move(*message));
  for (auto request = leftovers.notifying.rbegin(); request != leftovers.notifying.rend(); ++request)
    notifying_.push_front(std::move(*request));
  for (auto leftover = leftovers.transfers.rbegin(); leftover != leftovers.transfers.rend(); ++leftover) {
    const std::shared_ptr<Request>& request = leftover->request;
    if (Transfer* posting = find_transfer(request)) {
      posting->add_ranges(leftover->ranges);
      continue;
    }
    // Its finish, if it waits to be posted, comes behind these.
    control_.erase_if([&](const Control& waiting) { return waiting.request == request; });
    transfers_.push_front(std::make_unique<Transfer>(request, lanes_.limits(), std::move(leftover->ranges)));
  }
}

void Exchange::say(std::vector<std::byte> record) {
  unsaid_.push_back(std::move(record));
  flush_notices();
}

// Also while the rail of the messages is the one that failed.
void Exchange::flush_notices() {
  while (!unsaid_.empty()) {
    const auto alive =
        std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.alive(); });
    if (alive == lanes_.end() || !alive->channel->can_post_message(unsaid_.front().size())) return;
    alive->channel->post_message({MessageKind::notice}, unsaid_.front().data(), unsaid_.front().size());
    unsaid_.pop_front();
  }
}

std::vector<std::byte> Exchange::take_notice() {
  if (heard_.empty()) return {};
  std::vector<std::byte> record = std::move(heard_.front());
  heard_.pop_front();
  return record;
}

void Exchange::beat() {
  for (Lane& lane : lanes_) {
    if (!lane.alive() || !lane.channel->idle()) continue;
    lane.channel->ask_for_completion();
    lane.channel->post_message({MessageKind::credit}, nullptr, 0);
  }
}

void Exchange::flush_again() {
  while (!again_.empty()) {
    Again& next = again_.front();
    const size_t payload = next.message.size() - sizeof(MessageHeader);
    if (!lanes_.messages()->can_post_message(payload)) return;
    lanes_.messages()->post_message(header_of(next.message), next.message.data() + sizeof(MessageHeader),
                                    payload, std::move(next.request));
    again_.pop_front();
  }
}

}  // namespace rdmatx
