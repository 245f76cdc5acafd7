#include "ops/cuda_stream.h"

#include "core/error.h"

// Declared here and weak: torch declares it for CUDA builds only, and it is absent (null) in a CPU
// torch. It is found because this library needs libtorch.so, which loads libtorch_cuda.so.
extern "C" __attribute__((weak)) int32_t aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                            void** ret_stream);

namespace tbe_aot {

void* current_cuda_stream(int32_t device) {
  if (aoti_torch_get_current_cuda_stream == nullptr) {
    fail("the installed torch has no CUDA support, but a tensor is on cuda:", device,
         "; install a CUDA build of torch");
  }
  void* stream = nullptr;
  if (aoti_torch_get_current_cuda_stream(device, &stream) != 0) {
    fail("torch has no current CUDA stream on cuda:", device);
  }
  return stream;
}

}  // namespace tbe_aot
