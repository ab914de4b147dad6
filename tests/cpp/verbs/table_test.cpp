// The table of verbs itself, where the layer above it hides what can go wrong: parents freed before their
// children, the failing request of a list, failures told in the two ways verbs have. The same cases for every
// provider:
//
//   test_table [soft|system] [CASE]

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"
#include "verbs/table.hpp"

using namespace rdmatx;

namespace {

const Verbs* verbs = nullptr;

/// A device with one of everything; each case frees what it made itself, in the order it is about.
struct Opened {
  Opened() {
    int count = 0;
    ibv_device** list = verbs->get_device_list(&count);
    CHECK(list != nullptr);
    if (count == 0) throw testing::Skipped("this provider has no device");
    context = verbs->open_device(list[0]);
    verbs->free_device_list(list);
    CHECK(context != nullptr);
    domain = verbs->alloc_pd(context);
    CHECK(domain != nullptr);
  }
  ~Opened() {
    verbs->dealloc_pd(domain);
    verbs->close_device(context);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  ibv_qp* queue_pair(ibv_cq* queue, ibv_srq* shared = nullptr) const {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue;
    attributes.srq = shared;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap = {8, 8, 2, 2, 0};
    ibv_qp* pair = verbs->create_qp(domain, &attributes);
    CHECK(pair != nullptr);
    return pair;
  }

  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
};

/// Moves a queue pair to INIT, where receives may be posted.
void initialize(ibv_qp* pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  CHECK_EQ(verbs->modify_qp(pair, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
           0);
}

}  // namespace

TEST(no_entry_is_null){
#define X(name, ret, params) CHECK(verbs->name != nullptr);
    RDMATX_VERBS(X)
#undef X
}

// ibv_get_device_list(3): an array that ends with null, and how many there are; a device that was opened
// stays open when the list is freed, and its name is told.
TEST(device_list_ends_with_null) {
  int count = -1;
  ibv_device** list = verbs->get_device_list(&count);
  CHECK(list != nullptr);
  CHECK(count >= 0);
  CHECK(list[count] == nullptr);
  for (int i = 0; i < count; ++i) CHECK(std::strlen(verbs->get_device_name(list[i])) > 0);
  verbs->free_device_list(list);
}

// ibv_dealloc_pd(3) may fail if any other resource is still associated with the domain.
TEST(domain_with_a_memory_region_is_busy) {
  Opened opened;
  std::vector<char> memory(4096);
  ibv_mr* region = verbs->reg_mr(opened.domain, memory.data(), memory.size(), IBV_ACCESS_LOCAL_WRITE);
  CHECK(region != nullptr);
  CHECK_EQ(verbs->dealloc_pd(opened.domain), EBUSY);
  CHECK_EQ(verbs->dereg_mr(region), 0);
}

TEST(domain_with_a_queue_pair_is_busy) {
  Opened opened;
  ibv_cq* queue = verbs->create_cq(opened.context, 16, nullptr, nullptr, 0);
  CHECK(queue != nullptr);
  ibv_qp* pair = opened.queue_pair(queue);
  CHECK_EQ(verbs->dealloc_pd(opened.domain), EBUSY);
  CHECK_EQ(verbs->destroy_qp(pair), 0);
  CHECK_EQ(verbs->destroy_cq(queue), 0);
}

// ibv_destroy_cq(3) fails if any queue pair is still associated with this CQ.
TEST(completion_queue_of_a_queue_pair_is_busy) {
  Opened opened;
  ibv_cq* queue = verbs->create_cq(opened.context, 16, nullptr, nullptr, 0);
  CHECK(queue != nullptr);
  ibv_qp* pair = opened.queue_pair(queue);
  CHECK_EQ(verbs->destroy_cq(queue), EBUSY);
  CHECK_EQ(verbs->destroy_qp(pair), 0);
  CHECK_EQ(verbs->destroy_cq(queue), 0);
}

// ibv_destroy_comp_channel(3) fails if any CQs are still associated with the channel.
TEST(channel_of_a_completion_queue_is_busy) {
  Opened opened;
  ibv_comp_channel* channel = verbs->create_comp_channel(opened.context);
  CHECK(channel != nullptr);
  ibv_cq* queue = verbs->create_cq(opened.context, 16, nullptr, channel, 0);
  CHECK(queue != nullptr);
  CHECK_EQ(verbs->destroy_comp_channel(channel), EBUSY);
  CHECK_EQ(verbs->destroy_cq(queue), 0);
  CHECK_EQ(verbs->destroy_comp_channel(channel), 0);
}

// ibv_destroy_srq(3) fails if any queue pair is still associated with this SRQ.
TEST(shared_receive_queue_of_a_queue_pair_is_busy) {
  Opened opened;
  ibv_srq_init_attr attributes{};
  attributes.attr = {8, 1, 0};
  ibv_srq* shared = verbs->create_srq(opened.domain, &attributes);
  if (shared == nullptr && errno == EOPNOTSUPP) throw testing::Skipped("no shared receive queues");
  CHECK(shared != nullptr);
  ibv_cq* queue = verbs->create_cq(opened.context, 16, nullptr, nullptr, 0);
  CHECK(queue != nullptr);
  ibv_qp* pair = opened.queue_pair(queue, shared);
  CHECK_EQ(verbs->destroy_srq(shared), EBUSY);
  CHECK_EQ(verbs->dealloc_pd(opened.domain), EBUSY);
  CHECK_EQ(verbs->destroy_qp(pair), 0);
  CHECK_EQ(verbs->destroy_srq(shared), 0);
  CHECK_EQ(verbs->destroy_cq(queue), 0);
}

// ibv_post_recv(3) stops at the first request that fails and returns it through bad_wr; those before are
// posted.
TEST(list_of_receives_tells_which_one_failed) {
  Opened opened;
  ibv_cq* queue = verbs->create_cq(opened.context, 16, nullptr, nullptr, 0);
  CHECK(queue != nullptr);
  ibv_qp* pair = opened.queue_pair(queue);
  initialize(pair);
  ibv_recv_wr first{}, second{}, third{};
  first.wr_id = 1;
  first.next = &second;
  second.next = &third;
  second.num_sge = 1000;  // more than any queue pair has; the list itself is not looked at
  std::vector<ibv_sge> elements(1000);
  second.sg_list = elements.data();
  ibv_recv_wr* failing = nullptr;
  CHECK(ibv_post_recv(pair, &first, &failing) != 0);
  CHECK(failing == &second);
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  CHECK_EQ(verbs->modify_qp(pair, &error, IBV_QP_STATE), 0);
  ibv_wc completions[4]{};
  int found = 0;
  for (int tries = 0; found == 0 && tries < 10000; ++tries) {
    found = ibv_poll_cq(queue, 4, completions);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(found, 1);
  CHECK_EQ(completions[0].wr_id, 1u);
  CHECK_EQ(static_cast<int>(completions[0].status), static_cast<int>(IBV_WC_WR_FLUSH_ERR));
  CHECK_EQ(verbs->destroy_qp(pair), 0);
  CHECK_EQ(verbs->destroy_cq(queue), 0);
}

// The two ways of failing: null with errno, or the errno as the return value.
TEST(failures_come_with_their_errno) {
  Opened opened;
  errno = 0;
  CHECK(verbs->create_cq(opened.context, 1 << 30, nullptr, nullptr, 0) == nullptr);
  CHECK(errno != 0);
  errno = 0;
  CHECK(verbs->reg_mr(opened.domain, nullptr, 4096, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno != 0);
  errno = 0;
  CHECK(verbs->reg_dmabuf_mr(opened.domain, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) == nullptr);
  CHECK(errno != 0);
  ibv_port_attr port{};
  CHECK(verbs->query_port(opened.context, 99, &port) != 0);
}

TEST(statuses_and_events_have_names) {
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_GENERAL_ERR; ++status) {
    CHECK(std::strlen(verbs->wc_status_str(static_cast<ibv_wc_status>(status))) > 0);
  }
  for (int event = IBV_EVENT_CQ_ERR; event <= IBV_EVENT_GID_CHANGE; ++event) {
    CHECK(std::strlen(verbs->event_type_str(static_cast<ibv_event_type>(event))) > 0);
  }
}

int main(int argc, char** argv) {
  const std::string provider = argc > 1 ? argv[1] : "soft";
  try {
    verbs = provider == "system" ? system_verbs() : soft_verbs();
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return testing::run_cases(argc > 2 ? argv[2] : "") == 0 ? 0 : 1;
}
