#include "messaging/device_memory.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace rdmatx {
namespace {

std::shared_ptr<MemoryRegion> register_piece(GpuWay way, const DeviceMemory& memory, const DeviceRange& piece,
                                             const std::shared_ptr<ProtectionDomain>& domain, Access access,
                                             const std::shared_ptr<void>& keepalive) {
  auto* address = reinterpret_cast<void*>(piece.address);
  if (way == GpuWay::peer_memory)
    return MemoryRegion::create(domain, address, piece.bytes, access, keepalive);
  // The descriptor goes at the end: the registration has its own share of the memory.
  const DmaBuf exported = export_dma_buf(memory.gpu, piece);
  return MemoryRegion::create_from_dma_buf(domain, {exported.fd.get(), exported.offset}, address, piece.bytes,
                                           access, keepalive);
}

std::string pair_text(const std::string& device, int gpu) {
  return "device " + device + " and GPU " + std::to_string(gpu);
}

}  // namespace

std::shared_ptr<const DeviceMemory> device_memory_at(const void* data, uint64_t bytes,
                                                     std::optional<StreamHandle> stream) {
  const PointerInfo info = describe_pointer(data);
  if (info.kind == PointerKind::pinned) return nullptr;
  if (info.kind == PointerKind::host)
    throw UsageError(
        "the array says that it is on a GPU, and no GPU has an allocation at its address: the memory was "
        "freed, or "
        "belongs to another driver");
  auto memory = std::make_shared<DeviceMemory>();
  memory->gpu = info.gpu;
  memory->kind = info.kind;
  memory->pooled = info.pooled;
  memory->pieces = pieces_under(reinterpret_cast<uint64_t>(data), bytes);
  memory->stream = stream;
  return memory;
}

std::shared_ptr<const DeviceMemory> part_of_device_memory(const DeviceMemory& whole, const void* data,
                                                          uint64_t bytes,
                                                          std::optional<StreamHandle> stream) {
  auto part = std::make_shared<DeviceMemory>(whole);
  part->stream = stream;
  part->pieces.clear();
  const auto first = reinterpret_cast<uint64_t>(data);
  for (const DeviceRange& piece : whole.pieces) {
    const uint64_t begin = std::max(first, piece.address);
    const uint64_t end = std::min(first + bytes, piece.address + piece.bytes);
    if (begin < end) part->pieces.push_back({begin, end - begin});
  }
  return part;
}

GpuDirect parse_gpu_direct(const std::string& word) {
  if (word == "auto") return GpuDirect::automatic;
  if (word == "require") return GpuDirect::required;
  if (word == "off") return GpuDirect::off;
  throw UsageError("gpu_direct is \"" + word +
                   "\", and should be \"auto\" (devices reach the memory of GPUs themselves where they can), "
                   "\"require\" (an error where they cannot) or \"off\" (through the host's memory)");
}

const char* gpu_way_name(GpuWay way) noexcept {
  switch (way) {
    case GpuWay::dma_buf:
      return "dma-buf";
    case GpuWay::peer_memory:
      return "peer memory";
    case GpuWay::staging:
      return "staging";
    case GpuWay::undecided:
      break;
  }
  return "undecided";
}

std::shared_ptr<const RailRegions> GpuRegistrar::try_register(const DeviceMemory& memory, RailDomains domains,
                                                              Access access,
                                                              const std::shared_ptr<void>& keepalive) {
  std::string why;
  auto regions = register_all(memory, domains, access, keepalive, why);
  if (!regions && policy_ == GpuDirect::required)
    throw UnavailableError("gpu_direct=\"require\", and this memory of GPU " + std::to_string(memory.gpu) +
                           " would have to go through the host's: " + why +
                           ". gpu_direct=\"auto\" allows that");
  return regions;
}

std::shared_ptr<const RailRegions> GpuRegistrar::must_register(const DeviceMemory& memory,
                                                               RailDomains domains, Access access,
                                                               const std::shared_ptr<void>& keepalive) {
  std::string why;
  auto regions = register_all(memory, domains, access, keepalive, why);
  if (!regions)
    throw UnavailableError("memory of GPU " + std::to_string(memory.gpu) +
                           " cannot be registered, so that peers reach it by themselves: " + why +
                           ". Send and receive it instead, or register memory of the host");
  return regions;
}

