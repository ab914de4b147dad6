// Devices, regions, queues and queue pairs over the software HCA: what they do, what they say when a verb
// says no, and that nothing is left open, whichever call of their set-up fails.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "forking.hpp"
#include "rdma/faults.hpp"
#include "rdma/provider.hpp"
#include "rdma/queue_pair.hpp"

using namespace rdmatx;

namespace {

constexpr Access everything =
    Access::local_write | Access::remote_write | Access::remote_read | Access::remote_atomic;

int64_t all_live_objects() {
  int64_t total = 0;
  for (int kind = 0; kind < static_cast<int>(ObjectKind::count); ++kind)
    total += live_objects(static_cast<ObjectKind>(kind));
  return total;
}

/// Two connected queue pairs, with every kind of object around them.
struct Rig {
  std::shared_ptr<Device> device;
  std::shared_ptr<ProtectionDomain> domain;
  std::shared_ptr<CompletionChannel> channel;
  std::shared_ptr<CompletionQueue> queue;
  std::shared_ptr<SharedReceiveQueue> shared;
  std::shared_ptr<QueuePair> one, other;
  std::array<char, 64> source{}, target{};
  std::shared_ptr<MemoryRegion> source_region, target_region;

  explicit Rig(const Verbs* verbs = soft_verbs())
      : device(Device::open(verbs)),
        domain(ProtectionDomain::create(device)),
        channel(CompletionChannel::create(device)),
        queue(CompletionQueue::create(device, 64, channel)),
        shared(SharedReceiveQueue::create(domain, 16)),
        one(QueuePair::create(domain, queue, queue, {})),
        other(QueuePair::create(domain, queue, queue, {})),
        source_region(MemoryRegion::create(domain, source.data(), source.size(), everything)),
        target_region(MemoryRegion::create(domain, target.data(), target.size(), everything)) {
    one->connect(1, 0, other->local_address());
    other->connect(1, 0, one->local_address());
  }

  Completion next() {
    Completion completion;
    const auto start = std::chrono::steady_clock::now();
    while (queue->poll(std::span(&completion, 1)) == 0) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) throw Error("no completion");
      std::this_thread::yield();
    }
    return completion;
  }
};

}  // namespace

TEST(a_message_arrives) {
  Rig rig;
  std::strcpy(rig.source.data(), "hello");
  ReceiveWork receive(1);
  receive.add(*rig.target_region, 0, 64);
  rig.other->post_receive(receive);
  SendWork send = SendWork::send(2);
  send.add(*rig.source_region, 0, 6).immediate(0x01020304).signaled();
  rig.one->post_send(send);
  for (int i = 0; i < 2; ++i) {
    const Completion completion = rig.next();
    CHECK(completion.succeeded());
    if (!completion.is_receive()) continue;
    CHECK_EQ(completion.bytes(), 6u);
    CHECK_EQ(completion.immediate(), 0x01020304u);
  }
  CHECK_EQ(std::string(rig.target.data()), "hello");
}

TEST(whichever_call_fails_nothing_is_left_open) {
  CHECK_EQ(all_live_objects(), 0);
  int failures = 0;
  for (int n = 1;; ++n) {
    bool failed = false;
    try {
      Rig rig(faulty_verbs(Provider::soft, n));
    } catch (const VerbsError& error) {
      CHECK_EQ(error.code(), ENOMEM);
      CHECK(!error.call().empty());
      failed = true;
    }
    CHECK_EQ(all_live_objects(), 0);
    if (!failed) break;
    ++failures;
  }
  CHECK(failures > 20);
  CHECK_EQ(counted_calls(Provider::soft), failures);
}

TEST(children_keep_their_parents_open) {
  std::shared_ptr<QueuePair> last;
  {
    Rig rig;
    last = rig.one;
  }
  CHECK_EQ(live_objects(ObjectKind::queue_pair), 1);
  CHECK_EQ(live_objects(ObjectKind::device), 1);
  CHECK_EQ(live_objects(ObjectKind::memory_region), 0);
  CHECK(last->state() == QueuePairState::ready_to_send);
  last.reset();
  CHECK_EQ(all_live_objects(), 0);
}

