#include "soft/instance.hpp"

#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.hpp"
#include "base/log.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {
namespace {

/// Counts forks on the child's side: an instance of an earlier count belongs to an ancestor.
std::atomic<uint64_t> fork_generation{0};

std::mutex acquire_mutex;
std::weak_ptr<Instance> current;

void in_forked_child() {
  fork_generation.fetch_add(1);
  // The mutex and the pointer may have been in another thread's hands at the fork: begin anew.
  new (&acquire_mutex) std::mutex;
  new (&current) std::weak_ptr<Instance>;
}

uint64_t random_identity() {
  uint64_t identity = 0;
  while (identity == 0)
    if (getrandom(&identity, sizeof identity, 0) != sizeof identity && errno != EINTR)
      throw Error("cannot get random bytes: " + describe_errno(errno));
  return identity;
}

/// Names this host, and on it the network namespace, since abstract sockets do not reach beyond it. FNV-1a
/// over the kernel's boot identifier and the namespace's inode.
uint32_t host_tag() {
  static const uint32_t tag = [] {
    std::string text;
    std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), text);
    struct stat net{};
    if (stat("/proc/self/ns/net", &net) == 0) text += std::to_string(net.st_ino);
    uint32_t hash = 2166136261u;
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
    return hash;
  }();
  return tag;
}

WireChoice wire_choice_from_environment() {
  const char* text = std::getenv("RDMATX_SOFT_WIRE");
  const std::string choice = text ? text : "";
  if (choice.empty() || choice == "auto") return WireChoice::automatic;
  if (choice == "shm") return WireChoice::shared_memory;
  if (choice == "cma") return WireChoice::cross_memory_attach;
  throw Error("RDMATX_SOFT_WIRE=" + choice + " is not a wire of the software HCA: use shm, cma or auto");
}

// A locally assigned IPv6 address (RFC 4193): fd, "rdx", the host's tag, the instance's identity.
constexpr uint8_t gid_prefix[4] = {0xfd, 'r', 'd', 'x'};

}  // namespace

std::shared_ptr<Instance> Instance::acquire() {
  static const int registered = pthread_atfork(nullptr, nullptr, in_forked_child);
  (void)registered;
  std::lock_guard lock(acquire_mutex);
  auto instance = current.lock();
  if (!instance) {
    instance = std::shared_ptr<Instance>(new Instance);
    current = instance;
  }
  return instance;
}

Instance::Instance()
    : id_(random_identity()),
      generation_(fork_generation.load()),
      wire_choice_(wire_choice_from_environment()),
      memory_(MemoryTable::create()),
      next_number_(static_cast<uint32_t>(id_ >> 40) | 1),
      wire_(std::make_unique<Wire>(*this)) {}

Instance::~Instance() = default;

bool Instance::forked() const noexcept {
  return generation_ != fork_generation.load(std::memory_order_relaxed);
}

ibv_gid Instance::gid() const noexcept {
  ibv_gid gid{};
  const uint32_t host = host_tag();
  std::memcpy(gid.raw, gid_prefix, 4);
  std::memcpy(gid.raw + 4, &host, 4);
  std::memcpy(gid.raw + 8, &id_, 8);
  return gid;
}

uint64_t Instance::identity_of(const ibv_gid& gid) noexcept {
  uint32_t host;
  uint64_t identity;
  std::memcpy(&host, gid.raw + 4, 4);
  std::memcpy(&identity, gid.raw + 8, 8);
  return std::memcmp(gid.raw, gid_prefix, 4) == 0 && host == host_tag() ? identity : 0;
}

void Instance::add(QueuePair* qp) {
  std::lock_guard lock(registry_);
  queue_pairs_[qp->base.qp_num] = qp;
}

void Instance::remove(QueuePair* qp) {
  std::lock_guard lock(registry_);
  queue_pairs_.erase(qp->base.qp_num);
}

}  // namespace rdmatx::soft
