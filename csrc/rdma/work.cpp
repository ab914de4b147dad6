#include "rdma/work.hpp"

#include <arpa/inet.h>

#include <cstdio>

#include "base/error.hpp"

namespace rdmatx {

void ScatterGatherList::add(const void* address, uint32_t bytes, uint32_t local_key) {
  if (bytes == 0) return;
  const ibv_sge element{reinterpret_cast<uint64_t>(address), bytes, local_key};
  if (count_ < inside) {
    elements_[count_] = element;
  } else {
    if (more_.empty()) more_.assign(elements_.begin(), elements_.end());
    more_.push_back(element);
  }
  ++count_;
}

uint64_t ScatterGatherList::total_bytes() const noexcept {
  uint64_t total = 0;
  for (size_t i = 0; i < count_; ++i) total += data()[i].length;
  return total;
}

namespace {

void require_inside(const MemoryRegion& region, size_t offset, uint32_t bytes) {
  if (offset > region.bytes() || bytes > region.bytes() - offset)
    throw UsageError("a work request reaches beyond its region: " + std::to_string(bytes) +
                     " bytes from offset " + std::to_string(offset) + " of " +
                     std::to_string(region.bytes()));
}

const std::byte* at(const MemoryRegion& region, size_t offset) {
  return static_cast<const std::byte*>(region.address()) + offset;
}

}  // namespace

SendWork::SendWork(SendOpcode opcode, uint64_t work_id) {
  request_.wr_id = work_id;
  request_.opcode = static_cast<ibv_wr_opcode>(opcode);
}

SendWork SendWork::write(uint64_t remote_address, uint32_t remote_key, uint64_t work_id) {
  SendWork work(SendOpcode::rdma_write, work_id);
  work.request_.wr.rdma = {remote_address, remote_key};
  return work;
}

SendWork SendWork::read(uint64_t remote_address, uint32_t remote_key, uint64_t work_id) {
  SendWork work(SendOpcode::rdma_read, work_id);
  work.request_.wr.rdma = {remote_address, remote_key};
  return work;
}

SendWork SendWork::fetch_add(uint64_t remote_address, uint32_t remote_key, uint64_t value, uint64_t work_id) {
  SendWork work(SendOpcode::fetch_add, work_id);
  work.request_.wr.atomic = {remote_address, value, 0, remote_key};
  return work;
}

SendWork SendWork::compare_swap(uint64_t remote_address, uint32_t remote_key, uint64_t expected,
                                uint64_t desired, uint64_t work_id) {
  SendWork work(SendOpcode::compare_swap, work_id);
  work.request_.wr.atomic = {remote_address, expected, desired, remote_key};
  return work;
}

SendWork& SendWork::add(const void* address, uint32_t bytes, uint32_t local_key) {
  elements_.add(address, bytes, local_key);
  return *this;
}

SendWork& SendWork::add(const MemoryRegion& region, size_t offset, uint32_t bytes) {
  require_inside(region, offset, bytes);
  return add(at(region, offset), bytes, region.local_key());
}

SendWork& SendWork::immediate(uint32_t value) {
  switch (opcode()) {
    case SendOpcode::send:
    case SendOpcode::send_with_immediate:
      request_.opcode = IBV_WR_SEND_WITH_IMM;
      break;
    case SendOpcode::rdma_write:
    case SendOpcode::rdma_write_with_immediate:
      request_.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      break;
    default:
      throw UsageError(std::string("only a send or a write carries an immediate, not ") +
                       send_opcode_name(opcode()));
  }
  request_.imm_data = htonl(value);
  return *this;
}

SendWork& SendWork::id(uint64_t work_id) noexcept {
  request_.wr_id = work_id;
  return *this;
}

SendWork& SendWork::flag(unsigned bit, bool on) noexcept {
  if (on) {
    request_.send_flags |= bit;
  } else {
    request_.send_flags &= ~bit;
  }
  return *this;
}

std::string SendWork::text() const {
  std::string text = std::string(send_opcode_name(opcode())) + " of " + std::to_string(total_bytes()) +
                     " bytes in " + std::to_string(elements_.size()) + " element(s)";
  const bool is_atomic = opcode() == SendOpcode::fetch_add || opcode() == SendOpcode::compare_swap;
  const bool is_send = opcode() == SendOpcode::send || opcode() == SendOpcode::send_with_immediate;
  if (!is_send) {
    char remote[64];
    std::snprintf(remote, sizeof remote, ", remote address 0x%llx key 0x%x",
                  static_cast<unsigned long long>(is_atomic ? request_.wr.atomic.remote_addr
                                                            : request_.wr.rdma.remote_addr),
                  is_atomic ? request_.wr.atomic.rkey : request_.wr.rdma.rkey);
    text += remote;
  }
  if (request_.send_flags & IBV_SEND_SIGNALED) text += ", signaled";
  if (request_.send_flags & IBV_SEND_INLINE) text += ", inlined";
  if (request_.send_flags & IBV_SEND_FENCE) text += ", fenced";
  if (request_.send_flags & IBV_SEND_SOLICITED) text += ", solicited";
  return text;
}

ibv_send_wr* SendWork::link(ibv_send_wr* next) noexcept {
  request_.next = next;
  request_.sg_list = elements_.data();
  request_.num_sge = elements_.size();
  return &request_;
}

ReceiveWork::ReceiveWork(uint64_t work_id) {
  request_.wr_id = work_id;
}

ReceiveWork& ReceiveWork::add(void* address, uint32_t bytes, uint32_t local_key) {
  elements_.add(address, bytes, local_key);
  return *this;
}

ReceiveWork& ReceiveWork::add(const MemoryRegion& region, size_t offset, uint32_t bytes) {
  require_inside(region, offset, bytes);
  elements_.add(at(region, offset), bytes, region.local_key());
  return *this;
}

ReceiveWork& ReceiveWork::id(uint64_t work_id) noexcept {
  request_.wr_id = work_id;
  return *this;
}

ibv_recv_wr* ReceiveWork::link(ibv_recv_wr* next) noexcept {
  request_.next = next;
  request_.sg_list = elements_.data();
  request_.num_sge = elements_.size();
  return &request_;
}

}  // namespace rdmatx
