// The C interface: thin, total functions over tessera::core. Invariant: no exception leaves this file.
#include <cmath>
#include <cstring>
#include <new>

#include "append.hpp"
#include "devices.hpp"
#include "kernel_entry.hpp"
#include "merge.hpp"
#include "problem_text.hpp"
#include "quantize.hpp"
#include "status.hpp"
#include "tessera/tessera.h"

struct tessera_plan {
  tessera::core::Plan plan;
};

namespace {

using namespace tessera::core;

template <class Body>
int guarded(tessera_status* status, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(status, TESSERA_OUT_OF_MEMORY, "out of host memory");
  } catch (...) {
    return fail(status, TESSERA_INTERNAL, "internal error: an unexpected exception");
  }
}

// Text into the caller's buffer, as snprintf; a text that cannot be made is "".
template <class Body>
size_t guarded_text(char* text, size_t capacity, Body body) noexcept {
  if (text != nullptr && capacity > 0) text[0] = '\0';
  try {
    const std::string made = body();
    if (text != nullptr && capacity > 0) {
      const size_t length = made.size() < capacity ? made.size() : capacity - 1;
      std::memcpy(text, made.data(), length);
      text[length] = '\0';
    }
    return made.size();
  } catch (...) {
    return 0;
  }
}

int null_argument(tessera_status* status, const char* name) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s is NULL; expected a pointer", name);
}

template <class Args>
int check_size(const Args* args, const char* name, tessera_status* status) {
  if (args == nullptr) return null_argument(status, name);
  if (args->size == sizeof(Args)) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s.size is %zu; expected %zu", name, args->size, sizeof(Args));
}

std::string support_reasons(const tessera_problem& problem, int code, const tessera_status& status) {
  if (code != TESSERA_UNSUPPORTED) return code == TESSERA_OK ? std::string() : std::string(status.message);
  Problem checked;
  if (validate(problem, &checked, nullptr) != TESSERA_OK) return status.message;
  const DeviceInfo* device = checked.device_name[0] != '\0' ? named_device(checked.device_name)
                             : checked.device < 0           ? &cpu_info()
                                                            : cuda_info(checked.device, nullptr);
  std::string reasons;
  if (device == nullptr) return status.message;
  visit_rows(
      checked, *device, {},
      [](const RowAnswer& answer, void* context) {
        auto* text = static_cast<std::string*>(context);
        const std::string reason = answer.refusal ? format_refusal(answer.refusal) : "excluded by the pin";
        text->append(text->empty() ? "" : "\n").append(answer.entry->name).append(": ").append(reason);
      },
      &reasons);
  return reasons.empty() ? std::string(status.message) : reasons;
}

}  // namespace

extern "C" {

void tessera_problem_init(tessera_problem* problem, size_t size) {
  if (problem == nullptr || size < sizeof(size_t)) return;
  const tessera_problem defaults = default_problem();
  std::memset(static_cast<void*>(problem), 0, size);
  std::memcpy(static_cast<void*>(problem), &defaults, size < sizeof defaults ? size : sizeof defaults);
  problem->size = size;  // a size that is not ours is refused by whoever is given the problem
}

int tessera_problem_parse(const char* text, tessera_problem* problem, tessera_status* status) {
  if (text == nullptr) return null_argument(status, "text");
  if (problem == nullptr) return null_argument(status, "problem");
  return guarded(status, [&] { return parse_problem(text, problem, nullptr, status); });
}

size_t tessera_problem_format(const tessera_problem* problem, char* text, size_t capacity) {
  return guarded_text(text, capacity, [&] {
    return problem != nullptr && problem->size == sizeof(tessera_problem) ? format_problem(*problem, nullptr)
                                                                          : std::string();
  });
}

int tessera_supports(const tessera_problem* problem, char* reasons, size_t capacity) {
  if (reasons != nullptr && capacity > 0) reasons[0] = '\0';
  tessera_status status{};
  int code = TESSERA_OK;
  guarded_text(reasons, capacity, [&]() -> std::string {
    code = guarded(&status, [&] {
      if (problem == nullptr) return null_argument(&status, "problem");
      Plan plan{};
      return make_plan(*problem, {}, &plan, &status);
    });
    return problem != nullptr ? support_reasons(*problem, code, status) : std::string(status.message);
  });
  return code;
}

int tessera_plan_create(const tessera_problem* problem, tessera_plan** plan, tessera_status* status) {
  if (plan == nullptr) return null_argument(status, "plan");
  *plan = nullptr;
  if (problem == nullptr) return null_argument(status, "problem");
  return guarded(status, [&] {
    Plan made{};
    const int code = make_plan(*problem, {}, &made, status);
    if (code == TESSERA_OK) *plan = new tessera_plan{made};
    return code;
  });
}

void tessera_plan_destroy(tessera_plan* plan) { delete plan; }

size_t tessera_plan_workspace(const tessera_plan* plan) {
  return plan != nullptr ? static_cast<size_t>(plan->plan.launch.workspace_bytes) : 0;
}

const char* tessera_plan_kernel(const tessera_plan* plan) { return plan != nullptr ? plan->plan.entry->name : ""; }

int tessera_plan_passed_over(const tessera_plan* plan, const char** first_reason) {
  if (first_reason != nullptr) *first_reason = plan != nullptr ? plan->plan.first_reason : "";
  return plan != nullptr ? plan->plan.passed_over : 0;
}

size_t tessera_plan_explain(const tessera_plan* plan, int json, char* text, size_t capacity) {
  return guarded_text(text, capacity,
                      [&] { return plan != nullptr ? explain(plan->plan, {}, json != 0) : std::string(); });
}

int tessera_plan_run(const tessera_plan* plan, const tessera_tensors* tensors, void* workspace, size_t bytes,
                     const tessera_exec* exec, tessera_status* status) {
  if (plan == nullptr) return null_argument(status, "plan");
  return guarded(status, [&] { return run_plan(plan->plan, tensors, workspace, bytes, exec, status); });
}

int tessera_check_metadata(const tessera_plan* plan, const tessera_tensors* tensors, const tessera_exec* exec,
                           tessera_status* status) {
  if (plan == nullptr) return null_argument(status, "plan");
  return guarded(status, [&] { return check_metadata(plan->plan, tensors, exec, status); });
}

int tessera_merge(const tessera_merge_args* args, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_size(args, "merge_args", status)) return code;
  return guarded(status, [&] { return merge(*args, exec, status); });
}

int tessera_merge_backward(const tessera_merge_args* args, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_size(args, "merge_args", status)) return code;
  return guarded(status, [&] { return merge_backward(*args, exec, status); });
}

int tessera_append(const tessera_problem* problem, const tessera_tensors* tensors, const tessera_append_args* args,
                   const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_size(problem, "problem", status)) return code;
  if (const int code = check_size(tensors, "tensors", status)) return code;
  if (const int code = check_size(args, "append_args", status)) return code;
  return guarded(status, [&] { return append(*problem, *tensors, *args, exec, status); });
}

int tessera_quantize(const tessera_quantize_args* args, const tessera_exec* exec, tessera_status* status) {
  if (const int code = check_size(args, "quantize_args", status)) return code;
  return guarded(status, [&] { return quantize(*args, exec, status); });
}

size_t tessera_devices(int json, char* text, size_t capacity) {
  return guarded_text(text, capacity, [&] { return describe_devices({}, json != 0); });
}

uint32_t tessera_version(void) {
  return TESSERA_VERSION_MAJOR << 16 | TESSERA_VERSION_MINOR << 8 | TESSERA_VERSION_PATCH;
}

}  // extern "C"
