// Operations on memory of GPUs: what begins only when a stream has got so far, and what ends only when a copy
// has; see exchange.hpp.

#include <algorithm>
#include <utility>

#include "messaging/exchange.hpp"

namespace rdmatx {

// Of each kind those that were started later stay behind, so that their order is that of the calls. Where the
// work in the stream failed, so does the operation. Kept in view is what a GPU still has to do something for:
// not a receive whose message has not come.
void Exchange::look_at_gpu() {
  fail_hopeless();
  finish_landed();
  const auto waits_no_more = [&](const std::shared_ptr<Request>& request) {
    if (request->finished()) return true;
    const bool lands = std::find(landing_.begin(), landing_.end(), request) != landing_.end();
    return !lands && request->ready() && request->device()->ready_bytes() == UINT64_MAX;
  };
  std::erase_if(gpu_requests_, waits_no_more);
  begin_ready();  // after that: what became ready in between is looked at once more
}

void Exchange::fail_hopeless() {
  std::vector<std::shared_ptr<Request>> hopeless;
  for (const auto& request : gpu_requests_) {
    try {
      request->ready();
    } catch (...) {
      request->fail(std::current_exception());
      hopeless.push_back(request);
    }
  }
  for (const auto& request : hopeless) {
    const auto same = [&](const auto& other) { return other == request; };
    gated_receives_.erase_if(same);
    gated_one_sided_.erase_if(same);
    data_.erase_if(same);
    gpu_progressed_ = true;
  }
}

void Exchange::begin_ready() {
  while (!gated_receives_.empty() && gated_receives_.front()->ready()) {
    std::shared_ptr<Request> request = std::move(gated_receives_.front());
    gated_receives_.pop_front();
    meet(std::move(request));
    gpu_progressed_ = true;
  }
  while (!gated_one_sided_.empty() && gated_one_sided_.front()->ready()) {
    std::shared_ptr<Request> request = std::move(gated_one_sided_.front());
    gated_one_sided_.pop_front();
    if (request->kind() == RequestKind::flush)
      begin_flush(std::move(request));
    else
      begin_transfer(std::move(request));
    gpu_progressed_ = true;
  }
}

void Exchange::finish_landed() {
  const auto landed = [&](const std::shared_ptr<Request>& request) {
    try {
      if (!request->device()->landed()) return false;
      request->succeed(request->expected());
    } catch (...) {
      request->fail(std::current_exception());
    }
    return gpu_progressed_ = true;
  };
  if (std::erase_if(landing_, landed) > 0) end_flushes();
}

void Exchange::land(const std::shared_ptr<Request>& request, uint64_t bytes) {
  request->expect(bytes);
  try {
    request->device()->land(bytes);
  } catch (...) {
    return request->fail(std::current_exception());
  }
  landing_.push_back(request);
  finish_landed();
  if (!request->finished()) gpu_requests_.push_back(request);
}

}  // namespace rdmatx
