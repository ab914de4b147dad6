// Which device is chosen, and what is said, on a machine without libibverbs.

#include "rdma/provider.hpp"

#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

/// Sets a variable for one case.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

bool without_library() {
  setenv("RDMATX_IBVERBS_LIB", "/nonexistent/libibverbs.so.1", 1);
  unsetenv("RDMATX_DEVICE");
  unsetenv("RDMATX_PROVIDER");
  return true;
}
const bool prepared = without_library();

int warnings = 0;
std::string last_warning;

void count_warnings(LogLevel level, const char* message) {
  if (level == LogLevel::warning) ++warnings;
  last_warning = message;
}

}  // namespace

TEST(names_of_providers) {
  CHECK(parse_provider("auto") == Provider::automatic);
  CHECK(parse_provider("") == Provider::automatic);
  CHECK(parse_provider("system") == Provider::system);
  CHECK(parse_provider("soft") == Provider::soft);
  CHECK_THROWS(UsageError, "\"mlx5\" is not a provider", parse_provider("mlx5"));
}

TEST(the_missing_library_is_named) {
  const SystemReport report = system_report();
  CHECK(report.state == SystemState::no_library);
  CHECK(report.text().find("/nonexistent/libibverbs.so.1") != std::string::npos);
  CHECK(report.text().find("apt-get install") != std::string::npos);
}

TEST(system_never_falls_back) {
  CHECK_THROWS(UnavailableError, "cannot be loaded", choose_device("", Provider::system));
  CHECK_THROWS(UnavailableError, "cannot be loaded", choose_device("rxe0", Provider::system));
  const Environment provider("RDMATX_PROVIDER", "system");
  CHECK_THROWS(UnavailableError, "RDMATX_PROVIDER=system", choose_device());
}

TEST(automatic_falls_back_with_one_warning) {
  set_log_sink(count_warnings);
  for (int i = 0; i < 3; ++i) {
    const Choice choice = choose_device();
    CHECK(choice.provider == Provider::soft);
    CHECK_EQ(choice.port, 1);
    CHECK(choice.reason.find("cannot be loaded") != std::string::npos);
  }
  set_log_sink(nullptr);
  CHECK_EQ(warnings, 1);
  CHECK(last_warning.find("/nonexistent/libibverbs.so.1") != std::string::npos);
}

TEST(what_is_asked_for_is_taken_without_a_warning) {
  set_log_sink(count_warnings);
  const int before = warnings;
  const Choice asked = choose_device("", Provider::soft);
  CHECK(asked.provider == Provider::soft);
  {
    const Environment provider("RDMATX_PROVIDER", "soft");
    CHECK(choose_device().reason.find("RDMATX_PROVIDER=soft") != std::string::npos);
  }
  {
    const Environment device("RDMATX_DEVICE", asked.device.c_str());
    const Choice choice = choose_device();
    CHECK_EQ(choice.device, asked.device);
    CHECK(choice.reason.find("RDMATX_DEVICE=") != std::string::npos);
  }
  set_log_sink(nullptr);
  CHECK_EQ(warnings, before);
}

TEST(an_argument_counts_before_the_environment) {
  const Environment device("RDMATX_DEVICE", "nothing0");
  const Environment provider("RDMATX_PROVIDER", "nonsense");
  CHECK(choose_device("", Provider::soft).provider == Provider::soft);
  CHECK_THROWS(UsageError, "\"nonsense\" is not a provider", choose_device());
}

TEST(the_environments_device_counts_where_it_is_of_the_provider_asked_for) {
  const Environment device("RDMATX_DEVICE", "mlx5_7");
  CHECK(choose_device("", Provider::soft).device != "mlx5_7");
  CHECK_THROWS(UnavailableError, "cannot be loaded", choose_device("", Provider::system));
}

TEST(a_device_that_is_not_there_is_named_with_those_that_are) {
  const std::string there = choose_device("", Provider::soft).device;
  CHECK_THROWS(UnavailableError, "\"nothing0\"", choose_device("nothing0"));
  CHECK_THROWS(UnavailableError, there, choose_device("nothing0"));
  CHECK_THROWS(UnavailableError, there, choose_device("nothing0", Provider::soft));
}

TEST(the_devices_are_described) {
  const auto all = list_devices();
  CHECK(!all.empty());
  CHECK_EQ(list_devices(Provider::system).size(), 0u);
  const DeviceInfo& soft = all.back();
  CHECK_EQ(soft.attributes.provider, "soft");
  CHECK(soft.problem.empty());
  CHECK(!soft.ports.empty());
  CHECK(soft.ports[0].attributes.state == PortState::active);
  CHECK(!soft.ports[0].gids.empty());
  CHECK(soft.attributes.limits.max_qp > 0);
}

RDMATX_TEST_MAIN()
