#include "soft/wire.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.hpp"
#include "soft/engine.hpp"
#include "soft/instance.hpp"
#include "soft/tcp_port.hpp"
#include "soft/wire_messages.hpp"

namespace rdmatx::soft {
namespace {

uint64_t random_token() {
  uint64_t token = 0;
  if (getrandom(&token, sizeof token, 0) != sizeof token) token = reinterpret_cast<uint64_t>(&token);
  return token;
}

UniqueFd checked(int fd, const char* what) {
  if (fd < 0)
    throw Error(std::string("the software HCA cannot create ") + what + ": " + describe_errno(errno));
  return UniqueFd(fd);
}

}  // namespace

void Peer::ring_doorbell() const noexcept {
  eventfd_write(doorbell_.get(), 1);
}

std::byte* Peer::mapped_segment(uint64_t segment, uint64_t end, Wire& wire) {
  std::lock_guard lock(mappings_mutex_);
  auto [found, is_new] = mappings_.try_emplace(segment);
  if (is_new) wire.request_segment(*this, segment);
  const auto& memory = found->second;
  return memory && end <= memory->size() ? memory->data() : nullptr;
}

Wire::Wire(Instance& instance)
    : instance_(instance),
      probe_token_(random_token()),
      listener_(checked(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "a socket")),
      doorbell_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "an event file descriptor")),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "an epoll file descriptor")) {
  auto [address, size] = abstract_address(instance.id());
  if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_.get(), 512) != 0)
    throw Error("the software HCA cannot listen on its socket: " + describe_errno(errno));
  if (!watch(listener_.get(), listener_token) || !watch(doorbell_.get(), doorbell_token))
    throw Error("the software HCA cannot watch its sockets: " + describe_errno(errno));
  auto self = std::make_shared<Peer>(instance.id(), true);
  self->pid_ = getpid();
  self->memory_ = std::shared_ptr<MemoryTable>(&instance.memory(), [](MemoryTable*) {});
  self->doorbell_ = checked(fcntl(doorbell_.get(), F_DUPFD_CLOEXEC, 0), "a file descriptor");
  peers_[instance.id()] = std::move(self);

  if (instance.wire_choice() == WireChoice::automatic || instance.wire_choice() == WireChoice::tcp)
    tcp_ = std::make_unique<TcpPort>(instance, epoll_.get());

  // Signals belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "rdmatx-soft");
    run();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Wire::~Wire() {
  stopping_.store(true);
  eventfd_write(doorbell_.get(), 1);
  thread_.join();
}

std::shared_ptr<Peer> Wire::peer(uint64_t identity) {
  std::lock_guard lock(mutex_);
  auto& known = peers_[identity];
  if (!known) {
    known = std::make_shared<Peer>(identity, false);
    requests_.push_back({identity, make(kind_hello)});
  }
  return known;
}

void Wire::claim_channel(const std::shared_ptr<Peer>& peer, uint32_t remote, uint32_t local,
                         uint32_t incarnation) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back({peer->identity(), make(kind_claim, remote, local, incarnation)});
  }
  wake();
}

void Wire::request_segment(Peer& peer, uint64_t segment) {
  {
    std::lock_guard lock(mutex_);
    requests_.push_back({peer.identity(), make(kind_map, segment)});
  }
  wake();
}

void Wire::wake() noexcept {
  if (rest_.exchange(awake) != awake) eventfd_write(doorbell_.get(), 1);
}

void Wire::nudge() noexcept {
  int resting = asleep;
  if (rest_.compare_exchange_strong(resting, awake)) eventfd_write(doorbell_.get(), 1);
}

Wire::Message Wire::make(uint16_t kind, uint64_t a, uint64_t b, uint64_t c) const {
  return {wire_magic, wire_version, kind, instance_.id(), {a, b, c, 0}};
}

