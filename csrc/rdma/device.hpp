#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/handle.hpp"
#include "rdma/types.hpp"

namespace rdmatx {

/// Something that happened to a device, a port, or a queue, outside any work request
/// (ibv_get_async_event(3)).
struct AsyncEvent {
  int type = 0;
  /// "port active", "local work queue catastrophic error", ...
  std::string name;
  /// Whichever the event is about; 0 where it is about something else.
  uint32_t queue_pair_number = 0;
  uint8_t port = 0;
};

/// Owns an open device of one provider. Everything made from it keeps it open.
/// All functions may be called from any thread at any time.
class RDMATX_API Device {
 public:
  /// Opens the device of this name; an empty name is the first one. Any table will do: the system's, the
  /// software HCA's, or a test's copy of one. Throws UnavailableError naming the devices there are.
  static std::shared_ptr<Device> open(const Verbs* verbs, std::string_view name = {});

  const Verbs* verbs() const noexcept { return verbs_; }
  const std::string& name() const noexcept { return attributes_.name; }
  /// Read once, when the device was opened.
  const DeviceAttributes& attributes() const noexcept { return attributes_; }
  /// Read anew each time. Ports count from 1.
  PortAttributes query_port(int port) const;
  /// The port's GID table without its holes.
  std::vector<GidEntry> query_gids(int port) const;
  GidEntry query_gid(int port, int index) const;
  uint16_t query_pkey(int port, int index) const;

  /// Becomes readable when an event waits.
  int async_fd() const noexcept;
  /// The next event, or nothing when the time is up (negative: no limit) or a signal came. The event is
  /// acknowledged, so that it never holds up the destruction of what it is about.
  std::optional<AsyncEvent> next_async_event(double timeout_seconds);

 private:
  friend class CompletionChannel;
  friend class CompletionQueue;
  friend class ProtectionDomain;
  Device(const Verbs* verbs, ibv_device* device);
  ibv_context* get() const noexcept { return handle_.get(); }
  DeviceAttributes read_attributes(ibv_device* device) const;

  const Verbs* verbs_;
  DeviceHandle handle_;
  DeviceAttributes attributes_;
};

}  // namespace rdmatx
