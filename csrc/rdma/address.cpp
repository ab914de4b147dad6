#include "rdma/address.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"

namespace rdmatx {
namespace {

constexpr char magic[4] = {'r', 'd', 'x', 'a'};
constexpr uint32_t max_24_bits = 0xffffff;

/// Appends big-endian numbers.
struct Writer {
  std::vector<std::byte> bytes;

  template <class Number>
  void put(Number number) {
    for (int shift = static_cast<int>(sizeof number) * 8 - 8; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::byte>(static_cast<uint64_t>(number) >> shift));
  }
};

/// Takes big-endian numbers; the caller has checked that there are enough bytes.
struct Reader {
  const std::byte* next;

  template <class Number>
  Number take() {
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) number = number << 8 | std::to_integer<uint64_t>(*next++);
    return static_cast<Number>(number);
  }
};

void require(bool valid, const std::string& what) {
  if (!valid) throw UsageError("not an address of a queue pair: " + what);
}

}  // namespace

std::vector<std::byte> Address::to_bytes() const {
  require(queue_pair_number <= max_24_bits, "its queue pair number does not fit 24 bits");
  require(packet_sequence_number <= max_24_bits, "its packet sequence number does not fit 24 bits");
  require(port != 0, "ports count from 1");
  Writer writer;
  writer.bytes.reserve(encoded_bytes);
  for (char letter : magic) writer.put(static_cast<uint8_t>(letter));
  writer.put(version);
  writer.put(uint8_t{0});
  writer.put(static_cast<uint16_t>(encoded_bytes));
  writer.put(queue_pair_number);
  writer.put(packet_sequence_number);
  writer.put(lid);
  writer.put(port);
  writer.put(static_cast<uint8_t>(link_layer));
  writer.put(gid_index);
  writer.put(static_cast<uint8_t>(gid_type));
  writer.put(static_cast<uint8_t>(mtu_code_from_bytes(mtu)));
  writer.put(uint8_t{0});
  for (uint8_t byte : gid.raw) writer.put(byte);
  return std::move(writer.bytes);
}

Address Address::from_bytes(std::span<const std::byte> bytes) {
  require(bytes.size() >= 8 && std::memcmp(bytes.data(), magic, sizeof magic) == 0,
          "it does not begin as one (" + std::to_string(bytes.size()) + " bytes)");
  Reader reader{bytes.data() + sizeof magic};
  const auto found_version = reader.take<uint8_t>();
  require(found_version == version, "it has version " + std::to_string(found_version) +
                                        " and this rdmatx knows " + std::to_string(version) +
                                        "; use the same rdmatx on both sides");
  const auto reserved = reader.take<uint8_t>();
  const auto length = reader.take<uint16_t>();
  require(length == encoded_bytes && bytes.size() == encoded_bytes,
          "it has " + std::to_string(bytes.size()) + " bytes instead of " + std::to_string(encoded_bytes));
  Address address;
  address.queue_pair_number = reader.take<uint32_t>();
  address.packet_sequence_number = reader.take<uint32_t>();
  address.lid = reader.take<uint16_t>();
  address.port = reader.take<uint8_t>();
  const auto layer = reader.take<uint8_t>();
  address.gid_index = reader.take<uint8_t>();
  const auto type = reader.take<uint8_t>();
  const auto mtu_code = reader.take<uint8_t>();
  const auto reserved_too = reader.take<uint8_t>();
  for (uint8_t& byte : address.gid.raw) byte = reader.take<uint8_t>();

  require(reserved == 0 && reserved_too == 0, "its reserved bytes are not zero");
  require(address.queue_pair_number <= max_24_bits, "its queue pair number does not fit 24 bits");
  require(address.packet_sequence_number <= max_24_bits, "its packet sequence number does not fit 24 bits");
  require(address.port != 0, "ports count from 1");
  require(layer <= static_cast<uint8_t>(LinkLayer::ethernet), "its link layer is unknown");
  require(type <= static_cast<uint8_t>(GidType::roce_v2), "its GID type is unknown");
  require(mtu_code >= 1 && mtu_code <= 5, "its MTU is unknown");
  address.link_layer = static_cast<LinkLayer>(layer);
  address.gid_type = static_cast<GidType>(type);
  address.mtu = mtu_bytes_from_code(mtu_code);
  return address;
}

std::string Address::text() const {
  return "qp " + std::to_string(queue_pair_number) + " at " + gid.text() + " (port " + std::to_string(port) +
         (lid ? ", lid " + std::to_string(lid) : "") + ")";
}

}  // namespace rdmatx
