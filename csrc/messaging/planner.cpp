#include "messaging/planner.hpp"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.hpp"

namespace rdmatx {

std::vector<uint64_t> plan_regions(uint64_t bytes, const TransferLimits& limits) {
  if (limits.max_region_bytes == 0)
    throw UnavailableError("the device says that it registers no memory (max_mr_size is 0)");
  std::vector<uint64_t> parts;
  while (bytes > 0) {
    parts.push_back(std::min(bytes, limits.max_region_bytes));
    bytes -= parts.back();
  }
  return parts;
}

TransferPlan::TransferPlan(std::span<const uint64_t> local_parts, std::span<const uint64_t> remote_parts,
                           const TransferLimits& limits, TransferDirection direction)
    : local_(local_parts),
      remote_(remote_parts),
      limits_(limits),
      direction_(direction),
      total_(std::accumulate(local_parts.begin(), local_parts.end(), uint64_t{0})),
      end_(total_),
      signal_interval_(std::max(1u, limits.queue_depth / 4)) {
  const uint64_t there = std::accumulate(remote_parts.begin(), remote_parts.end(), uint64_t{0});
  if (there != total_)
    throw UsageError("a transfer has " + std::to_string(total_) + " bytes on this side and " +
                     std::to_string(there) + " on the other");
  if (limits.max_message_bytes == 0 || limits.max_sge == 0)
    throw UnavailableError("the device says that it moves nothing (max_msg_sz or max_sge is 0)");
}

TransferPlan::TransferPlan(std::span<const uint64_t> local_parts, std::span<const uint64_t> remote_parts,
                           const TransferLimits& limits, TransferDirection direction, TransferRange range)
    : TransferPlan(local_parts, remote_parts, limits, direction) {
  if (range.begin > range.end || range.end > total_)
    throw UsageError("a range from " + std::to_string(range.begin) + " to " + std::to_string(range.end) +
                     " is not within a transfer of " + std::to_string(total_) + " bytes");
  end_ = range.end;
  skip(range.begin);
}

void TransferPlan::skip(uint64_t bytes) {
  const auto advance = [](std::span<const uint64_t> parts, uint32_t& part, uint64_t& offset, uint64_t left) {
    while (part < parts.size() && left >= parts[part]) left -= parts[part++];
    offset = left;
  };
  advance(local_, local_part_, local_offset_, bytes);
  advance(remote_, remote_part_, remote_offset_, bytes);
  planned_ = bytes;
}

void TransferPlan::gather(PlannedWork& work, uint64_t limit) {
  const uint32_t most = std::min(limits_.max_sge, PlannedWork::max_entries);
  while (work.bytes < limit && work.entry_count < most) {
    const uint64_t here = local_[local_part_] - local_offset_;
    const uint64_t bytes = std::min(here, limit - work.bytes);
    if (bytes > 0) work.entries[work.entry_count++] = {local_part_, local_offset_, bytes};
    work.bytes += bytes;
    local_offset_ += bytes;
    if (local_offset_ == local_[local_part_]) {
      ++local_part_;
      local_offset_ = 0;
    }
  }
}

std::optional<PlannedWork> TransferPlan::next() {
  if (finished_) return std::nullopt;
  PlannedWork work;
  work.offset = planned_;
  if (planned_ < end_) {
    while (remote_offset_ == remote_[remote_part_]) {
      ++remote_part_;
      remote_offset_ = 0;
    }
    work.remote_part = remote_part_;
    work.remote_offset = remote_offset_;
    const uint64_t room = remote_[remote_part_] - remote_offset_;
    gather(work, std::min({limits_.max_message_bytes, room, end_ - planned_}));
    remote_offset_ += work.bytes;
    planned_ += work.bytes;
  }
  work.inlined =
      direction_ == TransferDirection::write && work.bytes > 0 && work.bytes <= limits_.inline_bytes;
  work.last = finished_ = planned_ == end_;
  work.signalled = work.last || ++unsignalled_ >= signal_interval_;
  if (work.signalled) unsignalled_ = 0;
  return work;
}

}  // namespace rdmatx
