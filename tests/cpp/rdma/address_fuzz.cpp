// Address::from_bytes: whatever comes in is refused with UsageError, or is an address that encodes to the
// same bytes.

#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "fuzz.hpp"
#include "rdma/address.hpp"

using namespace rdmatx;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    if (!std::ranges::equal(Address::from_bytes(bytes).to_bytes(), bytes)) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}

namespace rdmatx::testing {

std::vector<std::vector<uint8_t>> fuzz_seeds() {
  std::vector<std::vector<uint8_t>> seeds;
  Address address;
  for (const char* gid : {"fe80::1", "::ffff:10.0.0.1"}) {
    address.gid = Gid::parse(gid);
    const std::vector<std::byte> bytes = address.to_bytes();
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    seeds.emplace_back(first, first + bytes.size());
  }
  return seeds;
}

}  // namespace rdmatx::testing
