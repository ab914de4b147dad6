#include "rdma/provider.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <sstream>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace rdmatx {
namespace {

constexpr const char* lab_hint =
    " For a try without hardware, `rdmatx lab run -- COMMAND` boots a kernel that has soft-RoCE around "
    "COMMAND.";

bool exists(const char* path) {
  struct stat status{};
  return ::stat(path, &status) == 0;
}

SystemReport no_library(const UnavailableError& error) {
  return {SystemState::no_library, error.what(), ""};
}

SystemReport no_kernel_support() {
  return {
      SystemState::no_kernel_support,
      "libibverbs is there, but this kernel has no RDMA: /sys/class/infiniband_verbs does not exist.",
      std::string("Load the module (modprobe ib_uverbs, and rdma_rxe for soft-RoCE); in a container the host "
                  "must do so.") +
          lab_hint};
}

SystemReport no_device() {
  return {SystemState::no_device, "libibverbs and the kernel's RDMA are there, but there is no RDMA device.",
          std::string(
              "Load the driver of the network card, or make a soft-RoCE device: modprobe rdma_rxe; rdma link "
              "add rxe0 type rxe netdev eth0. In a container, pass --device=/dev/infiniband.") +
              lab_hint};
}

SystemReport list_failed(int code) {
  return {SystemState::no_device, "libibverbs cannot list its devices: " + describe_errno(code) + ".",
          "See dmesg, and `ibv_devices`."};
}

SystemReport cannot_open(const std::string& reason, int code) {
  const bool denied = code == EACCES || code == EPERM;
  return {denied ? SystemState::permission_denied : SystemState::no_device, reason + ".", ""};
}

SystemReport no_active_port(const std::string& found) {
  return {
      SystemState::no_active_port, "there is an RDMA device, but no port of it is ACTIVE: " + found + ".",
      "Bring the port up (ip link set dev INTERFACE up for RoCE; cable and subnet manager for InfiniBand): "
      "`rdma link` shows its state."};
}

/// The names a table lists; the devices are not opened. Throws VerbsError where the list cannot be had.
std::vector<DeviceAttributes> list_names(const Verbs* verbs, Provider provider) {
  int count = 0;
  const DeviceListHandle list(check_pointer(verbs->get_device_list(&count), "ibv_get_device_list"), {verbs});
  std::vector<DeviceAttributes> found;
  for (int i = 0; i < count; ++i) {
    DeviceAttributes attributes;
    attributes.name = verbs->get_device_name(list[static_cast<size_t>(i)]);
    attributes.provider = provider_name(provider);
    found.push_back(std::move(attributes));
  }
  return found;
}

int first_active_port(const Device& device) {
  for (int port = 1; port <= device.attributes().port_count; ++port)
    if (device.query_port(port).state == PortState::active) return port;
  return 0;
}

struct Search {
  SystemReport report;
  Choice choice;  // of a ready report
};

Search search_system() {
  const Verbs* verbs = nullptr;
  try {
    verbs = system_verbs();
  } catch (const UnavailableError& error) {
    return {no_library(error), {}};
  }
  std::vector<DeviceAttributes> names;
  try {
    names = list_names(verbs, Provider::system);
  } catch (const VerbsError& error) {
    return {error.code() == ENOSYS ? no_kernel_support() : list_failed(error.code()), {}};
  }
  if (names.empty()) return {exists("/sys/class/infiniband_verbs") ? no_device() : no_kernel_support(), {}};

  std::string states;
  SystemReport failure;
  bool opened_one = false;
  for (const DeviceAttributes& named : names) {
    try {
      const auto device = Device::open(verbs, named.name);
      if (const int port = first_active_port(*device)) {
        const std::string reason = "port " + std::to_string(port) + " of " + named.name + " is ACTIVE";
        return {{SystemState::ready, reason + ".", ""},
                {verbs, Provider::system, named.name, port, "auto: " + reason}};
      }
      opened_one = true;
      for (int port = 1; port <= device->attributes().port_count; ++port)
        states += (states.empty() ? "" : ", ") + named.name + " port " + std::to_string(port) + " is " +
                  port_state_name(device->query_port(port).state);
    } catch (const VerbsError& error) {
      failure = cannot_open(error.what(), error.code());
    }
  }
  return {opened_one ? no_active_port(states) : failure, {}};
}

std::string from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

Choice choose_named(const Verbs* verbs, Provider provider, const std::string& name,
                    const std::string& reason) {
  const auto device = Device::open(verbs, name);
  const int port = first_active_port(*device);
  return {verbs, provider, device->name(), port ? port : 1, reason};
}

bool has_device(const Verbs* verbs, Provider provider, const std::string& name) {
  try {
    for (const DeviceAttributes& found : list_names(verbs, provider))
      if (found.name == name) return true;
  } catch (const VerbsError&) {  // no list, no device
  }
  return false;
}

/// A device that was named, while the provider was not.
Choice choose_by_name(const std::string& name, const std::string& asked) {
  if (has_device(soft_verbs(), Provider::soft, name))
    return choose_named(soft_verbs(), Provider::soft, name, asked);
  std::string why;
  try {
    const Verbs* verbs = system_verbs();
    if (has_device(verbs, Provider::system, name)) return choose_named(verbs, Provider::system, name, asked);
    why = search_system().report.text();
  } catch (const UnavailableError& error) {
    why = error.what();
  }
  std::string names;
  for (const DeviceInfo& info : list_devices())
    names += (names.empty() ? "" : ", ") + info.attributes.name + " (" + info.attributes.provider + ")";
  throw UnavailableError("there is no device \"" + name + "\" (" + asked + "); there is " + names +
                         ". The system: " + why);
}

Choice choose_system(const std::string& name, const std::string& asked) {
  if (!name.empty()) return choose_named(system_verbs(), Provider::system, name, asked);
  Search found = search_system();
  if (found.report.state != SystemState::ready)
    throw UnavailableError("no RDMA device of the system serves (" + asked + "): " + found.report.text() +
                           " Without one, provider \"soft\" (or \"auto\") uses rdmatx's software HCA.");
  found.choice.reason = asked + ": " + found.report.reason.substr(0, found.report.reason.size() - 1);
  return found.choice;
}

Choice choose_automatically() {
  Search found = search_system();
  if (found.report.state == SystemState::ready) return found.choice;
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true))
    log(LogLevel::warning, "using the software HCA, because no RDMA device serves: " + found.report.text() +
                               " RDMATX_PROVIDER=soft says that this is meant, and silences this.");
  return choose_named(soft_verbs(), Provider::soft, "",
                      "auto: no RDMA device serves. " + found.report.reason);
}

}  // namespace

