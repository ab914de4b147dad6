#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "messaging/connection.hpp"
#include "messaging/listener.hpp"
#include "rdma/provider.hpp"

namespace rdmatx {

/// Registered memory of the user's: others reach it by its key, as far as `access` allows.
/// Owns the registration, and what keeps the memory alive, until close(). Thread-safe.
class RDMATX_API Region {
 public:
  Region(std::shared_ptr<ContextResources> resources, OperationMemory memory, bool readonly, uint16_t access);
  ~Region();

  /// Operations that use the region already keep it until they end; new ones throw ClosedError.
  void close();
  bool closed() const;
  RemoteKey key() const;
  /// The registration; throws ClosedError.
  std::shared_ptr<const RailRegions> registration() const;
  void* data() const noexcept { return data_; }
  uint64_t bytes() const noexcept { return bytes_; }
  uint16_t access() const noexcept { return access_; }
  bool readonly() const noexcept { return readonly_; }
  /// Of memory of a GPU: its pieces; else null.
  const std::shared_ptr<const DeviceMemory>& device() const noexcept { return device_; }

 private:
  const int generation_;
  void* const data_;
  const uint64_t bytes_;
  const bool readonly_;
  const uint16_t access_;
  const size_t rail_count_;
  std::shared_ptr<const DeviceMemory> device_;
  mutable std::mutex mutex_;
  std::shared_ptr<const RailRegions> regions_;  // of each piece one for each rail
};

/// One device opened for use, or several, the rails: where connections, listeners and regions come from.
/// Regions and connections of one context belong together.
///
/// Owns the devices, a protection domain in each, and the progress of its connections: a key is of use over
/// every connection of the context that made it, and over no other. Closing it closes what was made from it.
/// Thread-safe.
class RDMATX_API Context {
 public:
  /// No device is whichever serves (open_devices()). `default_timeout` in seconds holds wherever none is
  /// given; `verify` has messages carry checksums; `gpu_direct` says whether devices are to reach the memory
  /// of GPUs themselves.
  Context(const std::vector<std::string>& devices, Provider provider, double default_timeout,
          bool verify = false, GpuDirect gpu_direct = GpuDirect::automatic);
  /// On devices that are open already (tests, several contexts on one device).
  Context(OpenedDevices devices, double default_timeout, bool verify = false,
          GpuDirect gpu_direct = GpuDirect::automatic);
  Context(std::shared_ptr<Device> device, double default_timeout, bool verify = false,
          GpuDirect gpu_direct = GpuDirect::automatic);
  ~Context();

  /// With a secret, whoever connects proves it first.
  std::shared_ptr<Listener> listen(const std::string& address, SharedSecret secret = {});
  std::shared_ptr<Connection> connect(const std::string& address, std::optional<double> timeout,
                                      const SharedSecret& secret = {});
  /// `access`: bits of RemoteAccess. Throws UsageError where the memory is read-only and is to be written.
  std::shared_ptr<Region> register_memory(OperationMemory memory, bool readonly, uint16_t access);
  /// Closes listeners, connections and regions, in this order. Idempotent.
  void close();
  bool closed() const;

  /// Of all rails: "rxe0,rxe1".
  const std::string& device_name() const noexcept { return device_; }
  const std::string& provider() const noexcept { return provider_; }
  double default_timeout() const noexcept { return waiting_.default_timeout; }
  RegistrationStats registration_stats() const;
  /// A few lines: each device, its ports and addresses.
  std::string describe() const;

 private:
  /// Throws ClosedError after close(), UsageError in a forked child.
  std::shared_ptr<ContextResources> usable() const;
  template <typename T>
  void remember(std::vector<std::weak_ptr<T>>& list, const std::shared_ptr<T>& object);

  mutable std::mutex mutex_;
  std::shared_ptr<ContextResources> resources_;  // under the lock; null once closed
  const Waiting waiting_;
  const std::string device_;
  const std::string provider_;
  std::vector<std::weak_ptr<Listener>> listeners_;
  std::vector<std::weak_ptr<Region>> regions_;
};

}  // namespace rdmatx
