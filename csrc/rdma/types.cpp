#include "rdma/types.hpp"

#include <arpa/inet.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace rdmatx {

std::string access_text(Access access) {
  static constexpr std::pair<Access, const char*> names[] = {
      {Access::local_write, "local_write"},           {Access::remote_write, "remote_write"},
      {Access::remote_read, "remote_read"},           {Access::remote_atomic, "remote_atomic"},
      {Access::relaxed_ordering, "relaxed_ordering"},
  };
  std::string text;
  for (const auto& [flag, name] : names)
    if (has_access(access, flag)) text += (text.empty() ? "" : "|") + std::string(name);
  return text.empty() ? "none" : text;
}

const char* link_layer_name(LinkLayer layer) noexcept {
  switch (layer) {
    case LinkLayer::infiniband:
      return "InfiniBand";
    case LinkLayer::ethernet:
      return "Ethernet";
    case LinkLayer::unspecified:
      break;
  }
  return "unspecified";
}

const char* port_state_name(PortState state) noexcept {
  switch (state) {
    case PortState::nop:
      return "NOP";
    case PortState::down:
      return "DOWN";
    case PortState::initializing:
      return "INIT";
    case PortState::armed:
      return "ARMED";
    case PortState::active:
      return "ACTIVE";
    case PortState::active_defer:
      return "ACTIVE_DEFER";
  }
  return "unknown";
}

const char* gid_type_name(GidType type) noexcept {
  switch (type) {
    case GidType::infiniband:
      return "IB";
    case GidType::roce_v1:
      return "RoCE v1";
    case GidType::roce_v2:
      return "RoCE v2";
  }
  return "unknown";
}

bool Gid::is_empty() const noexcept {
  return std::all_of(raw.begin() + 8, raw.end(), [](uint8_t byte) { return byte == 0; });
}

