#include "messaging/bootstrap.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "messaging/fork_guard.hpp"
#include "messaging/progress.hpp"

namespace rdmatx {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const HostPort& where, const std::string& text, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(where.host.c_str(), where.port.c_str(), &hints, &list);
  if (code == 0) return Addresses(list);
  const std::string why = code == EAI_SYSTEM ? describe_errno(errno) : ::gai_strerror(code);
  throw PeerLostError("the host of \"" + text + "\" cannot be found: " + why +
                          "; give a name the resolver knows, or a numeric address",
                      text);
}

std::string address_text(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "unknown";
  if (address.ss_family == AF_INET6) return "[" + std::string(host) + "]:" + port;
  return std::string(host) + ":" + port;
}

// Waits until the socket can do `what`, in slices that answer interrupts; false where the time is up.
bool wait_for(int fd, short what, const Deadline& deadline) {
  for (;;) {
    pollfd entry{fd, what, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(deadline.left(0.1) * 1000) + 1);
    if (count > 0) return true;
    check_interrupt();
    deadline.check();
    if (deadline.passed()) return false;
  }
}

template <typename T>
void set_option(int fd, int level, int name, T value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

[[noreturn]] void lost(const std::string& peer, const std::string& why) {
  throw PeerLostError("the connection to " + peer + " failed: " + why, peer);
}

[[noreturn]] void timed_out(const std::string& peer, const std::string& operation, double seconds) {
  throw TimeoutError(
      operation + " " + peer + ": no answer within " + seconds_text(seconds) +
          "; see that the peer runs and that no firewall drops its packets, or give a longer timeout",
      peer, operation, seconds);
}

// One address of the host; 0 or the errno.
int try_connect(const addrinfo& where, const Deadline& deadline, UniqueFd& fd) {
  fd.reset(::socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, where.ai_protocol));
  if (!fd) return errno;
  if (::connect(fd.get(), where.ai_addr, where.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!wait_for(fd.get(), POLLOUT, deadline)) return ETIMEDOUT;
  int code = 0;
  socklen_t length = sizeof code;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length) != 0) return errno;
  return code;
}

}  // namespace

HostPort parse_host_port(const std::string& text) {
  const size_t colon = text.rfind(':');
  const bool bracketed = !text.empty() && text.front() == '[';
  HostPort result;
  if (colon != std::string::npos) {
    result.host = text.substr(0, colon);
    result.port = text.substr(colon + 1);
  }
  if (bracketed && result.host.size() >= 2 && result.host.back() == ']')
    result.host = result.host.substr(1, result.host.size() - 2);
  else if (bracketed || result.host.find(':') != std::string::npos)
    result.port.clear();
  const bool digits =
      !result.port.empty() && result.port.size() <= 5 &&
      std::all_of(result.port.begin(), result.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(result.port) > 65535)
    throw UsageError("\"" + text +
                     "\" is no address: write host:port, 10.0.0.1:4000 or [::1]:4000 (port 0 to listen "
                     "on a free one)");
  if (result.host.empty()) result.host = "127.0.0.1";
  return result;
}

std::string own_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "unknown";
  return address_text(address, length);
}

std::string peer_address(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "unknown";
  return address_text(address, length);
}

Source source_of(const sockaddr_storage& address) noexcept {
  Source source{};
  if (address.ss_family == AF_INET) {
    std::memcpy(source.data(), &reinterpret_cast<const sockaddr_in&>(address).sin_addr, sizeof(in_addr));
  } else if (address.ss_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&six))
      std::memcpy(source.data(), six.s6_addr + 12, sizeof(in_addr));
    else  // on one link every host's address starts alike
      std::memcpy(source.data(), six.s6_addr, IN6_IS_ADDR_LINKLOCAL(&six) ? 16 : 8);
  }
  return source;
}

