#include "collectives/schedule.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace rdmatx {
namespace {

constexpr uint32_t nobody = UINT32_MAX;

bool is_message(const Step& step) noexcept {
  return step.kind == StepKind::send || step.kind == StepKind::receive;
}

}  // namespace

void ScheduleBuilder::send(int peer, const Range& from) {
  if (from.count > 0) add({StepKind::send, peer, {}, from, {}});
}

void ScheduleBuilder::receive(int peer, const Range& into) {
  if (into.count > 0) add({StepKind::receive, peer, into, {}, {}});
}

void ScheduleBuilder::reduce(const Range& target, const Range& left, const Range& right) {
  if (target.count > 0) add({StepKind::reduce, -1, target, left, right});
}

void ScheduleBuilder::copy(const Range& target, const Range& from) {
  if (target.count > 0) add({StepKind::copy, -1, target, from, {}});
}

void ScheduleBuilder::finish(const Range& target) {
  if (target.count > 0) add({StepKind::finish, -1, target, {}, {}});
}

Range ScheduleBuilder::scratch(uint64_t count) {
  const Range range{BufferId::scratch, scratch_count_, count};
  scratch_count_ += count;
  return range;
}

void ScheduleBuilder::add(Step step) {
  const auto index = static_cast<uint32_t>(steps_.size());
  if (step.left.count > 0) read(index, step.left);
  if (step.right.count > 0) read(index, step.right);
  if (step.target.count > 0) write(index, step.target);
  steps_.push_back(step);
}

void ScheduleBuilder::read(uint32_t step, const Range& range) {
  const auto buffer = static_cast<size_t>(range.buffer);
  for (const Access& write : writes_[buffer])
    if (write.step != step && write.range.overlaps(range)) edges_.emplace_back(write.step, step);
  reads_[buffer].push_back({range, step});
}

void ScheduleBuilder::write(uint32_t step, const Range& range) {
  const auto buffer = static_cast<size_t>(range.buffer);
  for (auto* accesses : {&reads_[buffer], &writes_[buffer]}) {
    // What is overwritten whole is met by later steps through this one.
    std::erase_if(*accesses, [&](const Access& access) {
      if (access.step == step || !access.range.overlaps(range)) return false;
      edges_.emplace_back(access.step, step);
      return range.covers(access.range);
    });
  }
  writes_[buffer].push_back({range, step});
}

Schedule ScheduleBuilder::build() {
  Schedule schedule;
  const size_t count = steps_.size();
  std::sort(edges_.begin(), edges_.end());
  edges_.erase(std::unique(edges_.begin(), edges_.end()), edges_.end());
  schedule.waits_.assign(count, 0);
  schedule.followers_begin_.assign(count + 1, 0);
  for (const auto& [from, to] : edges_) {
    ++schedule.waits_[to];
    ++schedule.followers_begin_[from + 1];
    schedule.followers_.push_back(to);
  }
  for (size_t i = 0; i < count; ++i) schedule.followers_begin_[i + 1] += schedule.followers_begin_[i];
  schedule.next_in_line_.assign(count, nobody);
  std::map<std::pair<int, StepKind>, uint32_t> last;
  for (uint32_t i = 0; i < count; ++i) {
    if (!is_message(steps_[i])) continue;
    const auto [place, first] = last.try_emplace({steps_[i].peer, steps_[i].kind}, i);
    if (first) continue;
    schedule.next_in_line_[place->second] = i;
    ++schedule.waits_[i];
    place->second = i;
  }
  schedule.steps_ = std::move(steps_);
  schedule.scratch_count_ = scratch_count_;
  return schedule;
}

ScratchSlots::ScratchSlots(ScheduleBuilder& builder, uint64_t slot_elements, uint64_t slots)
    : all_(builder.scratch(slot_elements * slots)), slot_elements_(slot_elements), slots_(slots) {}

Range ScratchSlots::take(uint64_t count) {
  return all_.part((next_++ % slots_) * slot_elements_, count);
}

std::vector<uint64_t> even_offsets(uint64_t total, int parts) {
  const auto number = static_cast<uint64_t>(parts);
  std::vector<uint64_t> offsets(number + 1);
  for (uint64_t i = 0; i <= number; ++i) offsets[i] = total / number * i + std::min(i, total % number);
  return offsets;
}

std::vector<uint64_t> offsets_of(const std::vector<uint64_t>& counts) {
  std::vector<uint64_t> offsets{0};
  for (const uint64_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

ScheduleRun::ScheduleRun(const Schedule& schedule)
    : schedule_(&schedule), waits_(schedule.waits_), left_(schedule.steps_.size()) {
  for (uint32_t i = 0; i < waits_.size(); ++i)
    if (waits_[i] == 0) ready_.push_back(i);
}

std::optional<uint32_t> ScheduleRun::next() {
  if (ready_.empty()) return std::nullopt;
  const uint32_t step = ready_.front();
  ready_.pop_front();
  if (schedule_->next_in_line_[step] != nobody) release(schedule_->next_in_line_[step]);
  return step;
}

void ScheduleRun::ended(uint32_t step) {
  --left_;
  for (uint32_t i = schedule_->followers_begin_[step]; i < schedule_->followers_begin_[step + 1]; ++i)
    release(schedule_->followers_[i]);
}

void ScheduleRun::release(uint32_t step) {
  if (--waits_[step] == 0) ready_.push_back(step);
}

}  // namespace rdmatx
