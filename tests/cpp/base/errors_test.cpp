#include "base/error.hpp"

#include <cerrno>

#include "base/unique_fd.hpp"
#include "check.hpp"

using namespace rdmatx;

TEST(an_errno_reads_as_text_and_symbol) {
  const std::string text = describe_errno(ENOMEM);
  CHECK(text.find("ENOMEM") != std::string::npos);
  CHECK(text.find("memory") != std::string::npos);
}

TEST(an_unknown_errno_still_reads_as_something) {
  CHECK(!describe_errno(99999).empty());
}

TEST(a_verbs_error_names_the_call_the_errno_and_the_context) {
  const VerbsError error("ibv_reg_mr", EFAULT, "address 0x10, 4096 bytes");
  const std::string text = error.what();
  CHECK(text.find("ibv_reg_mr") != std::string::npos);
  CHECK(text.find("EFAULT") != std::string::npos);
  CHECK(text.find("4096 bytes") != std::string::npos);
  CHECK_EQ(error.code(), EFAULT);
  CHECK_EQ(error.call(), "ibv_reg_mr");
}

TEST(every_error_is_an_error) {
  CHECK_THROWS(Error, "gone", throw PeerLostError("gone", "10.0.0.1:7"));
  CHECK_THROWS(Error, "late", throw TimeoutError("late", "10.0.0.1:7", "recv", 2.5));
  CHECK_THROWS(Error, "big", throw SizeMismatchError("big", 2, 1));
  CHECK_THROWS(Error, "said no", throw CompletionError("said no", 1, 2, "peer", "send"));
}

RDMATX_TEST_MAIN()
