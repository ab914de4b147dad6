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

template <typename Queue>
void Engine::submit(const Pending& pending, bool in_background, Queue queue) {
  check_usable();
  {
    const CallerLock lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    if (closed()) throw ClosedError("the group was closed: make a new one");
    queue();
    pending_.fetch_add(1, std::memory_order_release);
  }
  progress();
  if (in_background && !pending.finished()) {
    const std::lock_guard lock(service_mutex_);
    service_called_.notify_one();
  }
}

void Engine::submit(const std::shared_ptr<Operation>& operation, bool in_background) {
  submit(*operation, in_background, [&] {
    operation->set_record(record_of(operation->call(), ++sequence_));
    queue_.push_back(operation);
  });
}

void Engine::submit(const std::shared_ptr<Message>& message, bool in_background) {
  submit(*message, in_background, [&] { messages_.push_back(message); });
}

void Engine::wait(const Pending& pending, std::optional<double> timeout) {
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
    progress_->wait(this, [&] { return pending.finished(); }, deadline);
  }
  if (!pending.finished())
    throw TimeoutError(
        pending.description() + " was not done within " + seconds_text(deadline.seconds()) + "; it goes on",
        "", pending.name(), deadline.seconds());
  std::exception_ptr interrupted;
  {
    const std::lock_guard lock(mutex_);
    interrupted = std::exchange(interrupted_, nullptr);
  }
  if (interrupted) std::rethrow_exception(interrupted);
  pending.check();
}

bool Engine::done(const Pending& pending) {
  check_usable();
  if (!pending.finished()) progress();
  return pending.finished();
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
  progressed |= advance_operations();
  if (!messages_.empty()) progressed |= advance_messages();
  const bool busy = !queue_.empty() || !messages_.empty();
  wants_polling_.store(busy && members_.wants_polling(), std::memory_order_relaxed);
  return progressed;
}

bool Engine::advance_operations() {
  bool progressed = false;
  while (!failure_ && !queue_.empty()) {
    const std::shared_ptr<Operation> operation = queue_.front();
    const bool starts = !operation->started();
    if (starts) operation->start(members_, scratch_);
    progressed |= operation->advance(members_);
    if (starts) start(*operation);
    if (!operation->all_done()) {
      if (operation->late()) give_up_late(*operation);
      break;
    }
    queue_.pop_front();
    operation->succeed();
    ended(*operation);
    progressed = true;
  }
  return progressed;
}

// First all are connected that can be, and then started: of two to one rank the later one may not come first.
bool Engine::advance_messages() {
  bool progressed = false;
  for (const auto& message : messages_) message->connect(members_);
  for (const auto& message : messages_) {
    progressed |= message->advance(members_);
    if (message->finished() || !message->late()) continue;
    give_up_late(*message);
    if (failure_) return true;  // the list is given up, too
  }
  std::erase_if(messages_, [this](const auto& message) {
    if (!message->finished()) return false;
    ended(*message);
    return true;
  });
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

void Engine::serve() {
  served_here = this;
  const auto stopping = stopping_;
  while (!stopping->load(std::memory_order_acquire)) {
    const auto is_needed = [this] {
      return stopping_->load(std::memory_order_acquire) || has_end_calls_.load(std::memory_order_acquire) ||
             (pending_.load(std::memory_order_acquire) > 0 && waiters_.load(std::memory_order_seq_cst) == 0);
    };
    {
      std::unique_lock lock(service_mutex_);
      service_called_.wait_for(lock, service_interval, is_needed);
    }
    if (stopping->load(std::memory_order_acquire)) return;
    if (has_end_calls_.load(std::memory_order_acquire)) {
      make_end_calls();
      continue;  // looking at nothing of the engine's: what was called may have closed it
    }
    try {
      if (is_needed()) {
        progress_->wait(
            this,
            [&] {
              return stopping_->load(std::memory_order_acquire) ||
                     has_end_calls_.load(std::memory_order_acquire) ||
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

}  // namespace rdmatx
