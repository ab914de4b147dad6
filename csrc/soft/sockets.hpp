#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"

namespace rdmatx::soft {

/// Owns a TCP socket. A forked child has /dev/null under its number instead: what the child held open would
/// hide the death of its parent from the peers. Any thread.
class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::move(other.fd_)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void close() noexcept;

 private:
  UniqueFd fd_;
};

/// An address and a port as the system's calls take them.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
};

/// GIDs of the RoCE v2 kind are IP addresses: IPv6 as it is, IPv4 as ::ffff:a.b.c.d.
bool is_ipv4(const ibv_gid& gid) noexcept;
bool is_loopback(const ibv_gid& gid) noexcept;
bool equal(const ibv_gid& one, const ibv_gid& other) noexcept;
SocketAddress address_of(const ibv_gid& gid, uint16_t port);
ibv_gid gid_of(const sockaddr* address) noexcept;
/// Of a connected socket's two ends; zero where there is none.
ibv_gid local_gid(const Socket& socket) noexcept;
ibv_gid remote_gid(const Socket& socket) noexcept;
std::string text_of(const ibv_gid& gid);

/// The IP addresses of this host's interfaces that are up, as GIDs: link-local ones left out, since they say
/// nothing without their interface; those of the loopback interface last.
std::vector<ibv_gid> local_addresses();

}  // namespace rdmatx::soft
