#include "verbs/table.hpp"

#include "soft/verbs.hpp"

namespace rdmatx {

const Verbs* soft_verbs() {
#define X(name, ret, params) soft::name,
  static const Verbs table{RDMATX_VERBS(X)};
#undef X
  return &table;
}

std::string take_soft_open_failure() {
  return soft::take_open_failure();
}

}  // namespace rdmatx
