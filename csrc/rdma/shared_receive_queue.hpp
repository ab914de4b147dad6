#pragma once

#include <memory>
#include <span>

#include "rdma/protection_domain.hpp"
#include "rdma/work.hpp"

namespace rdmatx {

/// Owns a receive queue that several queue pairs take their receives from. May be used from any thread.
class RDMATX_API SharedReceiveQueue {
 public:
  /// Throws VerbsError; EOPNOTSUPP where the device has none.
  static std::shared_ptr<SharedReceiveQueue> create(std::shared_ptr<ProtectionDomain> domain,
                                                    uint32_t max_requests, uint32_t max_elements = 1);

  /// Posts all, or throws VerbsError saying which one was refused; those before it are posted.
  void post_receive(std::span<ReceiveWork> work);
  void post_receive(ReceiveWork& work) { post_receive(std::span(&work, 1)); }
  /// Asks for one "SRQ limit reached" event of the device when fewer than `requests` receives are left.
  void set_limit(uint32_t requests);
  void resize(uint32_t max_requests);
  uint32_t max_requests() const;
  uint32_t max_elements() const;
  const std::shared_ptr<ProtectionDomain>& protection_domain() const noexcept { return domain_; }

 private:
  friend class QueuePair;
  SharedReceiveQueue(std::shared_ptr<ProtectionDomain> domain, uint32_t max_requests, uint32_t max_elements);
  ibv_srq* get() const noexcept { return handle_.get(); }
  ibv_srq_attr query() const;

  std::shared_ptr<ProtectionDomain> domain_;
  SharedReceiveQueueHandle handle_;
};

}  // namespace rdmatx
