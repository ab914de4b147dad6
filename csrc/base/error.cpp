#include "base/error.hpp"

#include <cstring>
#include <system_error>

namespace rdmatx {

std::string describe_errno(int code) {
  std::string text = std::generic_category().message(code);
  if (const char* name = strerrorname_np(code)) text += std::string(" (") + name + ")";
  return text;
}

namespace {
std::string verbs_message(const std::string& call, int code, const std::string& context) {
  std::string message = call + " failed: " + describe_errno(code);
  if (!context.empty()) message += "; " + context;
  return message;
}
}  // namespace

VerbsError::VerbsError(std::string call, int code, const std::string& context)
    : Error(verbs_message(call, code, context)), call_(std::move(call)), code_(code) {}

}  // namespace rdmatx
