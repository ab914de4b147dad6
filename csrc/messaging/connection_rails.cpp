// How a connection gives a rail up, and gets it back; see connection.hpp.

#include <sched.h>

#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "messaging/connection.hpp"

namespace rdmatx {
namespace {

using Clock = Deadline::Clock;
using std::chrono::milliseconds;

constexpr milliseconds look_interval{50};
constexpr milliseconds device_look_interval{500};
constexpr milliseconds first_pause{100};
constexpr milliseconds longest_pause{2000};
constexpr milliseconds offer_patience{5000};
constexpr milliseconds beat_interval{1000};
// A queue pair in the error state flushes its receives; that is when nothing more arrives.
constexpr milliseconds flush_patience{1000};

enum class PortHealth { active, inactive, gone };

PortHealth health_of(const Lane& lane) {
  try {
    const PortState state = lane.rail.device()->query_port(lane.path.local.port).state;
    return state == PortState::active ? PortHealth::active : PortHealth::inactive;
  } catch (const VerbsError&) {
    return PortHealth::gone;  // the device was removed, or its driver failed
  }
}

bool port_is_active(const Lane& lane) {
  return health_of(lane) == PortHealth::active;
}

// Where the rail's own address lies in the table now: a link that comes back may have moved it.
std::optional<uint8_t> gid_index(const Lane& lane) {
  for (const GidEntry& entry : lane.rail.device()->query_gids(lane.path.local.port))
    if (entry.gid == lane.path.local.gid && entry.type == lane.path.local.type)
      return static_cast<uint8_t>(entry.index);
  return std::nullopt;
}

void connect_channel(Lane& lane, const RailNotice& peer) {
  GidCandidate local = lane.path.local;
  const auto index = gid_index(lane);
  if (!index) throw UnavailableError("the port has lost its address " + local.gid.text());
  local.index = *index;
  lane.replacement->connect(address_of(local, lane.replacement->queue_pair_number(), 0),
                            address_of(lane.path.remote, peer.queue_pair_number, peer.packet_sequence_number),
                            lane.max_rd_atomic);
}

RailNotice notice_of(const Lane& lane, size_t index) {
  const Address own = lane.replacement->local_address(lane.path.local.port, lane.path.local.index);
  return {static_cast<uint8_t>(index), 0, own.queue_pair_number, own.packet_sequence_number};
}

void give_replacement_up(Lane& lane, const Error& why) {
  lane.replacement.reset();
  log(LogLevel::info, std::string("a rail cannot be brought back yet: ") + why.what());
}

}  // namespace

// A rail's failure is not the connection's while another lives; what any rail would refuse is.
bool Connection::may_retire(size_t index, const Completion& completion) const {
  switch (completion.status()) {
    case WorkCompletionStatus::retry_exceeded:
    case WorkCompletionStatus::flushed:
    case WorkCompletionStatus::response_timeout:
    case WorkCompletionStatus::fatal:
    case WorkCompletionStatus::general_error:
      return lanes_.any_left_but(index);
    default:
      return false;
  }
}

// Both sides do this, whoever found out first, and then tell each other what they got over the rail.
void Connection::retire_lane(size_t index, const std::string& why) {
  Lane& lane = lanes_[index];
  ++lane.stats.errors;
  log(LogLevel::warning, "a rail of the connection to " + peer_ + " failed (" + lane.path.text() +
                             "): " + why + "; its work goes over the others");
  // From here on it takes nothing more. What it took counts, so it is handled first.
  try {
    lane.channel->stop();
  } catch (const VerbsError&) {
    // The device is gone: it takes nothing either.
  }
  const auto until = Clock::now() + flush_patience;
  for (bool flushed = false; !flushed && Clock::now() < until;) {
    std::array<Completion, 16> completions;
    const size_t count = lane.channel->poll(completions);
    for (size_t i = 0; i < count && state_ == State::open; ++i) {
      if (completions[i].succeeded())
        handle(index, completions[i]);
      else
        flushed = flushed || Channel::is_receive(completions[i]);
    }
    if (count == 0) ::sched_yield();
  }
  if (state_ != State::open) return;
  lane.channel->destroy();
  lane.state = Lane::State::retiring;
  say(RecordKind::rail_failed, {static_cast<uint8_t>(index), lane.channel->deliveries(), 0, 0});
  settle_lane(index);
}

void Connection::settle_lane(size_t index) {
  Lane& lane = lanes_[index];
  if (lane.state != Lane::State::retiring || !lane.peer_has_seen) return;
  exchange_.settle(*lane.channel, *lane.peer_has_seen);
  lane.channel.reset();
  queues_[index] = nullptr;
  lane.state = Lane::State::down;
  lane.peer_has_seen.reset();
  lane.pause = first_pause;
  lane.next_attempt = Clock::now() + lane.pause;
  if (lanes_.message_lane() == index) lanes_.choose_message_lane();
  exchange_.flush();
  waiting_.progress->wake();
}

void Connection::hear_notices() {
  for (auto record = exchange_.take_notice(); !record.empty() && state_ == State::open;
       record = exchange_.take_notice()) {
    RecordProblem problem;
    std::optional<RecordHead> head;
    std::optional<RailNotice> notice;
    if (record.size() >= RecordHead::wire_bytes) {
      const std::span<const std::byte> bytes(record);
      head = decode_head(bytes.first<RecordHead::wire_bytes>(), problem);
      notice = decode_rail_notice(bytes.subspan(RecordHead::wire_bytes));
    }
    if (!head || !notice || head->kind < RecordKind::rail_failed || notice->lane >= lanes_.size())
      throw Error("the peer broke the message protocol: a notice of a rail makes no sense");
    on_rail_notice(head->kind, *notice);
  }
}

void Connection::on_rail_notice(RecordKind kind, const RailNotice& notice) {
  switch (kind) {
    case RecordKind::rail_failed:
      return on_rail_failed(notice.lane, notice.delivered);
    case RecordKind::rail_offer:
      return on_rail_offer(notice.lane, notice);
    case RecordKind::rail_answer:
      return on_rail_answer(notice.lane, notice);
    default:
      if (lanes_[notice.lane].replacement) revive_lane(notice.lane);
  }
}

void Connection::on_rail_failed(size_t index, uint64_t delivered) {
  Lane& lane = lanes_[index];
  if (lane.state == Lane::State::down) {  // it was being brought back
    lane.replacement.reset();
    return;
  }
  lane.peer_has_seen = delivered;
  if (lane.state == Lane::State::retiring) return settle_lane(index);
  if (!lanes_.any_left_but(index))
    return fail(peer_lost("its last rail failed"), State::failed, "the last rail failed");
  retire_lane(index, "the peer says so");
}

void Connection::look_after_lanes() {
  const auto now = Clock::now();
  const bool several = lanes_.size() > 1;
  if (now - lanes_looked_at_ < (several ? look_interval : device_look_interval)) return;
  lanes_looked_at_ = now;
  if (!socket_ && now - beaten_at_ >= beat_interval) {
    beaten_at_ = now;
    exchange_.beat();
  }
  for (size_t i = 0; i < lanes_.size() && state_ == State::open; ++i) {
    if (lanes_[i].alive())
      look_after_living(i);
    else if (lanes_[i].state == Lane::State::down && !is_listener_ && now >= lanes_[i].next_attempt)
      offer_lane(i);
  }
}

// A link that is down for a moment is the transport's to bridge where there is no other. A device that is
// gone completes nothing ever more.
void Connection::look_after_living(size_t index) {
  const Lane& lane = lanes_[index];
  const PortHealth health = health_of(lane);
  if (health == PortHealth::active) return;
  const bool gone = health == PortHealth::gone;
  if (lanes_.any_left_but(index))
    return retire_lane(index, gone ? "its device is gone" : "its port went down");
  if (!gone) return;
  const std::string what = "device " + lane.path.device + " is gone: it was removed, or its driver failed";
  fail(std::make_exception_ptr(UnavailableError("the connection to " + peer_ + " is dead: " + what +
                                                ". Open a context on a device that rdmatx devices lists")),
       State::failed, what);
}

void Connection::offer_lane(size_t index) {
  Lane& lane = lanes_[index];
  lane.pause = std::min(lane.pause * 2, longest_pause);
  lane.next_attempt = Clock::now() + (lane.replacement ? offer_patience : lane.pause);
  lane.replacement.reset();
  if (!port_is_active(lane)) return;
  try {
    lane.replacement = std::make_unique<Channel>(lane.rail.domain, lane.rail.events);
    lane.next_attempt = Clock::now() + offer_patience;
    say(RecordKind::rail_offer, notice_of(lane, index));
  } catch (const Error& error) {
    give_replacement_up(lane, error);
  }
}

void Connection::on_rail_offer(size_t index, const RailNotice& offer) {
  Lane& lane = lanes_[index];
  lane.replacement.reset();
  RailNotice answer{static_cast<uint8_t>(index), 0, 0, 0};
  try {
    if (lane.state == Lane::State::down && port_is_active(lane)) {
      lane.replacement = std::make_unique<Channel>(lane.rail.domain, lane.rail.events);
      connect_channel(lane, offer);
      answer = notice_of(lane, index);
    }
  } catch (const Error& error) {
    give_replacement_up(lane, error);
  }
  say(RecordKind::rail_answer, answer);
}

void Connection::on_rail_answer(size_t index, const RailNotice& answer) {
  Lane& lane = lanes_[index];
  if (!lane.replacement) return;  // given up meanwhile
  lane.next_attempt = Clock::now() + lane.pause;
  if (answer.queue_pair_number == 0) {
    lane.replacement.reset();
    return;
  }
  try {
    connect_channel(lane, answer);
  } catch (const Error& error) {
    give_replacement_up(lane, error);
    return say(RecordKind::rail_failed, {static_cast<uint8_t>(index), 0, 0, 0});
  }
  say(RecordKind::rail_ready, {static_cast<uint8_t>(index), 0, 0, 0});
  revive_lane(index);
}

void Connection::revive_lane(size_t index) {
  Lane& lane = lanes_[index];
  lane.channel = std::move(lane.replacement);
  lane.channel->keep_messages();
  lane.state = Lane::State::alive;
  ++lane.stats.recoveries;
  queues_[index] = lane.channel->completion_queue().get();
  armed_ = false;  // the new queue is not
  log(LogLevel::info, "a rail of the connection to " + peer_ + " is back (" + lane.path.text() + ")");
  if (lanes_[lanes_.message_lane()].state == Lane::State::down) lanes_.choose_message_lane();
  exchange_.flush();
  waiting_.progress->wake();
}

}  // namespace rdmatx
