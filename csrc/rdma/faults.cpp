#include "rdma/faults.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <type_traits>

#include "base/error.hpp"

namespace rdmatx {
namespace {

// The verbs that can fail while something is set up. Destroying verbs always go through.
// clang-format off
#define RDMATX_FAILING_VERBS(X)                                                                             \
  X(get_device_list) X(open_device) X(query_device) X(query_port) X(query_gid_ex) X(alloc_pd)               \
  X(reg_mr) X(create_comp_channel) X(create_cq) X(resize_cq) X(create_srq) X(modify_srq)                    \
  X(create_qp) X(modify_qp) X(query_qp)
// clang-format on

enum FailingVerb : unsigned {
#define X(name) verb_##name,
  RDMATX_FAILING_VERBS(X)
#undef X
      failing_verb_count,
};

constexpr const char* verb_names[] = {
#define X(name) #name,
    RDMATX_FAILING_VERBS(X)
#undef X
};

/// What one provider's faulty table does. Its functions are plain C functions, so the state is global.
struct Plan {
  const Verbs* original = nullptr;
  Verbs table{};
  std::atomic<unsigned> counted{0};  // a bit a verb
  std::atomic<int> failing_call{0};
  std::atomic<int> calls{0};

  bool fails(FailingVerb verb) noexcept {
    if (!(counted.load(std::memory_order_relaxed) >> verb & 1)) return false;
    return calls.fetch_add(1) + 1 == failing_call.load();
  }
};

enum Index : size_t { system_plan, soft_plan };
std::array<Plan, 2> plans;

template <Index Which, FailingVerb Verb, auto Entry, class Function>
struct Faulty;

template <Index Which, FailingVerb Verb, auto Entry, class Return, class... Parameters>
struct Faulty<Which, Verb, Entry, Return (*Verbs::*)(Parameters...)> {
  static Return call(Parameters... parameters) {
    Plan& plan = plans[Which];
    if (!plan.fails(Verb)) return (plan.original->*Entry)(parameters...);
    errno = ENOMEM;
    if constexpr (std::is_pointer_v<Return>) {
      return nullptr;
    } else {
      return ENOMEM;
    }
  }
};

template <Index Which>
Plan& prepare(const Verbs* original) {
  Plan& plan = plans[Which];
  plan.original = original;
  plan.table = *original;
#define X(name) plan.table.name = Faulty<Which, verb_##name, &Verbs::name, decltype(&Verbs::name)>::call;
  RDMATX_FAILING_VERBS(X)
#undef X
  return plan;
}

Plan& plan_of(Provider provider) {
  static Plan& soft = prepare<soft_plan>(soft_verbs());
  if (provider == Provider::soft) return soft;
  if (provider != Provider::system)
    throw UsageError("name the provider whose calls shall fail: \"system\" or \"soft\"");
  static Plan& system = prepare<system_plan>(system_verbs());
  return system;
}

unsigned bit_of(const std::string& name) {
  for (unsigned verb = 0; verb < failing_verb_count; ++verb)
    if (name == verb_names[verb]) return 1u << verb;
  std::string known;
  for (const char* verb : verb_names) known += (known.empty() ? "" : ", ") + std::string(verb);
  throw UsageError("\"" + name + "\" is not a verb that can be made to fail: " + known);
}

}  // namespace

const Verbs* faulty_verbs(Provider provider, int failing_call, const std::vector<std::string>& names) {
  Plan& plan = plan_of(provider);
  unsigned counted = names.empty() ? (1u << failing_verb_count) - 1 : 0;
  for (const std::string& name : names) counted |= bit_of(name);
  plan.failing_call = failing_call;
  plan.counted = counted;
  plan.calls = 0;
  return &plan.table;
}

int counted_calls(Provider provider) noexcept {
  return plans[provider == Provider::soft ? soft_plan : system_plan].calls.load();
}

}  // namespace rdmatx
