#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "messaging/deadline.hpp"
#include "messaging/handshake.hpp"

// The bootstrap socket: TCP, for the handshake, and kept open afterwards because the kernel closes it
// whatever happens to the process that holds it.

namespace rdmatx {

/// "host:port", "1.2.3.4:port", "[v6]:port"; an empty host is the loopback interface.
struct HostPort {
  std::string host;
  std::string port;
};
/// Throws UsageError that shows the forms there are.
HostPort parse_host_port(const std::string& text);
/// "1.2.3.4:5" or "[::1]:5" of a socket's own or its peer's end; "unknown" where it has none.
std::string own_address(int fd);
std::string peer_address(int fd);

/// A listening socket, non-blocking. Throws Error naming the address and why: in use, no permission, no such
/// host.
UniqueFd listen_on(const std::string& address, int backlog);

/// One end of a bootstrap connection. Non-blocking underneath; the functions with a deadline wait in slices
/// and answer interrupts. A forked child does not hold it open. Not thread-safe: its connection's lock guards
/// it.
class BootstrapSocket {
 public:
  BootstrapSocket() = default;
  /// Takes a connected socket and sets what a bootstrap socket needs: a dead host shows within seconds.
  explicit BootstrapSocket(UniqueFd fd);
  BootstrapSocket(BootstrapSocket&& other) noexcept = default;
  BootstrapSocket& operator=(BootstrapSocket&& other) noexcept;
  ~BootstrapSocket() { close(); }

  /// Tries every address of the host. Throws PeerLostError where nobody listens, TimeoutError, UsageError.
  static BootstrapSocket connect(const std::string& address, const Deadline& deadline);

  int fd() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void close() noexcept;

  /// Throws PeerLostError, TimeoutError.
  void send(std::span<const std::byte> bytes, const Deadline& deadline, const std::string& peer);
  /// As much as the kernel takes now; for last words.
  void send_now(std::span<const std::byte> bytes) noexcept;

  /// Tells the other side why not, and that nothing more comes.
  void refuse(const std::string& why) noexcept;

  struct Record {
    RecordHead head;
    std::vector<std::byte> body;
  };
  /// The next whole record. Throws PeerLostError, TimeoutError, and UnavailableError for one that is
  /// malformed or of another version.
  Record receive(const Deadline& deadline, const std::string& peer);

  enum class Arrival { record, nothing_yet, closed, malformed };
  /// Reads what is there without waiting. `problem` says what was malformed, or how the socket failed.
  Arrival try_receive(Record& record, RecordProblem& problem);

 private:
  UniqueFd fd_;
  std::vector<std::byte> partial_;
};

}  // namespace rdmatx
