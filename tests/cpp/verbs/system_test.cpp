#include <cstdlib>

#include "base/error.hpp"
#include "check.hpp"
#include "verbs/table.hpp"

using namespace rdmatx;

// The cases run in this order in one process: a table that could not be filled is tried again.

TEST(a_missing_library_is_told_with_its_name_and_the_remedy) {
  ::setenv("RDMATX_IBVERBS_LIB", "libno_such_verbs.so.9", 1);
  CHECK_THROWS(UnavailableError, "libno_such_verbs.so.9", system_verbs());
  CHECK_THROWS(UnavailableError, "RDMATX_IBVERBS_LIB", system_verbs());
}

TEST(a_library_that_is_not_libibverbs_is_told_so) {
  ::setenv("RDMATX_IBVERBS_LIB", "libc.so.6", 1);
  CHECK_THROWS(UnavailableError, "is not libibverbs", system_verbs());
}

TEST(the_library_fills_every_entry_once_it_is_there) {
  ::unsetenv("RDMATX_IBVERBS_LIB");
  const Verbs* table = nullptr;
  try {
    table = system_verbs();
  } catch (const UnavailableError& error) {
    throw testing::Skipped(error.what());
  }
#define X(name, ret, params) CHECK(table->name != nullptr);
  RDMATX_VERBS(X)
#undef X
  CHECK(table == system_verbs());
}

RDMATX_TEST_MAIN()