TEST(a_region_holds_its_memory_until_it_is_gone) {
  const auto domain = ProtectionDomain::create(Device::open(soft_verbs()));
  auto memory = std::make_shared<std::vector<char>>(100);
  const std::weak_ptr<std::vector<char>> watched = memory;
  void* data = memory->data();
  auto region = MemoryRegion::create(domain, data, 100, everything, std::move(memory));
  CHECK(!watched.expired());
  region.reset();
  CHECK(watched.expired());
}

TEST(a_region_of_no_bytes_registers_nothing) {
  const auto domain = ProtectionDomain::create(Device::open(soft_verbs()));
  const auto region = MemoryRegion::create(domain, nullptr, 0, everything);
  CHECK_EQ(region->bytes(), 0u);
  CHECK_EQ(region->remote_key(), 0u);
  CHECK_EQ(live_objects(ObjectKind::memory_region), 0);
}

TEST(remote_write_needs_local_write) {
  const auto domain = ProtectionDomain::create(Device::open(soft_verbs()));
  char byte = 0;
  CHECK_THROWS(UsageError, "local_write", MemoryRegion::create(domain, &byte, 1, Access::remote_write));
}

TEST(a_refused_registration_names_the_limit_and_the_need) {
  const auto device = Device::open(faulty_verbs(Provider::soft, 1, {"reg_mr"}));
  const auto domain = ProtectionDomain::create(device);
  std::vector<char> memory(12345);
  CHECK_THROWS(VerbsError, "RLIMIT_MEMLOCK",
               MemoryRegion::create(domain, memory.data(), memory.size(), everything));
  faulty_verbs(Provider::soft, 1, {"reg_mr"});
  CHECK_THROWS(VerbsError, "12345 bytes",
               MemoryRegion::create(domain, memory.data(), memory.size(), everything));
  // The same errno for memory that is not there: another cause, other words. The second mebibyte lies below
  // every program, and the kernel gives out nothing there unasked; of a mapping just closed no one knows
  // that.
  void* gone = reinterpret_cast<void*>(uintptr_t{1} << 20);
  faulty_verbs(Provider::soft, 1, {"reg_mr"});
  CHECK_THROWS(VerbsError, "nothing is mapped", MemoryRegion::create(domain, gone, 4096, Access::none));
}

TEST(work_beyond_its_region_is_refused) {
  Rig rig;
  SendWork work = SendWork::send();
  CHECK_THROWS(UsageError, "beyond its region", work.add(*rig.source_region, 60, 5));
  CHECK_THROWS(UsageError, "beyond its region", work.add(*rig.source_region, SIZE_MAX, 5));
  work.add(*rig.source_region, 64, 0);
}

TEST(a_refused_request_is_named) {
  Rig rig;
  std::array<SendWork, 3> work{SendWork::send(), SendWork::send(), SendWork::send()};
  work[1].add(*rig.source_region, 0, 1).add(*rig.source_region, 1, 1);  // the queue pair takes one element
  CHECK_THROWS(VerbsError, "work request 2 of 3", rig.one->post_send(work));
  const auto unconnected = QueuePair::create(rig.domain, rig.queue, rig.queue, {});
  CHECK_THROWS(VerbsError, "state RESET", unconnected->post_send(work[0]));
  ReceiveWork receive;
  CHECK_THROWS(VerbsError, "state RESET", unconnected->post_receive(receive));
}

TEST(a_refused_transition_is_named_with_its_attributes) {
  Rig rig;
  CHECK_THROWS(VerbsError, "RTS -> INIT with state=INIT, access=local_write, pkey_index=0, port=1",
               rig.one->to_init(1, Access::local_write));
}

