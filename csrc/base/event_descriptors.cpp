#include "base/event_descriptors.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/error.hpp"

namespace rdmatx {
namespace {

UniqueFd checked(int fd, const char* call) {
  if (fd < 0) throw Error(std::string(call) + " failed: " + describe_errno(errno));
  return UniqueFd(fd);
}

}  // namespace

UniqueFd make_event_descriptor() {
  return checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
}

UniqueFd make_epoll() {
  return checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
}

void add_to_epoll(const UniqueFd& epoll, int fd, uint32_t what) {
  epoll_event event{what, {.fd = fd}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw Error("epoll_ctl failed: " + describe_errno(errno));
}

void ring(const UniqueFd& event) noexcept {
  if (!event) return;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event.get(), &one, sizeof one);
}

void silence(const UniqueFd& event) noexcept {
  uint64_t value = 0;
  [[maybe_unused]] const auto taken = ::read(event.get(), &value, sizeof value);
}

}  // namespace rdmatx
