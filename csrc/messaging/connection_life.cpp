// How a connection moves forward and how it ends; see connection.hpp.

#include <sched.h>

#include <array>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "messaging/connection.hpp"

namespace rdmatx {
namespace {

using Clock = Deadline::Clock;

// The peer's last words travel over the socket and its failure over the wire: whichever is seen first waits
// this long for the other.
constexpr std::chrono::milliseconds grace{200};
// How long close() waits for the device to deliver what was sent.
constexpr double linger_seconds = 2.0;

std::string first_line(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown failure";
  }
}

// Says so where the port is not active: a device whose link is gone may do no more than flush.
std::string port_that_is_down(const Lane& lane) {
  try {
    const int number = lane.path.local.port;
    const PortState state = lane.rail.device()->query_port(number).state;
    if (state == PortState::active) return {};
    return "Port " + std::to_string(number) + " of " + lane.path.device + " is " + port_state_name(state) +
           ": its link is down, and the device has given up what was to go over it. ";
  } catch (const Error&) {
    return {};  // the completion is all there is to tell
  }
}

}  // namespace

bool Connection::progress() noexcept {
  if (mutex_.wanted()) {
    ::sched_yield();
    return false;
  }
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  return poll();
}

bool Connection::poll() {
  if (state_ != State::open) return false;
  size_t count = 0;
  try {
    for (size_t i = 0; i < lanes_.size() && state_ == State::open; ++i) count += poll_lane(i);
    if (state_ == State::open && lanes_.size() > 1) hear_notices();
    if (state_ == State::open && (count > 0 || exchange_.awaits_gpu())) exchange_.flush();
  } catch (...) {
    fail(std::current_exception(), State::failed, first_line(std::current_exception()));
  }
  if (state_ == State::open && count == 0) judge();
  if (state_ == State::open) {
    if (closing_ && !goodbye_posted_) goodbye_posted_ = exchange_.post_goodbye();
    wants_polling_.store(exchange_.has_transfers(), std::memory_order_relaxed);
    waits_for_gpu_.store(exchange_.awaits_gpu(), std::memory_order_relaxed);
    quiet_.store(goodbye_posted_ && lanes_.idle(), std::memory_order_release);
  }
  const bool progressed = count > 0 || exchange_.take_gpu_progress();
  if (progressed) waiting_.progress->wake();
  return progressed;
}

size_t Connection::poll_lane(size_t index) {
  Lane& lane = lanes_[index];
  if (!lane.alive()) return 0;
  std::array<Completion, 16> completions;
  const size_t count = lane.channel->poll(completions);
  std::string failed;
  for (size_t i = 0; i < count && state_ == State::open; ++i) {
    if (completions[i].succeeded() || !may_retire(index, completions[i]))
      handle(index, completions[i]);
    else if (failed.empty())
      failed = lane.channel->describe(completions[i]) + ": " + status_name(completions[i].status());
  }
  if (!failed.empty() && state_ == State::open) {
    retire_lane(index, failed);
    return count;
  }
  if (state_ == State::open && count > 0) lane.channel->post_returned_slots();
  return count;
}

void Connection::handle(size_t index, const Completion& completion) {
  if (!completion.succeeded()) return on_failed(index, completion);
  Channel& channel = *lanes_[index].channel;
  if (!Channel::is_receive(completion))
    return channel.retire(completion,
                          [this](std::shared_ptr<Request> request) { exchange_.complete(request); });
  channel.count_delivery();
  if (Channel::is_notification(completion))
    exchange_.notified(completion.immediate());
  else
    exchange_.handle(channel.arrived(completion));
  arrivals_.fetch_add(1, std::memory_order_release);
  channel.return_slot(completion);
}

void Connection::on_failed(size_t index, const Completion& completion) {
  if (verdict_) return;  // what follows the first failure is flushed
  read_socket();
  if (state_ != State::open) return;
  const std::exception_ptr failure = completion_failure(index, completion);
  const auto status = completion.status();
  // These may be the peer's end rather than ours: give its last words a moment.
  const bool peer_may_know =
      status == WorkCompletionStatus::flushed || status == WorkCompletionStatus::retry_exceeded;
  if (peer_end_ == PeerEnd::alive && !peer_may_know) return fail(failure, State::failed, first_line(failure));
  verdict_ = failure;
  verdict_at_ = Clock::now() + grace;
}

