#include "messaging/device_operation.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.hpp"
#include "gpu/memory.hpp"

namespace rdmatx {
namespace {

// What is copied before the wire starts, and what goes to the wire at once: as long as the copies' chunks.
constexpr uint64_t stage_bytes = uint64_t{1} << 20;

}  // namespace

// ---- copies that outlive their operation

namespace {

/// Memory that a GPU still copies to or from after its operation has failed. Looked through with each new
/// operation.
template <typename T>
struct Unfinished {
  std::mutex mutex;
  std::vector<T> copies;
  const pid_t process = getpid();
};

}  // namespace

bool DeviceOperation::Staged::finished() {
  try {
    return copy.empty() || copy.front().finished();
  } catch (const CudaError&) {
    return true;  // what failed touches nothing any more
  }
}

void DeviceOperation::leave(std::vector<Staged> unfinished) {
  static auto* all = new Unfinished<Staged>;  // outlives every static destructor
  if (all->process != getpid()) return;
  std::vector<Staged> done;  // dropped after the lock
  const std::lock_guard lock(all->mutex);
  for (Staged& staged : unfinished) all->copies.push_back(std::move(staged));
  std::vector<Staged> left;
  for (Staged& staged : all->copies) (staged.finished() ? done : left).push_back(std::move(staged));
  all->copies = std::move(left);
}

DeviceOperation::DeviceOperation() {
  leave({});
}

DeviceOperation::~DeviceOperation() {
  std::vector<Staged> unfinished;
  for (auto* list : {&outgoing_, &incoming_})
    for (Staged& staged : *list)
      if (!staged.finished()) unfinished.push_back(std::move(staged));
  if (!unfinished.empty()) leave(std::move(unfinished));
}

// ---- setting up

void DeviceOperation::move_directly(const Range& range, std::vector<GpuEvent> event, bool incoming) {
  for (GpuEvent& one : event) gates_.push_back(std::move(one));
  if (incoming) direct_.push_back(range);
}

std::shared_ptr<PinnedBuffer> DeviceOperation::stage_outgoing(const Range& range,
                                                              std::optional<StreamHandle> after, uint64_t at,
                                                              std::shared_ptr<void> keepalive) {
  auto pinned = std::make_shared<PinnedBuffer>(range.gpu, range.bytes);
  Staged staged{range, at, pinned, {}, {}, std::move(keepalive)};
  staged.copy.push_back(DeviceCopy::to_host(range.gpu, pinned->data(), range.address, range.bytes, after));
  outgoing_.push_back(std::move(staged));
  return pinned;
}

std::shared_ptr<PinnedBuffer> DeviceOperation::stage_incoming(const Range& range,
                                                              std::optional<StreamHandle> after,
                                                              std::shared_ptr<void> keepalive) {
  auto pinned = std::make_shared<PinnedBuffer>(range.gpu, range.bytes);
  Staged staged{range, 0, pinned, {}, {}, std::move(keepalive)};
  if (after) staged.after.push_back(GpuEvent::record(range.gpu, *after));
  incoming_.push_back(std::move(staged));
  return pinned;
}

// ---- going out

bool DeviceOperation::ready() {
  if (ready_) return true;
  for (GpuEvent& gate : gates_)
    if (!gate.reached()) return false;
  for (Staged& staged : outgoing_) {
    const uint64_t wanted = whole_ ? staged.range.bytes : std::min(staged.range.bytes, stage_bytes);
    if (staged.copy.front().ready() < wanted) return false;
  }
  return ready_ = true;
}

uint64_t DeviceOperation::ready_bytes() {
  for (Staged& staged : outgoing_)
    if (!staged.copy.front().finished()) return staged.at + staged.copy.front().ready();
  return UINT64_MAX;
}

uint64_t DeviceOperation::piece_bytes() const noexcept {
  return outgoing_.empty() ? UINT64_MAX : stage_bytes;
}

// ---- coming in

void DeviceOperation::place(std::span<const std::byte> payload) {
  if (payload.empty()) return;
  Range range = direct_.front();
  range.bytes = payload.size();
  auto pinned = std::make_shared<PinnedBuffer>(range.gpu, range.bytes);
  std::memcpy(pinned->data(), payload.data(), payload.size());
  incoming_.push_back({range, 0, std::move(pinned), {}, {}, {}});
}

void DeviceOperation::land(uint64_t bytes) {
  for (Staged& staged : incoming_) {
    const uint64_t here = std::min(bytes, staged.range.bytes);
    const GpuEvent* after = staged.after.empty() ? nullptr : &staged.after.front();
    staged.copy.push_back(
        DeviceCopy::to_device(staged.range.gpu, staged.range.address, staged.pinned->data(), here, after));
  }
  for (const Range& range : direct_) flush_remote_writes(range.gpu);
}

bool DeviceOperation::landed() {
  return std::all_of(incoming_.begin(), incoming_.end(),
                     [](Staged& staged) { return staged.copy.front().finished(); });
}

}  // namespace rdmatx
