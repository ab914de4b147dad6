#include "gpu/buffer.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/size_class_pool.hpp"

namespace rdmatx {
namespace {

using Segment = HostBuffer::Segment;
using Pool = SizeClassPool<Segment>;

constexpr size_t most_pooled_segments = 64;  // each holds a descriptor

size_t pool_limit() {
  const auto memory =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::max(memory / 16, size_t{64} << 20);
}

/// What this process made. Pages are shared with a forked child, which must not hand out what the parent
/// does, and the parent's locks may be held by threads that are not there: a child starts anew.
struct Segments {
  Pool pool{pool_limit(), most_pooled_segments};
  std::mutex mutex;
  std::map<const std::byte*, std::shared_ptr<MemoryOwner>> owners;  // of all that are alive, by first address
};

Segments& segments() {
  static std::atomic<Segments*> current{nullptr};  // outlives every static destructor
  Segments* found = current.load(std::memory_order_acquire);
  while (!found || found->pool.forked()) {
    auto made = std::make_unique<Segments>();
    if (current.compare_exchange_strong(found, made.get(), std::memory_order_acq_rel)) found = made.release();
  }
  return *found;
}

Segment make_segment(size_t size) {
  Segment segment;
  segment.memory = SharedMemory::create(size, "rdmatx-buffer");
  publish_segment(segment.memory);
  segment.owner = std::make_shared<MemoryOwner>(segment.memory->data(), segment.memory->size());
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  all.owners[segment.memory->data()] = segment.owner;
  return segment;
}

/// First what was remembered of it, then the pages.
void free_segment(Segment segment) noexcept {
  {
    Segments& all = segments();
    const std::lock_guard lock(all.mutex);
    all.owners.erase(segment.memory->data());
  }
  segment.owner->die();
}

/// Zeroes the first `bytes` bytes, and leaves pages alone that nobody has touched yet.
void zero(const SharedMemory& memory, size_t bytes) {
  const auto end = static_cast<off_t>(bytes);
  for (off_t at = 0; at < end;) {
    const off_t start = lseek(memory.fd(), at, SEEK_DATA);
    if (start < 0 && errno == ENXIO) return;  // nothing but untouched pages
    off_t stop = start < 0 ? -1 : lseek(memory.fd(), start, SEEK_HOLE);
    if (stop < 0) stop = end;
    const off_t first = std::max(start, at);
    if (first >= end) return;
    std::memset(memory.data() + first, 0, static_cast<size_t>(std::min(stop, end) - first));
    at = stop;
  }
}

}  // namespace

std::shared_ptr<HostBuffer> HostBuffer::create(size_t bytes) {
  const size_t size = Pool::class_of(bytes);
  if (size < bytes) throw Error("there is no memory of " + std::to_string(bytes) + " bytes");
  std::optional<Segment> segment = segments().pool.take(size);
  if (segment)
    zero(*segment->memory, bytes);
  else
    segment = make_segment(size);
  return std::shared_ptr<HostBuffer>(new HostBuffer(std::move(*segment), bytes));
}

HostBuffer::HostBuffer(Segment segment, size_t bytes) : segment_(std::move(segment)), bytes_(bytes) {}

HostBuffer::~HostBuffer() {
  // Made before a fork: shared with the parent, which may use it still.
  if (!segment_.owner->of_this_process()) return;
  const size_t size = segment_.memory->size();
  for (Segment& out : segments().pool.give(size, std::move(segment_))) free_segment(std::move(out));
}

std::shared_ptr<MemoryOwner> find_host_memory_owner(const void* data, size_t bytes) {
  Segments& all = segments();
  const std::lock_guard lock(all.mutex);
  auto next = all.owners.upper_bound(static_cast<const std::byte*>(data));
  if (next == all.owners.begin()) return nullptr;
  const std::shared_ptr<MemoryOwner>& owner = std::prev(next)->second;
  return owner->holds(data, bytes) ? owner : nullptr;
}

void trim_host_buffers() noexcept {
  for (Segment& out : segments().pool.clear()) free_segment(std::move(out));
}

}  // namespace rdmatx
