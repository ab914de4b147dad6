#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/export.hpp"
#include "base/memory_owner.hpp"

namespace rdmatx {

/// A queue of work of a GPU, as frameworks hand it over: a number. 0 and 1 are the legacy default stream, 2
/// the thread's.
using StreamHandle = uint64_t;

/// Throws UsageError where the stream is being captured into a graph: what a network does cannot be replayed.
RDMATX_API void check_not_capturing(int gpu, StreamHandle stream);

/// A point in a stream: everything queued there before has to be done for it to be reached.
/// Owns the driver's event. Any thread, one at a time.
class RDMATX_API GpuEvent {
 public:
  static GpuEvent record(int gpu, StreamHandle stream);
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&& other) noexcept;
  ~GpuEvent();

  /// Whether it is reached; looks once. Throws CudaError where the work before it failed.
  bool reached();
  /// Waits for it.
  void synchronize();

 private:
  friend class DeviceCopy;
  GpuEvent(int gpu, void* event) noexcept : gpu_(gpu), event_(event) {}
  void destroy() noexcept;

  int gpu_;
  void* event_;
  int process_ = current_process();
  bool reached_ = false;
  static int current_process() noexcept;
};

/// Host memory that a GPU copies to and from on its own, from a pool. What is in it is undefined.
/// Owns its pages, or rather borrows them. Any thread.
class RDMATX_API PinnedBuffer {
 public:
  /// At least `bytes`. Throws UnavailableError without a driver, and CudaError where there is no memory.
  PinnedBuffer(int gpu, uint64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  std::byte* data() const noexcept { return block_->owner->base(); }
  /// Lives as long as the pool keeps the memory.
  const std::shared_ptr<MemoryOwner>& owner() const noexcept { return block_->owner; }

  /// Memory as the pool holds it.
  struct Block {
    ~Block();
    int gpu = 0;
    std::shared_ptr<MemoryOwner> owner;
  };

 private:
  std::unique_ptr<Block> block_;
};

/// A copy between a GPU's memory and pinned memory, in chunks, on a stream of rdmatx's own: begun when it is
/// made, done in the background. Does not own the memory. One thread at a time.
class RDMATX_API DeviceCopy {
 public:
  /// The copy begins when `after` is reached in that stream.
  static DeviceCopy to_host(int gpu, std::byte* to, uint64_t from, uint64_t bytes,
                            std::optional<StreamHandle> after);
  /// The copy begins when `after`, where given, is reached.
  static DeviceCopy to_device(int gpu, uint64_t to, const std::byte* from, uint64_t bytes,
                              const GpuEvent* after = nullptr);

  /// How many bytes, from the first on, are in place. Throws CudaError where the copy failed.
  uint64_t ready();
  bool finished() { return ready() == bytes_; }
  void synchronize();

 private:
  explicit DeviceCopy(uint64_t bytes) : bytes_(bytes) {}
  struct Chunk {
    uint64_t end;
    GpuEvent event;
  };
  std::vector<Chunk> chunks_;
  size_t next_ = 0;  // the first that is not known to be done
  uint64_t bytes_;
  uint64_t ready_ = 0;
};

/// Gives pinned memory that is not in use back to the system.
RDMATX_API void trim_pinned() noexcept;

}  // namespace rdmatx
