#include "rdma/work.hpp"

#include <array>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {
std::array<char, 64> memory{};
}

TEST(a_request_says_what_it_is) {
  SendWork work = SendWork::write(0x1000, 0x22, 7);
  work.add(memory.data(), 16, 3).signaled().fenced();
  CHECK_EQ(work.text(),
           "rdma_write of 16 bytes in 1 element(s), remote address 0x1000 key 0x22, signaled, fenced");
  CHECK_EQ(work.work_id(), 7u);
  CHECK(work.is_signaled());
  CHECK(!work.signaled(false).is_signaled());
}

TEST(elements_of_no_bytes_are_left_out) {
  SendWork work = SendWork::send();
  work.add(memory.data(), 0, 1).add(memory.data(), 5, 1).add(nullptr, 0, 0);
  CHECK_EQ(work.total_bytes(), 5u);
  CHECK_EQ(work.text(), "send of 5 bytes in 1 element(s)");
}

TEST(long_lists_go_to_the_heap_and_copies_are_their_own) {
  ReceiveWork work(1);
  for (uint32_t i = 1; i <= 10; ++i) work.add(memory.data(), i, 1);
  ReceiveWork copy = work;
  copy.add(memory.data(), 100, 1);
  CHECK_EQ(work.total_bytes(), 55u);
  CHECK_EQ(copy.total_bytes(), 155u);
}

TEST(totals_do_not_overflow) {
  SendWork work = SendWork::send();
  for (int i = 0; i < 3; ++i) work.add(memory.data(), 0xffffffff, 1);
  CHECK_EQ(work.total_bytes(), 3ull * 0xffffffff);
}

TEST(an_immediate_goes_with_sends_and_writes_only) {
  SendWork send = SendWork::send();
  send.immediate(1);
  CHECK(send.opcode() == SendOpcode::send_with_immediate);
  SendWork write = SendWork::write(0, 0);
  write.immediate(1).immediate(2);
  CHECK(write.opcode() == SendOpcode::rdma_write_with_immediate);
  SendWork read = SendWork::read(0, 0);
  CHECK_THROWS(UsageError, "rdma_read", read.immediate(1));
  SendWork add = SendWork::fetch_add(0, 0, 1);
  CHECK_THROWS(UsageError, "fetch_add", add.immediate(1));
}

RDMATX_TEST_MAIN()
