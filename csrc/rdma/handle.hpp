#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/export.hpp"
#include "verbs/table.hpp"

namespace rdmatx {

/// What a handle can own; each kind is counted, so that a test can say that nothing is left open.
enum class ObjectKind : int {
  device,
  protection_domain,
  memory_region,
  completion_channel,
  completion_queue,
  shared_receive_queue,
  queue_pair,
  count,
};

/// "device", "memory_region", ...
RDMATX_API const char* object_kind_name(ObjectKind kind) noexcept;

/// How many objects of this kind the process holds open, over all providers.
RDMATX_API int64_t live_objects(ObjectKind kind) noexcept;

/// Counts the forks between the start of the program and this process. What was made before a fork belongs to
/// the parent: the child must neither use it nor free it, since both share the kernel's objects.
RDMATX_API int process_generation() noexcept;

namespace detail {
void count_object(ObjectKind kind, int change) noexcept;
/// Logs a verb that failed to free an object; a destructor has nobody to throw to.
void report_failed_free(ObjectKind kind, int code) noexcept;
}  // namespace detail

/// The only place that frees a verbs object: knows the table the object came from. A failing free is logged.
template <class Object, int (*Verbs::*Free)(Object*), ObjectKind Kind>
struct Deleter {
  const Verbs* verbs = nullptr;
  int generation = process_generation();

  void operator()(Object* object) const noexcept {
    if (generation != process_generation()) return;  // the parent's: freeing it here would take it from there
    if (int code = (verbs->*Free)(object); code != 0)
      detail::report_failed_free(Kind, code < 0 ? errno : code);
    detail::count_object(Kind, -1);
  }
};

/// Owns one verbs object, together with the table that frees it.
template <class Object, int (*Verbs::*Free)(Object*), ObjectKind Kind>
class Handle : public std::unique_ptr<Object, Deleter<Object, Free, Kind>> {
  using Base = std::unique_ptr<Object, Deleter<Object, Free, Kind>>;

 public:
  Handle() noexcept = default;
  /// Takes an object that a verb of this table returned; null owns nothing.
  Handle(const Verbs* verbs, Object* object) noexcept : Base(object, {.verbs = verbs}) {
    if (object) detail::count_object(Kind, +1);
  }
};

using DeviceHandle = Handle<ibv_context, &Verbs::close_device, ObjectKind::device>;
using ProtectionDomainHandle = Handle<ibv_pd, &Verbs::dealloc_pd, ObjectKind::protection_domain>;
using MemoryRegionHandle = Handle<ibv_mr, &Verbs::dereg_mr, ObjectKind::memory_region>;
using CompletionChannelHandle =
    Handle<ibv_comp_channel, &Verbs::destroy_comp_channel, ObjectKind::completion_channel>;
using CompletionQueueHandle = Handle<ibv_cq, &Verbs::destroy_cq, ObjectKind::completion_queue>;
using SharedReceiveQueueHandle = Handle<ibv_srq, &Verbs::destroy_srq, ObjectKind::shared_receive_queue>;
using QueuePairHandle = Handle<ibv_qp, &Verbs::destroy_qp, ObjectKind::queue_pair>;

/// Frees what get_device_list returned. Devices that were opened stay open.
struct DeviceListDeleter {
  const Verbs* verbs;
  void operator()(ibv_device** list) const noexcept { verbs->free_device_list(list); }
};
using DeviceListHandle = std::unique_ptr<ibv_device*[], DeviceListDeleter>;

// Verbs report failure in two ways: null with errno set, or the errno as the return value (a few return -1
// and set errno). These are the two checkers; there is no third.

/// Returns `object`, or throws VerbsError with errno.
template <class Object>
Object* check_pointer(Object* object, const char* call, const std::string& context = {}) {
  if (!object) throw VerbsError(call, errno, context);
  return object;
}

/// Throws VerbsError where `code` is not 0.
inline void check_code(int code, const char* call, const std::string& context = {}) {
  if (code != 0) throw VerbsError(call, code < 0 ? errno : code, context);
}

}  // namespace rdmatx