bool Wire::watch(int fd, uint64_t token) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = token;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void Wire::run() {
  int timeout_ms = 0;
  while (!stopping_.load() || is_leaving()) {
    epoll_event events[32];
    const int count = epoll_wait(epoll_.get(), events, 32, timeout_ms);
    rest_.store(awake);
    for (int i = 0; i < count; ++i) handle_event(events[i].data.u64);
    handle_requests();
    // First the announcement, then the looks: what another thread does after one of them (a queue pair that
    // is ready for its claim, a peer whose last queue pair goes, a host to be reached) rings the doorbell.
    rest_.store(asleep);
    grant_claims();
    flush_all();
    forget_unused_peers();
    const int due_ms = tcp_ ? tcp_->work() : -1;
    timeout_ms = drive_unpolled(instance_);
    if (std::any_of(links_.begin(), links_.end(), [](auto& link) { return !link.second.unsent.empty(); }))
      timeout_ms = timeout_ms < 0 ? patrol_ms : timeout_ms;
    if (timeout_ms >= 0) {
      int resting = asleep;
      rest_.compare_exchange_strong(resting, on_patrol);
    }
    if (due_ms >= 0 && (timeout_ms < 0 || due_ms < timeout_ms)) timeout_ms = due_ms;
    std::lock_guard lock(mutex_);
    if (!requests_.empty()) timeout_ms = 0;
  }
}

/// After the last queue pair has gone: whether peers are still being told of its end.
bool Wire::is_leaving() {
  if (!tcp_ || tcp_->at_rest()) return false;
  if (leave_until_ns_ == 0) leave_until_ns_ = now_ns() + 300'000'000;
  return now_ns() < leave_until_ns_;
}

void Wire::handle_event(uint64_t token) {
  if (token == doorbell_token) {
    eventfd_t rings;
    eventfd_read(doorbell_.get(), &rings);
  } else if (token == listener_token) {
    accept_links();
  } else if (token & TcpPort::token_bit) {
    tcp_->handle_event(token);
  } else if (token & process_bit) {
    close_link(token & ~process_bit);
  } else {
    receive(token);
  }
}

