#include "rdma/queue_pair.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "rdma/queue_pair_attributes.hpp"

namespace rdmatx {
namespace {

/// Random, so that packets of an earlier connection of the same numbers are not taken for ours.
uint32_t draw_packet_sequence_number() {
  uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
    throw Error("getrandom() failed: " + describe_errno(errno));
  return number & 0xffffff;
}

std::string capabilities_text(const Device& device, const QueuePairCapabilities& wanted) {
  const DeviceLimits& limits = device.attributes().limits;
  return "device " + device.name() + ", wanted " + std::to_string(wanted.max_send_requests) + " sends of " +
         std::to_string(wanted.max_send_elements) + " element(s), " +
         std::to_string(wanted.max_receive_requests) + " receives of " +
         std::to_string(wanted.max_receive_elements) + ", " + std::to_string(wanted.max_inline_bytes) +
         " bytes inline; the device takes at most " + std::to_string(limits.max_qp_wr) + " requests of " +
         std::to_string(limits.max_sge) + " elements and " + std::to_string(limits.max_qp) + " queue pairs";
}

// Another thread may move it meanwhile: the software HCA's, when a peer dies.
QueuePairState cached_state(const ibv_qp* qp) {
  return static_cast<QueuePairState>(__atomic_load_n(&qp->state, __ATOMIC_RELAXED));
}

std::string post_advice(int code, QueuePairState state, const QueuePairCapabilities& capabilities,
                        bool is_send) {
  const std::string most =
      std::to_string(is_send ? capabilities.max_send_requests : capabilities.max_receive_requests);
  const std::string elements =
      std::to_string(is_send ? capabilities.max_send_elements : capabilities.max_receive_elements);
  if (code == ENOMEM)
    return "the queue is full: it holds " + most + " requests, so take completions before posting more";
  if (code != EINVAL) return "";
  if (is_send && state != QueuePairState::ready_to_send && state != QueuePairState::error)
    return std::string("the queue pair is in state ") + queue_pair_state_name(state) +
           "; sends need RTS: connect it first";
  if (!is_send && state == QueuePairState::reset)
    return "the queue pair is in state RESET; receives need INIT or later";
  std::string text = "more than " + elements + " element(s)";
  if (is_send)
    text += ", more than " + std::to_string(capabilities.max_inline_bytes) +
            " bytes inline, or an opcode or flag that does not go with the request";
  return "the request does not fit the queue pair: " + text;
}

std::string refused_text(size_t index, size_t count, const std::string& request, const std::string& advice) {
  return "work request " + std::to_string(index + 1) + " of " + std::to_string(count) + " (" + request +
         ") was refused, those before it are posted" + (advice.empty() ? "" : "; " + advice);
}

/// Whether packets need the GID: on Ethernet always, on InfiniBand only between subnets.
bool needs_global_route(const PortAttributes& port, const Gid& local, const Address& remote) {
  if (port.link_layer != LinkLayer::infiniband || remote.lid == 0) return true;
  return !remote.gid.is_empty() && std::memcmp(local.raw.data(), remote.gid.raw.data(), 8) != 0;
}

}  // namespace

std::shared_ptr<QueuePair> QueuePair::create(std::shared_ptr<ProtectionDomain> domain,
                                             std::shared_ptr<CompletionQueue> send_queue,
                                             std::shared_ptr<CompletionQueue> receive_queue,
                                             const QueuePairOptions& options) {
  if (send_queue->device() != domain->device() || receive_queue->device() != domain->device())
    throw UsageError("a queue pair and its completion queues must be of the same device");
  return std::shared_ptr<QueuePair>(
      new QueuePair(std::move(domain), std::move(send_queue), std::move(receive_queue), options));
}

QueuePair::QueuePair(std::shared_ptr<ProtectionDomain> domain, std::shared_ptr<CompletionQueue> send_queue,
                     std::shared_ptr<CompletionQueue> receive_queue, const QueuePairOptions& options)
    : domain_(std::move(domain)),
      send_queue_(std::move(send_queue)),
      receive_queue_(std::move(receive_queue)),
      shared_receive_queue_(options.shared_receive_queue),
      packet_sequence_number_(draw_packet_sequence_number()) {
  const QueuePairCapabilities& wanted = options.capabilities;
  ibv_qp_init_attr initial{};
  initial.qp_type = IBV_QPT_RC;
  initial.send_cq = send_queue_->get();
  initial.recv_cq = receive_queue_->get();
  initial.srq = shared_receive_queue_ ? shared_receive_queue_->get() : nullptr;
  initial.sq_sig_all = options.signal_all ? 1 : 0;
  initial.cap.max_send_wr = wanted.max_send_requests;
  initial.cap.max_send_sge = wanted.max_send_elements;
  initial.cap.max_inline_data = wanted.max_inline_bytes;
  if (!shared_receive_queue_) {
    initial.cap.max_recv_wr = wanted.max_receive_requests;
    initial.cap.max_recv_sge = wanted.max_receive_elements;
  }
  const Verbs* verbs = domain_->device()->verbs();
  handle_ = QueuePairHandle(verbs, check_pointer(verbs->create_qp(domain_->get(), &initial), "ibv_create_qp",
                                                 capabilities_text(*domain_->device(), wanted)));
  capabilities_ = detail::from_verbs(initial.cap);
}

uint32_t QueuePair::number() const noexcept {
  return handle_->qp_num;
}

Address QueuePair::local_address(int port, int gid_index) const {
  const PortAttributes attributes = domain_->device()->query_port(port);
  const GidEntry gid = domain_->device()->query_gid(port, gid_index);
  Address address;
  address.queue_pair_number = number();
  address.packet_sequence_number = packet_sequence_number_;
  address.lid = attributes.lid;
  address.port = static_cast<uint8_t>(port);
  address.gid_index = static_cast<uint8_t>(gid_index);
  address.link_layer = attributes.link_layer;
  address.gid_type = gid.type;
  address.mtu = attributes.active_mtu;
  address.gid = gid.gid;
  return address;
}

void QueuePair::modify(const QueuePairAttributes& attributes) {
  detail::ModifyRequest request = detail::to_verbs(attributes);
  const QueuePairState before = cached_state(handle_.get());
  const int code = domain_->device()->verbs()->modify_qp(handle_.get(), &request.attributes, request.mask);
  if (code == 0) return;
  const int reason = code < 0 ? errno : code;
  const std::string advice = detail::modify_advice(reason);
  throw VerbsError("ibv_modify_qp", reason,
                   "queue pair " + std::to_string(number()) + " of " + domain_->device()->name() + ", " +
                       queue_pair_state_name(before) + " -> " +
                       queue_pair_state_name(attributes.state.value_or(before)) + " with " +
                       attributes.text() + (advice.empty() ? "" : ": " + advice));
}

void QueuePair::to_reset() {
  modify({.state = QueuePairState::reset});
}

void QueuePair::to_error() {
  modify({.state = QueuePairState::error});
}

void QueuePair::to_init(int port, Access access) {
  modify({.state = QueuePairState::init,
          .access = access,
          .pkey_index = uint16_t{0},
          .port = static_cast<uint8_t>(port)});
}

void QueuePair::to_ready_to_receive(int port, int gid_index, const Address& remote,
                                    const ConnectOptions& options) {
  const Device& device = *domain_->device();
  const PortAttributes local = device.query_port(port);
  const GidEntry gid = device.query_gid(port, gid_index);
  if (local.link_layer != LinkLayer::unspecified && remote.link_layer != LinkLayer::unspecified &&
      local.link_layer != remote.link_layer)
    throw UsageError("port " + std::to_string(port) + " of " + device.name() + " is " +
                     link_layer_name(local.link_layer) + " and the peer's is " +
                     link_layer_name(remote.link_layer) +
                     ": the two cannot reach each other; choose another device on one side");
  PathAttributes path;
  path.destination_gid = remote.gid;
  path.source_gid_index = static_cast<uint8_t>(gid_index);
  path.destination_lid = remote.lid;
  path.port = static_cast<uint8_t>(port);
  path.is_global = needs_global_route(local, gid.gid, remote);
  path.hop_limit = options.hop_limit;
  path.traffic_class = options.traffic_class;
  path.service_level = options.service_level;
  const uint32_t most = std::min(local.active_mtu, remote.mtu);
  const int reads = std::min<int>(options.max_rd_atomic, device.attributes().limits.max_qp_rd_atom);
  modify({.state = QueuePairState::ready_to_receive,
          .path = path,
          .path_mtu = options.path_mtu ? std::min(options.path_mtu, most) : most,
          .destination_queue_pair_number = remote.queue_pair_number,
          .receive_packet_sequence_number = remote.packet_sequence_number,
          .max_dest_rd_atomic = static_cast<uint8_t>(reads),
          .min_rnr_timer = options.min_rnr_timer});
}

void QueuePair::to_ready_to_send(const ConnectOptions& options) {
  const int reads =
      std::min<int>(options.max_rd_atomic, domain_->device()->attributes().limits.max_qp_init_rd_atom);
  modify({.state = QueuePairState::ready_to_send,
          .send_packet_sequence_number = packet_sequence_number_,
          .max_rd_atomic = static_cast<uint8_t>(reads),
          .timeout = options.timeout,
          .retry_count = options.retry_count,
          .rnr_retry = options.rnr_retry});
}

void QueuePair::connect(int port, int gid_index, const Address& remote, const ConnectOptions& options) {
  if (cached_state(handle_.get()) == QueuePairState::reset) to_init(port, options.access);
  to_ready_to_receive(port, gid_index, remote, options);
  to_ready_to_send(options);
}

QueuePairStatus QueuePair::query() const {
  ibv_qp_attr found{};
  ibv_qp_init_attr initial{};
  constexpr int everything = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX |
                             IBV_QP_PORT | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
                             IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_CAP |
                             IBV_QP_DEST_QPN;
  check_code(domain_->device()->verbs()->query_qp(handle_.get(), &found, everything, &initial),
             "ibv_query_qp", "queue pair " + std::to_string(number()));
  return {detail::from_verbs(found), detail::from_verbs(initial.cap)};
}

QueuePairState QueuePair::state() const {
  ibv_qp_attr found{};
  ibv_qp_init_attr initial{};
  check_code(domain_->device()->verbs()->query_qp(handle_.get(), &found, IBV_QP_STATE, &initial),
             "ibv_query_qp", "queue pair " + std::to_string(number()));
  return static_cast<QueuePairState>(found.qp_state);
}

void QueuePair::post_send(std::span<SendWork> work) {
  ibv_send_wr* first = nullptr;
  for (size_t i = work.size(); i-- > 0;) first = work[i].link(first);
  if (!first) return;
  ibv_send_wr* bad = nullptr;
  const int code = ibv_post_send(handle_.get(), first, &bad);
  if (code == 0) return;
  size_t refused = 0;
  while (refused + 1 < work.size() && &work[refused].request_ != bad) ++refused;
  const int reason = code < 0 ? errno : code;
  throw VerbsError("ibv_post_send", reason,
                   refused_text(refused, work.size(), work[refused].text(),
                                post_advice(reason, cached_state(handle_.get()), capabilities_, true)));
}

void QueuePair::post_receive(std::span<ReceiveWork> work) {
  ibv_recv_wr* first = nullptr;
  for (size_t i = work.size(); i-- > 0;) first = work[i].link(first);
  if (!first) return;
  ibv_recv_wr* bad = nullptr;
  const int code = ibv_post_recv(handle_.get(), first, &bad);
  if (code == 0) return;
  size_t refused = 0;
  while (refused + 1 < work.size() && &work[refused].request_ != bad) ++refused;
  const int reason = code < 0 ? errno : code;
  throw VerbsError("ibv_post_recv", reason,
                   refused_text(refused, work.size(), std::to_string(work[refused].total_bytes()) + " bytes",
                                post_advice(reason, cached_state(handle_.get()), capabilities_, false)));
}

}  // namespace rdmatx
