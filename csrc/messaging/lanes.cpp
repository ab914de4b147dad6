#include "messaging/lanes.hpp"

#include <algorithm>

namespace rdmatx {
namespace {

TransferLimits lesser(const TransferLimits& a, const TransferLimits& b) {
  return {std::min(a.max_message_bytes, b.max_message_bytes),
          std::min(a.max_region_bytes, b.max_region_bytes), std::min(a.max_sge, b.max_sge),
          std::min(a.queue_depth, b.queue_depth), std::min(a.inline_bytes, b.inline_bytes)};
}

}  // namespace

Lanes::Lanes(std::vector<Lane> lanes) : lanes_(std::move(lanes)) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    const TransferLimits limits = lane.channel->limits(lane.path.max_message_bytes);
    limits_ = i == 0 ? limits : lesser(limits_, limits);
    lane.stats.path = lane.path.text();
    if (lanes_.size() > 1) lane.channel->keep_messages();
  }
  choose_message_lane();
}

void Lanes::choose_message_lane() noexcept {
  const auto first =
      std::find_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.alive(); });
  if (first != lanes_.end()) first_ = static_cast<size_t>(first - lanes_.begin());
}

size_t Lanes::choose(uint64_t bytes) const noexcept {
  size_t best = lanes_.size();
  double least = 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (!lane.alive() || !lane.channel->can_post_piece()) continue;
    const double time =
        static_cast<double>(lane.channel->outstanding_bytes() + bytes) / static_cast<double>(lane.weight);
    if (best < lanes_.size() && time >= least) continue;
    best = i;
    least = time;
  }
  return best;
}

size_t Lanes::alive() const noexcept {
  return static_cast<size_t>(
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.alive(); }));
}

bool Lanes::any_left_but(size_t index) const noexcept {
  return alive() > (lanes_[index].alive() ? 1u : 0u);
}

bool Lanes::idle() const noexcept {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.alive() ? lane.channel->idle() : lane.state == Lane::State::down;
  });
}

bool Lanes::has_requests() const noexcept {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return lane.alive() && lane.channel->has_requests(); });
}

RailDomainList Lanes::domains() const {
  RailDomainList domains;
  for (const Lane& lane : lanes_) domains.push_back(lane.rail.domain);
  return domains;
}

}  // namespace rdmatx