void Wire::handle_requests() {
  std::vector<Request> requests;
  {
    std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const Request& request : requests) {
    std::shared_ptr<Peer> peer;
    {
      std::lock_guard lock(mutex_);
      if (auto known = peers_.find(request.identity); known != peers_.end()) peer = known->second;
    }
    if (!peer) continue;
    if (!peer->alive()) {
      if (request.message.kind == kind_claim)
        instance_.with(static_cast<uint32_t>(request.message.values[1]), [&](QueuePair& qp) {
          std::lock_guard lock(qp.mutex);
          if (qp.peer == peer) fail_for_lost_peer(qp);
        });
      continue;
    }
    if (request.message.kind == kind_hello) {
      connect_link(peer);
      continue;
    }
    if (peer->is_self()) {
      add_claim(0, request.identity, request.message);
      continue;
    }
    bool connected = false;
    for (auto& [key, link] : links_)
      if (link.peer == peer) {
        connected = true;
        if (link.greeted)
          send(link, {request.message});
        else
          link.after_greeting.push_back({request.message});
      }
    if (!connected) {  // its backlog was full: connecting is asked for again, and so is this
      std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
  }
}

void Wire::handle_message(uint64_t key, Link& link, const Message& message, UniqueFd (&descriptors)[2]) {
  switch (message.kind) {
    case kind_hello:
      return greeted(link, message, descriptors);
    case kind_claim:
      return add_claim(key, link.identity, message);
    case kind_grant:
      return granted(link.identity, message, Channel::map(std::move(descriptors[0])));
    case kind_map:
      return send_segment(link, message.values[0]);
    case kind_segment:
      if (link.peer && descriptors[0]) {
        auto memory = SharedMemory::map(std::move(descriptors[0]), message.values[1]);
        std::lock_guard lock(link.peer->mappings_mutex_);
        link.peer->mappings_[message.values[0]] = std::move(memory);
      }
      return;
    default:
      return;
  }
}

void Wire::send_segment(Link& link, uint64_t segment) {
  auto memory = find_segment(segment);
  Parcel answer{make(kind_segment, segment, memory ? memory->size() : 0)};
  if (memory) answer.descriptors[0] = memory->fd();
  answer.owner = memory;
  send(link, std::move(answer));
}

void Wire::add_claim(uint64_t link, uint64_t identity, const Message& message) {
  const Claim claim{link, identity, static_cast<uint32_t>(message.values[0]),
                    static_cast<uint32_t>(message.values[1]), static_cast<uint32_t>(message.values[2])};
  std::erase_if(claims_, [&](const Claim& earlier) {
    return earlier.identity == claim.identity && earlier.local == claim.local;
  });
  claims_.push_back(claim);
}

void Wire::grant_claims() {
  std::erase_if(claims_, [this](const Claim& claim) {
    auto link = links_.find(claim.link);
    if (claim.link != 0 && link == links_.end()) return true;
    auto channel = grant(claim);
    if (!channel) return false;
    const Message answer = make(kind_grant, claim.local, claim.remote, claim.incarnation);
    if (claim.link == 0) {
      granted(claim.identity, answer, channel);
    } else {
      Parcel parcel{answer};
      parcel.descriptors[0] = channel->fd();
      parcel.owner = channel;
      send(link->second, std::move(parcel));
    }
    return true;
  });
}

/// The inbound channel of a queue pair, for the one queue pair that it names as its other end. A claim made
/// before a reset may have taken an unused channel; the claim made after it gets the same one.
std::shared_ptr<Channel> Wire::grant(const Claim& claim) {
  std::shared_ptr<Channel> channel;
  instance_.with(claim.remote, [&](QueuePair& qp) {
    std::lock_guard lock(qp.mutex);
    const int state = qp.state.load();
    const bool ready = state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD;
    if (!ready || !qp.peer || qp.attributes.dest_qp_num != claim.local ||
        qp.peer->identity() != claim.identity)
      return;
    const bool unused = qp.inbound->state().requests.head.load() == 0;
    if (qp.inbound_granted && !(unused && claim.incarnation > qp.granted_incarnation)) return;
    qp.inbound_granted = true;
    qp.granted_incarnation = claim.incarnation;
    channel = qp.inbound;
  });
  return channel;
}

void Wire::granted(uint64_t identity, const Message& message, std::shared_ptr<Channel> channel) {
  instance_.with(static_cast<uint32_t>(message.values[0]), [&](QueuePair& qp) {
    std::lock_guard lock(qp.mutex);
    if (!qp.peer || qp.peer->identity() != identity || qp.outbound || qp.incarnation != message.values[2])
      return;
    qp.outbound = std::move(channel);
    qp.requests_out = qp.outbound->requests();
    qp.responses_in = qp.outbound->responses();
  });
}

void Wire::peer_gone(Peer& peer) {
  if (!peer.alive_.exchange(false)) return;
  instance_.for_each([&](QueuePair& qp) {
    std::lock_guard lock(qp.mutex);
    if (qp.peer.get() == &peer) fail_for_lost_peer(qp);
  });
}

void Wire::forget_unused_peers() {
  std::vector<uint64_t> unused;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(peers_, [&](auto& entry) {
      const long owners = 1 + std::count_if(links_.begin(), links_.end(),
                                            [&](auto& link) { return link.second.peer == entry.second; });
      if (entry.second->is_self() || entry.second.use_count() > owners) return false;
      if (std::any_of(requests_.begin(), requests_.end(),
                      [&](const Request& request) { return request.identity == entry.first; }))
        return false;
      unused.push_back(entry.first);
      return true;
    });
  }
  for (const uint64_t identity : unused)
    std::erase_if(links_,
                  [&](auto& link) { return link.second.peer && link.second.peer->identity() == identity; });
}

}  // namespace rdmatx::soft
