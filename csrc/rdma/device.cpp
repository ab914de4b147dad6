#include "rdma/device.hpp"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <net/if.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "base/error.hpp"

namespace rdmatx {
namespace {

const char* transport_name(ibv_transport_type type) {
  switch (type) {
    case IBV_TRANSPORT_IB:
      return "InfiniBand";
    case IBV_TRANSPORT_IWARP:
      return "iWARP";
    default:
      return "unknown";
  }
}

std::string guid_text(__be64 guid) {
  const uint64_t number = be64toh(guid);
  char text[20];
  std::snprintf(text, sizeof text, "%04x:%04x:%04x:%04x", static_cast<unsigned>(number >> 48) & 0xffff,
                static_cast<unsigned>(number >> 32) & 0xffff, static_cast<unsigned>(number >> 16) & 0xffff,
                static_cast<unsigned>(number) & 0xffff);
  return text;
}

int numa_node_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/device/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

/// The codes of ibv_port_attr (InfiniBand specification, volume 1, PortInfo).
double gigabits(uint8_t width, uint8_t speed) {
  const int lanes = width == 1 ? 1 : width == 2 ? 4 : width == 4 ? 8 : width == 8 ? 12 : width == 16 ? 2 : 0;
  switch (speed) {
    case 1:
      return lanes * 2.5;
    case 2:
      return lanes * 5.0;
    case 4:
    case 8:
      return lanes * 10.0;
    case 16:
      return lanes * 14.0625;
    case 32:
      return lanes * 25.78125;
    case 64:
      return lanes * 53.125;
    case 128:
      return lanes * 106.25;
    default:
      return 0;
  }
}

DeviceLimits limits_from(const ibv_device_attr& found) {
  DeviceLimits limits;
  limits.max_mr_size = found.max_mr_size;
  limits.max_qp = found.max_qp;
  limits.max_qp_wr = found.max_qp_wr;
  limits.max_sge = found.max_sge;
  limits.max_sge_rd = found.max_sge_rd;
  limits.max_cq = found.max_cq;
  limits.max_cqe = found.max_cqe;
  limits.max_mr = found.max_mr;
  limits.max_pd = found.max_pd;
  limits.max_qp_rd_atom = found.max_qp_rd_atom;
  limits.max_qp_init_rd_atom = found.max_qp_init_rd_atom;
  limits.max_srq = found.max_srq;
  limits.max_srq_wr = found.max_srq_wr;
  limits.max_srq_sge = found.max_srq_sge;
  limits.max_pkeys = found.max_pkeys;
  limits.atomics = found.atomic_cap != IBV_ATOMIC_NONE;
  return limits;
}

ibv_device* find_device(const Verbs* verbs, ibv_device** list, int count, std::string_view name) {
  std::string names;
  for (int i = 0; i < count; ++i) {
    const char* found = verbs->get_device_name(list[i]);
    if (name.empty() || name == found) return list[i];
    names += (names.empty() ? "" : ", ") + std::string(found);
  }
  if (name.empty()) throw UnavailableError("there is no RDMA device to open: rdmatx devices says why");
  throw UnavailableError("there is no RDMA device \"" + std::string(name) + "\"; there " +
                         (names.empty() ? "is none at all" : "is " + names) +
                         ". Correct the name (the argument, or RDMATX_DEVICE).");
}

std::string open_advice(int code) {
  if (code == EACCES || code == EPERM)
    return "this user may not open /dev/infiniband/uverbs*: join the group that owns it (often \"rdma\"), or "
           "in a "
           "container pass --device=/dev/infiniband";
  if (code == ENOENT)
    return "/dev/infiniband/uverbs* is not there: load the module ib_uverbs, or in a container pass "
           "--device=/dev/infiniband";
  return take_soft_open_failure();
}

void set_nonblocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
    throw Error("cannot make the descriptor of asynchronous events non-blocking: " + describe_errno(errno));
}

enum class EventSubject { queue_pair, port, other };

EventSubject subject_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return EventSubject::queue_pair;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      return EventSubject::port;
    default:
      return EventSubject::other;
  }
}

}  // namespace

std::shared_ptr<Device> Device::open(const Verbs* verbs, std::string_view name) {
  int count = 0;
  const DeviceListHandle list(check_pointer(verbs->get_device_list(&count), "ibv_get_device_list"), {verbs});
  return std::shared_ptr<Device>(new Device(verbs, find_device(verbs, list.get(), count, name)));
}

Device::Device(const Verbs* verbs, ibv_device* device) : verbs_(verbs) {
  const std::string name = verbs->get_device_name(device);
  errno = 0;
  ibv_context* context = verbs->open_device(device);
  handle_ = DeviceHandle(
      verbs, check_pointer(context, "ibv_open_device", "device " + name + ": " + open_advice(errno)));
  set_nonblocking(handle_->async_fd);
  attributes_ = read_attributes(device);
}

DeviceAttributes Device::read_attributes(ibv_device* device) const {
  DeviceAttributes attributes;
  attributes.name = verbs_->get_device_name(device);
  // A copy of a table with some entries replaced still counts as what it was copied from.
  attributes.provider = verbs_->get_device_name == soft_verbs()->get_device_name ? "soft" : "system";
  attributes.guid = guid_text(verbs_->get_device_guid(device));
  attributes.transport = transport_name(device->transport_type);
  ibv_device_attr found{};
  check_code(verbs_->query_device(get(), &found), "ibv_query_device", "device " + attributes.name);
  attributes.firmware = std::string(found.fw_ver, strnlen(found.fw_ver, sizeof found.fw_ver));
  attributes.vendor_id = found.vendor_id;
  attributes.vendor_part_id = found.vendor_part_id;
  attributes.port_count = found.phys_port_cnt;
  attributes.limits = limits_from(found);
  if (attributes.provider == "system") attributes.numa_node = numa_node_of(attributes.name);
  return attributes;
}

