// How what a group was asked to do ends, and how the group itself does; see engine.hpp.

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "collectives/engine.hpp"

namespace rdmatx {
namespace {

constexpr double last_words_seconds = 0.5;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an unknown failure";
  }
}

}  // namespace

void Engine::on_end(int rank, const std::exception_ptr& why) {
  if (failure_ || members_.has_left(rank)) return;
  const std::string text = members_.name(rank) + " is gone: " + text_of(why) + pending_text() + advice;
  fail(std::make_exception_ptr(PeerLostError(text, members_.name(rank))), {WordKind::lost, rank, {}, text});
}

std::string Engine::pending_text() const {
  return queue_.empty() ? "" : ". Pending was " + describe(queue_.front()->record());
}

thread_local const Engine* Engine::served_here = nullptr;

void Engine::give_up_late(const Operation& operation) {
  const std::string awaited = operation.awaited(members_);
  const std::string text = describe(operation.record()) + " was not done within " +
                           seconds_text(operation.timeout()) + " on rank " + std::to_string(members_.rank()) +
                           ", which waits for " + awaited + advice;
  fail(std::make_exception_ptr(
           TimeoutError(text, awaited, collective_name(operation.call().collective), operation.timeout())),
       {WordKind::late, members_.rank(), {}, text});
}

// A message that nothing has met ends alone: the ranks agree on collectives, not on messages.
void Engine::give_up_late(Message& message) {
  const std::string text = message.description() + " was not done within " + seconds_text(message.timeout()) +
                           " on rank " + std::to_string(members_.rank());
  if (message.withdraw(members_))
    return message.fail(std::make_exception_ptr(TimeoutError(
        text + "; it was withdrawn, and the group lives on", "", message.name(), message.timeout())));
  fail(std::make_exception_ptr(TimeoutError(text + advice, "", message.name(), message.timeout())),
       {WordKind::late, members_.rank(), {}, text + advice});
}

void Engine::ended(Pending& pending) {
  pending_.fetch_sub(1, std::memory_order_release);
  progress_->wake();
  auto calls = pending.take_end_calls();
  if (calls.empty()) return;
  std::move(calls.begin(), calls.end(), std::back_inserter(end_calls_));
  has_end_calls_.store(true, std::memory_order_release);
  const std::lock_guard lock(service_mutex_);
  service_called_.notify_one();
}

void Engine::at_end(Pending& pending, std::function<void()> call) {
  {
    const CallerLock lock(mutex_);
    if (!pending.finished()) return pending.add_end_call(std::move(call));
  }
  call();
}

// On the group's own thread, or the one that closes it, with no lock held. What is called may close the group
// and give up the last of it, so nothing here is touched after that.
void Engine::make_end_calls() {
  std::vector<std::function<void()>> due;
  {
    const std::lock_guard lock(mutex_);
    due.swap(end_calls_);
    has_end_calls_.store(false, std::memory_order_release);
  }
  for (auto& call : due) {
    try {
      call();
    } catch (const std::exception& error) {
      log(LogLevel::warning,
          std::string("what was to be called at the end of a collective failed: ") + error.what());
    }
    call = nullptr;
  }
}

// An operation of this rank failed, or a word could not be heard. The cause may be a rank that left early.
void Engine::fail_by_error(std::exception_ptr error) {
  std::string text = "rank " + std::to_string(members_.rank()) + ": " + text_of(error) + pending_text();
  int left = -1;
  for (int rank = 0; rank < members_.world(); ++rank) {
    if (!members_.has_left(rank)) continue;
    left = rank;
    text += ". " + members_.name(rank) + " has closed the group";
  }
  text += advice;
  WordKind kind = WordKind::broken;
  try {
    std::rethrow_exception(error);
  } catch (const PeerLostError& lost) {
    kind = left < 0 ? WordKind::broken : WordKind::lost;
    error = std::make_exception_ptr(PeerLostError(text, left < 0 ? lost.peer() : members_.name(left)));
  } catch (const UsageError&) {
    error = std::make_exception_ptr(UsageError(text));
  } catch (const TimeoutError& late) {
    error = std::make_exception_ptr(TimeoutError(text, late.peer(), late.operation(), late.seconds()));
  } catch (const Error&) {
    // As it is: what it carries may be of use.
  } catch (const std::exception&) {
    error = std::make_exception_ptr(Error(text));
  } catch (...) {
    interrupted_ = error;
    error = std::make_exception_ptr(
        ClosedError("the group was interrupted while it connected" + std::string(advice)));
  }
  fail(error, {kind, kind == WordKind::lost ? left : members_.rank(), {}, text});
}

