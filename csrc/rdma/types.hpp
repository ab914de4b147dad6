#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/export.hpp"

// The vocabulary of the verbs, in our names: everything above rdma/ uses these and never verbs.h itself.

namespace rdmatx {

/// What may be done to registered memory, locally and by peers (ibv_reg_mr(3)). A set of bits.
/// remote_write and remote_atomic need local_write too.
enum class Access : unsigned {
  none = 0,
  local_write = IBV_ACCESS_LOCAL_WRITE,
  remote_write = IBV_ACCESS_REMOTE_WRITE,
  remote_read = IBV_ACCESS_REMOTE_READ,
  remote_atomic = IBV_ACCESS_REMOTE_ATOMIC,
  relaxed_ordering = IBV_ACCESS_RELAXED_ORDERING,
};
constexpr Access operator|(Access a, Access b) {
  return static_cast<Access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr Access operator&(Access a, Access b) {
  return static_cast<Access>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
constexpr bool has_access(Access set, Access wanted) {
  return (set & wanted) == wanted;
}
/// "local_write|remote_read", or "none".
RDMATX_API std::string access_text(Access access);

enum class LinkLayer : uint8_t { unspecified = 0, infiniband = 1, ethernet = 2 };
RDMATX_API const char* link_layer_name(LinkLayer layer) noexcept;

enum class PortState : uint8_t {
  nop = 0,
  down = 1,
  initializing = 2,
  armed = 3,
  active = 4,
  active_defer = 5
};
/// "DOWN", "ACTIVE", ...
RDMATX_API const char* port_state_name(PortState state) noexcept;

enum class GidType : uint8_t { infiniband = 0, roce_v1 = 1, roce_v2 = 2 };
/// "IB", "RoCE v1", "RoCE v2".
RDMATX_API const char* gid_type_name(GidType type) noexcept;

/// A 128-bit address of a port, in network order.
struct RDMATX_API Gid {
  std::array<uint8_t, 16> raw{};

  /// A hole of the GID table: all zero, or only the default prefix fe80:: without an interface part.
  bool is_empty() const noexcept;
  bool is_ipv4_mapped() const noexcept;
  bool is_link_local() const noexcept;
  /// As IPv6 text: "fe80::1", "::ffff:10.0.0.1".
  std::string text() const;
  /// Throws UsageError where the text is not an IPv6 address.
  static Gid parse(const std::string& text);
  friend bool operator==(const Gid&, const Gid&) = default;
};

struct GidEntry {
  int index = 0;
  Gid gid;
  GidType type = GidType::infiniband;
  /// The network interface behind the GID, where the kernel tells it; else empty.
  std::string network_device;
};

struct PortAttributes {
  uint8_t number = 1;
  PortState state = PortState::down;
  LinkLayer link_layer = LinkLayer::unspecified;
  /// Bytes of payload a packet may carry: 256, 512, 1024, 2048 or 4096.
  uint32_t active_mtu = 0;
  uint32_t max_mtu = 0;
  uint16_t lid = 0;
  uint32_t max_message_bytes = 0;
  int gid_table_length = 0;
  int pkey_table_length = 0;
  /// Lanes × rate of a lane, in Gbit/s; 0 where unknown.
  double gigabits_per_second = 0;
  int active_width = 0;
  int active_speed = 0;
};

/// The limits a device reports (ibv_query_device(3)).
struct DeviceLimits {
  uint64_t max_mr_size = 0;
  int max_qp = 0;
  int max_qp_wr = 0;
  int max_sge = 0;
  int max_sge_rd = 0;
  int max_cq = 0;
  int max_cqe = 0;
  int max_mr = 0;
  int max_pd = 0;
  int max_qp_rd_atom = 0;
  int max_qp_init_rd_atom = 0;
  int max_srq = 0;
  int max_srq_wr = 0;
  int max_srq_sge = 0;
  int max_pkeys = 0;
  bool atomics = false;
};

struct DeviceAttributes {
  std::string name;
  /// "system" or "soft"; "custom" for a table that is neither (tests).
  std::string provider;
  /// "1234:5678:9abc:def0".
  std::string guid;
  /// "InfiniBand" (that is also RoCE), "iWARP", "unknown".
  std::string transport;
  std::string firmware;
  uint32_t vendor_id = 0;
  uint32_t vendor_part_id = 0;
  int port_count = 0;
  /// -1 where the system does not tell.
  int numa_node = -1;
  DeviceLimits limits;
};

enum class QueuePairState : int {
  reset = IBV_QPS_RESET,
  init = IBV_QPS_INIT,
  ready_to_receive = IBV_QPS_RTR,
  ready_to_send = IBV_QPS_RTS,
  send_queue_drained = IBV_QPS_SQD,
  send_queue_error = IBV_QPS_SQE,
  error = IBV_QPS_ERR,
};
/// "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR".
RDMATX_API const char* queue_pair_state_name(QueuePairState state) noexcept;

/// What became of a work request (ibv_poll_cq(3)).
enum class WorkCompletionStatus : int {
  success = IBV_WC_SUCCESS,
  local_length_error = IBV_WC_LOC_LEN_ERR,
  local_qp_operation_error = IBV_WC_LOC_QP_OP_ERR,
  local_eec_operation_error = IBV_WC_LOC_EEC_OP_ERR,
  local_protection_error = IBV_WC_LOC_PROT_ERR,
  flushed = IBV_WC_WR_FLUSH_ERR,
  memory_window_bind_error = IBV_WC_MW_BIND_ERR,
  bad_response = IBV_WC_BAD_RESP_ERR,
  local_access_error = IBV_WC_LOC_ACCESS_ERR,
  remote_invalid_request = IBV_WC_REM_INV_REQ_ERR,
  remote_access_error = IBV_WC_REM_ACCESS_ERR,
  remote_operation_error = IBV_WC_REM_OP_ERR,
  retry_exceeded = IBV_WC_RETRY_EXC_ERR,
  receiver_not_ready_retry_exceeded = IBV_WC_RNR_RETRY_EXC_ERR,
  local_rdd_violation = IBV_WC_LOC_RDD_VIOL_ERR,
  remote_invalid_rd_request = IBV_WC_REM_INV_RD_REQ_ERR,
  remote_aborted = IBV_WC_REM_ABORT_ERR,
  invalid_eec_number = IBV_WC_INV_EECN_ERR,
  invalid_eec_state = IBV_WC_INV_EEC_STATE_ERR,
  fatal = IBV_WC_FATAL_ERR,
  response_timeout = IBV_WC_RESP_TIMEOUT_ERR,
  general_error = IBV_WC_GENERAL_ERR,
};
/// "success", "remote access error", ...
RDMATX_API const char* status_name(WorkCompletionStatus status) noexcept;
/// The likely cause and the remedy, for an error message; empty for success.
RDMATX_API const char* status_advice(WorkCompletionStatus status) noexcept;

/// What kind of work completed. Meaningful only where the status is success.
enum class CompletionOpcode : int {
  send = IBV_WC_SEND,
  rdma_write = IBV_WC_RDMA_WRITE,
  rdma_read = IBV_WC_RDMA_READ,
  compare_swap = IBV_WC_COMP_SWAP,
  fetch_add = IBV_WC_FETCH_ADD,
  receive = IBV_WC_RECV,
  receive_write_with_immediate = IBV_WC_RECV_RDMA_WITH_IMM,
};
RDMATX_API const char* completion_opcode_name(CompletionOpcode opcode) noexcept;

enum class SendOpcode : int {
  send = IBV_WR_SEND,
  send_with_immediate = IBV_WR_SEND_WITH_IMM,
  rdma_write = IBV_WR_RDMA_WRITE,
  rdma_write_with_immediate = IBV_WR_RDMA_WRITE_WITH_IMM,
  rdma_read = IBV_WR_RDMA_READ,
  compare_swap = IBV_WR_ATOMIC_CMP_AND_SWP,
  fetch_add = IBV_WR_ATOMIC_FETCH_AND_ADD,
};
RDMATX_API const char* send_opcode_name(SendOpcode opcode) noexcept;

/// 256 … 4096 bytes and the code of the wire (1 … 5). Throws UsageError for anything else.
RDMATX_API uint32_t mtu_bytes_from_code(int code);
RDMATX_API int mtu_code_from_bytes(uint32_t bytes);

/// Waits until `fd` is readable. False where the time ran out or a signal came; negative seconds wait for
/// ever.
RDMATX_API bool wait_readable(int fd, double timeout_seconds);

}  // namespace rdmatx
