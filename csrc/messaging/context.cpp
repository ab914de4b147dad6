#include "messaging/context.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {
namespace {

Rail open_rail(std::shared_ptr<Device> device) {
  Rail rail;
  rail.domain = ProtectionDomain::create(device);
  rail.registrations = RegistrationCache::create(rail.domain, RegistrationPolicy::from_environment(*device));
  rail.events = CompletionChannel::create(std::move(device));
  return rail;
}

std::shared_ptr<ContextResources> open_resources(const OpenedDevices& opened, double default_timeout,
                                                 bool verify, GpuDirect gpu_direct) {
  Deadline{default_timeout};  // throws where it is no timeout
  if (opened.devices.size() > max_rails)
    throw UsageError("a context takes at most " + std::to_string(max_rails) + " devices, and got " +
                     std::to_string(opened.devices.size()));
  auto resources = std::make_shared<ContextResources>();
  std::vector<std::shared_ptr<CompletionChannel>> events;
  for (const auto& device : opened.devices) {
    const auto same = std::find_if(resources->rails.begin(), resources->rails.end(),
                                   [&](const Rail& rail) { return rail.device() == device; });
    if (same != resources->rails.end()) {
      resources->rails.push_back(Rail(*same));
      continue;
    }
    resources->rails.push_back(open_rail(device));
    events.push_back(resources->rails.back().events);
  }
  resources->last_is_for_same_host = opened.last_is_for_same_host;
  resources->waiting.progress = std::make_shared<Progress>(std::move(events));
  resources->waiting.default_timeout = default_timeout;
  resources->verify = verify;
  resources->gpus = std::make_shared<GpuRegistrar>(gpu_direct);
  return resources;
}

std::string names_of(const ContextResources& resources) {
  std::string names;
  for (const Rail& rail : resources.rails) {
    if (&rail == resources.same_host_rail()) continue;
    names += (names.empty() ? "" : ",") + rail.device()->name();
  }
  return names;
}

// What is asked for remotely; local writing comes with it only where others write, or the memory may be
// written.
Access verbs_access(uint16_t access, bool readonly) {
  Access result = readonly ? Access::none : Access::local_write;
  if (access & RemoteAccess::read) result = result | Access::remote_read;
  if (access & RemoteAccess::write) result = result | Access::remote_write;
  if (access & RemoteAccess::atomic) result = result | Access::remote_atomic;
  return result;
}

}  // namespace

Region::Region(std::shared_ptr<ContextResources> resources, OperationMemory memory, bool readonly,
               uint16_t access)
    : generation_(resources->waiting.generation),
      data_(memory.data),
      bytes_(memory.bytes),
      readonly_(readonly),
      access_(access),
      rail_count_(resources->rails.size()) {
  for (const Rail& rail : resources->rails) {
    const DeviceLimits& limits = rail.device()->attributes().limits;
    if (bytes_ > limits.max_mr_size)
      throw UsageError("a region of " + std::to_string(bytes_) + " bytes is more than device " +
                       rail.device()->name() + " registers at once (" + std::to_string(limits.max_mr_size) +
                       " bytes): register it in parts");
  }
  if (readonly && (access & (RemoteAccess::write | RemoteAccess::atomic)))
    throw UsageError(
        "this memory is read-only, and others are to write to it: register it with access=\"r\", or "
        "pass memory that may be written");
  if (memory.device && bytes_ > 0) {
    device_ = std::move(memory.device);
    std::vector<std::shared_ptr<ProtectionDomain>> domains;
    for (const Rail& rail : resources->rails) domains.push_back(rail.domain);
    regions_ =
        resources->gpus->must_register(*device_, domains, verbs_access(access, readonly), memory.keepalive);
    if (access & (RemoteAccess::write | RemoteAccess::atomic)) resources->gpus->expose(device_->gpu);
    return;
  }
  auto regions = std::make_shared<RailRegions>();
  for (const Rail& rail : resources->rails) {
    const auto same = std::find_if(regions->begin(), regions->end(), [&](const auto& region) {
      return region->protection_domain() == rail.domain;
    });
    regions->push_back(same != regions->end()
                           ? *same
                           : MemoryRegion::create(rail.domain, data_, bytes_, verbs_access(access, readonly),
                                                  memory.keepalive));
  }
  regions_ = std::move(regions);
}

Region::~Region() {
  close();
}

void Region::close() {
  std::shared_ptr<const RailRegions> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::move(regions_);
  }
}

bool Region::closed() const {
  const std::lock_guard lock(mutex_);
  return !regions_;
}

std::shared_ptr<const RailRegions> Region::registration() const {
  check_not_forked(generation_);
  const std::lock_guard lock(mutex_);
  if (!regions_) throw ClosedError("the region was closed: register the memory again");
  return regions_;
}

RemoteKey Region::key() const {
  const std::shared_ptr<const RailRegions> regions = registration();
  RemoteKey key;
  key.address = regions->front()->remote_address();
  key.length = bytes_;
  key.access = access_;
  key.key_count = static_cast<uint8_t>(rail_count_);
  for (size_t rail = 0; rail < rail_count_; ++rail) key.keys[rail] = (*regions)[rail]->remote_key();
  for (size_t first = 0; regions->size() > rail_count_ && first < regions->size(); first += rail_count_) {
    RemoteKey::Piece piece;
    piece.bytes = (*regions)[first]->bytes();
    for (size_t rail = 0; rail < rail_count_; ++rail)
      piece.keys[rail] = (*regions)[first + rail]->remote_key();
    key.pieces.push_back(piece);
  }
  return key;
}

