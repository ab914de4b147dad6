#include "gpu/copies.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/size_class_pool.hpp"
#include "gpu/cuda.hpp"

namespace rdmatx {
namespace {

using cuda::Driver;

// Long enough that a copy engine is at its best, short enough that the wire starts early.
constexpr uint64_t chunk_bytes = uint64_t{1} << 20;
constexpr size_t pool_bytes = size_t{256} << 20;
constexpr size_t pool_pieces = 64;

cuda::Handle handle_of(StreamHandle stream) {
  return reinterpret_cast<cuda::Handle>(stream);
}

enum class Direction : uint8_t { to_host, to_device };

/// Streams of our own, one a GPU and direction: a GPU has a copy engine for each. Made once and kept.
cuda::Handle copy_stream(const Driver& driver, int gpu, Direction direction) {
  static std::mutex mutex;
  // Outlives every static destructor, as the streams do: the driver may be gone by then.
  static auto* streams = new std::map<std::pair<int, Direction>, cuda::Handle>;
  const std::lock_guard lock(mutex);
  cuda::Handle& stream = (*streams)[{gpu, direction}];
  if (!stream)
    cuda::check(driver, driver.create_stream(&stream, cuda::stream_without_legacy), "cuStreamCreate");
  return stream;
}

using Pool = SizeClassPool<std::unique_ptr<PinnedBuffer::Block>>;

Pool& pool() {
  static auto* blocks = new Pool(pool_bytes, pool_pieces);  // outlives every static destructor
  return *blocks;
}

}  // namespace

void check_not_capturing(int gpu, StreamHandle stream) {
  const Driver& driver = cuda::need_driver();
  if (!driver.stream_is_capturing) return;
  const cuda::CurrentGpu current(driver, gpu);
  int status = 0;
  const cuda::Result result = driver.stream_is_capturing(handle_of(stream), &status);
  constexpr cuda::Result captured_elsewhere = 906;  // of the legacy stream, while another one is captured
  if (result == captured_elsewhere || (result == cuda::success && status != 0))
    throw UsageError(
        "this stream is being captured into a CUDA graph, and a transfer cannot be a part of one: a graph is "
        "replayed without the host, and the network needs it. Call rdmatx before or after the capture, "
        "between "
        "two graphs");
  cuda::check(driver, result, "cuStreamIsCapturing", "Is this a stream of GPU " + std::to_string(gpu) + "?");
}

// ---- events

int GpuEvent::current_process() noexcept {
  return getpid();
}

GpuEvent GpuEvent::record(int gpu, StreamHandle stream) {
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu);
  cuda::Handle made = nullptr;
  cuda::check(driver, driver.create_event(&made, cuda::event_without_timing), "cuEventCreate");
  GpuEvent event(gpu, made);
  cuda::check(driver, driver.record_event(made, handle_of(stream)), "cuEventRecord",
              "Is this a stream of GPU " + std::to_string(gpu) + "?");
  return event;
}

GpuEvent::GpuEvent(GpuEvent&& other) noexcept
    : gpu_(other.gpu_),
      event_(std::exchange(other.event_, nullptr)),
      process_(other.process_),
      reached_(other.reached_) {}

GpuEvent& GpuEvent::operator=(GpuEvent&& other) noexcept {
  if (this == &other) return *this;
  destroy();
  gpu_ = other.gpu_;
  event_ = std::exchange(other.event_, nullptr);
  process_ = other.process_;
  reached_ = other.reached_;
  return *this;
}

GpuEvent::~GpuEvent() {
  destroy();
}

void GpuEvent::destroy() noexcept {
  const Driver* driver = event_ && process_ == current_process() ? cuda::find_driver() : nullptr;
  // An event may go before it is reached; the driver frees it then.
  if (driver && driver->destroy_event(event_) != cuda::success)
    log(LogLevel::debug, "cuEventDestroy failed: the CUDA driver has ended");
  event_ = nullptr;
}

