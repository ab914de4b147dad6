#pragma once

namespace rdmatx {

/// Throws UsageError where the process was forked since `generation` was read from process_generation().
void check_not_forked(int generation);

/// Descriptors that a forked child must not hold open: as long as it does, the peer would not see the parent
/// die. In the child they are replaced by /dev/null at the fork. Thread-safe.
void neutralize_in_child(int fd);
void forget_descriptor(int fd) noexcept;

}  // namespace rdmatx
