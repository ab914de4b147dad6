#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "base/unique_fd.hpp"

// What the layers above know of GPUs: numbers, addresses, descriptors. Which driver is behind it they do not
// see (docs/gpu.md).

namespace rdmatx {

struct GpuInfo {
  int number = 0;
  std::string name;
  std::string pci_address;        ///< "0000:17:00.0"
  bool exports_dma_bufs = false;  ///< its memory can be registered by dma-buf
  bool needs_flush = false;       ///< what a device wrote is seen by its kernels only after a flush
};

/// The GPUs of this machine, or why there are none. Never throws.
struct GpuReport {
  bool available = false;
  std::string reason;  ///< where it is not: in words, with the remedy
  std::string driver;  ///< "CUDA driver 12.4"
  std::vector<GpuInfo> gpus;
};
RDMATX_API GpuReport gpu_report();

enum class PointerKind : uint8_t {
  host,     ///< memory the driver knows nothing of
  pinned,   ///< the host's, allocated by the driver or made known to it
  managed,  ///< moves between the host and a GPU
  device,
};
RDMATX_API const char* pointer_kind_name(PointerKind kind) noexcept;

/// What the driver knows of an address.
struct PointerInfo {
  PointerKind kind = PointerKind::host;
  int gpu = -1;            ///< its number
  uint64_t buffer_id = 0;  ///< of the allocation; other than its address, never used again
  bool mapped = false;     ///< physical memory mapped at an address: the next byte may be another piece's
  bool pooled = false;     ///< from a pool of the driver (cudaMallocAsync)
};
/// Throws UnavailableError where no driver can be loaded.
RDMATX_API PointerInfo describe_pointer(const void* pointer);

struct DeviceRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
};
/// The allocation, or the mapped piece, that holds an address. Throws UsageError where none does.
RDMATX_API DeviceRange allocation_at(uint64_t address);
/// [address, address + bytes) by the pieces of physical memory under it: one, or for mapped memory
/// (expandable segments) several. Throws UsageError where the range leaves its allocation.
RDMATX_API std::vector<DeviceRange> pieces_under(uint64_t address, uint64_t bytes);

/// Device memory as a descriptor that a NIC's driver takes.
struct DmaBuf {
  UniqueFd fd;
  uint64_t offset = 0;  ///< of the first byte asked for: what is exported begins at a page
};
/// Of a range within one piece. Throws UnavailableError where the driver or the GPU has no dma-bufs, and
/// CudaError where it does not export this memory.
RDMATX_API DmaBuf export_dma_buf(int gpu, const DeviceRange& range);

/// Makes what a NIC wrote into a GPU's memory visible to it, where the GPU needs that.
RDMATX_API void flush_remote_writes(int gpu);

/// Zeroed memory of a GPU. Owns it. Immutable; any thread.
class RDMATX_API DeviceBuffer {
 public:
  /// Throws UnavailableError without a driver, UsageError where there is no such GPU, CudaError where it has
  /// no room.
  static std::shared_ptr<DeviceBuffer> create(int gpu, size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  uint64_t address() const noexcept { return address_; }
  size_t bytes() const noexcept { return bytes_; }
  int gpu() const noexcept { return gpu_; }

 private:
  DeviceBuffer(int gpu, uint64_t address, size_t bytes) : gpu_(gpu), address_(address), bytes_(bytes) {}

  const int gpu_;
  const uint64_t address_;
  const size_t bytes_;
  const int process_ = current_process();
  static int current_process() noexcept;
};

}  // namespace rdmatx
