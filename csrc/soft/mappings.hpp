#pragma once

#include <cstdint>

#include "base/unique_fd.hpp"

namespace rdmatx::soft {

/// What the process has mapped, asked of the kernel. A NIC's driver pins pages and so finds out; this device
/// pins nothing and asks. Any thread.
class Mappings {
 public:
  Mappings();
  /// Whether every byte of the range is mapped and may be read (which the addresses of a GPU's memory may
  /// not), and written where that is asked for.
  bool cover(uint64_t address, uint64_t bytes, bool writable) const;

 private:
  bool ask(uint64_t address, uint64_t bytes, bool writable, bool* answered) const;
  UniqueFd maps_;
};

}  // namespace rdmatx::soft
