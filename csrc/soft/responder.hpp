#pragma once

#include "soft/engine.hpp"

// What the responder checks and does alike whichever way its peer is reached. Under the queue pair's mutex.

namespace rdmatx::soft {

/// What became of a request.
enum class Outcome {
  consumed,
  waits,    // for a receive, or for room for its answer
  refused,  // it failed at the requester, and the queue pair is in error now
};

/// Takes the oldest posted receive as the one that the current message goes into; false where none is posted.
bool take_receive(QueuePair& qp);
bool receive_is_posted(QueuePair& qp);
void acknowledge(QueuePair& qp);
/// Ends the message in error at the requester, and this queue pair with it (as a NIC's NAK does).
Outcome refuse(QueuePair& qp, ibv_wc_status for_requester, ibv_event_type event);

/// The memory that a part of the current message goes into: its receive's, or the region it names.
Outcome send_target(QueuePair& qp, uint64_t offset, uint64_t bytes, std::vector<iovec>& pieces);
Outcome check_write(QueuePair& qp, uint32_t key, uint64_t address, uint64_t bytes);
Outcome check_read(QueuePair& qp, const Record& record);
/// Carries it out: what was there before.
Outcome execute_atomic(QueuePair& qp, const Record& record, uint64_t* before);
/// Completes the receive that was taken. `bytes` as the completion tells them.
void finish_receive(QueuePair& qp, const Record& record, ibv_wc_opcode opcode, uint64_t bytes);

}  // namespace rdmatx::soft