bool GpuEvent::reached() {
  if (reached_) return true;
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu_);
  const cuda::Result result = driver.query_event(event_);
  if (result == cuda::not_ready) return false;
  cuda::check(driver, result, "cuEventQuery", "Work that was queued before the transfer failed");
  reached_ = true;
  return true;
}

void GpuEvent::synchronize() {
  if (reached_) return;
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu_);
  cuda::check(driver, driver.synchronize_event(event_), "cuEventSynchronize",
              "Work that was queued before failed");
  reached_ = true;
}

// ---- pinned memory

PinnedBuffer::Block::~Block() {
  if (!owner->of_this_process()) return;
  owner->die();
  const Driver* driver = cuda::find_driver();
  try {
    if (!driver) return;
    const cuda::CurrentGpu current(*driver, gpu);
    cuda::check(*driver, driver->free_host(owner->base()), "cuMemFreeHost");
  } catch (const Error& error) {
    log(LogLevel::debug, error.what());
  }
}

PinnedBuffer::PinnedBuffer(int gpu, uint64_t bytes) {
  const size_t size = Pool::class_of(bytes);
  if (auto block = pool().take(size)) {
    block_ = std::move(*block);
    return;
  }
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu);
  void* memory = nullptr;
  // Portable: any GPU may copy to it.
  cuda::check(driver, driver.allocate_host(&memory, size, cuda::host_memory_portable), "cuMemHostAlloc",
              std::to_string(size) + " bytes of pinned memory: move the array in parts");
  block_ = std::make_unique<Block>();
  block_->gpu = gpu;
  block_->owner = std::make_shared<MemoryOwner>(memory, size);
}

PinnedBuffer::~PinnedBuffer() {
  const size_t size = block_->owner->bytes();
  pool().give(size, std::move(block_));
}

void trim_pinned() noexcept {
  pool().clear();
}

// ---- copies

DeviceCopy DeviceCopy::to_host(int gpu, std::byte* to, uint64_t from, uint64_t bytes,
                               std::optional<StreamHandle> after) {
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu);
  const cuda::Handle stream = copy_stream(driver, gpu, Direction::to_host);
  if (after) {
    const GpuEvent event = GpuEvent::record(gpu, *after);
    cuda::check(driver, driver.wait_for_event(stream, event.event_, 0), "cuStreamWaitEvent");
  }
  DeviceCopy copy(bytes);
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t size = std::min(chunk_bytes, bytes - at);
    cuda::check(driver, driver.copy_to_host(to + at, from + at, size, stream), "cuMemcpyDtoHAsync");
    at += size;
    copy.chunks_.push_back({at, GpuEvent::record(gpu, reinterpret_cast<StreamHandle>(stream))});
  }
  return copy;
}

DeviceCopy DeviceCopy::to_device(int gpu, uint64_t to, const std::byte* from, uint64_t bytes,
                                 const GpuEvent* after) {
  const Driver& driver = cuda::need_driver();
  const cuda::CurrentGpu current(driver, gpu);
  const cuda::Handle stream = copy_stream(driver, gpu, Direction::to_device);
  DeviceCopy copy(bytes);
  if (bytes == 0) return copy;
  if (after) cuda::check(driver, driver.wait_for_event(stream, after->event_, 0), "cuStreamWaitEvent");
  cuda::check(driver, driver.copy_to_device(to, from, bytes, stream), "cuMemcpyHtoDAsync");
  copy.chunks_.push_back({bytes, GpuEvent::record(gpu, reinterpret_cast<StreamHandle>(stream))});
  return copy;
}

uint64_t DeviceCopy::ready() {
  while (next_ < chunks_.size() && chunks_[next_].event.reached()) ready_ = chunks_[next_++].end;
  return ready_;
}

void DeviceCopy::synchronize() {
  if (!chunks_.empty()) chunks_.back().event.synchronize();
}

}  // namespace rdmatx
