#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "collectives/schedule.hpp"

// Runs the schedules of all ranks in one thread, in an order that chance decides: which rank goes on, and
// when a message that was started moves its bytes. What must not happen at the same time shows as wrong sums.

namespace rdmatx::testing {

/// An element whose sums are exact on one side, and on the other depend on their order.
struct Number {
  uint64_t exact = 0;
  float rounded = 0;
};

/// Memory of one rank, by BufferId.
struct RankMemory {
  std::vector<Number> input;
  std::vector<Number> output;
  std::vector<Number> scratch;
};

enum class Sending { eager, rendezvous, mixed };

class Simulator {
 public:
  Simulator(std::vector<Schedule> schedules, std::vector<RankMemory> memory, Sending sending, uint64_t seed,
            uint64_t divisor = 1)
      : schedules_(std::move(schedules)),
        memory_(std::move(memory)),
        sending_(sending),
        random_(seed),
        divisor_(divisor) {
    for (size_t rank = 0; rank < schedules_.size(); ++rank) {
      runs_.emplace_back(schedules_[rank]);
      memory_[rank].scratch.assign(schedules_[rank].scratch_count(), poison());
    }
  }

  /// Throws where nothing can go on before all is done, or a message does not fit its receive.
  void run() {
    std::vector<size_t> living;
    for (size_t rank = 0; rank < runs_.size(); ++rank) living.push_back(rank);
    size_t idle = 0;
    while (!living.empty() || !messages_.empty()) {
      bool moved = false;
      if (!living.empty()) {
        const size_t at = random_() % living.size();
        const size_t rank = living[at];
        if (const auto step = runs_[rank].next()) {
          start(static_cast<int>(rank), *step);
          moved = true;
        }
        if (runs_[rank].done()) living.erase(living.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (random_() % 2 == 0) moved |= deliver_one();
      idle = moved ? 0 : idle + 1;
      if (idle > 200 * (runs_.size() + 1)) throw std::runtime_error("nothing goes on: " + pending());
    }
    for (const auto& [pair, queue] : sent_)
      if (!queue.empty()) throw std::runtime_error("a message nobody received");
    for (const auto& [pair, queue] : wanted_)
      if (!queue.empty()) throw std::runtime_error("a receive nobody sent to");
  }

  const RankMemory& memory(int rank) const { return memory_[static_cast<size_t>(rank)]; }

 private:
  using Pair = std::pair<int, int>;  // from, to
  struct Sent {
    uint32_t step;
    Range range;
    std::vector<Number> copied;  // of an eager one
    bool eager;
  };
  struct Wanted {
    uint32_t step;
    Range range;
  };

  static Number poison() { return {0xdeadbeefdeadbeef, -1e30f}; }

  Number* at(int rank, const Range& range) {
    RankMemory& memory = memory_[static_cast<size_t>(rank)];
    std::vector<Number>& all = range.buffer == BufferId::input    ? memory.input
                               : range.buffer == BufferId::output ? memory.output
                                                                  : memory.scratch;
    if (range.offset + range.count > all.size()) throw std::runtime_error("a range outside of its buffer");
    return all.data() + range.offset;
  }

  void start(int rank, uint32_t index) {
    ScheduleRun& run = runs_[static_cast<size_t>(rank)];
    const Step& step = run.step(index);
    switch (step.kind) {
      case StepKind::send: {
        const bool eager = sending_ == Sending::eager || (sending_ == Sending::mixed && random_() % 2 == 0);
        Sent sent{index, step.left, {}, eager};
        const Number* from = at(rank, step.left);
        if (eager) sent.copied.assign(from, from + step.left.count);
        sent_[{rank, step.peer}].push_back(std::move(sent));
        messages_[{rank, step.peer}] = true;
        if (eager) run.ended(index);
        return;
      }
      case StepKind::receive: {
        Number* to = at(rank, step.target);
        for (uint64_t i = 0; i < step.target.count; ++i) to[i] = poison();
        wanted_[{step.peer, rank}].push_back({index, step.target});
        messages_[{step.peer, rank}] = true;
        return;
      }
      case StepKind::reduce: {
        Number* to = at(rank, step.target);
        const Number* left = at(rank, step.left);
        const Number* right = at(rank, step.right);
        for (uint64_t i = 0; i < step.target.count; ++i)
          to[i] = {left[i].exact + right[i].exact, left[i].rounded + right[i].rounded};
        break;
      }
      case StepKind::copy: {
        Number* to = at(rank, step.target);
        const Number* from = at(rank, step.left);
        for (uint64_t i = 0; i < step.target.count; ++i) to[i] = from[i];
        break;
      }
      case StepKind::finish: {
        Number* to = at(rank, step.target);
        for (uint64_t i = 0; i < step.target.count; ++i) to[i].exact /= divisor_;
        break;
      }
    }
    run.ended(index);
  }

  bool deliver_one() {
    if (messages_.empty()) return false;
    auto place = messages_.begin();
    std::advance(place, static_cast<std::ptrdiff_t>(random_() % messages_.size()));
    const auto [from, to] = place->first;
    auto& sent = sent_[place->first];
    auto& wanted = wanted_[place->first];
    if (sent.empty() || wanted.empty()) return false;
    const Sent message = std::move(sent.front());
    const Wanted receive = wanted.front();
    sent.pop_front();
    wanted.pop_front();
    if (sent.empty() && wanted.empty()) messages_.erase(place);
    if (message.range.count != receive.range.count)
      throw std::runtime_error("a message of " + std::to_string(message.range.count) +
                               " elements met a receive of " + std::to_string(receive.range.count));
    const Number* data = message.eager ? message.copied.data() : at(from, message.range);
    Number* target = at(to, receive.range);
    for (uint64_t i = 0; i < receive.range.count; ++i) target[i] = data[i];
    runs_[static_cast<size_t>(to)].ended(receive.step);
    if (!message.eager) runs_[static_cast<size_t>(from)].ended(message.step);
    return true;
  }

  std::string pending() const {
    std::string text;
    for (const auto& [pair, queue] : sent_)
      if (!queue.empty())
        text += std::to_string(pair.first) + " sends to " + std::to_string(pair.second) + "; ";
    for (const auto& [pair, queue] : wanted_)
      if (!queue.empty())
        text += std::to_string(pair.second) + " receives from " + std::to_string(pair.first) + "; ";
    return text;
  }

  std::vector<Schedule> schedules_;
  std::vector<RankMemory> memory_;
  std::vector<ScheduleRun> runs_;
  const Sending sending_;
  std::mt19937_64 random_;
  const uint64_t divisor_;
  std::map<Pair, std::deque<Sent>> sent_;
  std::map<Pair, std::deque<Wanted>> wanted_;
  std::map<Pair, bool> messages_;
};

}  // namespace rdmatx::testing
