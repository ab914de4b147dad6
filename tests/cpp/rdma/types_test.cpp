#include "rdma/types.hpp"

#include <sys/eventfd.h>

#include <cstring>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "check.hpp"

using namespace rdmatx;

TEST(gids_are_read_and_written_as_ipv6) {
  CHECK_EQ(Gid::parse("fe80::1").text(), "fe80::1");
  CHECK_EQ(Gid::parse("::ffff:10.1.2.3").text(), "::ffff:10.1.2.3");
  CHECK_THROWS(UsageError, "not a GID", Gid::parse("10.1.2.3"));
  CHECK_THROWS(UsageError, "not a GID", Gid::parse(""));
}

TEST(gids_know_what_they_are) {
  CHECK(Gid::parse("::").is_empty());
  CHECK(Gid::parse("fe80::").is_empty());
  CHECK(!Gid::parse("fe80::1").is_empty());
  CHECK(Gid::parse("fe80::1").is_link_local());
  CHECK(!Gid::parse("fd00::1").is_link_local());
  CHECK(Gid::parse("::ffff:1.2.3.4").is_ipv4_mapped());
  CHECK(!Gid::parse("2001:db8::1").is_ipv4_mapped());
}

TEST(access_is_named) {
  CHECK_EQ(access_text(Access::none), "none");
  CHECK_EQ(access_text(Access::local_write | Access::remote_read), "local_write|remote_read");
}

TEST(mtus_are_bytes) {
  for (int code = 1; code <= 5; ++code) CHECK_EQ(mtu_code_from_bytes(mtu_bytes_from_code(code)), code);
  CHECK_EQ(mtu_bytes_from_code(5), 4096u);
  CHECK_THROWS(UsageError, "MTU", mtu_bytes_from_code(0));
  CHECK_THROWS(UsageError, "MTU", mtu_bytes_from_code(6));
}

TEST(every_failed_status_has_a_name_and_most_have_advice) {
  CHECK_EQ(std::string(status_name(WorkCompletionStatus::success)), "success");
  for (int code = 1; code <= 21; ++code)
    CHECK(std::strcmp(status_name(static_cast<WorkCompletionStatus>(code)), "unknown status") != 0);
  CHECK(std::strlen(status_advice(WorkCompletionStatus::retry_exceeded)) > 0);
  CHECK(std::strcmp(status_name(static_cast<WorkCompletionStatus>(99)), "unknown status") == 0);
}

TEST(a_wait_ends_with_the_time_or_the_event) {
  const UniqueFd event(eventfd(0, EFD_NONBLOCK));
  CHECK(!wait_readable(event.get(), 0));
  CHECK(!wait_readable(event.get(), 0.01));
  CHECK_EQ(eventfd_write(event.get(), 1), 0);
  CHECK(wait_readable(event.get(), 0));
  CHECK(wait_readable(event.get(), 60));
  CHECK(wait_readable(event.get(), -1));
}

RDMATX_TEST_MAIN()
