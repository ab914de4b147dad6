#pragma once

#include <infiniband/verbs.h>

#include <string>

// The entries of the verbs table, and of ibv_context::ops, as the software HCA implements them.

namespace rdmatx::soft {

// control.cpp
ibv_device** get_device_list(int* count);
void free_device_list(ibv_device** list);
const char* get_device_name(ibv_device* device);
__be64 get_device_guid(ibv_device* device);
ibv_context* open_device(ibv_device* device);
int close_device(ibv_context* context);
int query_device(ibv_context* context, ibv_device_attr* attributes);
int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes);
int query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
int query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry);
int query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey);
ibv_pd* alloc_pd(ibv_context* context);
int dealloc_pd(ibv_pd* pd);
int fork_init();
std::string take_open_failure();
const char* wc_status_str(ibv_wc_status status);
const char* event_type_str(ibv_event_type event);

// memory.cpp
ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t bytes, int access);
ibv_mr* reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access);
int dereg_mr(ibv_mr* mr);

// completion.cpp
ibv_comp_channel* create_comp_channel(ibv_context* context);
int destroy_comp_channel(ibv_comp_channel* channel);
ibv_cq* create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel, int vector);
int resize_cq(ibv_cq* cq, int entries);
int destroy_cq(ibv_cq* cq);
int poll_cq(ibv_cq* cq, int wanted, ibv_wc* completions);
int req_notify_cq(ibv_cq* cq, int solicited_only);
int get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** user);
void ack_cq_events(ibv_cq* cq, unsigned count);
int get_async_event(ibv_context* context, ibv_async_event* event);
void ack_async_event(ibv_async_event* event);

// receive_queue.cpp
ibv_srq* create_srq(ibv_pd* pd, ibv_srq_init_attr* attributes);
int modify_srq(ibv_srq* srq, ibv_srq_attr* attributes, int mask);
int query_srq(ibv_srq* srq, ibv_srq_attr* attributes);
int destroy_srq(ibv_srq* srq);
int post_srq_recv(ibv_srq* srq, ibv_recv_wr* work, ibv_recv_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* work, ibv_recv_wr** bad);

// queue_pair.cpp
ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes);
int modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask);
int query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask, ibv_qp_init_attr* initial);
int destroy_qp(ibv_qp* qp);

// posting.cpp
int post_send(ibv_qp* qp, ibv_send_wr* work, ibv_send_wr** bad);

}  // namespace rdmatx::soft
