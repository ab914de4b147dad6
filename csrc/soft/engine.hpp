#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <vector>

#include "soft/objects.hpp"

// What a NIC's firmware does: executes the work of queue pairs. Every function is called with the queue
// pair's mutex held, by whichever thread polls, posts, or steps in from the background.

namespace rdmatx::soft {

/// How far post_send goes itself: what would keep the caller longer is left to whoever polls.
enum class Effort { brief, full };

/// Executes and completes posted sends as far as they can go now. True if anything moved.
bool progress_requests(QueuePair& qp, Effort effort);
/// Executes what the peer asks for. True if anything moved.
bool progress_responses(QueuePair& qp);
/// progress_requests() for a peer that is reached over TCP.
bool tcp_progress_requests(QueuePair& qp, Effort effort);
inline bool drive(QueuePair& qp) {
  const bool responded = progress_responses(qp);
  return progress_requests(qp, Effort::full) || responded;
}

/// Whether a timer runs that ends a send in error: the peer cannot be reached, or has no receive posted.
bool timer_runs(const QueuePair& qp);

/// Completes every posted send in error: the oldest with `first`, the rest as flushed.
void flush_sends(QueuePair& qp, ibv_wc_status first);
/// To the error state: the oldest incomplete send completes with `first`, everything else posted is flushed.
void enter_error(QueuePair& qp, ibv_wc_status first);
/// The peer's process is gone: what it sent before still counts, then the queue pair fails.
void fail_for_lost_peer(QueuePair& qp);

/// Before this side sleeps: the peer is to ring when anything comes.
void ask_for_doorbell(QueuePair& qp);
/// Ring the peer's doorbell where it asked for it.
void wake_responder(QueuePair& qp);
void wake_requester(QueuePair& qp);

/// Moves payload between the peer's memory and a local scatter list without the peer's help: a plain copy
/// where the memory is mapped here, else through the kernel. 0, or an errno: ESHUTDOWN where the responder
/// takes no more, EINVAL for a local key, EACCES for a remote one, EPERM where the kernel does not let
/// processes reach each other.
int copy_directly(QueuePair& qp, const SendEntry& entry, uint64_t offset, uint64_t bytes);

/// Copies pieces of the large write that the peer has under way, if there is one. For a thread that polls and
/// so has nothing better to do.
void help_with_write(QueuePair& qp);
/// Leaves nothing of a shared write to be claimed. For the requester.
void close_shared_write(QueuePair& qp);
/// process_vm_writev(2) or process_vm_readv(2), until all is moved. 0 or an errno.
int copy_attached(pid_t pid, bool to_peer, std::vector<iovec>& pieces, uint64_t remote);

/// Whether the peer may access [address, address + length) of this process so, through this queue pair.
bool peer_may_access(const QueuePair& qp, uint32_t key, uint64_t address, uint64_t length, uint32_t access);
/// Where the bytes are that lie at this address of a region of this process.
std::byte* region_memory(const QueuePair& qp, uint32_t key, uint64_t address) noexcept;

/// Waits until the peer moves no data through `key` (0: through any), which it was just forbidden to use.
/// False where it does not move on within seconds: its process is stopped. Needs no lock.
bool wait_for_peer(const ChannelState& inbound, const Peer& peer, uint32_t key);

/// The pieces of a scatter/gather list that cover [offset, offset + bytes), checked against the region table;
/// false where a piece lies outside its region or lacks `access`.
bool local_pieces(const QueuePair& qp, const ibv_sge* sges, uint32_t count, uint64_t offset, uint64_t bytes,
                  uint32_t access, std::vector<iovec>& pieces);
/// The same for a posted send, whose payload may lie inline in the queue.
bool send_pieces(QueuePair& qp, const SendEntry& entry, uint64_t offset, uint64_t bytes, uint32_t access,
                 std::vector<iovec>& pieces);
void gather(std::byte* to, const std::vector<iovec>& pieces) noexcept;
void scatter(const std::byte* from, const std::vector<iovec>& pieces) noexcept;

}  // namespace rdmatx::soft