void Connection::read_socket() {
  while (peer_end_ == PeerEnd::alive && socket_ && state_ == State::open) {
    BootstrapSocket::Record record;
    RecordProblem problem;
    switch (socket_.try_receive(record, problem)) {
      case BootstrapSocket::Arrival::nothing_yet:
        return socket_.send_rest();
      case BootstrapSocket::Arrival::closed:
        if (problem.unreachable && lanes_.size() > 1) return lose_socket(problem.text);
        peer_end_ = PeerEnd::gone;
        peer_words_ = problem.text;
        break;
      case BootstrapSocket::Arrival::malformed:
        peer_end_ = PeerEnd::broken;
        peer_words_ = problem.text;
        break;
      case BootstrapSocket::Arrival::record:
        on_record(record);
        break;
    }
    if (peer_end_ == PeerEnd::alive) continue;
    peer_ended_at_ = Clock::now();
    waiting_.progress->unwatch(socket_.fd());
  }
}

void Connection::on_record(const BootstrapSocket::Record& record) {
  peer_words_ = decode_text(record.body);
  peer_end_ = record.head.kind == RecordKind::goodbye ? PeerEnd::left : PeerEnd::broken;
}

// The socket's network is down, and it may be that of one rail alone: the other rails know whether the peer
// lives.
void Connection::lose_socket(const std::string& why) {
  log(LogLevel::warning, "the bootstrap socket of the connection to " + peer_ + " failed (" + why +
                             "); its rails go on, and are asked whether the peer lives");
  waiting_.progress->unwatch(socket_.fd());
  socket_.close();
}

// Called when the completion queue is empty, so that what the peer sent before its end is handled first.
void Connection::judge() {
  if (exchange_.peer_said_goodbye() && !awaits_last_words())
    return fail(peer_lost("the peer closed it"), State::peer_closed);
  if (verdict_) read_socket();
  switch (peer_end_) {
    case PeerEnd::alive:
      break;
    case PeerEnd::left:
      if (closing_ || Clock::now() - peer_ended_at_ > grace)
        fail(peer_lost("the peer closed it"), State::peer_closed);
      return;
    case PeerEnd::broken:
      return fail(peer_lost("the peer's end broke: " + peer_words_), State::failed);
    case PeerEnd::gone:
      return fail(peer_lost("the peer's process died or its host cannot be reached (" + peer_words_ + ")"),
                  State::failed);
  }
  if (verdict_ && Clock::now() >= verdict_at_) fail(verdict_, State::failed, first_line(verdict_));
}

// A peer may have our last message, close, and say so before the device tells us that the message has
// arrived.
bool Connection::awaits_last_words() {
  if (!farewell_at_) farewell_at_ = Clock::now();
  return !closing_ && !verdict_ && lanes_.has_requests() && Clock::now() - *farewell_at_ <= grace;
}

void Connection::check_peer() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || state_ != State::open) return;
  try {
    read_socket();
    if (state_ == State::open) look_after_lanes();
  } catch (...) {
    return fail(std::current_exception(), State::failed, first_line(std::current_exception()));
  }
  if (peer_end_ != PeerEnd::alive || verdict_)
    while (poll()) {
    }
}

void Connection::fail(std::exception_ptr failure, State state, const std::string& word_to_peer) {
  state_ = state;
  failure_ = closing_ ? closed_while_pending() : std::move(failure);
  arrivals_.fetch_add(1, std::memory_order_release);
  verdict_ = nullptr;
  wants_polling_.store(false, std::memory_order_relaxed);
  waits_for_gpu_.store(false, std::memory_order_relaxed);
  quiet_.store(true, std::memory_order_release);
  // First the queue pair: then no device touches the memory that the requests let go.
  destroy_channels();
  exchange_.fail_all(failure_);
  if (socket_) {
    if (!word_to_peer.empty()) socket_.send_now(encode(RecordKind::failed, word_to_peer));
    waiting_.progress->unwatch(socket_.fd());
    socket_.close();
  }
  if (log_enabled(LogLevel::info))
    log(LogLevel::info, "connection to " + peer_ + " ended: " + first_line(failure_));
  waiting_.progress->wake();
}

