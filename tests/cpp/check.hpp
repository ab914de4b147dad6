#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A test program is a list of named cases. A failed check throws, so that a case unwinds like any other code
// (and leaks are seen); the program goes on with the next case and returns 1 where one failed.
//
//   TEST(empty_message_is_one_request) { CHECK_EQ(plan(0).size(), 1u); }
//   RDMATX_TEST_MAIN()
//
// One case alone: `test_planner empty_message_is_one_request`; a part of the name will do.

namespace rdmatx::testing {

class CheckFailure : public std::exception {
 public:
  explicit CheckFailure(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

/// A case that cannot run on this machine says why; the program still passes and prints the reason.
class Skipped : public std::exception {
 public:
  explicit Skipped(std::string reason) : reason_(std::move(reason)) {}
  const char* what() const noexcept override { return reason_.c_str(); }

 private:
  std::string reason_;
};

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registration {
  Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (std::is_null_pointer_v<T>) {
    return "null";
  } else if constexpr (requires(std::ostringstream& out) { out << value; }) {
    std::ostringstream out;
    out << value;
    return out.str();
  } else {
    return "(a value that cannot be printed)";
  }
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  throw CheckFailure(std::string(file) + ":" + std::to_string(line) + ": " + text);
}

template <typename Left, typename Right>
void check_equal(const Left& left, const Right& right, const char* text, const char* file, int line) {
  if (!(left == right)) {
    fail(file, line, std::string(text) + ": " + shown(left) + " is not " + shown(right));
  }
}

/// Runs every case whose name contains `filter`; the number that failed.
inline int run_cases(std::string_view filter) {
  int failed = 0;
  for (const Case& test : cases()) {
    if (std::string_view(test.name).find(filter) == std::string_view::npos) continue;
    std::string outcome = "ok";
    try {
      test.body();
    } catch (const Skipped& skipped) {
      outcome = std::string("skipped: ") + skipped.what();
    } catch (const std::exception& error) {
      outcome = std::string("FAILED: ") + error.what();
      ++failed;
    }
    std::printf("%s ... %s\n", test.name, outcome.c_str());
    std::fflush(stdout);
  }
  return failed;
}

}  // namespace rdmatx::testing

#define TEST(name)                                                                      \
  static void test_##name();                                                            \
  static const ::rdmatx::testing::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) ::rdmatx::testing::fail(__FILE__, __LINE__, #condition " is false"); \
  } while (false)

#define CHECK_EQ(left, right) \
  ::rdmatx::testing::check_equal((left), (right), #left " == " #right, __FILE__, __LINE__)

/// `expression` throws Type, or a class derived from it, and its message contains `text` ("" for any
/// message).
#define CHECK_THROWS(Type, text, expression)                                                        \
  do {                                                                                              \
    bool thrown_ = false;                                                                           \
    try {                                                                                           \
      static_cast<void>(expression);                                                                \
    } catch (const Type& error_) {                                                                  \
      thrown_ = true;                                                                               \
      if (std::string_view(error_.what()).find(text) == std::string_view::npos) {                   \
        ::rdmatx::testing::fail(                                                                    \
            __FILE__, __LINE__,                                                                     \
            std::string("the message of " #Type " lacks '") + (text) + "': " + error_.what());      \
      }                                                                                             \
    }                                                                                               \
    if (!thrown_) ::rdmatx::testing::fail(__FILE__, __LINE__, #expression " did not throw " #Type); \
  } while (false)

#define RDMATX_TEST_MAIN()                                                     \
  int main(int argc, char** argv) {                                            \
    return ::rdmatx::testing::run_cases(argc > 1 ? argv[1] : "") == 0 ? 0 : 1; \
  }
