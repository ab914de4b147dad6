#include "torch/backend.hpp"

#include <Python.h>

#include <algorithm>
#include <utility>

namespace rdmatx::distributed {
namespace {

/// Lets the GIL go for its lifetime, where this thread holds it.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) state_ = PyEval_SaveThread();
  }
  ~WithoutGil() {
    if (state_) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

}  // namespace

Backend::Backend(std::shared_ptr<Group> group, std::chrono::milliseconds timeout, Hooks hooks)
    : c10d::Backend(group->rank(), group->world()),
      group_(std::move(group)),
      options_(c10::make_intrusive<Options>("rdmatx", timeout)),
      hooks_(std::move(hooks)) {
  init();
}

Backend::~Backend() {
  try {
    shutdown();
  } catch (...) {
    // A Ctrl-C that came while connections lingered; all is closed anyway.
  }
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

double Backend::seconds_of(std::chrono::milliseconds timeout) const {
  const auto own = timeout < std::chrono::milliseconds(0) ? options_->timeout : timeout;
  return std::chrono::duration<double>(own).count();
}

Backend::WorkPointer Backend::start(c10d::OpType type, const char* title, const Tensors& inputs,
                                    std::vector<Part> parts, Outputs outputs, std::vector<Finish> finishes,
                                    std::chrono::milliseconds timeout, bool in_background) {
  auto work = c10::make_intrusive<Work>(getRank(), type, title, inputs, ++sequence_, std::move(outputs),
                                        std::move(finishes));
  const GroupCallOptions options{seconds_of(timeout), in_background};
  std::vector<GroupWork> operations;
  operations.reserve(parts.size());
  translated([&] {
    for (Part& part : parts)
      operations.push_back(
          group_->start(std::move(part.call), std::move(part.input), std::move(part.output), options));
  });
  work->stand_for(std::move(operations));
  release_tensors_given_up();
  return work;
}

void Backend::run(Part part, std::chrono::milliseconds timeout) {
  translated([&] {
    group_->run(std::move(part.call), std::move(part.input), std::move(part.output), seconds_of(timeout));
  });
}

void Backend::check_root(int64_t root, const char* name) const {
  TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "rdmatx: ", name, ": the root is a rank from 0 to ",
                    getSize() - 1, ", and was ", root);
}

void Backend::check_ranks(size_t count, const char* name, const char* what) const {
  TORCH_CHECK_VALUE(count == static_cast<size_t>(getSize()), "rdmatx: ", name, " takes ", getSize(), " ",
                    what, ", one for each rank, and was given ", count);
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return {};
  return hooks_.split(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                      options ? options->timeout : options_->timeout);
}

c10d::ErrorType Backend::getError() {
  const auto failure = group_->failure();
  if (!failure) return c10d::ErrorType::SUCCESS;
  try {
    std::rethrow_exception(failure);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerLostError&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (...) {
    return c10d::ErrorType::COMM_ERROR;
  }
}

// The group's own thread may be calling Python at the end of a work, and is waited for here: these let the
// GIL go.
void Backend::abort() {
  const WithoutGil without_gil;
  translated([&] { group_->abort("the process group was aborted"); });
}

void Backend::shutdown() {
  std::call_once(closed_, [this] {
    const WithoutGil without_gil;
    group_->close();
    release_tensors_given_up();
    hooks_.closed();
  });
}

}  // namespace rdmatx::distributed
