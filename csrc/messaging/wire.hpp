#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

// How numbers become bytes in everything rdmatx sends: little-endian, unpadded, field after field.

namespace rdmatx {

/// Appends fields to a growing record. Not thread-safe; owns its bytes.
class WireWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// A 16-bit length and the text; what does not fit in 65,535 bytes is cut.
  void text(const std::string& text) {
    const auto length = static_cast<uint16_t>(text.size() < 0xffff ? text.size() : 0xffff);
    number(length);
    raw(std::as_bytes(std::span(text.data(), length)));
  }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads fields from bytes that came from outside. Never reads past the end: a field that is not there reads
/// as zero and `ok()` turns false for good, so that a parser checks once.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    static_assert(std::is_unsigned_v<T>);
    const auto field = take(sizeof(T));
    T value = 0;
    for (size_t i = 0; i < field.size(); ++i) value |= static_cast<T>(static_cast<T>(field[i]) << (8 * i));
    return value;
  }
  template <size_t N>
  std::array<uint8_t, N> array() {
    std::array<uint8_t, N> value{};
    const auto field = take(N);
    if (!field.empty()) std::memcpy(value.data(), field.data(), field.size());
    return value;
  }
  std::string text() {
    const auto length = number<uint16_t>();
    const auto field = take(length);
    return {reinterpret_cast<const char*>(field.data()), field.size()};
  }
  bool ok() const noexcept { return ok_; }
  size_t left() const noexcept { return bytes_.size(); }

 private:
  std::span<const std::byte> take(size_t count) {
    if (!ok_ || count > bytes_.size()) {
      ok_ = false;
      return {};
    }
    const auto field = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return field;
  }

  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace rdmatx
