#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "messaging/authentication.hpp"
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

/// Where a stranger comes from, as far as one tells strangers apart: an IPv4 address, or the network of an
/// IPv6 one (64 bits), since whoever has one address of it has them all.
using Source = std::array<uint8_t, 16>;
Source source_of(const sockaddr_storage& address) noexcept;

/// A connection that a listening socket had waiting; no descriptor, and `code` says why, where it had none.
struct Arriving {
  UniqueFd fd;
  int code = 0;
  std::string peer;
  Source source{};
};
Arriving take_arriving(int listening) noexcept;

/// Whether a bound socket can be reached from its own host alone.
bool is_loopback(int fd) noexcept;

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

  /// From here on every record that is sent has a seal, and one that comes without a right one is malformed.
  void protect(RecordSeal seal) { seal_ = seal; }

  /// One whole record. Throws PeerLostError, TimeoutError.
  void send(std::span<const std::byte> bytes, const Deadline& deadline, const std::string& peer);
  /// One whole record, without waiting: what the kernel does not take now goes with the next, or with
  /// send_rest().
  void send_now(std::span<const std::byte> bytes) noexcept;
  void send_rest() noexcept;

  /// Tells the other side why not, and that nothing more comes.
  void refuse(const std::string& why, RecordKind kind = RecordKind::refuse) noexcept;

  struct Record {
    RecordHead head;
    std::vector<std::byte> body;
  };
  /// The next whole record. Throws PeerLostError, TimeoutError, UnavailableError for one that is malformed or
  /// of another version, and AuthenticationError for one whose seal is wrong.
  Record receive(const Deadline& deadline, const std::string& peer);

  enum class Arrival { record, nothing_yet, closed, malformed };
  /// Reads what is there without waiting. `problem` says what was malformed, or how the socket failed.
  Arrival try_receive(Record& record, RecordProblem& problem);

 private:
  Arrival take_record(const RecordHead& head, Record& record, RecordProblem& problem);

  UniqueFd fd_;
  std::vector<std::byte> partial_;
  std::vector<std::byte> unsent_;
  std::optional<RecordSeal> seal_;
};

}  // namespace rdmatx
