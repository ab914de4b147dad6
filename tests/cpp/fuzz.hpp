#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// What a fuzz target defines: the parser call, which must return 0 and neither crash, hang nor trip a
// sanitizer; and a few well-formed inputs to start from, because random bytes never get past a magic number.

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace rdmatx::testing {
std::vector<std::vector<uint8_t>> fuzz_seeds();
}  // namespace rdmatx::testing
