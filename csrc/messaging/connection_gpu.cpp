// Memory of GPUs in the operations of a connection; see connection.hpp.

#include <algorithm>
#include <utility>

#include "messaging/connection.hpp"

namespace rdmatx {
namespace {

bool grants(const RailRegions& regions, Access access) {
  return std::all_of(regions.begin(), regions.end(),
                     [&](const auto& region) { return has_access(region->access(), access); });
}

}  // namespace

// From here on the memory is either registered, or the host's: pinned memory that stands for it.
void Connection::prepare_device_memory(OperationMemory& memory, Access access, uint64_t at,
                                       std::shared_ptr<DeviceOperation>& operation) {
  const std::shared_ptr<const DeviceMemory> device = std::move(memory.device);
  memory.device = nullptr;
  if (memory.bytes == 0) return;
  if (device->stream) check_not_capturing(device->gpu, *device->stream);
  if (!operation) operation = std::make_shared<DeviceOperation>();
  const DeviceOperation::Range range{device->gpu, reinterpret_cast<uint64_t>(memory.data), memory.bytes};
  const bool incoming = has_access(access, Access::local_write);
  const auto domains = usable_domains();
  // What is small costs less to copy than to register, and a checksum is made by the processor.
  const bool direct = !Exchange::is_eager(memory.bytes) && !verify_ &&
                      device->pieces.size() <= ProtocolSizes::max_remote_parts(domains->size());
  if (direct && !(memory.region && grants(*memory.region, access)))
    memory.region = gpus_->try_register(*device, *domains, access, memory.keepalive);
  if (direct && memory.region) {
    std::vector<GpuEvent> event;
    if (device->stream) event.push_back(GpuEvent::record(device->gpu, *device->stream));
    operation->move_directly(range, std::move(event), incoming);
    memory.device = device;
    return;
  }
  // The GPU's memory is held until the copies are done, the pinned memory until the operation is.
  std::shared_ptr<void> held = std::move(memory.keepalive);
  if (memory.region) held = std::const_pointer_cast<RailRegions>(memory.region);
  memory.region = nullptr;
  const auto pinned = incoming ? operation->stage_incoming(range, device->stream, std::move(held))
                               : operation->stage_outgoing(range, device->stream, at, std::move(held));
  if (verify_ || Exchange::is_eager(memory.bytes)) operation->begin_whole();
  memory.data = pinned->data();
  memory.owner = pinned->owner();
  memory.keepalive = pinned;
}

std::vector<GpuChoice> Connection::gpu_choices() const {
  std::vector<GpuChoice> own;
  for (GpuChoice& choice : gpus_->choices())
    if (std::any_of(paths_.begin(), paths_.end(),
                    [&](const Path& path) { return path.device == choice.device; }))
      own.push_back(std::move(choice));
  return own;
}

// The peer's write may have gone to a GPU of ours.
std::optional<uint32_t> Connection::flushed(std::optional<uint32_t> notification) {
  if (notification) gpus_->flush_exposed();
  return notification;
}

}  // namespace rdmatx