Context::Context(const std::vector<std::string>& devices, Provider provider, double default_timeout,
                 bool verify, GpuDirect gpu_direct)
    : Context(open_devices(devices, provider), default_timeout, verify, gpu_direct) {}

Context::Context(std::shared_ptr<Device> device, double default_timeout, bool verify, GpuDirect gpu_direct)
    : Context(OpenedDevices{{std::move(device)}, false}, default_timeout, verify, gpu_direct) {}

Context::Context(OpenedDevices devices, double default_timeout, bool verify, GpuDirect gpu_direct)
    : resources_(open_resources(devices, default_timeout, verify, gpu_direct)),
      waiting_(resources_->waiting),
      device_(names_of(*resources_)),
      provider_(resources_->device()->attributes().provider) {}

Context::~Context() {
  try {
    close();
  } catch (...) {
    // A Ctrl-C that came while a connection lingered; all is closed anyway.
  }
}

std::shared_ptr<ContextResources> Context::usable() const {
  check_not_forked(waiting_.generation);
  const std::lock_guard lock(mutex_);
  if (!resources_) throw ClosedError("the context was closed: open a new one");
  return resources_;
}

template <typename T>
void Context::remember(std::vector<std::weak_ptr<T>>& list, const std::shared_ptr<T>& object) {
  {
    const std::lock_guard lock(mutex_);
    // Swept when it has doubled, so that thousands of short-lived ones cost nothing.
    if (list.size() == list.capacity()) std::erase_if(list, [](const auto& weak) { return weak.expired(); });
    if (resources_) {
      list.push_back(object);
      return;
    }
  }
  object->close();
  throw ClosedError("the context was closed meanwhile: open a new one");
}

std::shared_ptr<Listener> Context::listen(const std::string& address, SharedSecret secret) {
  auto listener = std::make_shared<Listener>(usable(), address, std::move(secret));
  remember(listeners_, listener);
  return listener;
}

std::shared_ptr<Connection> Context::connect(const std::string& address, std::optional<double> timeout,
                                             const SharedSecret& secret) {
  const std::function<void()> still_open = [this] { usable(); };
  Deadline deadline = waiting_.deadline(timeout);
  deadline.set_check(&still_open);
  auto connection = establish(usable(), address, secret, deadline);
  if (closed()) {
    connection->close();
    throw ClosedError("the context was closed meanwhile: open a new one");
  }
  return connection;
}

std::shared_ptr<Region> Context::register_memory(OperationMemory memory, bool readonly, uint16_t access) {
  auto region = std::make_shared<Region>(usable(), std::move(memory), readonly, access);
  remember(regions_, region);
  return region;
}

void Context::close() {
  if (process_generation() != waiting_.generation) return;  // the parent's: left alone
  std::shared_ptr<ContextResources> resources;
  {
    const std::lock_guard lock(mutex_);
    if (!resources_) return;
    resources = std::move(resources_);
  }
  std::exception_ptr interrupted;
  const auto close_all = [&](const auto& list) {
    for (const auto& weak : list) {
      try {
        if (const auto object = weak.lock()) object->close();
      } catch (...) {
        interrupted = std::current_exception();
      }
    }
  };
  // Without listeners no new connection comes; progress knows them all, those that were accepted too.
  close_all(listeners_);
  const auto connections = waiting_.progress->connections();
  // Two of them may be the ends of one connection: neither takes the other's close for the loss of its peer.
  for (const auto& weak : *connections)
    if (const auto connection = weak.lock()) connection->expect_close();
  close_all(*connections);
  close_all(regions_);
  for (const Rail& rail : resources->rails) rail.registrations->close();
  waiting_.progress->stop();
  if (interrupted) std::rethrow_exception(interrupted);
}

bool Context::closed() const {
  const std::lock_guard lock(mutex_);
  return !resources_;
}

RegistrationStats Context::registration_stats() const {
  const auto resources = usable();
  RegistrationStats sum;
  for (size_t i = 0; i < resources->rails.size(); ++i) {
    const auto& cache = resources->rails[i].registrations;
    const bool counted =
        std::any_of(resources->rails.begin(), resources->rails.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const Rail& rail) { return rail.registrations == cache; });
    if (!counted) sum += cache->stats();
  }
  return sum;
}

std::string Context::describe() const {
  const auto resources = usable();
  std::string text;
  for (const Rail& rail : resources->rails) {
    const Device& device = *rail.device();
    const DeviceAttributes& attributes = device.attributes();
    text += (text.empty() ? "device " : "\ndevice ") + attributes.name + ", provider " + attributes.provider;
    if (&rail == resources->same_host_rail()) text += ", for peers of this host";
    for (int number = 1; number <= attributes.port_count; ++number) {
      const PortAttributes port = device.query_port(number);
      text += "\n  port " + std::to_string(number) + ": " + port_state_name(port.state) + ", " +
              link_layer_name(port.link_layer) + ", MTU " + std::to_string(port.active_mtu);
      for (const GidEntry& entry : device.query_gids(number))
        text += "\n    GID " + std::to_string(entry.index) + ": " + entry.gid.text() + " (" +
                gid_type_name(entry.type) + ")";
    }
    for (const GpuChoice& choice : resources->gpus->choices())
      if (choice.device == attributes.name)
        text += "\n  GPU " + std::to_string(choice.gpu) + ": " + gpu_way_name(choice.way) +
                (choice.reason.empty() ? "" : " (" + choice.reason + ")");
  }
  return text;
}

}  // namespace rdmatx
