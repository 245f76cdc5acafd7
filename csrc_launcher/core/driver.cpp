#include "core/driver.h"

#include <dlfcn.h>

#include <string>

namespace tbe_aot {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

}  // namespace

const Driver& Driver::get() {
  static const Driver& driver =
      *new Driver();  // Never unloaded: other libraries use it until exit.
  return driver;
}

Driver::Driver() : library_(dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    const char* reason = dlerror();
    fail("the CUDA driver ", kLibrary, " cannot be loaded (",
         reason == nullptr ? "no reason given" : reason,
         "). Lookups on CUDA tensors need an NVIDIA driver for CUDA 12.0 or newer; lookups on CPU "
         "tensors need none");
  }
  find(cuInit, "cuInit");
  find(cuGetErrorName, "cuGetErrorName");
  find(cuGetErrorString, "cuGetErrorString");
  find(cuDeviceGetCount, "cuDeviceGetCount");
  find(cuDeviceGet, "cuDeviceGet");
  find(cuDeviceGetName, "cuDeviceGetName");
  find(cuDeviceGetAttribute, "cuDeviceGetAttribute");
  find(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(cuCtxGetCurrent, "cuCtxGetCurrent");
  find(cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  find(cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  find(cuLibraryLoadData, "cuLibraryLoadData");
  find(cuLibraryGetKernel, "cuLibraryGetKernel");
  find(cuKernelSetAttribute, "cuKernelSetAttribute");
  find(cuKernelGetFunction, "cuKernelGetFunction");
  find(cuLaunchKernelEx, "cuLaunchKernelEx");
  find(cuMemsetD32Async, "cuMemsetD32Async");
  find(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  find(cuStreamSynchronize, "cuStreamSynchronize");
  find(cuStreamIsCapturing, "cuStreamIsCapturing");
  find(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  check(cuInit(0), "cuInit", "initialising the CUDA driver");
}

template <typename Function>
void Driver::find(Function*& function, const char* symbol) {
  function = reinterpret_cast<Function*>(dlsym(library_, symbol));
  if (function == nullptr) {
    fail("the CUDA driver ", kLibrary, " has no function ", symbol,
         ": it is too old. An NVIDIA driver for CUDA 12.0 or newer is needed");
  }
}

std::string Driver::describe(CUresult result, const char* function) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown CUresult";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return join(function, " failed with ", name, " (", result, ": ", text, ")");
}

}  // namespace tbe_aot
