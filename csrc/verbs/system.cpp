#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>

#include "base/dynlib.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "verbs/table.hpp"

namespace rdmatx {
namespace {

/// Stands in for a verb that the installed library is too old to have.
template <class Return, class... Parameters>
Return unsupported(Parameters...) {
  errno = EOPNOTSUPP;
  if constexpr (std::is_pointer_v<Return>)
    return nullptr;
  else if constexpr (std::is_same_v<Return, int>)
    return EOPNOTSUPP;
  else if constexpr (!std::is_void_v<Return>)
    return Return{};
}

template <class Return, class... Parameters>
void bind_symbol(const DynamicLibrary& library, const char* symbol, Return (*&entry)(Parameters...)) {
  void* address = library.symbol(symbol);
  entry = address ? reinterpret_cast<Return (*)(Parameters...)>(address) : unsupported<Return, Parameters...>;
}

// ibv_query_port as exported fills only the first fields of ibv_port_attr (an ABI older than link_layer);
// the provider's own entry, which verbs.h reaches inline, fills as much as the caller's structure holds.
using CompatQueryPort = int (*)(ibv_context*, uint8_t, void*);
CompatQueryPort compat_query_port = nullptr;

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  *attributes = {};
  if (verbs_context* extended = verbs_get_ctx_op(context, query_port))
    return extended->query_port(context, port, attributes, sizeof *attributes);
  return compat_query_port(context, port, attributes);
}

using QueryGidEx = int (*)(ibv_context*, uint32_t, uint32_t, ibv_gid_entry*, uint32_t, size_t);
QueryGidEx library_query_gid_ex = nullptr;

int query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) {
  return library_query_gid_ex ? library_query_gid_ex(context, port, index, entry, 0, sizeof *entry)
                              : EOPNOTSUPP;
}

/// Without this a forked child's writes can move pages away from under the device (ibv_fork_init(3)). It must
/// precede the first registration. Kernels from 5.12 on copy pinned pages at fork and need nothing: there it
/// would only take registered memory away from children and hide why a registration fails.
void protect_forks(const DynamicLibrary& library, const Verbs& table) {
  constexpr int unneeded = 2;  // IBV_FORK_UNNEEDED, which older headers lack
  const auto state = reinterpret_cast<int (*)()>(library.symbol("ibv_is_fork_initialized"));
  if (state && state() == unneeded) return;
  if (int code = table.fork_init(); code != 0)
    log(LogLevel::info,
        "ibv_fork_init: " + describe_errno(code) + "; do not fork while memory is registered");
}

Verbs load() {
  const char* named = std::getenv("RDMATX_IBVERBS_LIB");
  const std::string file = named && *named ? named : "libibverbs.so.1";
  DynamicLibrary library(file);
  if (!library)
    throw UnavailableError(
        "the RDMA library " + file + " cannot be loaded: " + library.error() +
        ". Install it (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; Fedora, "
        "RHEL: dnf install libibverbs), or name the file in RDMATX_IBVERBS_LIB.");
  if (!library.symbol("ibv_open_device") || !library.symbol("ibv_query_port"))
    throw UnavailableError(file +
                           " is not libibverbs: it lacks ibv_open_device. Correct RDMATX_IBVERBS_LIB.");
  Verbs table{};
#define X(name, ret, params) bind_symbol(library, "ibv_" #name, table.name);
  RDMATX_VERBS(X)
#undef X
  compat_query_port = reinterpret_cast<CompatQueryPort>(library.symbol("ibv_query_port"));
  library_query_gid_ex = reinterpret_cast<QueryGidEx>(library.symbol("_ibv_query_gid_ex"));
  table.query_port = query_port;
  table.query_gid_ex = query_gid_ex;
  protect_forks(library, table);
  return table;
}

}  // namespace

const Verbs* system_verbs() {
  static std::mutex mutex;
  static std::optional<Verbs> table;
  std::lock_guard lock(mutex);
  if (!table) table = load();
  return &*table;
}

}  // namespace rdmatx