void Connection::destroy_channels() noexcept {
  for (Lane& lane : lanes_) {
    if (lane.channel) lane.channel->destroy();
    lane.replacement.reset();
  }
}

std::exception_ptr Connection::peer_lost(const std::string& why) const {
  return std::make_exception_ptr(PeerLostError(
      "the connection to " + peer_ + " is gone: " + why + ". ctx.connect() opens a new one", peer_));
}

std::exception_ptr Connection::completion_failure(size_t index, const Completion& completion) const {
  const std::string operation = lanes_[index].channel->describe(completion);
  const Path& path = lanes_[index].path;
  const std::string advice = status_advice(completion.status());
  std::string text = operation + " with " + peer_ + " failed: " + status_name(completion.status()) +
                     " (status " + std::to_string(static_cast<int>(completion.status())) + ", vendor error " +
                     std::to_string(completion.vendor_error()) + "). ";
  const std::string port = port_that_is_down(lanes_[index]);
  if (!port.empty())
    text += port;
  else if (!advice.empty())
    text += advice + (advice.back() == '.' ? " " : ". ");
  text += "Local GID " + path.local.gid.text() + ", remote GID " + path.remote.gid.text() + ", " +
          path.text() + ". The connection is dead; ctx.connect() opens a new one";
  return std::make_exception_ptr(CompletionError(text, static_cast<int>(completion.status()),
                                                 completion.vendor_error(), peer_, operation));
}

void Connection::arm() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || state_ != State::open || armed_.exchange(true)) return;
  try {
    for (Lane& lane : lanes_)
      if (lane.alive()) lane.channel->completion_queue()->arm();
  } catch (...) {
    fail(std::current_exception(), State::failed);
  }
}

std::exception_ptr Connection::closed_while_pending() const {
  return std::make_exception_ptr(
      ClosedError("the connection to " + peer_ + " was closed while this operation was pending"));
}

void Connection::expect_close() {
  const CallerLock lock(mutex_);
  closing_ = true;
}

void Connection::close() {
  if (process_generation() != waiting_.generation) return;  // the parent's: left alone
  bool linger = false;
  {
    const CallerLock lock(mutex_);
    if (state_ == State::closed || close_started_) return;
    close_started_ = closing_ = true;
    if (state_ == State::open) poll();
    linger = state_ == State::open;
  }
  std::exception_ptr interrupted;
  if (linger) {
    try {
      waiting_.progress->wait(
          this, [this] { return quiet_.load(std::memory_order_acquire); }, Deadline(linger_seconds));
    } catch (...) {
      interrupted = std::current_exception();
    }
  }
  {
    const CallerLock lock(mutex_);
    shut_down();
  }
  waiting_.progress->wake();
  if (interrupted) std::rethrow_exception(interrupted);
}

void Connection::shut_down() noexcept {
  const bool was_open = state_ == State::open;
  const int socket = socket_.fd();
  state_ = State::closed;
  arrivals_.fetch_add(1, std::memory_order_release);
  destroy_channels();
  exchange_.fail_all(closed_while_pending());
  waiting_.progress->remove(this, socket);
  if (was_open && socket_) socket_.send_now(encode(RecordKind::goodbye));
  socket_.close();
  domains_.reset();
  for (Lane& lane : lanes_) {
    lane.rail = {};
    lane.channel.reset();  // after fail_all() the exchange leaves it alone
  }
  closed_.store(true, std::memory_order_release);
}

Connection::~Connection() {
  try {
    close();
  } catch (...) {
    // A Ctrl-C that came while lingering; the connection is closed all the same.
  }
}

}  // namespace rdmatx
