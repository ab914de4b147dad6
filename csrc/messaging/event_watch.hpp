#pragma once

#include <memory>

#include "base/export.hpp"
#include "messaging/progress.hpp"

namespace rdmatx {

/// How an event loop (asyncio) waits for the connections of a context: a descriptor that is readable when
/// something may have happened, and a call that handles it without waiting. While it lives it counts as one
/// that sleeps: whoever else makes progress wakes it.
///
/// Owns its descriptors, and a share of the context's completion channels. serve() is for one thread at a
/// time; destroyed only while it does not run.
class RDMATX_API EventWatch {
 public:
  /// Throws ClosedError where the context was closed.
  explicit EventWatch(std::shared_ptr<Progress> progress);
  ~EventWatch();
  EventWatch(const EventWatch&) = delete;
  EventWatch& operator=(const EventWatch&) = delete;

  int fd() const noexcept { return epoll_.get(); }
  /// Takes what came, makes progress, and asks for the next event: the descriptor is readable when that
  /// comes. A look at what is waited for belongs behind it.
  void serve();

 private:
  friend class Progress;
  void wake() const noexcept;

  const std::shared_ptr<Progress> progress_;
  UniqueFd wake_;
  UniqueFd epoll_;
  std::shared_ptr<Progress::Watch> watch_;
};

}  // namespace rdmatx
