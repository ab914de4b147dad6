// A listener's thread beside the threads that accept, look and close: what the sanitizers should see.

#include "messaging/listener.hpp"

#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "messaging/context.hpp"

using namespace rdmatx;

namespace {

constexpr double patience = 30;

SharedSecret secret_of(const std::string& text) {
  return Secret::create({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

std::shared_ptr<Context> open_context() {
  return std::make_shared<Context>(Device::open(soft_verbs()), patience);
}

// Waits for what the listener's thread does a moment later.
template <typename Condition>
void eventually(Condition condition) {
  const Deadline deadline(patience);
  while (!condition()) {
    CHECK(!deadline.passed());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void exchange_a_byte(Connection& near, Connection& far) {
  uint8_t out = 42;
  uint8_t in = 0;
  near.send({&out, 1, {}, {}}, 0, patience);
  CHECK_EQ(far.receive({&in, 1, {}, {}}, 0, patience), 1u);
  CHECK_EQ(in, 42);
}

}  // namespace

TEST(one_secret_connects_and_another_does_not) {
  const auto context = open_context();
  const auto listener = context->listen("127.0.0.1:0", secret_of("a secret of this test"));
  const auto near = context->connect(listener->address(), {}, secret_of("a secret of this test"));
  const auto far = listener->accept({});
  exchange_a_byte(*near, *far);
  CHECK_THROWS(AuthenticationError, "is not this side's",
               context->connect(listener->address(), {}, secret_of("a secret of that test")));
  CHECK_THROWS(AuthenticationError, "the connecting side has none",
               context->connect(listener->address(), {}));
  eventually([&] { return listener->stats().failed_authentication == 2; });
  CHECK_THROWS(TimeoutError, "nobody connected", listener->accept(0.01));
  const auto open = context->listen("127.0.0.1:0");
  CHECK_THROWS(AuthenticationError, "the listener has none",
               context->connect(open->address(), {}, secret_of("a secret of this test")));
  context->close();
}

TEST(peers_and_strangers_come_from_many_threads) {
  const auto context = open_context();
  const SharedSecret secret = secret_of("a secret of this test");
  const auto listener = context->listen("127.0.0.1:0", secret);
  constexpr int rounds = 10;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        try {
          context->connect(listener->address(), {}, secret)->close();
        } catch (const std::exception&) {
          ++failures;
        }
      }
    });
    threads.emplace_back([&, i] {
      for (int round = 0; round < rounds; ++round) {
        const auto stranger = BootstrapSocket::connect(listener->address(), Deadline(patience));
        const auto words = i == 0 ? std::vector<std::byte>(100, std::byte{7}) : encode_greeting(Nonce{});
        ::send(stranger.fd(), words.data(), words.size(), MSG_NOSIGNAL);
        listener->stats();
      }
    });
  }
  for (int accepted = 0; accepted < 3 * rounds; ++accepted) listener->accept({})->close();
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(failures.load(), 0);
  eventually([&] { return listener->stats().half_open == 0; });
  const ListenerStats stats = listener->stats();
  CHECK_EQ(stats.accepted, 3u * rounds);
  CHECK_EQ(stats.refused + stats.gave_up, 3u * rounds);
  context->close();
}

TEST(closing_ends_handshakes_and_those_who_wait) {
  const auto context = open_context();
  const auto listener = context->listen("127.0.0.1:0", secret_of("a secret of this test"));
  auto stranger = BootstrapSocket::connect(listener->address(), Deadline(patience));
  stranger.send(encode_greeting(Nonce{}), Deadline(patience), "listener");
  stranger.receive(Deadline(patience), "listener");
  std::atomic<bool> ended{false};
  std::thread waits([&] {
    try {
      listener->accept({});
    } catch (const ClosedError&) {
      ended = true;
    }
  });
  eventually([&] { return listener->stats().half_open == 1; });
  listener->close();
  waits.join();
  CHECK(ended.load());
  CHECK_EQ(listener->stats().half_open, 0u);
  CHECK_THROWS(PeerLostError, "closed", stranger.receive(Deadline(patience), "listener"));
}

RDMATX_TEST_MAIN()
