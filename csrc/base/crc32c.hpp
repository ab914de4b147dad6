#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/export.hpp"

namespace rdmatx {

/// The checksum CRC-32C (Castagnoli; RFC 3720 section 12.1 and its appendix B.4) of `bytes` bytes. `seed` is
/// 0, or the checksum of what came before them: crc32c(crc32c(0, a), b) is that of a followed by b. Uses the
/// processor's own instruction where it has one. Any thread.
RDMATX_API uint32_t crc32c(uint32_t seed, const void* data, size_t bytes) noexcept;

/// One way to compute it that runs on this processor.
struct Crc32cVariant {
  const char* name;
  uint32_t (*function)(uint32_t seed, const void* data, size_t bytes) noexcept;
};
/// All of them, the fastest first: crc32c() takes that one. For tests and benchmarks.
RDMATX_API std::span<const Crc32cVariant> crc32c_variants() noexcept;

}  // namespace rdmatx
