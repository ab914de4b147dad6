#pragma once

#include <cstdint>

#include "base/unique_fd.hpp"

// What waiting for descriptors is made of: event descriptors (eventfd(2)) and sets of descriptors (epoll(7)).
// All throw Error naming the call that the system refused.

namespace rdmatx {

UniqueFd make_event_descriptor();
UniqueFd make_epoll();
void add_to_epoll(const UniqueFd& epoll, int fd, uint32_t what);
/// Makes an event descriptor, if there is one, readable; never waits, never fails.
void ring(const UniqueFd& event) noexcept;
/// Makes it unreadable again.
void silence(const UniqueFd& event) noexcept;

}  // namespace rdmatx
