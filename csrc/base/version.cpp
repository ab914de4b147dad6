#include "base/version.hpp"

namespace rdmatx {

const char* version() noexcept {
  return RDMATX_VERSION;
}

}  // namespace rdmatx