Arriving take_arriving(int listening) noexcept {
  Arriving arriving;
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  arriving.fd.reset(
      ::accept4(listening, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!arriving.fd) {
    arriving.code = errno;
    return arriving;
  }
  arriving.peer = address_text(address, length);
  arriving.source = source_of(address);
  return arriving;
}

bool is_loopback(int fd) noexcept {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  if (address.ss_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  const in6_addr& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

UniqueFd listen_on(const std::string& address, int backlog) {
  const Addresses list = resolve(parse_host_port(address), address, AI_PASSIVE);
  int code = 0;
  for (const addrinfo* where = list.get(); where; where = where->ai_next) {
    UniqueFd fd(
        ::socket(where->ai_family, where->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, where->ai_protocol));
    if (fd) {
      set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
      if (::bind(fd.get(), where->ai_addr, where->ai_addrlen) == 0 && ::listen(fd.get(), backlog) == 0)
        return fd;
    }
    code = errno;
  }
  const char* remedy = code == EADDRINUSE
                           ? "; another program listens there: take another port, or 0 for a free one"
                       : code == EACCES        ? "; ports below 1024 need privilege: take a higher one"
                       : code == EADDRNOTAVAIL ? "; this host has no such address: listen on one of its own"
                                               : "";
  throw Error("cannot listen on " + address + ": " + describe_errno(code) + remedy);
}

BootstrapSocket::BootstrapSocket(UniqueFd fd) : fd_(std::move(fd)) {
  neutralize_in_child(fd_.get());
  set_option(fd_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that vanishes without a word is noticed after about five seconds.
  set_option(fd_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(fd_.get(), IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(fd_.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, 5000u);
}

BootstrapSocket& BootstrapSocket::operator=(BootstrapSocket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::move(other.fd_);
    partial_ = std::move(other.partial_);
    unsent_ = std::move(other.unsent_);
    seal_ = std::move(other.seal_);
  }
  return *this;
}

void BootstrapSocket::close() noexcept {
  if (!fd_) return;
  forget_descriptor(fd_.get());
  fd_.reset();
}

BootstrapSocket BootstrapSocket::connect(const std::string& address, const Deadline& deadline) {
  const Addresses list = resolve(parse_host_port(address), address, 0);
  int code = 0;
  for (const addrinfo* where = list.get(); where; where = where->ai_next) {
    UniqueFd fd;
    code = try_connect(*where, deadline, fd);
    if (code == 0) return BootstrapSocket(std::move(fd));
    if (deadline.passed()) timed_out(address, "connect to", deadline.seconds());
  }
  const char* remedy = code == ECONNREFUSED
                           ? "; nothing listens there: start the listening side first, and see that "
                             "host and port are the ones it prints"
                           : "; see that the host is up and reachable from here";
  throw PeerLostError("cannot connect to " + address + ": " + describe_errno(code) + remedy, address);
}

void BootstrapSocket::send(std::span<const std::byte> bytes, const Deadline& deadline,
                           const std::string& peer) {
  std::vector<std::byte> sealed;
  if (seal_) bytes = sealed = seal_->seal(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      if (!wait_for(fd_.get(), POLLOUT, deadline)) timed_out(peer, "handshake with", deadline.seconds());
    } else if (errno != EINTR) {
      lost(peer, describe_errno(errno));
    }
  }
}

void BootstrapSocket::send_now(std::span<const std::byte> bytes) noexcept {
  std::vector<std::byte> sealed;
  if (seal_) bytes = sealed = seal_->seal(bytes);
  unsent_.insert(unsent_.end(), bytes.begin(), bytes.end());
  send_rest();
}

void BootstrapSocket::send_rest() noexcept {
  if (unsent_.empty()) return;
  const ssize_t sent = ::send(fd_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // A socket that takes nothing ever more is seen by reading from it.
  if (sent > 0) unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
}

void BootstrapSocket::refuse(const std::string& why, RecordKind kind) noexcept {
  send_now(encode(kind, why));
  ::shutdown(fd_.get(), SHUT_WR);
  // Closing a socket with unread bytes resets it, and the reason would be lost.
  std::array<std::byte, 4096> unread;
  for (int i = 0; i < 16 && ::recv(fd_.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0; ++i) {
  }
}

BootstrapSocket::Record BootstrapSocket::receive(const Deadline& deadline, const std::string& peer) {
  for (;;) {
    Record record;
    RecordProblem problem;
    switch (try_receive(record, problem)) {
      case Arrival::record:
        return record;
      case Arrival::closed:
        lost(peer, problem.text);
      case Arrival::malformed:
        if (problem.unproved)
          throw AuthenticationError("handshake with " + peer + " failed: " + problem.text, peer);
        throw UnavailableError("handshake with " + peer + " failed: " + problem.text);
      case Arrival::nothing_yet:
        break;
    }
    if (!wait_for(fd_.get(), POLLIN, deadline)) timed_out(peer, "handshake with", deadline.seconds());
  }
}

BootstrapSocket::Arrival BootstrapSocket::try_receive(Record& record, RecordProblem& problem) {
  for (;;) {
    size_t wanted = RecordHead::wire_bytes;
    if (partial_.size() >= RecordHead::wire_bytes) {
      const auto head = decode_head(std::span(partial_).first<RecordHead::wire_bytes>(), problem);
      if (!head) return Arrival::malformed;
      wanted += head->body_bytes;
      if (partial_.size() == wanted) return take_record(*head, record, problem);
    }
    // Never more than the record at hand, so that a long one costs what it is and no more than the limit.
    const size_t have = partial_.size();
    partial_.resize(wanted);
    const ssize_t count = ::recv(fd_.get(), partial_.data() + have, wanted - have, MSG_DONTWAIT);
    const int code = errno;
    partial_.resize(have + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count == 0) {
      problem.text = "the other side closed the socket";
      return Arrival::closed;
    }
    if (count > 0 || code == EINTR) continue;
    if (code == EAGAIN) return Arrival::nothing_yet;
    problem.text = describe_errno(code);
    problem.unreachable = code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH;
    return Arrival::closed;
  }
}

BootstrapSocket::Arrival BootstrapSocket::take_record(const RecordHead& head, Record& record,
                                                      RecordProblem& problem) {
  const std::vector<std::byte> whole = std::move(partial_);
  partial_.clear();
  std::span<const std::byte> body = std::span(whole).subspan(RecordHead::wire_bytes);
  if (seal_) {
    const auto opened = seal_->open(whole);
    if (!opened) {
      problem.text =
          "a record came whose seal is wrong: whoever sent it has another secret, or somebody in between "
          "altered it";
      problem.unproved = true;
      return Arrival::malformed;
    }
    body = *opened;
  }
  record.head = head;
  record.body.assign(body.begin(), body.end());
  return Arrival::record;
}

}  // namespace rdmatx
