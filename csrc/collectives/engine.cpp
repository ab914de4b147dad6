#include "collectives/engine.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/event_descriptors.hpp"
#include "base/log.hpp"
#include "messaging/fork_guard.hpp"
#include "rdma/handle.hpp"

namespace rdmatx {
namespace {

constexpr std::chrono::milliseconds service_interval{50};
constexpr double service_seconds = 0.5;
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

/// What a rank that heard of a failure throws.
std::exception_ptr failure_of(const Word& word, const std::string& name, double seconds) {
  switch (word.kind) {
    case WordKind::late:
      return std::make_exception_ptr(TimeoutError(word.text, name, "collective", seconds));
    case WordKind::mismatch:
      return std::make_exception_ptr(UsageError(word.text));
    case WordKind::broken:
      return std::make_exception_ptr(Error(word.text));
    default:
      return std::make_exception_ptr(PeerLostError(word.text, name));
  }
}

constexpr const char* advice =
    ". The group has failed on all ranks; a new one can be made of those that live";

}  // namespace

std::shared_ptr<Engine> Engine::create(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener,
                                       GroupSettings settings) {
  std::shared_ptr<Engine> engine(new Engine(std::move(context), std::move(listener), std::move(settings)));
  engine->progress_->add(engine, engine->event_.get());
  try {
    engine->meet();
  } catch (...) {
    engine->close();
    throw;
  }
  engine->service_ = std::make_unique<ServiceThread>([raw = engine.get()] { raw->serve(); });
  return engine;
}

Engine::Engine(std::shared_ptr<Context> context, std::shared_ptr<Listener> listener, GroupSettings settings)
    : generation_(process_generation()),
      progress_(listener->progress_of_context()),
      event_(make_event_descriptor()),
      members_(std::move(context), std::move(listener), std::move(settings)),
      timeout_(members_.settings().timeout) {}

Engine::~Engine() {
  try {
    close();
  } catch (...) {
    // A Ctrl-C that came while connections lingered; all is closed anyway.
  }
}

void Engine::meet() {
  const int rank = members_.rank();
  const int world = members_.world();
  const Deadline deadline(timeout());
  // Whom this rank is to be connected to from the start: rank 0 to everybody, others to it and their
  // neighbours.
  std::vector<int> expected;
  for (int other = 0; other < world; ++other)
    if (other != rank && (rank == 0 || other == 0 || other == rank - 1 || other == rank + 1))
      expected.push_back(other);
  const auto first_missing = [&] {
    const std::lock_guard lock(mutex_);
    for (const int other : expected) {
      members_.connect(other, deadline.left(timeout()));
      if (!members_.connected(other)) return other;
    }
    return world;
  };
  for (int missing = first_missing(); missing < world; missing = first_missing()) {
    if (const auto failed = failure()) std::rethrow_exception(failed);
    if (deadline.passed())
      throw TimeoutError("the group was not complete within " + seconds_text(timeout()) + " on rank " +
                             std::to_string(rank) + ": " + members_.name(missing) +
                             " did not come. Is it running, and do ranks reach each other's addresses?",
                         members_.name(missing), "group", timeout());
    // Who waits makes progress, and progress() takes in who comes.
    progress_->wait(this, [] { return false; }, Deadline(deadline.left(0.002)));
  }
}

void Engine::check_usable() const {
  check_not_forked(generation_);
}

void Engine::submit(const std::shared_ptr<Operation>& operation, bool in_background) {
  check_usable();
  {
    const CallerLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (closed()) throw ClosedError("the group was closed: make a new one");
    operation->set_record(record_of(operation->call(), ++sequence_));
    queue_.push_back(operation);
    pending_.fetch_add(1, std::memory_order_release);
  }
  progress();
  if (in_background && !operation->finished()) {
    const std::lock_guard lock(service_mutex_);
    service_called_.notify_one();
  }
}

void Engine::wait(const Operation& operation, std::optional<double> timeout) {
  check_usable();
  const Deadline deadline(timeout.value_or(std::numeric_limits<double>::infinity()));
  struct Waiter {
    explicit Waiter(Engine& of) : engine(of) { engine.waiters_.fetch_add(1, std::memory_order_seq_cst); }
    ~Waiter() {
      engine.waiters_.fetch_sub(1, std::memory_order_seq_cst);
      if (engine.pending_.load(std::memory_order_acquire) == 0) return;
      const std::lock_guard lock(engine.service_mutex_);
      engine.service_called_.notify_one();
    }
    Engine& engine;
  };
  {
    const Waiter waiter(*this);
    progress_->wait(this, [&] { return operation.finished(); }, deadline);
  }
  if (!operation.finished())
    throw TimeoutError(describe(operation.call()) + " was not done within " +
                           seconds_text(deadline.seconds()) + "; it goes on",
                       "", collective_name(operation.call().collective), deadline.seconds());
  std::exception_ptr interrupted;
  {
    const std::lock_guard lock(mutex_);
    interrupted = std::exchange(interrupted_, nullptr);
  }
  if (interrupted) std::rethrow_exception(interrupted);
  operation.check();
}

bool Engine::done(const Operation& operation) {
  check_usable();
  if (!operation.finished()) progress();
  return operation.finished();
}

bool Engine::progress() noexcept {
  if (mutex_.wanted()) return false;
  bool progressed = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || closed()) return false;
    if (!failure_) {
      try {
        progressed = make_progress();
      } catch (...) {
        const auto error = std::current_exception();
        // Who is gone, or what another rank says of it, tells more than what it did to an operation here.
        hear();
        if (!failure_) fail_by_error(error);
      }
    }
  }
  if (to_bury_.load(std::memory_order_acquire)) bury();
  return progressed;
}

