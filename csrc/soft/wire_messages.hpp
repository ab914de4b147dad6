#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <utility>

// What wire.cpp and wire_links.cpp share.

namespace rdmatx::soft {

/// What opens every message between two instances; a process with another version is told so and left alone.
constexpr uint32_t wire_magic = 0x78646d72;  // "rmdx"
constexpr uint16_t wire_version = 1;
enum Kind : uint16_t { kind_hello = 1, kind_claim, kind_grant, kind_map, kind_segment };

/// What the wire's thread waits for: a link's key, or one of these.
constexpr uint64_t listener_token = ~uint64_t{0}, doorbell_token = ~uint64_t{1};
/// The end of a link's process is reported under the link's key with this bit.
constexpr uint64_t process_bit = uint64_t{1} << 62;

/// The abstract socket through which an instance is reached.
std::pair<sockaddr_un, socklen_t> abstract_address(uint64_t identity);

}  // namespace rdmatx::soft
