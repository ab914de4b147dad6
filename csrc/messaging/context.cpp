#include "messaging/context.hpp"

#include <utility>

#include "base/error.hpp"
#include "messaging/fork_guard.hpp"

namespace rdmatx {
namespace {

std::shared_ptr<ContextResources> open_resources(std::shared_ptr<Device> device, double default_timeout,
                                                 bool verify) {
  Deadline{default_timeout};  // throws where it is no timeout
  auto resources = std::make_shared<ContextResources>();
  const RegistrationPolicy policy = RegistrationPolicy::from_environment(*device);
  resources->domain = ProtectionDomain::create(device);
  resources->registrations = RegistrationCache::create(resources->domain, policy);
  resources->events = CompletionChannel::create(std::move(device));
  resources->waiting.progress = std::make_shared<Progress>(resources->events);
  resources->waiting.default_timeout = default_timeout;
  resources->verify = verify;
  return resources;
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
      access_(access) {
  const DeviceLimits& limits = resources->device()->attributes().limits;
  if (bytes_ > limits.max_mr_size)
    throw UsageError("a region of " + std::to_string(bytes_) + " bytes is more than device " +
                     resources->device()->name() + " registers at once (" +
                     std::to_string(limits.max_mr_size) + " bytes): register it in parts");
  if (readonly && (access & (RemoteAccess::write | RemoteAccess::atomic)))
    throw UsageError(
        "this memory is read-only, and others are to write to it: register it with access=\"r\", or "
        "pass memory that may be written");
  region_ = MemoryRegion::create(resources->domain, data_, bytes_, verbs_access(access, readonly),
                                 std::move(memory.keepalive));
}

Region::~Region() {
  close();
}

void Region::close() {
  std::shared_ptr<MemoryRegion> gone;
  {
    const std::lock_guard lock(mutex_);
    gone = std::move(region_);
  }
}

bool Region::closed() const {
  const std::lock_guard lock(mutex_);
  return !region_;
}

std::shared_ptr<MemoryRegion> Region::registration() const {
  check_not_forked(generation_);
  const std::lock_guard lock(mutex_);
  if (!region_) throw ClosedError("the region was closed: register the memory again");
  return region_;
}

RemoteKey Region::key() const {
  const std::shared_ptr<MemoryRegion> region = registration();
  return {region->remote_address(), bytes_, region->remote_key(), access_};
}

Context::Context(const std::string& device, Provider provider, double default_timeout, bool verify)
    : Context(open_device(device, provider), default_timeout, verify) {}

Context::Context(std::shared_ptr<Device> device, double default_timeout, bool verify)
    : resources_(open_resources(std::move(device), default_timeout, verify)),
      waiting_(resources_->waiting),
      device_(resources_->device()->name()),
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
  auto connection = establish(usable(), address, secret, waiting_.deadline(timeout));
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
  std::shared_ptr<RegistrationCache> registrations;
  {
    const std::lock_guard lock(mutex_);
    if (!resources_) return;
    registrations = resources_->registrations;
    resources_.reset();
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
  registrations->close();
  waiting_.progress->stop();
  if (interrupted) std::rethrow_exception(interrupted);
}

bool Context::closed() const {
  const std::lock_guard lock(mutex_);
  return !resources_;
}

RegistrationStats Context::registration_stats() const {
  return usable()->registrations->stats();
}

std::string Context::describe() const {
  const std::shared_ptr<Device> device = usable()->device();
  const DeviceAttributes& attributes = device->attributes();
  std::string text = "device " + attributes.name + ", provider " + attributes.provider;
  for (int number = 1; number <= attributes.port_count; ++number) {
    const PortAttributes port = device->query_port(number);
    text += "\n  port " + std::to_string(number) + ": " + port_state_name(port.state) + ", " +
            link_layer_name(port.link_layer) + ", MTU " + std::to_string(port.active_mtu);
    for (const GidEntry& entry : device->query_gids(number))
      text += "\n    GID " + std::to_string(entry.index) + ": " + entry.gid.text() + " (" +
              gid_type_name(entry.type) + ")";
  }
  return text;
}

}  // namespace rdmatx