bool Engine::make_progress() {
  bool progressed = members_.accept();
  progressed |= members_.progress();
  hear();
  while (!failure_ && !queue_.empty()) {
    const std::shared_ptr<Operation> operation = queue_.front();
    const bool starts = !operation->started();
    if (starts) operation->start(members_, scratch_);
    progressed |= operation->advance(members_);
    if (starts) start(*operation);
    if (!operation->all_done()) {
      give_up_late();
      break;
    }
    queue_.pop_front();
    operation->succeed();
    pending_.fetch_sub(1, std::memory_order_release);
    progress_->wake();
    progressed = true;
  }
  wants_polling_.store(!queue_.empty() && members_.wants_polling(), std::memory_order_relaxed);
  return progressed;
}

void Engine::hear() {
  members_.hear([this](int from, const Word& word) { on_word(from, word); },
                [this](int rank, const std::exception_ptr& why) { on_end(rank, why); });
}

// Behind its first messages, which need not wait for this one.
void Engine::start(Operation& operation) {
  if (members_.world() == 1) return;
  const int next = (members_.rank() + 1) % members_.world();
  members_.say(next, {WordKind::call, members_.rank(), operation.record(), {}});
  called_.push_back(operation.record());
  compare_calls();
}

void Engine::compare_calls() {
  while (!failure_ && !called_.empty() && !announced_.empty()) {
    if (called_.front() == announced_.front()) {
      called_.pop_front();
      announced_.pop_front();
      continue;
    }
    const int before = (members_.rank() + members_.world() - 1) % members_.world();
    const std::string text = "the ranks of the group called different things: rank " +
                             std::to_string(members_.rank()) + " " + describe(called_.front()) + "; rank " +
                             std::to_string(before) + " " + describe(announced_.front()) + advice;
    fail(std::make_exception_ptr(UsageError(text)), {WordKind::mismatch, members_.rank(), {}, text});
  }
}

void Engine::on_word(int from, const Word& word) {
  if (failure_) return;
  switch (word.kind) {
    case WordKind::hello:
    case WordKind::leaving:
      return;
    case WordKind::call:
      if (from != (members_.rank() + members_.world() - 1) % members_.world()) return;
      announced_.push_back(word.call);
      return compare_calls();
    default:
      fail(failure_of(word, members_.name(word.rank), timeout()), word);
  }
}