void Engine::fail(std::exception_ptr failure, const Word& word) {
  if (failure_) return;
  failure_ = std::move(failure);
  log(LogLevel::info, "group, rank " + std::to_string(members_.rank()) + ": " + word.text);
  last_words_ = members_.say_all(word);
  doomed_ = members_.release();
  give_up_all();
  wants_polling_.store(false, std::memory_order_relaxed);
  to_bury_.store(true, std::memory_order_release);
}

void Engine::give_up_all() {
  ending_.assign(queue_.begin(), queue_.end());
  ending_.insert(ending_.end(), messages_.begin(), messages_.end());
  queue_.clear();
  messages_.clear();
}

// Outside the lock: connections that close wait a little, so that what was said on them arrives. Only when
// they are closed does no device touch the memory of the operations any more.
void Engine::bury() {
  std::vector<std::shared_ptr<Request>> words;
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<std::shared_ptr<Pending>> ending;
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    words.swap(last_words_);
    connections.swap(doomed_);
    ending.swap(ending_);
    failure = failure_;
    to_bury_.store(false, std::memory_order_release);
  }
  try {
    // A peer that is behind has them only once it has taken what came before.
    const auto said = [&] {
      return std::all_of(words.begin(), words.end(), [](const auto& word) { return word->finished(); });
    };
    if (!said()) progress_->wait(nullptr, said, Deadline(last_words_seconds));
  } catch (...) {
    // A Ctrl-C: then they are not waited for.
  }
  for (const auto& connection : connections) {
    try {
      connection->close();
    } catch (...) {
      // A Ctrl-C while it lingered: it is closed all the same, and the next check answers the signal.
    }
  }
  for (const auto& pending : ending) pending->fail(failure);
  const std::lock_guard lock(mutex_);
  for (const auto& pending : ending) ended(*pending);
}

void Engine::abort(const std::string& reason) {
  check_usable();
  {
    const CallerLock lock(mutex_);
    if (closed()) return;
    const std::string why = reason.empty() ? "" : ": " + reason;
    const std::string text = members_.name(members_.rank()) + " aborted the group" + why + advice;
    fail(std::make_exception_ptr(ClosedError("the group was aborted" + why + advice)),
         {WordKind::aborted, members_.rank(), {}, text});
  }
  bury();
}

void Engine::expect_close() {
  const std::lock_guard lock(mutex_);
  if (failure_ || closed() || std::exchange(said_leaving_, true)) return;
  last_words_ = members_.say_all({WordKind::leaving, members_.rank(), {}, {}});
}

void Engine::close() {
  if (process_generation() != generation_) return;  // the parent's: left alone
  std::unique_lock closing(close_mutex_, std::defer_lock);
  if (served_here != this)
    closing.lock();
  else if (!closing.try_lock())
    return;  // another thread closes it, and waits for this one
  if (closed()) return;
  stopping_->store(true, std::memory_order_release);
  {
    const std::lock_guard lock(service_mutex_);
    service_called_.notify_one();
  }
  progress_->wake();
  service_.reset();
  expect_close();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::make_exception_ptr(ClosedError("the group was closed: make a new one"));
      doomed_ = members_.release();
      give_up_all();
    }
    closed_.store(true, std::memory_order_release);
  }
  bury();
  members_.close_listener();
  progress_->remove(this, event_.get());
  event_.reset();
  {
    // What is closed may be held for long; what it took up is given back now.
    const std::lock_guard lock(mutex_);
    scratch_.clear();
  }
  make_end_calls();
}

}  // namespace rdmatx
