#pragma once

#include <string>

#include "rdma/queue_pair.hpp"

// Between the attributes in our names and those of verbs.h. Only queue_pair.cpp uses it.

namespace rdmatx::detail {

struct ModifyRequest {
  ibv_qp_attr attributes{};
  int mask = 0;
};

ModifyRequest to_verbs(const QueuePairAttributes& attributes);
QueuePairAttributes from_verbs(const ibv_qp_attr& found);
QueuePairCapabilities from_verbs(const ibv_qp_cap& found);
/// The likely cause and the remedy of a refused transition.
std::string modify_advice(int code);

}  // namespace rdmatx::detail