void Engine::on_end(int rank, const std::exception_ptr& why) {
  if (failure_ || members_.has_left(rank)) return;
  const std::string text = members_.name(rank) + " is gone: " + text_of(why) + pending_text() + advice;
  fail(std::make_exception_ptr(PeerLostError(text, members_.name(rank))), {WordKind::lost, rank, {}, text});
}

std::string Engine::pending_text() const {
  return queue_.empty() ? "" : ". Pending was " + describe(queue_.front()->record());
}

void Engine::give_up_late() {
  const Operation& operation = *queue_.front();
  if (!operation.late()) return;
  const std::string awaited = operation.awaited(members_);
  const std::string text = describe(operation.record()) + " was not done within " +
                           seconds_text(operation.timeout()) + " on rank " + std::to_string(members_.rank()) +
                           ", which waits for " + awaited + advice;
  fail(std::make_exception_ptr(
           TimeoutError(text, awaited, collective_name(operation.call().collective), operation.timeout())),
       {WordKind::late, members_.rank(), {}, text});
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
  ending_.assign(queue_.begin(), queue_.end());
  queue_.clear();
  wants_polling_.store(false, std::memory_order_relaxed);
  to_bury_.store(true, std::memory_order_release);
}

// Outside the lock: connections that close wait a little, so that what was said on them arrives. Only when
// they are closed does no device touch the memory of the operations any more.
void Engine::bury() {
  std::vector<std::shared_ptr<Request>> words;
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<std::shared_ptr<Operation>> operations;
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    words.swap(last_words_);
    connections.swap(doomed_);
    operations.swap(ending_);
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
  for (const auto& operation : operations) operation->fail(failure);
  pending_.fetch_sub(operations.size(), std::memory_order_release);
  progress_->wake();
}

void Engine::serve() {
  while (!stopping_.load(std::memory_order_acquire)) {
    const auto is_needed = [this] {
      return stopping_.load(std::memory_order_acquire) ||
             (pending_.load(std::memory_order_acquire) > 0 && waiters_.load(std::memory_order_seq_cst) == 0);
    };
    {
      std::unique_lock lock(service_mutex_);
      service_called_.wait_for(lock, service_interval, is_needed);
    }
    if (stopping_.load(std::memory_order_acquire)) return;
    try {
      if (is_needed()) {
        progress_->wait(
            this,
            [&] {
              return stopping_.load(std::memory_order_acquire) ||
                     waiters_.load(std::memory_order_seq_cst) > 0 ||
                     pending_.load(std::memory_order_acquire) == 0;
            },
            Deadline(service_seconds));
        continue;
      }
      {
        const std::unique_lock lock(mutex_, std::try_to_lock);
        if (lock) members_.check_all();
      }
      progress();
    } catch (const std::exception& error) {
      log(LogLevel::warning, std::string("a group's thread: ") + error.what());
    }
  }
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

std::exception_ptr Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

uint64_t Engine::sequence() const {
  const std::lock_guard lock(mutex_);
  return sequence_;
}

void Engine::set_timeout(double seconds) {
  Deadline{seconds};  // throws where it is no timeout
  timeout_.store(seconds, std::memory_order_relaxed);
}

void Engine::expect_close() {
  const std::lock_guard lock(mutex_);
  if (failure_ || closed() || std::exchange(said_leaving_, true)) return;
  last_words_ = members_.say_all({WordKind::leaving, members_.rank(), {}, {}});
}

void Engine::close() {
  if (process_generation() != generation_) return;  // the parent's: left alone
  const std::lock_guard closing(close_mutex_);
  if (closed()) return;
  stopping_.store(true, std::memory_order_release);
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
      ending_.assign(queue_.begin(), queue_.end());
      queue_.clear();
    }
    closed_.store(true, std::memory_order_release);
  }
  bury();
  members_.close_listener();
  progress_->remove(this, event_.get());
}

}  // namespace rdmatx