PortAttributes Device::query_port(int port) const {
  if (port < 1 || port > attributes_.port_count)
    throw UsageError("device " + name() + " has " + std::to_string(attributes_.port_count) +
                     " port(s), counted from 1; there is no port " + std::to_string(port));
  ibv_port_attr found{};
  check_code(verbs_->query_port(get(), static_cast<uint8_t>(port), &found), "ibv_query_port",
             "device " + name() + ", port " + std::to_string(port));
  PortAttributes attributes;
  attributes.number = static_cast<uint8_t>(port);
  attributes.state = static_cast<PortState>(found.state);
  attributes.link_layer = found.link_layer <= IBV_LINK_LAYER_ETHERNET
                              ? static_cast<LinkLayer>(found.link_layer)
                              : LinkLayer::unspecified;
  attributes.active_mtu = mtu_bytes_from_code(found.active_mtu);
  attributes.max_mtu = mtu_bytes_from_code(found.max_mtu);
  attributes.lid = found.lid;
  attributes.max_message_bytes = found.max_msg_sz;
  attributes.gid_table_length = found.gid_tbl_len;
  attributes.pkey_table_length = found.pkey_tbl_len;
  attributes.active_width = found.active_width;
  attributes.active_speed = found.active_speed;
  attributes.gigabits_per_second = gigabits(found.active_width, found.active_speed);
  return attributes;
}

namespace {

/// Returns the errno; ENODATA is a hole of the table.
int read_gid(const Verbs* verbs, ibv_context* context, const PortAttributes& port, int index,
             GidEntry& entry) {
  entry.index = index;
  ibv_gid_entry found{};
  int code = verbs->query_gid_ex(context, port.number, static_cast<uint32_t>(index), &found);
  if (code < 0) code = errno;
  if (code == EOPNOTSUPP ||
      code == ENOSYS) {  // a library or kernel older than the call: the type is not told
    code = verbs->query_gid(context, port.number, index, &found.gid);
    if (code != 0) return code < 0 ? errno : code;
    found.gid_type = port.link_layer == LinkLayer::ethernet ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB;
    found.ndev_ifindex = 0;
  } else if (code != 0) {
    return code;
  }
  std::memcpy(entry.gid.raw.data(), found.gid.raw, entry.gid.raw.size());
  entry.type =
      found.gid_type <= IBV_GID_TYPE_ROCE_V2 ? static_cast<GidType>(found.gid_type) : GidType::infiniband;
  char interface[IF_NAMESIZE];
  if (found.ndev_ifindex != 0 && if_indextoname(found.ndev_ifindex, interface))
    entry.network_device = interface;
  return entry.gid.is_empty() ? ENODATA : 0;
}

}  // namespace

std::vector<GidEntry> Device::query_gids(int port) const {
  const PortAttributes attributes = query_port(port);
  std::vector<GidEntry> gids;
  for (int index = 0; index < attributes.gid_table_length; ++index) {
    GidEntry entry;
    const int code = read_gid(verbs_, get(), attributes, index, entry);
    if (code == 0) gids.push_back(std::move(entry));
    // EINVAL, too, is how some kernels tell of an unused entry.
    else if (code != ENODATA && code != EINVAL && code != EAGAIN)
      check_code(
          code, "ibv_query_gid",
          "device " + name() + ", port " + std::to_string(port) + ", GID index " + std::to_string(index));
  }
  return gids;
}

GidEntry Device::query_gid(int port, int index) const {
  const PortAttributes attributes = query_port(port);
  const std::string where =
      "device " + name() + ", port " + std::to_string(port) + ", GID index " + std::to_string(index);
  if (index < 0 || index >= attributes.gid_table_length)
    throw UsageError(where + ": the table has " + std::to_string(attributes.gid_table_length) + " entries");
  GidEntry entry;
  const int code = read_gid(verbs_, get(), attributes, index, entry);
  if (code == ENODATA) throw UsageError(where + " is empty: choose one that rdmatx devices lists");
  check_code(code, "ibv_query_gid", where);
  return entry;
}

uint16_t Device::query_pkey(int port, int index) const {
  __be16 key = 0;
  check_code(verbs_->query_pkey(get(), static_cast<uint8_t>(port), index, &key), "ibv_query_pkey",
             "device " + name() + ", port " + std::to_string(port) + ", index " + std::to_string(index));
  return ntohs(key);
}

int Device::async_fd() const noexcept {
  return handle_->async_fd;
}

std::optional<AsyncEvent> Device::next_async_event(double timeout_seconds) {
  if (!wait_readable(async_fd(), timeout_seconds)) return std::nullopt;
  ibv_async_event found{};
  if (int code = verbs_->get_async_event(get(), &found); code != 0) {
    const int reason = code < 0 ? errno : code;
    if (reason == EAGAIN || reason == EINTR) return std::nullopt;  // another thread took it
    check_code(reason, "ibv_get_async_event", "device " + name());
  }
  AsyncEvent event;
  event.type = found.event_type;
  event.name = verbs_->event_type_str(found.event_type);
  const EventSubject subject = subject_of(found.event_type);
  if (subject == EventSubject::queue_pair) event.queue_pair_number = found.element.qp->qp_num;
  if (subject == EventSubject::port) event.port = static_cast<uint8_t>(found.element.port_num);
  verbs_->ack_async_event(&found);
  return event;
}

}  // namespace rdmatx
