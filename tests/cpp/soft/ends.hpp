#pragma once

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/shared_memory.hpp"
#include "check.hpp"
#include "verbs/table.hpp"

namespace rdmatx::testing {

/// What one side tells the other out of band.
struct Coordinates {
  uint32_t queue_pair;
  ibv_gid gid;
  uint64_t address;
  uint32_t key;
};

/// One end of a connection on the software HCA, with a buffer; straight on the verbs table.
class End {
 public:
  explicit End(size_t bytes = 1 << 20, bool shared = false, int depth = 256) {
    int count = 0;
    ibv_device** devices = verbs->get_device_list(&count);
    context = verbs->open_device(devices[0]);
    verbs->free_device_list(devices);
    CHECK(context != nullptr);
    pd = verbs->alloc_pd(context);
    cq = verbs->create_cq(context, 4 * depth, nullptr, nullptr, 0);
    ibv_qp_init_attr initial{};
    initial.send_cq = initial.recv_cq = cq;
    initial.qp_type = IBV_QPT_RC;
    initial.cap = {static_cast<uint32_t>(depth), static_cast<uint32_t>(depth), 4, 4, 64};
    qp = verbs->create_qp(pd, &initial);
    CHECK(qp != nullptr);
    if (shared) {
      segment = SharedMemory::create(bytes, "test");
      publish_segment(segment);
      memory = segment->data();
    } else {
      owned.resize(bytes);
      memory = owned.data();
    }
    size = bytes;
    mr = verbs->reg_mr(pd, memory, bytes, access);
    CHECK(mr != nullptr);
  }
  ~End() {
    verbs->destroy_qp(qp);
    if (mr) verbs->dereg_mr(mr);
    verbs->destroy_cq(cq);
    verbs->dealloc_pd(pd);
    if (verbs->close_device(context) != 0) std::abort();  // a child was left behind
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  Coordinates coordinates() const {
    Coordinates own{qp->qp_num, {}, reinterpret_cast<uint64_t>(memory), mr->rkey};
    verbs->query_gid(context, 1, 0, &own.gid);
    return own;
  }
  void connect(const Coordinates& other, uint8_t timeout = 14) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = access;
    CHECK_EQ(verbs->modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
             0);
    a.qp_state = IBV_QPS_RTR;
    a.dest_qp_num = other.queue_pair;
    a.path_mtu = IBV_MTU_4096;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.dgid = other.gid;
    a.max_dest_rd_atomic = 16;
    a.min_rnr_timer = 12;
    CHECK_EQ(verbs->modify_qp(qp, &a,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
             0);
    a.qp_state = IBV_QPS_RTS;
    a.timeout = timeout;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    a.max_rd_atomic = 16;
    CHECK_EQ(verbs->modify_qp(qp, &a,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
             0);
  }

  int post(ibv_wr_opcode opcode, size_t offset, uint32_t bytes, const Coordinates* target = nullptr,
           size_t target_offset = 0, uint64_t id = 0) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory) + offset, bytes, mr->lkey};
    ibv_send_wr work{}, *bad = nullptr;
    work.wr_id = id;
    work.sg_list = &sge;
    work.num_sge = 1;
    work.opcode = opcode;
    work.send_flags = IBV_SEND_SIGNALED;
    if (target) {
      work.wr.rdma.remote_addr = target->address + target_offset;
      work.wr.rdma.rkey = target->key;
    }
    return ibv_post_send(qp, &work, &bad);
  }
  int receive(size_t offset, uint32_t bytes, uint64_t id = 0) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory) + offset, bytes, mr->lkey};
    ibv_recv_wr work{id, nullptr, &sge, 1}, *bad = nullptr;
    return ibv_post_recv(qp, &work, &bad);
  }
  /// The next completion; a failure of the test where none comes in time.
  ibv_wc next() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    ibv_wc completion{};
    while (ibv_poll_cq(cq, 1, &completion) == 0) {
      CHECK(std::chrono::steady_clock::now() < deadline);
      std::this_thread::yield();
    }
    return completion;
  }

  static constexpr int access =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  const Verbs* verbs = soft_verbs();
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  std::vector<std::byte> owned;
  std::shared_ptr<SharedMemory> segment;
  std::byte* memory = nullptr;
  size_t size = 0;
};

}  // namespace rdmatx::testing
