// Failing call n leaves nothing open, from a Context up: a device, a listener, a connection within one
// process, a region, a message and a write, with every call of a verb that sets something up failing in turn.
//
//   test_context_faults [soft|system]

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/context.hpp"
#include "rdma/faults.hpp"

using namespace rdmatx;

namespace {

constexpr double patience = 20;
Provider provider = Provider::soft;

size_t entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

/// What is open in this process: objects of the verbs, descriptors, threads.
struct Open {
  int64_t objects = 0;
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");

  Open() {
    for (int kind = 0; kind < static_cast<int>(ObjectKind::count); ++kind)
      objects += live_objects(static_cast<ObjectKind>(kind));
  }
  bool operator==(const Open&) const = default;
  std::string text() const {
    return std::to_string(objects) + " objects, " + std::to_string(descriptors) + " descriptors, " +
           std::to_string(threads) + " threads";
  }
};

/// Threads that were told to end need a moment.
void check_nothing_more_than(const Open& before, const std::string& when) {
  for (int tries = 0; tries < 5000; ++tries) {
    if (Open() == before) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  testing::fail(__FILE__, __LINE__, when + ": " + before.text() + " became " + Open().text());
}

OperationMemory memory_of(std::vector<uint8_t>& data) {
  return {data.data(), data.size(), {}, {}};
}

/// The whole way, once. Whatever throws on it, its objects are gone afterwards.
void run(const Verbs* verbs) {
  const auto context = std::make_shared<Context>(Device::open(verbs), patience);
  const auto listener = context->listen("127.0.0.1:0");
  const auto near = context->connect(listener->address(), {});
  const auto far = listener->accept({});
  std::vector<uint8_t> sent(100'000, 7);
  std::vector<uint8_t> received(100'000);
  const auto region = context->register_memory(memory_of(received), false, 3);
  const auto work = near->isend(memory_of(sent), 1);
  CHECK_EQ(far->receive(memory_of(received), 1, {}), sent.size());
  near->wait(work, {});
  CHECK(received == sent);
}

}  // namespace

TEST(failing_call_n_leaves_nothing_open) {
  run(faulty_verbs(provider, 0));
  const int calls = counted_calls(provider);
  CHECK(calls > 0);
  // A device with a thousand GIDs has a thousand calls that read one: it is enough to fail some of those.
  const int step = calls > 300 ? calls / 100 : 1;
  const Open before;
  int thrown = 0;
  for (int failing = 1; failing <= calls; failing += failing < 30 || failing + 60 > calls ? 1 : step) {
    const std::string when =
        "with call " + std::to_string(failing) + " of " + std::to_string(calls) + " failing";
    try {
      run(faulty_verbs(provider, failing));
    } catch (const Error& error) {
      ++thrown;
      CHECK(std::string(error.what()).size() > 20);
    }
    check_nothing_more_than(before, when);
  }
  std::printf("%d calls, %d of their failures ended the way with an error\n", calls, thrown);
  // Few failures may be survived: a registration that is not needed, an attribute that is only shown.
  CHECK(thrown > 0);
  run(faulty_verbs(provider, 0));
  check_nothing_more_than(before, "after all of them");
}

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "system") provider = Provider::system;
  return testing::run_cases("") == 0 ? 0 : 1;
}
