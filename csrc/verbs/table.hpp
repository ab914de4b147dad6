#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/export.hpp"

// verbs.h turns these into macros or inline functions over private parts of a context; the table needs the
// plain names.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

namespace rdmatx {

// THE SEAM. X(name, return type, parameters): every verb the library uses that is a function of the library.
// libibverbs fills the table from the system, the software HCA fills it in user space, a test copies it and
// replaces an entry. No entry is ever null: one that a provider lacks fails with EOPNOTSUPP.
//
// post_send, post_recv, post_srq_recv, poll_cq and req_notify_cq are absent on purpose: verbs.h dispatches
// them through ibv_context::ops of the object itself, which both providers fill. Our own contexts leave
// abi_compat null, so verbs.h never looks for an extended context behind them.
//
// A verb reports failure in one of two ways: null with errno set, or the errno as its return value.
// clang-format off
#define RDMATX_VERBS(X)                                                                                         \
  X(get_device_list, ibv_device**, (int* count))                                                                \
  X(free_device_list, void, (ibv_device** list))                                                                \
  X(get_device_name, const char*, (ibv_device* device))                                                         \
  X(get_device_guid, __be64, (ibv_device* device))                                                              \
  X(open_device, ibv_context*, (ibv_device* device))                                                            \
  X(close_device, int, (ibv_context* context))                                                                  \
  X(query_device, int, (ibv_context* context, ibv_device_attr* attributes))                                     \
  X(query_port, int, (ibv_context* context, uint8_t port, ibv_port_attr* attributes))                           \
  X(query_gid, int, (ibv_context* context, uint8_t port, int index, ibv_gid* gid))                              \
  X(query_gid_ex, int, (ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry))             \
  X(query_pkey, int, (ibv_context* context, uint8_t port, int index, __be16* pkey))                             \
  X(alloc_pd, ibv_pd*, (ibv_context* context))                                                                  \
  X(dealloc_pd, int, (ibv_pd* pd))                                                                              \
  X(reg_mr, ibv_mr*, (ibv_pd* pd, void* address, size_t bytes, int access))                                     \
  X(reg_dmabuf_mr, ibv_mr*, (ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access))     \
  X(dereg_mr, int, (ibv_mr* mr))                                                                                \
  X(create_comp_channel, ibv_comp_channel*, (ibv_context* context))                                             \
  X(destroy_comp_channel, int, (ibv_comp_channel* channel))                                                     \
  X(create_cq, ibv_cq*, (ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector)) \
  X(resize_cq, int, (ibv_cq* cq, int entries))                                                                  \
  X(destroy_cq, int, (ibv_cq* cq))                                                                              \
  X(get_cq_event, int, (ibv_comp_channel* channel, ibv_cq** cq, void** user))                                   \
  X(ack_cq_events, void, (ibv_cq* cq, unsigned count))                                                          \
  X(create_srq, ibv_srq*, (ibv_pd* pd, ibv_srq_init_attr* attributes))                                          \
  X(modify_srq, int, (ibv_srq* srq, ibv_srq_attr* attributes, int mask))                                        \
  X(query_srq, int, (ibv_srq* srq, ibv_srq_attr* attributes))                                                   \
  X(destroy_srq, int, (ibv_srq* srq))                                                                           \
  X(create_qp, ibv_qp*, (ibv_pd* pd, ibv_qp_init_attr* attributes))                                             \
  X(modify_qp, int, (ibv_qp* qp, ibv_qp_attr* attributes, int mask))                                            \
  X(query_qp, int, (ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial))                  \
  X(destroy_qp, int, (ibv_qp* qp))                                                                              \
  X(get_async_event, int, (ibv_context* context, ibv_async_event* event))                                       \
  X(ack_async_event, void, (ibv_async_event* event))                                                            \
  X(fork_init, int, ())                                                                                         \
  X(wc_status_str, const char*, (ibv_wc_status status))                                                         \
  X(event_type_str, const char*, (ibv_event_type event))
// clang-format on

struct Verbs {
#define X(name, ret, params) ret(*name) params;
  RDMATX_VERBS(X)
#undef X
};

/// The system's libibverbs, opened at the first call and kept (RDMATX_IBVERBS_LIB names another file than
/// libibverbs.so.1). Throws UnavailableError with the loader's reason and the remedy; a later call tries
/// again.
RDMATX_API const Verbs* system_verbs();

/// The software HCA: always there, no privilege needed.
RDMATX_API const Verbs* soft_verbs();

/// Why the software HCA's open_device failed last on this thread, in words (an errno says too little), told
/// once; empty where it did not.
RDMATX_API std::string take_soft_open_failure();

}  // namespace rdmatx
