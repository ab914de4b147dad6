#include "rdma/queue_pair_attributes.hpp"

#include <cerrno>
#include <cstring>

namespace rdmatx {

namespace {

/// "name=value, name=value".
class AttributeText {
 public:
  template <class Value>
  void add(const char* name, const std::optional<Value>& value) {
    if (value) add(name, std::to_string(+*value));
  }
  void add(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "" : ", ") + std::string(name) + "=" + value;
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string QueuePairAttributes::text() const {
  AttributeText list;
  if (state) list.add("state", queue_pair_state_name(*state));
  if (current_state) list.add("current_state", queue_pair_state_name(*current_state));
  if (access) list.add("access", access_text(*access));
  list.add("pkey_index", pkey_index);
  list.add("port", port);
  if (path) {
    list.add("path", path->is_global ? "gid " + path->destination_gid.text() + " from gid index " +
                                           std::to_string(path->source_gid_index) + " of port " +
                                           std::to_string(path->port)
                                     : "lid " + std::to_string(path->destination_lid) + " from port " +
                                           std::to_string(path->port));
  }
  list.add("path_mtu", path_mtu);
  list.add("destination_queue_pair_number", destination_queue_pair_number);
  list.add("receive_packet_sequence_number", receive_packet_sequence_number);
  list.add("send_packet_sequence_number", send_packet_sequence_number);
  list.add("max_rd_atomic", max_rd_atomic);
  list.add("max_dest_rd_atomic", max_dest_rd_atomic);
  list.add("min_rnr_timer", min_rnr_timer);
  list.add("timeout", timeout);
  list.add("retry_count", retry_count);
  list.add("rnr_retry", rnr_retry);
  return list.take();
}

namespace detail {
namespace {

ibv_ah_attr path_to_verbs(const PathAttributes& path) {
  ibv_ah_attr found{};
  found.dlid = path.destination_lid;
  found.sl = path.service_level;
  found.port_num = path.port;
  found.is_global = path.is_global ? 1 : 0;
  std::memcpy(found.grh.dgid.raw, path.destination_gid.raw.data(), path.destination_gid.raw.size());
  found.grh.sgid_index = path.source_gid_index;
  found.grh.hop_limit = path.hop_limit;
  found.grh.traffic_class = path.traffic_class;
  found.grh.flow_label = path.flow_label;
  return found;
}

PathAttributes path_from_verbs(const ibv_ah_attr& found) {
  PathAttributes path;
  path.destination_lid = found.dlid;
  path.service_level = found.sl;
  path.port = found.port_num;
  path.is_global = found.is_global != 0;
  std::memcpy(path.destination_gid.raw.data(), found.grh.dgid.raw, path.destination_gid.raw.size());
  path.source_gid_index = found.grh.sgid_index;
  path.hop_limit = found.grh.hop_limit;
  path.traffic_class = found.grh.traffic_class;
  path.flow_label = found.grh.flow_label;
  return path;
}

/// Sets a field and its bit of the mask where there is a value.
template <class Field, class Value>
void set(ModifyRequest& request, int bit, Field& field, const std::optional<Value>& value) {
  if (!value) return;
  field = static_cast<Field>(*value);
  request.mask |= bit;
}

}  // namespace

ModifyRequest to_verbs(const QueuePairAttributes& attributes) {
  ModifyRequest request;
  ibv_qp_attr& to = request.attributes;
  set(request, IBV_QP_STATE, to.qp_state, attributes.state);
  set(request, IBV_QP_CUR_STATE, to.cur_qp_state, attributes.current_state);
  set(request, IBV_QP_ACCESS_FLAGS, to.qp_access_flags, attributes.access);
  set(request, IBV_QP_PKEY_INDEX, to.pkey_index, attributes.pkey_index);
  set(request, IBV_QP_PORT, to.port_num, attributes.port);
  set(request, IBV_QP_DEST_QPN, to.dest_qp_num, attributes.destination_queue_pair_number);
  set(request, IBV_QP_RQ_PSN, to.rq_psn, attributes.receive_packet_sequence_number);
  set(request, IBV_QP_SQ_PSN, to.sq_psn, attributes.send_packet_sequence_number);
  set(request, IBV_QP_MAX_QP_RD_ATOMIC, to.max_rd_atomic, attributes.max_rd_atomic);
  set(request, IBV_QP_MAX_DEST_RD_ATOMIC, to.max_dest_rd_atomic, attributes.max_dest_rd_atomic);
  set(request, IBV_QP_MIN_RNR_TIMER, to.min_rnr_timer, attributes.min_rnr_timer);
  set(request, IBV_QP_TIMEOUT, to.timeout, attributes.timeout);
  set(request, IBV_QP_RETRY_CNT, to.retry_cnt, attributes.retry_count);
  set(request, IBV_QP_RNR_RETRY, to.rnr_retry, attributes.rnr_retry);
  if (attributes.path_mtu) {
    to.path_mtu = static_cast<ibv_mtu>(mtu_code_from_bytes(*attributes.path_mtu));
    request.mask |= IBV_QP_PATH_MTU;
  }
  if (attributes.path) {
    to.ah_attr = path_to_verbs(*attributes.path);
    request.mask |= IBV_QP_AV;
  }
  return request;
}

QueuePairAttributes from_verbs(const ibv_qp_attr& found) {
  QueuePairAttributes attributes;
  attributes.state = static_cast<QueuePairState>(found.qp_state);
  attributes.current_state = static_cast<QueuePairState>(found.cur_qp_state);
  attributes.access = static_cast<Access>(found.qp_access_flags);
  attributes.pkey_index = found.pkey_index;
  attributes.port = found.port_num;
  attributes.path = path_from_verbs(found.ah_attr);
  // Not known before ready-to-receive.
  attributes.path_mtu = found.path_mtu >= IBV_MTU_256 && found.path_mtu <= IBV_MTU_4096
                            ? mtu_bytes_from_code(found.path_mtu)
                            : 0;
  attributes.destination_queue_pair_number = found.dest_qp_num;
  attributes.receive_packet_sequence_number = found.rq_psn;
  attributes.send_packet_sequence_number = found.sq_psn;
  attributes.max_rd_atomic = found.max_rd_atomic;
  attributes.max_dest_rd_atomic = found.max_dest_rd_atomic;
  attributes.min_rnr_timer = found.min_rnr_timer;
  attributes.timeout = found.timeout;
  attributes.retry_count = found.retry_cnt;
  attributes.rnr_retry = found.rnr_retry;
  return attributes;
}

QueuePairCapabilities from_verbs(const ibv_qp_cap& found) {
  return {found.max_send_wr, found.max_recv_wr, found.max_send_sge, found.max_recv_sge,
          found.max_inline_data};
}

std::string modify_advice(int code) {
  switch (code) {
    case EINVAL:
      return "the transition is not allowed from this state, an attribute it needs is missing or one it does "
             "not "
             "take is given (ibv_modify_qp(3) has the table), or a value is out of the device's range";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "there is no way to the peer's GID from this one: choose GIDs of one network and type on both "
             "sides, "
             "and check that the peer answers to ping";
    case ENODATA:
    case EADDRNOTAVAIL:
      return "the local GID index is empty: choose one that rdmatx devices lists";
    default:
      return "";
  }
}

}  // namespace detail
}  // namespace rdmatx
