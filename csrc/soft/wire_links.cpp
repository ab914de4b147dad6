// The sockets of the wire: connecting, greeting, messages with descriptors; see wire.hpp.

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/log.hpp"
#include "soft/instance.hpp"
#include "soft/wire.hpp"
#include "soft/wire_messages.hpp"

namespace rdmatx::soft {

std::pair<sockaddr_un, socklen_t> abstract_address(uint64_t identity) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  char name[32];
  const int length =
      std::snprintf(name, sizeof name, "rdmatx-%016llx", static_cast<unsigned long long>(identity));
  std::memcpy(address.sun_path + 1, name,
              static_cast<size_t>(length));  // a leading zero: the abstract namespace
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length))};
}

namespace {

bool same_user(int socket, ucred* credentials) {
  socklen_t size = sizeof *credentials;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, credentials, &size) == 0 &&
         (credentials->uid == geteuid() || credentials->uid == 0 || geteuid() == 0);
}

}  // namespace

void Wire::connect_link(const std::shared_ptr<Peer>& peer) {
  auto [address, size] = abstract_address(peer->identity());
  Link link;
  link.peer = peer;
  link.socket = UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // Connecting to a Unix socket waits only while its backlog is full; a bound keeps even that short.
  const timeval bound{0, 200'000};
  setsockopt(link.socket.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
  ucred credentials{};
  if (!link.socket || connect(link.socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno == EAGAIN) {
      std::lock_guard lock(mutex_);
      requests_.push_back({peer->identity(), make(kind_hello)});
      return;
    }
    peer_gone(*peer);
    return;
  }
  if (!same_user(link.socket.get(), &credentials)) {
    log(LogLevel::warning, "a software HCA of another user is out of reach: run both processes as one user");
    peer_gone(*peer);
    return;
  }
  fcntl(link.socket.get(), F_SETFL, O_NONBLOCK);
  peer->pid_ = credentials.pid;
  if (credentials.pid > 0)
    link.process = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  const uint64_t key = next_link_++;
  watch(link.socket.get(), key);
  if (link.process) watch(link.process.get(), key | process_bit);
  greet(links_.emplace(key, std::move(link)).first->second);
}

void Wire::accept_links() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    ucred credentials{};
    if (!same_user(socket.get(), &credentials)) continue;
    const uint64_t key = next_link_++;
    Link link;
    link.socket = std::move(socket);
    if (watch(link.socket.get(), key)) links_.emplace(key, std::move(link));
  }
}

void Wire::greet(Link& link) {
  Parcel hello{make(kind_hello, reinterpret_cast<uint64_t>(&probe_token_), probe_token_)};
  hello.descriptors[0] = instance_.memory().fd();
  hello.descriptors[1] = doorbell_.get();
  send(link, std::move(hello));
}

void Wire::greeted(Link& link, const Message& message, UniqueFd (&descriptors)[2]) {
  link.identity = message.identity;
  link.greeted = true;
  if (!link.peer) return greet(link);  // the other side connected: it is our turn
  Peer& peer = *link.peer;
  peer.memory_ = MemoryTable::map(std::move(descriptors[0]));
  peer.doorbell_ = std::move(descriptors[1]);
  if (instance_.wire_choice() != WireChoice::shared_memory && peer.pid_ > 0) {
    uint64_t token = 0;
    iovec here{&token, sizeof token}, there{reinterpret_cast<void*>(message.values[0]), sizeof token};
    const bool allowed =
        process_vm_readv(peer.pid_, &here, 1, &there, 1, 0) == sizeof token && token == message.values[1];
    peer.can_attach_.store(allowed);
    if (!allowed)
      log(LogLevel::info, "the kernel does not let processes reach each other's memory (" +
                              describe_errno(errno) +
                              "): the software HCA moves everything through shared memory");
  }
  for (Parcel& parcel : link.after_greeting) send(link, std::move(parcel));
  link.after_greeting.clear();
}

void Wire::receive(uint64_t key) {
  for (;;) {
    auto found = links_.find(key);
    if (found == links_.end()) return;
    Message message{};
    iovec data{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t bytes = recvmsg(found->second.socket.get(), &header, MSG_CMSG_CLOEXEC);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    UniqueFd descriptors[2];
    for (cmsghdr* part = CMSG_FIRSTHDR(&header); bytes > 0 && part; part = CMSG_NXTHDR(&header, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      int received[2] = {-1, -1};
      std::memcpy(received, CMSG_DATA(part), std::min(sizeof received, part->cmsg_len - CMSG_LEN(0)));
      for (int i = 0; i < 2; ++i) descriptors[i].reset(received[i]);
    }
    if (bytes != sizeof message || message.magic != wire_magic || message.version != wire_version) {
      if (bytes > 0)
        log(LogLevel::warning, "a process with another version of rdmatx is out of reach: update one");
      return close_link(key);
    }
    try {
      handle_message(key, found->second, message, descriptors);
    } catch (const std::exception& error) {
      log(LogLevel::warning, std::string("a peer of the software HCA is given up: ") + error.what());
      return close_link(key);
    }
  }
}

void Wire::send(Link& link, Parcel parcel) {
  link.unsent.push_back(std::move(parcel));
  flush(link);
}

void Wire::flush(Link& link) {
  while (!link.unsent.empty()) {
    Parcel& parcel = link.unsent.front();
    iovec data{&parcel.message, sizeof parcel.message};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    if (const int count = (parcel.descriptors[0] >= 0) + (parcel.descriptors[1] >= 0)) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(count * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&header);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(count * sizeof(int));
      std::memcpy(CMSG_DATA(part), parcel.descriptors, count * sizeof(int));
    }
    if (sendmsg(link.socket.get(), &header, MSG_NOSIGNAL) < 0)
      return;  // again at the next turn; an end is read
    link.unsent.pop_front();
  }
}

void Wire::flush_all() {
  for (auto& [key, link] : links_) flush(link);
}

void Wire::close_link(uint64_t key) {
  auto found = links_.find(key);
  if (found == links_.end()) return;
  const auto peer = found->second.peer;
  links_.erase(found);
  if (peer) peer_gone(*peer);
}

}  // namespace rdmatx::soft