bool Gid::is_ipv4_mapped() const noexcept {
  return std::all_of(raw.begin(), raw.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         raw[10] == 0xff && raw[11] == 0xff;
}

bool Gid::is_link_local() const noexcept {
  return raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
}

std::string Gid::text() const {
  char buffer[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, raw.data(), buffer, sizeof buffer);
}

Gid Gid::parse(const std::string& text) {
  Gid gid;
  if (inet_pton(AF_INET6, text.c_str(), gid.raw.data()) != 1)
    throw UsageError("\"" + text +
                     "\" is not a GID: write it as an IPv6 address, such as fe80::1 or ::ffff:10.0.0.1");
  return gid;
}

const char* queue_pair_state_name(QueuePairState state) noexcept {
  switch (state) {
    case QueuePairState::reset:
      return "RESET";
    case QueuePairState::init:
      return "INIT";
    case QueuePairState::ready_to_receive:
      return "RTR";
    case QueuePairState::ready_to_send:
      return "RTS";
    case QueuePairState::send_queue_drained:
      return "SQD";
    case QueuePairState::send_queue_error:
      return "SQE";
    case QueuePairState::error:
      return "ERR";
  }
  return "unknown";
}

namespace {

struct StatusText {
  WorkCompletionStatus status;
  const char* name;
  const char* advice;
};

// The causes follow the descriptions of the completion codes in the InfiniBand specification, volume 1,
// "Completion return status".
constexpr StatusText status_texts[] = {
    {WorkCompletionStatus::success, "success", ""},
    {WorkCompletionStatus::local_length_error, "local length error",
     "a message was larger than the receive it met, or than the port carries: post a larger receive"},
    {WorkCompletionStatus::local_qp_operation_error, "local queue pair operation error",
     "the work request is not consistent with its queue pair: check its opcode, flags and element count"},
    {WorkCompletionStatus::local_eec_operation_error, "local end-to-end context operation error", ""},
    {WorkCompletionStatus::local_protection_error, "local protection error",
     "an element reaches outside its region, its local key is stale or of another protection domain, or a "
     "receive "
     "names memory without local_write"},
    {WorkCompletionStatus::flushed, "flushed",
     "the queue pair was in the error state: the first failed completion before this one names the cause"},
    {WorkCompletionStatus::memory_window_bind_error, "memory window bind error", ""},
    {WorkCompletionStatus::bad_response, "bad response", "the peer answered with something unexpected"},
    {WorkCompletionStatus::local_access_error, "local access error",
     "the peer's write with immediate met memory of this side that it may not write"},
    {WorkCompletionStatus::remote_invalid_request, "remote invalid request",
     "the peer refused the request: the message was larger than its receive, or its queue pair does not "
     "allow the "
     "operation"},
    {WorkCompletionStatus::remote_access_error, "remote access error",
     "the remote key or range is not valid at the peer: the region may be gone, of another protection "
     "domain, too "
     "short, or without the access that the operation needs"},
    {WorkCompletionStatus::remote_operation_error, "remote operation error",
     "the peer failed while it served the request: its own completions say why"},
    {WorkCompletionStatus::retry_exceeded, "retry count exceeded",
     "the peer did not answer: its process or its queue pair is gone, the network lost the packets, or the "
     "address "
     "is wrong"},
    {WorkCompletionStatus::receiver_not_ready_retry_exceeded, "receiver not ready retry count exceeded",
     "the peer posted no receive in time: let it post more receives, or raise rnr_retry (7 waits for ever)"},
    {WorkCompletionStatus::local_rdd_violation, "local RDD violation", ""},
    {WorkCompletionStatus::remote_invalid_rd_request, "remote invalid RD request", ""},
    {WorkCompletionStatus::remote_aborted, "remote aborted", "the peer took its queue pair away"},
    {WorkCompletionStatus::invalid_eec_number, "invalid end-to-end context number", ""},
    {WorkCompletionStatus::invalid_eec_state, "invalid end-to-end context state", ""},
    {WorkCompletionStatus::fatal, "fatal error", "the device failed: see the kernel's log"},
    {WorkCompletionStatus::response_timeout, "response timeout", "the peer did not answer in time"},
    {WorkCompletionStatus::general_error, "general error", "the device failed: see its vendor error code"},
};

const StatusText* find_status(WorkCompletionStatus status) noexcept {
  for (const StatusText& entry : status_texts)
    if (entry.status == status) return &entry;
  return nullptr;
}

}  // namespace

const char* status_name(WorkCompletionStatus status) noexcept {
  const StatusText* entry = find_status(status);
  return entry ? entry->name : "unknown status";
}

const char* status_advice(WorkCompletionStatus status) noexcept {
  const StatusText* entry = find_status(status);
  return entry ? entry->advice : "";
}

const char* completion_opcode_name(CompletionOpcode opcode) noexcept {
  switch (opcode) {
    case CompletionOpcode::send:
      return "send";
    case CompletionOpcode::rdma_write:
      return "rdma_write";
    case CompletionOpcode::rdma_read:
      return "rdma_read";
    case CompletionOpcode::compare_swap:
      return "compare_swap";
    case CompletionOpcode::fetch_add:
      return "fetch_add";
    case CompletionOpcode::receive:
      return "receive";
    case CompletionOpcode::receive_write_with_immediate:
      return "receive_write_with_immediate";
  }
  return "unknown";
}

const char* send_opcode_name(SendOpcode opcode) noexcept {
  switch (opcode) {
    case SendOpcode::send:
      return "send";
    case SendOpcode::send_with_immediate:
      return "send_with_immediate";
    case SendOpcode::rdma_write:
      return "rdma_write";
    case SendOpcode::rdma_write_with_immediate:
      return "rdma_write_with_immediate";
    case SendOpcode::rdma_read:
      return "rdma_read";
    case SendOpcode::compare_swap:
      return "compare_swap";
    case SendOpcode::fetch_add:
      return "fetch_add";
  }
  return "unknown";
}

uint32_t mtu_bytes_from_code(int code) {
  if (code < 1 || code > 5)
    throw UsageError("MTU code " + std::to_string(code) + " is none of 1 (256 bytes) to 5 (4096)");
  return 128u << code;
}

int mtu_code_from_bytes(uint32_t bytes) {
  for (int code = 1; code <= 5; ++code)
    if (bytes == 128u << code) return code;
  throw UsageError("an MTU is 256, 512, 1024, 2048 or 4096 bytes, not " + std::to_string(bytes));
}

bool wait_readable(int fd, double timeout_seconds) {
  using Clock = std::chrono::steady_clock;
  // poll() takes milliseconds in an int; longer waits go round again.
  constexpr double longest_seconds = 3600;
  const bool forever = timeout_seconds < 0;
  const Clock::time_point start = Clock::now();
  for (;;) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    const double left = forever ? longest_seconds : std::max(0.0, timeout_seconds - elapsed);
    pollfd waiting{fd, POLLIN, 0};
    const int count = ::poll(&waiting, 1, static_cast<int>(std::ceil(std::min(left, longest_seconds) * 1e3)));
    if (count > 0) return true;
    if (count < 0) {
      if (errno == EINTR) return false;
      throw Error("poll() failed while waiting for an event: " + describe_errno(errno));
    }
    if (!forever && left <= longest_seconds) return false;
  }
}

}  // namespace rdmatx
