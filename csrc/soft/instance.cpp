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
#include "soft/tcp_port.hpp"
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
  if (choice == "tcp") return WireChoice::tcp;
  throw Error("RDMATX_SOFT_WIRE=" + choice + " is not a wire of the software HCA: use shm, cma, tcp or auto");
}

// A locally assigned IPv6 address (RFC 4193): fd, "rdx", the host's tag, the instance's identity.
constexpr uint8_t gid_prefix[4] = {0xfd, 'r', 'd', 'x'};

ibv_gid gid_of_identity(uint64_t identity) {
  ibv_gid gid{};
  const uint32_t host = host_tag();
  std::memcpy(gid.raw, gid_prefix, 4);
  std::memcpy(gid.raw + 4, &host, 4);
  std::memcpy(gid.raw + 8, &identity, 8);
  return gid;
}

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
      gids_(wire_choice_ == WireChoice::tcp ? std::nullopt : std::optional(gid_of_identity(id_)),
            wire_choice_ == WireChoice::tcp || wire_choice_ == WireChoice::automatic),
      next_number_(static_cast<uint32_t>(id_ >> 40) | 1),
      next_queue_pair_(static_cast<uint16_t>(id_ >> 16)),
      wire_(std::make_unique<Wire>(*this)) {}

Instance::~Instance() = default;

bool Instance::forked() const noexcept {
  return generation_ != fork_generation.load(std::memory_order_relaxed);
}

bool Instance::names_identity(const ibv_gid& gid) noexcept {
  return std::memcmp(gid.raw, gid_prefix, sizeof gid_prefix) == 0;
}

uint64_t Instance::identity_of(const ibv_gid& gid) noexcept {
  uint32_t host;
  uint64_t identity;
  std::memcpy(&host, gid.raw + 4, 4);
  std::memcpy(&identity, gid.raw + 8, 8);
  return names_identity(gid) && host == host_tag() ? identity : 0;
}

bool Instance::add(QueuePair* qp) {
  // The upper byte tells peers on other hosts the TCP port; 0 and 1 are special queue pairs' (IBTA 3.5.3).
  const uint32_t slot = wire_->tcp() ? wire_->tcp()->slot() : 0;
  std::lock_guard lock(registry_);
  for (uint32_t tries = 0; tries <= 0xffff; ++tries) {
    const uint32_t number = slot << 16 | next_queue_pair_++;
    if ((number & 0xffff) < 2 || queue_pairs_.contains(number)) continue;
    qp->base.qp_num = qp->base.handle = number;
    queue_pairs_[number] = qp;
    return true;
  }
  return false;
}

void Instance::remove(QueuePair* qp) {
  std::lock_guard lock(registry_);
  queue_pairs_.erase(qp->base.qp_num);
}

}  // namespace rdmatx::soft
