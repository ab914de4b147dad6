#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/peer.hpp"
#include "soft/wire.hpp"

namespace rdmatx::soft {

bool local_pieces(const QueuePair& qp, const ibv_sge* sges, uint32_t count, uint64_t offset, uint64_t bytes,
                  uint32_t access, std::vector<iovec>& pieces) {
  pieces.clear();
  const MemoryTable& memory = qp.context->instance->memory();
  for (uint32_t i = 0; i < count && bytes > 0; ++i) {
    const ibv_sge& sge = sges[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const uint64_t length = std::min<uint64_t>(sge.length - offset, bytes);
    const MemoryEntry* region = memory.find(sge.lkey, sge.addr + offset, length, qp.domain->number, access);
    if (!region) return false;
    const uint64_t place = sge.addr + offset + region->displacement.load(std::memory_order_relaxed);
    pieces.push_back({reinterpret_cast<void*>(place), length});
    bytes -= length;
    offset = 0;
  }
  return bytes == 0;
}

bool send_pieces(QueuePair& qp, const SendEntry& entry, uint64_t offset, uint64_t bytes, uint32_t access,
                 std::vector<iovec>& pieces) {
  const size_t slot = static_cast<size_t>(&entry - qp.sends.data());
  if (entry.inline_data) {
    pieces.assign(1, {qp.inline_data.data() + slot * qp.initial.cap.max_inline_data + offset, bytes});
    return true;
  }
  const ibv_sge* sges = qp.send_sges.data() + slot * qp.initial.cap.max_send_sge;
  return local_pieces(qp, sges, entry.sge_count, offset, bytes, access, pieces);
}

std::byte* region_memory(const QueuePair& qp, uint32_t key, uint64_t address) noexcept {
  return reinterpret_cast<std::byte*>(address + qp.context->instance->memory().displacement(key));
}

void gather(std::byte* to, const std::vector<iovec>& pieces) noexcept {
  for (const iovec& piece : pieces) {
    std::memcpy(to, piece.iov_base, piece.iov_len);
    to += piece.iov_len;
  }
}

void scatter(const std::byte* from, const std::vector<iovec>& pieces) noexcept {
  for (const iovec& piece : pieces) {
    std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
}

// The kernel may stop short at any piece's end.
int copy_attached(pid_t pid, bool to_peer, std::vector<iovec>& pieces, uint64_t remote) {
  size_t first = 0;
  while (first < pieces.size()) {
    size_t left = 0;
    for (size_t i = first; i < pieces.size(); ++i) left += pieces[i].iov_len;
    iovec target{reinterpret_cast<void*>(remote), left};
    const auto count = pieces.size() - first;
    const ssize_t moved = to_peer ? process_vm_writev(pid, &pieces[first], count, &target, 1, 0)
                                  : process_vm_readv(pid, &pieces[first], count, &target, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    remote += static_cast<uint64_t>(moved);
    for (size_t done = static_cast<size_t>(moved); done > 0;) {
      const size_t part = std::min(done, pieces[first].iov_len);
      pieces[first].iov_base = static_cast<std::byte*>(pieces[first].iov_base) + part;
      pieces[first].iov_len -= part;
      done -= part;
      if (pieces[first].iov_len == 0) ++first;
    }
  }
  return 0;
}

namespace {

/// Announces the key that is about to be used, for as long as it lives (see ChannelState::accessing_key).
class Announcement {
 public:
  Announcement(ChannelState& channel, uint32_t key) : channel_(channel) {
    channel_.accessing_key.store(key, std::memory_order_seq_cst);
  }
  ~Announcement() { channel_.accessing_key.store(0, std::memory_order_release); }
  Announcement(const Announcement&) = delete;
  Announcement& operator=(const Announcement&) = delete;

 private:
  ChannelState& channel_;
};

}  // namespace

int copy_directly(QueuePair& qp, const SendEntry& entry, uint64_t offset, uint64_t bytes) {
  const bool to_peer = entry.opcode != IBV_WR_RDMA_READ;
  const uint32_t needed = to_peer ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ;
  ChannelState& channel = qp.outbound->state();
  Peer& peer = *qp.peer;
  std::vector<iovec>& pieces = qp.pieces;
  if (!send_pieces(qp, entry, offset, bytes, to_peer ? 0 : IBV_ACCESS_LOCAL_WRITE, pieces)) return EINVAL;

  Announcement announcement(channel, entry.remote_key);
  if (channel.open.load(std::memory_order_seq_cst) == 0) return ESHUTDOWN;
  const MemoryEntry* region = (channel.access.load() & needed) == needed
                                  ? peer.memory().find(entry.remote_key, entry.remote_address, entry.length,
                                                       channel.protection_domain.load(), needed)
                                  : nullptr;
  if (!region) return EACCES;
  const uint64_t remote = entry.remote_address + offset;
  const uint64_t there = remote + region->displacement.load(std::memory_order_relaxed);
  std::byte* mapped = nullptr;
  if (peer.is_self()) {
    mapped = reinterpret_cast<std::byte*>(there);
  } else if (const uint64_t segment = region->segment.load(std::memory_order_relaxed)) {
    const uint64_t place = region->segment_offset.load() + (remote - region->address.load());
    mapped = peer.mapped_segment(segment, place + bytes, qp.context->instance->wire());
    if (mapped) mapped += place;
  }
  if (mapped) {
    if (to_peer)
      gather(mapped, pieces);
    else
      scatter(mapped, pieces);
    return 0;
  }
  if (!peer.can_copy_directly()) return EPERM;
  return copy_attached(peer.pid(), to_peer, pieces, there);
}

void help_with_write(QueuePair& qp) {
  if (!qp.inbound || !qp.peer->can_copy_directly() || qp.peer->is_self()) return;
  const int state = qp.state.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
  SharedWrite& write = qp.inbound->state().shared_write;
  for (;;) {
    uint64_t claims = write.claims.load(std::memory_order_acquire);
    const uint64_t generation = claims >> 32, piece = claims & SharedWrite::closed;
    const uint64_t length = write.length.load(std::memory_order_relaxed);
    if (piece >= SharedWrite::pieces(length)) return;
    const uint64_t source = write.source.load(std::memory_order_relaxed);
    const uint64_t target = write.target.load(std::memory_order_relaxed);
    // Where the peer may not write, it finds out by itself, with its first piece.
    const uint32_t key = write.key.load(std::memory_order_relaxed);
    if (!peer_may_access(qp, key, target, length, IBV_ACCESS_REMOTE_WRITE)) return;
    if (!write.claims.compare_exchange_strong(claims, claims + 1)) continue;
    const uint64_t offset = piece * SharedWrite::piece_bytes(length);
    const uint64_t bytes = std::min(length - offset, SharedWrite::piece_bytes(length));
    std::vector<iovec>& pieces = qp.pieces;
    pieces.assign(1, {region_memory(qp, key, target + offset), bytes});
    if (copy_attached(qp.peer->pid(), false, pieces, source + offset) != 0) write.failed.store(generation);
    qp.helped = qp.helped >> 32 == generation ? qp.helped + 1 : generation << 32 | 1;
    write.helped.store(qp.helped, std::memory_order_release);
  }
}

void close_shared_write(QueuePair& qp) {
  if (!qp.outbound) return;
  const uint64_t none = uint64_t{qp.shared_generation} << 32 | SharedWrite::closed;
  qp.outbound->state().shared_write.claims.store(none, std::memory_order_release);
}

bool wait_for_peer(const ChannelState& inbound, const Peer& peer, uint32_t key) {
  const uint64_t give_up = now_ns() + 5'000'000'000;
  for (;;) {
    const uint32_t used = inbound.accessing_key.load(std::memory_order_seq_cst);
    if (used == 0 || (key != 0 && used != key) || !peer.alive()) return true;
    if (now_ns() > give_up) return false;
    std::this_thread::yield();
  }
}

}  // namespace rdmatx::soft
