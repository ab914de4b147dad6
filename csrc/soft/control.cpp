#include <endian.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "soft/instance.hpp"
#include "soft/objects.hpp"
#include "soft/verbs.hpp"

namespace rdmatx::soft {
namespace {

ibv_device* device() {
  static ibv_device only = [] {
    ibv_device d{};
    d.node_type = IBV_NODE_CA;
    d.transport_type = IBV_TRANSPORT_IB;
    std::strcpy(d.name, "soft0");
    std::strcpy(d.dev_name, "soft0");
    return d;
  }();
  return &only;
}

thread_local std::string open_failure;

}  // namespace

ibv_device** get_device_list(int* count) {
  auto** list = new (std::nothrow) ibv_device*[2]{device(), nullptr};
  if (!list) errno = ENOMEM;
  if (count) *count = list ? 1 : 0;
  return list;
}

void free_device_list(ibv_device** list) {
  delete[] list;
}
const char* get_device_name(ibv_device* d) {
  return d->name;
}
__be64 get_device_guid(ibv_device*) {
  return htobe64(0x0272646d61747800);
}  // locally administered

ibv_context* open_device(ibv_device* d) try {
  auto* context = new Context;
  try {
    context->instance = Instance::acquire();
  } catch (...) {
    delete context;
    throw;
  }
  ibv_context& base = context->base;
  base.device = d;
  base.cmd_fd = -1;
  base.async_fd = context->events.fd();
  base.num_comp_vectors = 1;
  base.ops.poll_cq = poll_cq;
  base.ops.req_notify_cq = req_notify_cq;
  base.ops.post_send = post_send;
  base.ops.post_recv = post_recv;
  base.ops.post_srq_recv = post_srq_recv;
  return &base;
} catch (const std::exception& error) {
  open_failure = error.what();
  errno = ENOMEM;
  return nullptr;
}

int close_device(ibv_context* base) {
  auto* context = own<Context>(base);
  if (context->instance->forked()) return 0;  // the parent's: left alone
  if (context->children.load() != 0) return EBUSY;
  delete context;
  return 0;
}

int query_device(ibv_context*, ibv_device_attr* attributes) {
  *attributes = {};
  std::strcpy(attributes->fw_ver, RDMATX_VERSION);
  attributes->node_guid = attributes->sys_image_guid = get_device_guid(nullptr);
  attributes->max_mr_size = Limits::max_region_bytes;
  attributes->page_size_cap = 4096;
  attributes->max_qp = Limits::max_queue_pairs;
  attributes->max_qp_wr = Limits::max_work_requests;
  attributes->device_cap_flags =
      IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_CURR_QP_STATE_MOD;
  attributes->max_sge = attributes->max_sge_rd = Limits::max_sges;
  attributes->max_cq = Limits::max_completion_queues;
  attributes->max_cqe = Limits::max_completions;
  attributes->max_mr = static_cast<int>(MemoryTable::max_entries - 1);
  attributes->max_pd = 1 << 20;
  attributes->max_qp_rd_atom = attributes->max_qp_init_rd_atom = Limits::max_outstanding_reads;
  attributes->max_res_rd_atom = Limits::max_outstanding_reads * Limits::max_queue_pairs;
  attributes->atomic_cap = IBV_ATOMIC_GLOB;  // carried out by the CPU: atomic for everybody
  attributes->max_srq = Limits::max_shared_queues;
  attributes->max_srq_wr = Limits::max_work_requests;
  attributes->max_srq_sge = Limits::max_sges;
  attributes->max_pkeys = 1;
  attributes->phys_port_cnt = 1;
  return 0;
}

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes) {
  if (port != 1) return EINVAL;
  *attributes = {};
  attributes->state = IBV_PORT_ACTIVE;
  attributes->phys_state = 5;  // LinkUp
  attributes->max_mtu = attributes->active_mtu = IBV_MTU_4096;
  attributes->gid_tbl_len = own<Context>(context)->instance->gids().refresh();
  attributes->max_msg_sz = Limits::max_message_bytes;
  attributes->pkey_tbl_len = 1;
  attributes->max_vl_num = 1;
  attributes->active_width = 2;   // 4x
  attributes->active_speed = 32;  // EDR: a nominal figure, memory is the limit
  attributes->link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  const auto found = own<Context>(context)->instance->gids().at(static_cast<uint32_t>(index));
  if (port != 1 || !found) return errno = EINVAL, -1;
  *gid = *found;
  return 0;
}

int query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry) {
  if (port != 1) return EINVAL;
  const auto found = own<Context>(context)->instance->gids().at(index);
  if (!found) return ENODATA;
  *entry = {};
  entry->gid = *found;
  entry->gid_index = index;
  entry->port_num = 1;
  entry->gid_type = IBV_GID_TYPE_ROCE_V2;
  return 0;
}

int query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) return errno = EINVAL, -1;
  *pkey = htobe16(0xffff);
  return 0;
}

ibv_pd* alloc_pd(ibv_context* base) try {
  auto* context = own<Context>(base);
  if (context->instance->forked()) return errno = EOWNERDEAD, nullptr;
  auto* pd = new ProtectionDomain;
  pd->base.context = base;
  pd->context = context;
  pd->number = context->instance->next_number();
  context->children.fetch_add(1);
  return &pd->base;
} catch (const std::bad_alloc&) {
  return errno = ENOMEM, nullptr;
}

int dealloc_pd(ibv_pd* base) {
  auto* pd = own<ProtectionDomain>(base);
  if (pd->context->instance->forked()) return 0;
  if (pd->children.load() != 0) return EBUSY;
  pd->context->children.fetch_sub(1);
  delete pd;
  return 0;
}

int fork_init() {
  return 0;
}

std::string take_open_failure() {
  return std::exchange(open_failure, {});
}

const char* wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return "success";
    case IBV_WC_LOC_LEN_ERR:
      return "local length error";
    case IBV_WC_LOC_QP_OP_ERR:
      return "local queue pair operation error";
    case IBV_WC_LOC_PROT_ERR:
      return "local protection error";
    case IBV_WC_WR_FLUSH_ERR:
      return "work request flushed";
    case IBV_WC_BAD_RESP_ERR:
      return "bad response";
    case IBV_WC_REM_INV_REQ_ERR:
      return "remote invalid request error";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_REM_OP_ERR:
      return "remote operation error";
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retries exceeded";
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return "receiver-not-ready retries exceeded";
    case IBV_WC_FATAL_ERR:
      return "fatal error";
    default:
      return "other error";
  }
}

const char* event_type_str(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR:
      return "completion queue overran";
    case IBV_EVENT_QP_FATAL:
      return "queue pair failed";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request on a queue pair";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "access violation on a queue pair";
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return "shared receive queue limit reached";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return "last receive of a queue pair reached";
    default:
      return "other event";
  }
}

}  // namespace rdmatx::soft
