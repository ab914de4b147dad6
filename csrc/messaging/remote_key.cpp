#include "messaging/remote_key.hpp"

#include <algorithm>
#include <string>

#include "base/error.hpp"
#include "messaging/wire.hpp"

namespace rdmatx {
namespace {

constexpr uint32_t magic = 0x4b584452;  // "RDXK"

// FNV-1a: finds a key that was cut, padded or mixed up on its way; it is no protection against intent.
uint32_t checksum(std::span<const std::byte> bytes) {
  uint32_t hash = 2166136261u;
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint32_t>(b)) * 16777619u;
  return hash;
}

std::string letters(uint16_t access) {
  std::string text;
  if (access & RemoteAccess::read) text += 'r';
  if (access & RemoteAccess::write) text += 'w';
  if (access & RemoteAccess::atomic) text += 'a';
  return text;
}

/// Two or more, which make up the length. False where they do not.
bool read_pieces(WireReader& in, size_t keys, RemoteKey& key) {
  const auto count = in.number<uint32_t>();
  if (count < 2 || count > RemoteKey::max_pieces || !in.ok()) return false;
  uint64_t left = key.length;
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    RemoteKey::Piece piece;
    piece.bytes = in.number<uint64_t>();
    for (size_t rail = 0; rail < keys; ++rail) piece.keys[rail] = in.number<uint32_t>();
    if (piece.bytes == 0 || piece.bytes > left) return false;
    left -= piece.bytes;
    key.pieces.push_back(piece);
  }
  return in.ok() && left == 0;
}

}  // namespace

std::vector<std::byte> RemoteKey::to_bytes() const {
  WireWriter out;
  out.number(magic);
  out.number(pieces.empty() ? version : version_with_pieces);
  out.number(access);
  out.number(address);
  out.number(length);
  out.number(key_count);
  for (size_t i = 0; i < key_count; ++i) out.number(keys[i]);
  if (!pieces.empty()) out.number(static_cast<uint32_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    out.number(piece.bytes);
    for (size_t i = 0; i < key_count; ++i) out.number(piece.keys[i]);
  }
  out.number(checksum(out.bytes()));
  return out.take();
}

RemoteKey RemoteKey::from_bytes(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  if (in.number<uint32_t>() != magic)
    throw UsageError("these bytes are no remote key: pass what bytes(region.key()) gave on the other side");
  const auto theirs = in.number<uint16_t>();
  if (theirs != version && theirs != version_with_pieces)
    throw UsageError("this remote key has version " + std::to_string(theirs) +
                     ", and this rdmatx reads version " + std::to_string(version) + " and " +
                     std::to_string(version_with_pieces) + ": use the same rdmatx on both sides");
  RemoteKey key;
  key.access = in.number<uint16_t>();
  key.address = in.number<uint64_t>();
  key.length = in.number<uint64_t>();
  key.key_count = in.number<uint8_t>();
  const size_t count = std::min<size_t>(key.key_count, max_rails);
  for (size_t i = 0; i < count; ++i) key.keys[i] = in.number<uint32_t>();
  const bool pieces_fit = theirs == version || read_pieces(in, count, key);
  const auto sum = in.number<uint32_t>();
  const bool whole =
      pieces_fit && in.ok() && in.left() == 0 && key.key_count >= 1 && key.key_count <= max_rails;
  if (!whole || sum != checksum(bytes.first(bytes.size() - 4)))
    throw UsageError("this remote key is damaged: its " + std::to_string(bytes.size()) +
                     " bytes do not add up; pass what bytes(region.key()) gave on the other side");
  return key;
}

void RemoteKey::check(uint64_t offset, uint64_t bytes, uint16_t needed, const char* operation) const {
  if ((access & needed) != needed)
    throw UsageError(std::string(operation) + " needs access \"" + letters(needed) +
                     "\" to the peer's region, and its key grants \"" + letters(access) +
                     "\": the peer registers it with ctx.register(buffer, access=\"" +
                     letters(access | needed) + "\")");
  if (offset > length || bytes > length - offset)
    throw UsageError(std::string(operation) + " of " + std::to_string(bytes) + " bytes at offset " +
                     std::to_string(offset) + " passes the end of the peer's region, which has " +
                     std::to_string(length) + " bytes");
}

}  // namespace rdmatx
