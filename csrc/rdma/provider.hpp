#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rdma/device.hpp"

namespace rdmatx {

/// Where devices come from: the system's libibverbs, or the software HCA.
enum class Provider { automatic, system, soft };
/// "auto", "system", "soft"; throws UsageError for any other text.
RDMATX_API Provider parse_provider(const std::string& text);
RDMATX_API const char* provider_name(Provider provider) noexcept;

/// Why the system has no RDMA device that serves. Each has a remedy of its own.
enum class SystemState {
  ready,              // a device with an ACTIVE port
  no_library,         // libibverbs cannot be loaded
  no_kernel_support,  // the kernel has no uverbs: no module, or none built in
  no_device,          // library and kernel are there, no device is
  permission_denied,  // a device is there, but /dev/infiniband/uverbs* may not be opened
  no_active_port,     // a device is there, but no port of it is ACTIVE
};
RDMATX_API const char* system_state_name(SystemState state) noexcept;

struct SystemReport {
  SystemState state = SystemState::no_device;
  /// What was found, as a sentence; and what to do about it. The remedy is empty where all is well.
  std::string reason;
  std::string remedy;

  std::string text() const { return remedy.empty() ? reason : reason + " " + remedy; }
};

struct PortInfo {
  PortAttributes attributes;
  std::vector<GidEntry> gids;
};

struct DeviceInfo {
  DeviceAttributes attributes;
  std::vector<PortInfo> ports;
  /// Why the device cannot be opened; then only its name, provider and GUID are known. Else empty.
  std::string problem;
};

/// A device, and why it is this one.
struct Choice {
  const Verbs* verbs = nullptr;
  Provider provider = Provider::soft;
  std::string device;
  /// The first ACTIVE port; 1 where none is.
  int port = 1;
  std::string reason;
};

/// Everything there is to see of the devices of a provider (automatic: of both). A provider that has none
/// adds none: system_report() says why. Opens and closes each device.
RDMATX_API std::vector<DeviceInfo> list_devices(Provider provider = Provider::automatic);
RDMATX_API DeviceInfo describe_device(const Device& device);

/// Looks at the system's side of RDMA without changing anything. Never throws for what it finds.
RDMATX_API SystemReport system_report();

/// Chooses: an explicit argument, else RDMATX_DEVICE and RDMATX_PROVIDER, else an ACTIVE port of the system,
/// else the software HCA, with one warning a process that says why. An empty name is "whichever serves".
/// RDMATX_DEVICE does not count where it names a device of another provider than the argument asks for.
/// Throws UnavailableError with reason and remedy where what was asked for is not there: the system provider
/// never falls back.
RDMATX_API Choice choose_device(const std::string& device = {}, Provider provider = Provider::automatic);

/// The devices of a context.
struct OpenedDevices {
  std::vector<std::shared_ptr<Device>> devices;  ///< one named twice is there twice, opened once
  /// The last is the software HCA, which serves processes of this host alone, beside a device that serves
  /// all.
  bool last_is_for_same_host = false;
};
/// Opens the devices of these names, or without any those that serve: RDMATX_DEVICE, which may name several
/// ("rxe0,rxe1"), else as choose_device() chooses. Where nothing was asked for and a system's device serves,
/// the software HCA comes along for peers of the same host. Throws as choose_device() does.
RDMATX_API OpenedDevices open_devices(std::vector<std::string> names, Provider provider);

/// choose_device() and Device::open() in one.
RDMATX_API std::shared_ptr<Device> open_device(const std::string& device = {},
                                               Provider provider = Provider::automatic);

}  // namespace rdmatx
