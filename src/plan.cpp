// Planning: walks the ordered list of kernels and takes the first row that does not refuse. Allocates nothing on the
// way to a plan; reasons stay static strings until somebody asks for words.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "append.hpp"
#include "kernel_entry.hpp"
#include "problem_text.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

// Glob with * (any run of characters) and ? (one character); the rest literal.
bool matches(const char* glob, const char* name) {
  const char *star = nullptr, *resume = nullptr;
  while (*name != '\0') {
    if (*glob == '*') {
      star = ++glob;
      resume = name;
    } else if (*glob == '?' || *glob == *name) {
      ++glob;
      ++name;
    } else if (star != nullptr) {
      glob = star;
      name = ++resume;
    } else {
      return false;
    }
  }
  while (*glob == '*') ++glob;
  return *glob == '\0';
}

// A pinned-only row needs a pin that says more than the backend before its first wildcard: "cpu.reference",
// "cpu.text*", but not "*" or "cpu.*", which choose none.
bool pin_allows(const KernelEntry& entry, const char* pin) {
  if (pin[0] == '\0') return !entry.pinned_only;
  const size_t backend = std::strcspn(entry.name, ".") + 1;
  return !(entry.pinned_only && std::strcspn(pin, "*?") <= backend) && matches(pin, entry.name);
}

int find_device(const Problem& problem, const DeviceInfo** device, tessera_status* status) {
  if (problem.device_name[0] != '\0') {
    *device = named_device(problem.device_name);
    if (*device != nullptr) return TESSERA_OK;
    return fail(status, TESSERA_INVALID_ARGUMENT, "device_name is \"%s\"; expected h200, h100, a100, rtx4090 or b200",
                problem.device_name);
  }
  if (problem.device < 0) {
    if (const char* error = cpu_isa_error()) return fail(status, TESSERA_INVALID_ARGUMENT, "%s", error);
    *device = &cpu_info();
    return TESSERA_OK;
  }
  const char* reason = "no CUDA device";
  *device = cuda_info(problem.device, &reason);
  if (*device != nullptr) return TESSERA_OK;
  return fail(status, TESSERA_NO_DEVICE, "device is %d, but %s", problem.device, reason);
}

int fail_unsupported(const Problem& problem, const DeviceInfo& device, KernelList extra, const char* pin,
                     tessera_status* status) {
  struct Collected {
    std::string text;
    int rows = 0, excluded = 0;
  } collected;
  visit_rows(
      problem, device, extra,
      [](const RowAnswer& answer, void* context) {
        auto* c = static_cast<Collected*>(context);
        if (answer.pin_excludes) {
          ++c->excluded;
          return;
        }
        c->text.append(c->rows++ == 0 ? "" : "; ")
            .append(answer.entry->name)
            .append(": ")
            .append(format_refusal(answer.refusal));
      },
      &collected);
  if (collected.rows > 0)
    return fail(status, TESSERA_UNSUPPORTED, "no kernel takes this problem: %s", collected.text.c_str());
  if (collected.excluded > 0)
    return fail(status, TESSERA_UNSUPPORTED, "no kernel is named \"%s\" on %s", pin,
                device.is_cpu ? "the CPU" : "CUDA");
  return fail(status, TESSERA_UNSUPPORTED, "this build has no kernel for %s",
              device.is_cpu ? "the CPU" : "CUDA; configure one with -DTESSERA_CUDA=ON");
}

void log_plan(const Plan& plan, tessera_status* status) {
  const char* log = std::getenv("TESSERA_LOG");
  if (log == nullptr || std::strcmp(log, "plan") != 0) return;
  const std::string text = format_resolved(plan.problem);
  if (plan.entry == nullptr) {
    std::fprintf(stderr, "tessera: %s -> refused: %s\n", text.c_str(), status != nullptr ? status->message : "");
  } else if (plan.passed_over > 0) {
    std::fprintf(stderr, "tessera: %s -> %s (%d passed over, first: %s)\n", text.c_str(), plan.entry->name,
                 plan.passed_over, plan.first_reason);
  } else {
    std::fprintf(stderr, "tessera: %s -> %s\n", text.c_str(), plan.entry->name);
  }
}

}  // namespace

const char* active_pin(const Problem& problem) {
  if (problem.kernel[0] != '\0') return problem.kernel;
  const char* pin = std::getenv("TESSERA_KERNEL");
  return pin != nullptr ? pin : "";
}

void visit_rows(const Problem& problem, const DeviceInfo& device, KernelList extra,
                void (*visit)(const RowAnswer&, void*), void* context) {
  const char* pin = active_pin(problem);
  for (const KernelList list : {device.is_cpu ? cpu_kernels() : cuda_kernels(), extra}) {
    for (const KernelEntry& entry : list) {
      // Extra rows of the other backend are not of this device's list.
      if ((std::strncmp(entry.name, "cpu.", 4) == 0) != device.is_cpu) continue;
      visit({&entry, entry.refuse(problem, device), !pin_allows(entry, pin)}, context);
    }
  }
}

int make_plan(const tessera_problem& given, KernelList extra, Plan* plan, tessera_status* status) {
  Plan made{};
  if (const int code = validate(given, &made.problem, status)) return code;
  if (const int code = find_device(made.problem, &made.device, status)) return code;
  const char* pin = active_pin(made.problem);
  for (const KernelList list : {made.device->is_cpu ? cpu_kernels() : cuda_kernels(), extra}) {
    for (const KernelEntry& entry : list) {
      if (made.entry != nullptr) break;
      if ((std::strncmp(entry.name, "cpu.", 4) == 0) != made.device->is_cpu || !pin_allows(entry, pin)) continue;
      const Refusal refusal = entry.refuse(made.problem, *made.device);
      if (!refusal) {
        made.entry = &entry;
      } else if (made.passed_over++ == 0) {
        made.first_reason = refusal.text;
      }
    }
  }
  if (made.entry == nullptr) {
    const int code = fail_unsupported(made.problem, *made.device, extra, pin, status);
    log_plan(made, status);
    return code;
  }
  made.launch = made.entry->configure(made.problem, *made.device);
  if (made.entry->prepare != nullptr && made.device->present) {
    if (const int code = made.entry->prepare(made, status)) return code;
  }
  const Problem& p = made.problem;
  if (!made.device->is_cpu && made.device->present && p.pass == TESSERA_FORWARD && p.layout_kv != TESSERA_PACKED &&
      p.has(TESSERA_FLAG_SEQUSED_K)) {  // its first run may append
    if (const int code = prepare_append_cuda(p.device, status)) return code;
  }
  *plan = made;
  log_plan(made, status);
  return succeed(status);
}

}  // namespace tessera::core