TEST(a_query_tells_what_connect_has_set) {
  Rig rig;
  const QueuePairStatus status = rig.one->query();
  CHECK(*status.attributes.state == QueuePairState::ready_to_send);
  CHECK_EQ(*status.attributes.destination_queue_pair_number, rig.other->number());
  CHECK_EQ(int{*status.attributes.retry_count}, 7);
  CHECK_EQ(int{*status.attributes.timeout}, 14);
  CHECK(status.capabilities.max_send_requests >= 64);
}

TEST(an_armed_queue_tells_its_channel) {
  Rig rig;
  CHECK(!rig.channel->get_event(0));
  rig.queue->arm();
  SendWork work = SendWork::write(rig.target_region->remote_address(), rig.target_region->remote_key());
  work.add(*rig.source_region, 0, 8).signaled();
  rig.one->post_send(work);
  CHECK(rig.channel->get_event(20) == rig.queue);
  CHECK(rig.next().succeeded());
  const auto alone = CompletionQueue::create(rig.device, 1);
  CHECK_THROWS(UsageError, "without a completion channel", alone->arm());
}

TEST(a_queue_that_is_gone_is_not_told_of) {
  Rig rig;
  auto queue = CompletionQueue::create(rig.device, 8, rig.channel);
  auto one = QueuePair::create(rig.domain, queue, queue, {}),
       other = QueuePair::create(rig.domain, queue, queue, {});
  one->connect(1, 0, other->local_address());
  other->connect(1, 0, one->local_address());
  queue->arm();
  SendWork work = SendWork::write(rig.target_region->remote_address(), rig.target_region->remote_key());
  work.add(*rig.source_region, 0, 8).signaled();
  one->post_send(work);
  std::array<Completion, 1> completions;
  while (queue->poll(completions) == 0) std::this_thread::yield();
  one.reset();
  other.reset();
  queue.reset();
  CHECK(!rig.channel->get_event(0));
}

TEST(objects_of_two_devices_do_not_mix) {
  Rig rig;
  const auto second = Device::open(soft_verbs());
  const auto queue = CompletionQueue::create(second, 4);
  CHECK_THROWS(UsageError, "same device", QueuePair::create(rig.domain, queue, queue, {}));
  CHECK_THROWS(UsageError, "same device", CompletionQueue::create(second, 4, rig.channel));
}

TEST(link_layers_that_differ_cannot_connect) {
  Rig rig;
  const auto third = QueuePair::create(rig.domain, rig.queue, rig.queue, {});
  Address remote = rig.other->local_address();
  remote.link_layer = remote.link_layer == LinkLayer::ethernet ? LinkLayer::infiniband : LinkLayer::ethernet;
  CHECK_THROWS(UsageError, "cannot reach each other", third->connect(1, 0, remote));
}

TEST(ports_and_gids_that_are_not_there_are_named) {
  const auto device = Device::open(soft_verbs());
  CHECK_THROWS(UsageError, "there is no port 2", device->query_port(2));
  CHECK_THROWS(UsageError, "there is no port 0", device->query_port(0));
  CHECK_THROWS(UsageError, "the table has", device->query_gid(1, 100000));
  CHECK(!device->query_gids(1).empty());
  CHECK_THROWS(UnavailableError, "there is no RDMA device \"nothing0\"",
               Device::open(soft_verbs(), "nothing0"));
}

TEST(a_forked_child_leaves_the_parents_objects_alone) {
  Rig rig;
  CHECK_EQ(process_generation(), 0);
  const pid_t child = testing::fork_at_rest();
  if (child == 0) {
    const bool counts_anew = all_live_objects() == 0 && process_generation() == 1;
    rig.one.reset();  // frees nothing: the parent goes on with it
    rig.source_region.reset();
    _exit(counts_anew && all_live_objects() == 0 ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  SendWork work = SendWork::write(rig.target_region->remote_address(), rig.target_region->remote_key());
  work.add(*rig.source_region, 0, 8).signaled();
  rig.one->post_send(work);
  CHECK(rig.next().succeeded());
}

RDMATX_TEST_MAIN()
