// Drives a fuzz target where the compiler has no libFuzzer: every file named on the command line (or found in
// the folders named), then a bounded run of mutations of those and of the target's seeds. The generator is
// seeded with a constant, so that a finding repeats; `--seed N` and `--runs N` look elsewhere and longer.
// Without
// `--runs` it ends after twenty seconds: under a sanitizer a run of a large target takes many times as long.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fuzz.hpp"

namespace {

using Input = std::vector<uint8_t>;

Input file_content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<Input> corpus_of(const std::vector<std::string>& names) {
  std::vector<Input> corpus;
  for (const std::string& name : names) {
    if (!std::filesystem::is_directory(name)) {
      corpus.push_back(file_content(name));
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(name)) {
      if (entry.is_regular_file()) corpus.push_back(file_content(entry.path()));
    }
  }
  return corpus;
}

/// One to eight edits of the kinds that break parsers: flipped bits, extreme lengths, cuts and repeats.
void mutate(Input& input, std::mt19937_64& random) {
  const int edits = 1 + static_cast<int>(random() % 8);
  for (int i = 0; i < edits; ++i) {
    const size_t at = input.empty() ? 0 : random() % input.size();
    switch (random() % 6) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<uint8_t>(1u << (random() % 8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<uint8_t>(random());
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), 1 + random() % 64,
                     static_cast<uint8_t>(random()));
        break;
      case 4:
        for (size_t j = at; j < input.size() && j < at + 4; ++j) input[j] = 0xff;
        break;
      default:
        for (size_t j = at; j < input.size() && j < at + 4; ++j) input[j] = 0;
        break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1;
  long runs = 20000;
  auto stop = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::stoull(argv[++i]);
    } else if (std::strcmp(argv[i], "--runs") == 0 && i + 1 < argc) {
      runs = std::stol(argv[++i]);
      stop = stop.max();
    } else {
      names.emplace_back(argv[i]);
    }
  }
  std::vector<Input> corpus = corpus_of(names);
  for (Input& seed_input : rdmatx::testing::fuzz_seeds()) corpus.push_back(std::move(seed_input));
  corpus.push_back({});
  corpus.push_back(Input(256, 0xff));
  for (const Input& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(seed);
  long run = 0;
  for (; run < runs && std::chrono::steady_clock::now() < stop; ++run) {
    Input input = corpus[random() % corpus.size()];
    mutate(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs to start from, %ld mutations, seed %llu: no finding\n", corpus.size(), run,
              static_cast<unsigned long long>(seed));
  return 0;
}
