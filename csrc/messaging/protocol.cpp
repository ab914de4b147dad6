#include "messaging/protocol.hpp"

#include <cstring>

namespace rdmatx {

void encode_parts(std::span<const RemotePart> parts, size_t rails, std::vector<std::byte>& bytes) {
  bytes.resize(parts.size() * RemotePart::wire_bytes(rails));
  std::byte* to = bytes.data();
  for (const RemotePart& part : parts) {
    std::memcpy(to, &part.address, 8);
    std::memcpy(to + 8, &part.bytes, 8);
    std::memcpy(to + 16, part.keys.data(), 4 * rails);
    to += RemotePart::wire_bytes(rails);
  }
}

std::vector<RemotePart> decode_parts(std::span<const std::byte> bytes, size_t rails) {
  std::vector<RemotePart> parts(bytes.size() / RemotePart::wire_bytes(rails));
  const std::byte* from = bytes.data();
  for (RemotePart& part : parts) {
    std::memcpy(&part.address, from, 8);
    std::memcpy(&part.bytes, from + 8, 8);
    std::memcpy(part.keys.data(), from + 16, 4 * rails);
    from += RemotePart::wire_bytes(rails);
  }
  return parts;
}

}  // namespace rdmatx
