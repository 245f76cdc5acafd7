// Plans and launches a forward from C++ alone, through the C interface.
#include <cstdio>

#include "core/c_api.h"

int main() {
  int32_t arch = -1;
  const int64_t layout[] = {1, 1, 16, 16, 1, 1, 16, 1, 1};
  tbe_aot::ForwardRequest request;
  request.total_bags = request.batch_size = 1;
  tbe_aot_plan* plan = nullptr;
  int loaded = 0;
  if (tbe_aot_device_arch(0, &arch) != 0 ||
      tbe_aot_plan_forward(&request, layout, sizeof(layout) / sizeof(layout[0]), &plan) != 0 ||
      tbe_aot_run(plan, 0, nullptr) != 0 ||
      tbe_aot_loaded([](void* user, const tbe_aot::LoadedVariant*) { ++*static_cast<int*>(user); },
                     &loaded) != 0) {
    std::fprintf(stderr, "%s\n", tbe_aot_last_error());
    return 1;
  }
  std::printf("%s: %zu launch, %d variant loaded\n", tbe_aot_build_info()->archs[arch].name,
              tbe_aot_plan_get(plan)->launches.size(), loaded);
  tbe_aot_plan_free(plan);
  return 0;
}
