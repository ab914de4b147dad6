#pragma once

#include "soft/objects.hpp"

// What the requester does alike whichever way its peer is reached. Under the queue pair's mutex.

namespace rdmatx::soft {

enum class Step { done, blocked };

/// What post_send moves itself before it leaves the rest to whoever polls.
constexpr uint64_t brief_bytes = 64 * 1024;
/// What one call moves before it lets other threads at the queue pair.
constexpr uint64_t turn_bytes = 16 * 1024 * 1024;

/// The send fails once all before it are complete; nothing behind it may start.
Step fail(SendEntry& entry, ibv_wc_status status);
/// Completes, in order, what is done, acknowledged or refused. True if anything was.
bool reap(QueuePair& qp);
/// The peer's queue pair is not there: what a NIC finds out by sending again until its retries are used up.
void check_unreachable(QueuePair& qp);

}  // namespace rdmatx::soft
