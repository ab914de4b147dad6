#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "gpu/copies.hpp"
#include "gpu/memory.hpp"
#include "rdma/memory_region.hpp"

namespace rdmatx {

/// Registrations of the same memory, one for each device of a context.
using RailRegions = std::vector<std::shared_ptr<MemoryRegion>>;
/// The protection domains of a connection's rails; memory is registered in each.
using RailDomains = std::span<const std::shared_ptr<ProtectionDomain>>;

/// Dense memory of a GPU, as an operation is given it.
struct DeviceMemory {
  int gpu = 0;
  PointerKind kind = PointerKind::device;
  bool pooled = false;
  std::vector<DeviceRange> pieces;     ///< one behind the other: of its physical memory
  std::optional<StreamHandle> stream;  ///< what the operation is to be in order with
};

/// What lies at an address that is said to be a GPU's; null where it is the host's after all. Throws
/// UsageError where it is no such memory, or passes the end of its allocation.
RDMATX_API std::shared_ptr<const DeviceMemory> device_memory_at(const void* data, uint64_t bytes,
                                                                std::optional<StreamHandle> stream);
/// A part of it, in order with another stream.
RDMATX_API std::shared_ptr<const DeviceMemory> part_of_device_memory(const DeviceMemory& whole,
                                                                     const void* data, uint64_t bytes,
                                                                     std::optional<StreamHandle> stream);

/// Whether NICs are to reach the memory of GPUs themselves.
enum class GpuDirect : uint8_t {
  automatic,  ///< where they can
  required,   ///< an operation that would have to go through the host's memory fails instead
  off,        ///< never
};
/// "auto", "require", "off"; UsageError for other words.
RDMATX_API GpuDirect parse_gpu_direct(const std::string& word);

/// How a NIC reaches the memory of a GPU.
enum class GpuWay : uint8_t { undecided, dma_buf, peer_memory, staging };
RDMATX_API const char* gpu_way_name(GpuWay way) noexcept;

/// Of one device and one GPU: the way that is taken, and why.
struct GpuChoice {
  std::string device;
  int gpu = 0;
  GpuWay way = GpuWay::undecided;
  std::string reason;
};

/// Registers memory of GPUs for the devices of one context, the shortest way that works: as a dma-buf, else
/// by its address (a peer memory module of the kernel, such as nvidia-peermem), else not at all. The way is
/// chosen with the first memory of a GPU that a device is to reach, and logged; what fails later makes that
/// one operation go another way. Any thread; owns no registration.
class RDMATX_API GpuRegistrar {
 public:
  explicit GpuRegistrar(GpuDirect policy) : policy_(policy) {}

  /// Registrations of every piece in every domain, piece by piece, or none at all: then the operation goes
  /// through the host's memory. Throws UnavailableError with the reason where that is not wanted.
  std::shared_ptr<const RailRegions> try_register(const DeviceMemory& memory, RailDomains domains,
                                                  Access access, const std::shared_ptr<void>& keepalive);
  /// The same for a region, which peers have to reach: throws UnavailableError with the reason.
  std::shared_ptr<const RailRegions> must_register(const DeviceMemory& memory, RailDomains domains,
                                                   Access access, const std::shared_ptr<void>& keepalive);
  std::vector<GpuChoice> choices() const;

  /// Peers write to memory of this GPU without a word: what they wrote is flushed before they are heard.
  void expose(int gpu);
  void flush_exposed();

 private:
  std::shared_ptr<const RailRegions> register_all(const DeviceMemory& memory, RailDomains domains,
                                                  Access access, const std::shared_ptr<void>& keepalive,
                                                  std::string& why);
  bool register_in(const DeviceMemory& memory, const std::shared_ptr<ProtectionDomain>& domain, Access access,
                   const std::shared_ptr<void>& keepalive, RailRegions& regions, std::string& why);
  GpuChoice choice_of(const std::string& device, int gpu) const;
  void settle(const std::string& device, int gpu, GpuWay way, const std::string& reason);
  void tell_late(const std::string& device, int gpu, const std::string& why);

  const GpuDirect policy_;
  mutable std::mutex mutex_;
  std::vector<GpuChoice> choices_;
  std::set<std::pair<std::string, int>> told_late_;
  std::set<int> exposed_;
  std::atomic<bool> exposes_{false};
};

}  // namespace rdmatx
