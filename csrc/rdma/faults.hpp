#pragma once

#include <string>
#include <vector>

#include "rdma/provider.hpp"

namespace rdmatx {

/// A copy of a provider's table in which the n-th call (counted from 1, from now on) of a verb that sets
/// something up fails with ENOMEM; 0 never fails. For tests of "what if this call fails": every verb that
/// creates, modifies or queries counts, or only those named ("create_qp", "reg_mr", …).
///
/// One plan a provider at a time: a new one replaces the one before, also for devices that are open.
/// May be called from any thread. Throws UsageError for a name that is no such verb.
RDMATX_API const Verbs* faulty_verbs(Provider provider, int failing_call,
                                     const std::vector<std::string>& names = {});

/// How many counted calls the current plan has seen.
RDMATX_API int counted_calls(Provider provider) noexcept;

}  // namespace rdmatx
