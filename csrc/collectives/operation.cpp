#include "collectives/operation.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "collectives/reduction.hpp"

namespace rdmatx {
namespace {

constexpr uint64_t most_kept_scratch = uint64_t{64} << 20;

OperationMemory memory_of(const std::shared_ptr<HostBuffer>& buffer) {
  return {buffer->data(), buffer->bytes(), buffer, {}, {}, {}};
}

}  // namespace

std::shared_ptr<HostBuffer> ScratchMemory::get(uint64_t bytes) {
  if (kept_ && kept_->bytes() >= bytes) return kept_;
  auto buffer = HostBuffer::create(bytes);
  if (bytes <= most_kept_scratch) kept_ = buffer;
  return buffer;
}

Operation::Operation(Call call, std::shared_ptr<const Schedule> schedule, OperationMemory input,
                     OperationMemory output, double timeout)
    : Pending(timeout),
      call_(std::move(call)),
      element_bytes_(element_bytes(call_.type)),
      schedule_(std::move(schedule)) {
  memory_[static_cast<size_t>(BufferId::input)] = std::move(input);
  memory_[static_cast<size_t>(BufferId::output)] = std::move(output);
}

void Operation::start(Members& members, ScratchMemory& scratch) {
  deadline_.emplace(timeout());
  tag_ = record_.tag();
  if (schedule_->scratch_count() > 0)
    memory_[static_cast<size_t>(BufferId::scratch)] =
        memory_of(scratch.get(schedule_->scratch_count() * element_bytes_));
  if (call_.reduces() && call_.operation == ReduceOperation::premul_sum) {
    if (call_.collective == Collective::all_reduce) {
      std::byte* data = at({BufferId::output, 0, call_.count});
      multiply_elements(call_.type, data, data, call_.count, call_.factor);
    } else {
      // What the caller gave is left as it is.
      OperationMemory& input = memory_[static_cast<size_t>(BufferId::input)];
      const auto copy = HostBuffer::create(input.bytes);
      multiply_elements(call_.type, copy->data(), input.data, input.bytes / element_bytes_, call_.factor);
      input = memory_of(copy);
    }
  }
  run_.emplace(*schedule_);
  static_cast<void>(members);
}

std::byte* Operation::at(const Range& range) const noexcept {
  return static_cast<std::byte*>(memory_[static_cast<size_t>(range.buffer)].data) +
         range.offset * element_bytes_;
}

OperationMemory Operation::memory(const Range& range) const {
  OperationMemory part = memory_[static_cast<size_t>(range.buffer)];
  part.data = at(range);
  part.bytes = range.count * element_bytes_;
  return part;
}

bool Operation::collect() {
  bool collected = false;
  for (size_t i = 0; i < under_way_.size();) {
    const UnderWay& entry = under_way_[i];
    if (!entry.request->finished()) {
      ++i;
      continue;
    }
    entry.request->check();
    const Step& step = run_->step(entry.step);
    if (step.kind == StepKind::receive && entry.request->bytes() != step.target.count * element_bytes_)
      throw UsageError("a message of " + std::to_string(entry.request->bytes()) + " bytes came from rank " +
                       std::to_string(step.peer) + " where " +
                       std::to_string(step.target.count * element_bytes_) +
                       " were expected: the ranks called it with different counts");
    run_->ended(entry.step);
    under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(i));
    collected = true;
  }
  return collected;
}

void Operation::start_message(uint32_t index, Members& members) {
  const Step& step = run_->step(index);
  std::shared_ptr<Request> request = step.kind == StepKind::send
                                         ? members.send(step.peer, memory(step.left), tag_)
                                         : members.connection(step.peer)->ireceive(memory(step.target), tag_);
  under_way_.push_back({index, std::move(request)});
}

bool Operation::start_waiting(Members& members) {
  bool started = false;
  std::erase_if(unconnected_, [&](uint32_t index) {
    const int peer = run_->step(index).peer;
    members.connect(peer, left(timeout()));
    if (!members.connected(peer)) return false;
    start_message(index, members);
    return started = true;
  });
  return started;
}

void Operation::perform(const Step& step, int world) {
  switch (step.kind) {
    case StepKind::reduce:
      reduce_elements(call_.type, call_.operation, at(step.target), at(step.left), at(step.right),
                      step.target.count);
      break;
    case StepKind::copy:
      if (at(step.target) != at(step.left))
        std::memmove(at(step.target), at(step.left), step.target.count * element_bytes_);
      break;
    case StepKind::finish:
      if (call_.operation == ReduceOperation::avg)
        divide_elements(call_.type, at(step.target), step.target.count, static_cast<uint64_t>(world));
      break;
    case StepKind::send:
    case StepKind::receive:
      break;
  }
}

bool Operation::advance(Members& members) {
  bool advanced = collect();
  if (!unconnected_.empty()) advanced |= start_waiting(members);
  while (const auto index = run_->next()) {
    advanced = true;
    const Step& step = run_->step(*index);
    if (step.kind != StepKind::send && step.kind != StepKind::receive) {
      perform(step, members.world());
      run_->ended(*index);
      // Whoever reduces keeps the wire busy.
      members.progress();
      collect();
      continue;
    }
    members.connect(step.peer, left(timeout()));
    if (members.connected(step.peer))
      start_message(*index, members);
    else
      unconnected_.push_back(*index);
  }
  return advanced;
}

std::string Operation::awaited(const Members& members) const {
  std::set<int> peers;
  if (run_) {
    for (const UnderWay& entry : under_way_) peers.insert(run_->step(entry.step).peer);
    for (const uint32_t index : unconnected_) peers.insert(run_->step(index).peer);
  }
  std::string text;
  for (const int peer : peers) text += (text.empty() ? "" : ", ") + members.name(peer);
  return text.empty() ? "an operation before it" : text;
}

void Operation::release() noexcept {
  under_way_.clear();
  for (OperationMemory& memory : memory_) memory = {};
}

}  // namespace rdmatx
