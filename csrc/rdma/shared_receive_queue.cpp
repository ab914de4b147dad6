#include "rdma/shared_receive_queue.hpp"

#include <cerrno>
#include <string>
#include <utility>

namespace rdmatx {
namespace {

std::string size_text(const Device& device, uint32_t max_requests, uint32_t max_elements) {
  const DeviceLimits& limits = device.attributes().limits;
  return "device " + device.name() + ", " + std::to_string(max_requests) + " requests of " +
         std::to_string(max_elements) + " element(s); the device takes at most " +
         std::to_string(limits.max_srq_wr) + " of " + std::to_string(limits.max_srq_sge);
}

ibv_srq* create_queue(const Device& device, ibv_pd* domain, uint32_t max_requests, uint32_t max_elements) {
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = max_requests;
  attributes.attr.max_sge = max_elements;
  return check_pointer(device.verbs()->create_srq(domain, &attributes), "ibv_create_srq",
                       size_text(device, max_requests, max_elements));
}

}  // namespace

std::shared_ptr<SharedReceiveQueue> SharedReceiveQueue::create(std::shared_ptr<ProtectionDomain> domain,
                                                               uint32_t max_requests, uint32_t max_elements) {
  return std::shared_ptr<SharedReceiveQueue>(
      new SharedReceiveQueue(std::move(domain), max_requests, max_elements));
}

SharedReceiveQueue::SharedReceiveQueue(std::shared_ptr<ProtectionDomain> domain, uint32_t max_requests,
                                       uint32_t max_elements)
    : domain_(std::move(domain)),
      handle_(domain_->device()->verbs(),
              create_queue(*domain_->device(), domain_->get(), max_requests, max_elements)) {}

void SharedReceiveQueue::post_receive(std::span<ReceiveWork> work) {
  ibv_recv_wr* first = nullptr;
  for (size_t i = work.size(); i-- > 0;) first = work[i].link(first);
  if (!first) return;
  ibv_recv_wr* bad = nullptr;
  const int code = ibv_post_srq_recv(get(), first, &bad);
  if (code == 0) return;
  size_t refused = 0;
  while (refused + 1 < work.size() && &work[refused].request_ != bad) ++refused;
  const int reason = code < 0 ? errno : code;
  throw VerbsError(
      "ibv_post_srq_recv", reason,
      "work request " + std::to_string(refused + 1) + " of " + std::to_string(work.size()) +
          " was refused, those before it are posted" +
          (reason == ENOMEM ? "; the queue is full: let receives complete before posting more" : ""));
}

void SharedReceiveQueue::set_limit(uint32_t requests) {
  ibv_srq_attr attributes{};
  attributes.srq_limit = requests;
  check_code(domain_->device()->verbs()->modify_srq(get(), &attributes, IBV_SRQ_LIMIT), "ibv_modify_srq",
             "limit " + std::to_string(requests));
}

void SharedReceiveQueue::resize(uint32_t max_requests) {
  ibv_srq_attr attributes{};
  attributes.max_wr = max_requests;
  check_code(domain_->device()->verbs()->modify_srq(get(), &attributes, IBV_SRQ_MAX_WR), "ibv_modify_srq",
             std::to_string(max_requests) + " requests; some devices cannot resize a shared receive queue");
}

ibv_srq_attr SharedReceiveQueue::query() const {
  ibv_srq_attr attributes{};
  check_code(domain_->device()->verbs()->query_srq(get(), &attributes), "ibv_query_srq");
  return attributes;
}

uint32_t SharedReceiveQueue::max_requests() const {
  return query().max_wr;
}

uint32_t SharedReceiveQueue::max_elements() const {
  return query().max_sge;
}

}  // namespace rdmatx
