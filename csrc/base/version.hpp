#pragma once

#include "base/export.hpp"

namespace rdmatx {

/// The version of the core, as "major.minor.patch".
RDMATX_API const char* version() noexcept;

}  // namespace rdmatx