std::shared_ptr<const RailRegions> GpuRegistrar::register_all(const DeviceMemory& memory, RailDomains domains,
                                                              Access access,
                                                              const std::shared_ptr<void>& keepalive,
                                                              std::string& why) {
  std::vector<RailRegions> by_rail(domains.size());
  for (size_t rail = 0; rail < domains.size(); ++rail) {
    const auto same =
        std::find(domains.begin(), domains.begin() + static_cast<std::ptrdiff_t>(rail), domains[rail]);
    const auto known = static_cast<size_t>(same - domains.begin());
    if (known < rail)
      by_rail[rail] = by_rail[known];
    else if (!register_in(memory, domains[rail], access, keepalive, by_rail[rail], why))
      return nullptr;  // what other rails have goes with it
  }
  auto regions = std::make_shared<RailRegions>();
  for (size_t piece = 0; piece < memory.pieces.size(); ++piece)
    for (const RailRegions& rail : by_rail) regions->push_back(rail[piece]);
  return regions;
}

bool GpuRegistrar::register_in(const DeviceMemory& memory, const std::shared_ptr<ProtectionDomain>& domain,
                               Access access, const std::shared_ptr<void>& keepalive, RailRegions& regions,
                               std::string& why) {
  const std::string& device = domain->device()->name();
  if (memory.kind == PointerKind::managed) {
    why = "it is managed memory, which moves between the host and the GPU";
    return false;
  }
  const GpuChoice choice = choice_of(device, memory.gpu);
  if (choice.way == GpuWay::staging) {
    why = choice.reason;
    return false;
  }
  for (const GpuWay way : {GpuWay::dma_buf, GpuWay::peer_memory}) {
    if (choice.way != GpuWay::undecided && choice.way != way) continue;
    try {
      for (const DeviceRange& piece : memory.pieces)
        regions.push_back(register_piece(way, memory, piece, domain, access, keepalive));
      if (choice.way == GpuWay::undecided) settle(device, memory.gpu, way, why);
      return true;
    } catch (const Error& error) {
      regions.clear();
      why += (why.empty() ? "" : "; ") + std::string("not by ") + gpu_way_name(way) + ": " + error.what();
    }
  }
  // Memory of a pool may be refused where other memory is not: it decides nothing.
  if (choice.way == GpuWay::undecided && !memory.pooled)
    settle(device, memory.gpu, GpuWay::staging, why);
  else
    tell_late(device, memory.gpu, why);
  return false;
}

GpuChoice GpuRegistrar::choice_of(const std::string& device, int gpu) const {
  if (policy_ == GpuDirect::off) return {device, gpu, GpuWay::staging, "gpu_direct=\"off\""};
  const std::lock_guard lock(mutex_);
  for (const GpuChoice& choice : choices_)
    if (choice.device == device && choice.gpu == gpu) return choice;
  return {device, gpu, GpuWay::undecided, ""};
}

void GpuRegistrar::settle(const std::string& device, int gpu, GpuWay way, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    for (const GpuChoice& choice : choices_)
      if (choice.device == device && choice.gpu == gpu) return;  // another thread was faster
    choices_.push_back({device, gpu, way, reason});
  }
  if (way == GpuWay::staging)
    log(LogLevel::warning, "transfers between " + pair_text(device, gpu) +
                               " go through the host's memory, which takes longer: " + reason);
  else
    log(LogLevel::info, pair_text(device, gpu) + " reach each other by " + gpu_way_name(way) +
                            (reason.empty() ? "" : " (" + reason + ")"));
}

void GpuRegistrar::tell_late(const std::string& device, int gpu, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_late_.insert({device, gpu}).second) return;
  }
  log(LogLevel::warning, "an operation between " + pair_text(device, gpu) +
                             " goes through the host's memory, and so will others that meet this: " + why);
}

std::vector<GpuChoice> GpuRegistrar::choices() const {
  const std::lock_guard lock(mutex_);
  return choices_;
}

void GpuRegistrar::expose(int gpu) {
  const std::lock_guard lock(mutex_);
  exposed_.insert(gpu);
  exposes_.store(true, std::memory_order_release);
}

void GpuRegistrar::flush_exposed() {
  if (!exposes_.load(std::memory_order_acquire)) return;
  std::set<int> gpus;
  {
    const std::lock_guard lock(mutex_);
    gpus = exposed_;
  }
  for (const int gpu : gpus) flush_remote_writes(gpu);
}

}  // namespace rdmatx