Provider parse_provider(const std::string& text) {
  if (text.empty() || text == "auto") return Provider::automatic;
  if (text == "system") return Provider::system;
  if (text == "soft") return Provider::soft;
  throw UsageError("\"" + text +
                   "\" is not a provider: it is \"auto\", \"system\" (libibverbs) or \"soft\" (the software "
                   "HCA), as an argument or in RDMATX_PROVIDER");
}

const char* provider_name(Provider provider) noexcept {
  switch (provider) {
    case Provider::automatic:
      return "auto";
    case Provider::system:
      return "system";
    case Provider::soft:
      return "soft";
  }
  return "unknown";
}

const char* system_state_name(SystemState state) noexcept {
  switch (state) {
    case SystemState::ready:
      return "ready";
    case SystemState::no_library:
      return "no_library";
    case SystemState::no_kernel_support:
      return "no_kernel_support";
    case SystemState::no_device:
      return "no_device";
    case SystemState::permission_denied:
      return "permission_denied";
    case SystemState::no_active_port:
      return "no_active_port";
  }
  return "unknown";
}

SystemReport system_report() {
  return search_system().report;
}

DeviceInfo describe_device(const Device& device) {
  DeviceInfo info;
  info.attributes = device.attributes();
  for (int port = 1; port <= info.attributes.port_count; ++port)
    info.ports.push_back({device.query_port(port), device.query_gids(port)});
  return info;
}

std::vector<DeviceInfo> list_devices(Provider provider) {
  std::vector<DeviceInfo> all;
  auto add = [&all](const Verbs* verbs, Provider from) {
    for (DeviceAttributes& named : list_names(verbs, from)) {
      try {
        all.push_back(describe_device(*Device::open(verbs, named.name)));
      } catch (const Error& error) {  // to be seen, also where it cannot be used
        all.push_back({std::move(named), {}, error.what()});
      }
    }
  };
  if (provider != Provider::soft) {
    try {
      add(system_verbs(), Provider::system);
    } catch (const Error&) {  // no library or no kernel support: system_report() says which
    }
  }
  if (provider != Provider::system) add(soft_verbs(), Provider::soft);
  return all;
}

Choice choose_device(const std::string& device, Provider provider) {
  std::string name = device;
  std::string asked = "asked for by argument";
  if (name.empty()) {
    name = from_environment("RDMATX_DEVICE");
    // The provider was chosen by argument, which counts first: a device of the other one is not meant here.
    if (provider != Provider::automatic &&
        has_device(soft_verbs(), Provider::soft, name) != (provider == Provider::soft))
      name.clear();
    if (!name.empty()) asked = "RDMATX_DEVICE=" + name;
  }
  if (provider == Provider::automatic) {
    const std::string text = from_environment("RDMATX_PROVIDER");
    provider = parse_provider(text);
    if (device.empty() && provider != Provider::automatic)
      asked = (name.empty() ? "" : asked + " and ") + "RDMATX_PROVIDER=" + text;
  }
  switch (provider) {
    case Provider::system:
      return choose_system(name, asked);
    case Provider::soft:
      return choose_named(soft_verbs(), Provider::soft, name, asked);
    case Provider::automatic:
      break;
  }
  return name.empty() ? choose_automatically() : choose_by_name(name, asked);
}

OpenedDevices open_devices(std::vector<std::string> names, Provider provider) {
  if (names.empty()) {
    std::istringstream list(from_environment("RDMATX_DEVICE"));
    for (std::string name; std::getline(list, name, ',');) names.push_back(name);
    // One name is choose_device()'s to judge.
    if (names.size() == 1) names.clear();
  }
  OpenedDevices opened;
  if (names.empty()) {
    const Choice choice = choose_device({}, provider);
    opened.devices.push_back(Device::open(choice.verbs, choice.device));
    const bool asked_for = provider != Provider::automatic || !from_environment("RDMATX_DEVICE").empty() ||
                           parse_provider(from_environment("RDMATX_PROVIDER")) != Provider::automatic;
    if (asked_for || choice.provider != Provider::system) return opened;
    try {
      opened.devices.push_back(Device::open(soft_verbs()));
      opened.last_is_for_same_host = true;
    } catch (const Error& error) {
      log(LogLevel::warning, std::string("peers on this host are reached by device ") + choice.device +
                                 " as all others, and not by shared memory: " + error.what());
    }
    return opened;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto before = std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]);
    const auto place = static_cast<size_t>(before - names.begin());
    opened.devices.push_back(place < i ? opened.devices[place] : open_device(names[i], provider));
  }
  return opened;
}

std::shared_ptr<Device> open_device(const std::string& device, Provider provider) {
  const Choice choice = choose_device(device, provider);
  return Device::open(choice.verbs, choice.device);
}

}  // namespace rdmatx
