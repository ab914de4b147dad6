#include "soft/sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_set>

namespace rdmatx::soft {
namespace {

struct OpenSockets {
  std::mutex mutex;
  std::unordered_set<int> descriptors;
};

// Never destroyed: a fork may happen while static objects are being destroyed.
OpenSockets& open_sockets() {
  static auto* all = new OpenSockets;
  return *all;
}

void before_fork() {
  open_sockets().mutex.lock();
}
void in_parent() {
  open_sockets().mutex.unlock();
}

// Only async-signal-safe calls: another thread of the parent may have held any lock.
void in_child() {
  OpenSockets& all = open_sockets();
  if (!all.descriptors.empty()) {
    const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    // The number stays taken, so that whoever closes it later closes nothing else.
    for (const int fd : all.descriptors)
      if (nothing >= 0) ::dup3(nothing, fd, O_CLOEXEC);
    if (nothing >= 0) ::close(nothing);
  }
  all.mutex.unlock();
}

constexpr uint8_t ipv4_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  static const int installed = pthread_atfork(before_fork, in_parent, in_child);
  (void)installed;
  if (fd < 0) return;
  const std::lock_guard lock(open_sockets().mutex);
  open_sockets().descriptors.insert(fd);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

void Socket::close() noexcept {
  if (!fd_) return;
  const std::lock_guard lock(open_sockets().mutex);
  open_sockets().descriptors.erase(fd_.get());
  fd_.reset();
}

bool is_ipv4(const ibv_gid& gid) noexcept {
  return std::memcmp(gid.raw, ipv4_prefix, sizeof ipv4_prefix) == 0;
}

bool is_loopback(const ibv_gid& gid) noexcept {
  if (is_ipv4(gid)) return gid.raw[12] == 127;
  return std::memcmp(gid.raw, &in6addr_loopback, sizeof gid.raw) == 0;
}

bool equal(const ibv_gid& one, const ibv_gid& other) noexcept {
  return std::memcmp(one.raw, other.raw, sizeof one.raw) == 0;
}

SocketAddress address_of(const ibv_gid& gid, uint16_t port) {
  SocketAddress address;
  if (is_ipv4(gid)) {
    auto& four = reinterpret_cast<sockaddr_in&>(address.storage);
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&four.sin_addr, gid.raw + 12, 4);
    address.size = sizeof four;
  } else {
    auto& six = reinterpret_cast<sockaddr_in6&>(address.storage);
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    std::memcpy(&six.sin6_addr, gid.raw, 16);
    address.size = sizeof six;
  }
  return address;
}

ibv_gid gid_of(const sockaddr* address) noexcept {
  ibv_gid gid{};
  if (address->sa_family == AF_INET) {
    std::memcpy(gid.raw, ipv4_prefix, sizeof ipv4_prefix);
    std::memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, 4);
  } else if (address->sa_family == AF_INET6) {
    std::memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, 16);
  }
  return gid;
}

ibv_gid local_gid(const Socket& socket) noexcept {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return gid_of(address.get());
}

ibv_gid remote_gid(const Socket& socket) noexcept {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return gid_of(address.get());
}

std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

std::vector<ibv_gid> local_addresses() {
  std::vector<ibv_gid> wide, loopback;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const ibv_gid gid = gid_of(entry->ifa_addr);
    if (family == AF_INET6 && gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) continue;
    auto& group = entry->ifa_flags & IFF_LOOPBACK ? loopback : wide;
    const auto same = [&](const ibv_gid& known) { return equal(known, gid); };
    if (std::none_of(group.begin(), group.end(), same)) group.push_back(gid);
  }
  freeifaddrs(list);
  wide.insert(wide.end(), loopback.begin(), loopback.end());
  return wide;
}

}  // namespace rdmatx::soft
