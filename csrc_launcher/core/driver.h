// The CUDA driver, found at run time: a table of its functions, and errors that say what was asked.
#pragma once

#include "core/cuda_abi.h"
#include "core/error.h"

namespace tbe_aot {

// Loads libcuda.so.1 and initialises it.
class Driver {
 public:
  // The process' driver. Throws Error when there is none or it is too old; the next call tries
  // again.
  static const Driver& get();

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuGetErrorName)(CUresult, const char**);
  CUresult (*cuGetErrorString)(CUresult, const char**);
  CUresult (*cuDeviceGetCount)(int*);
  CUresult (*cuDeviceGet)(CUdevice*, int ordinal);
  CUresult (*cuDeviceGetName)(char*, int size, CUdevice);
  CUresult (*cuDeviceGetAttribute)(int*, int attribute, CUdevice);
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice);
  CUresult (*cuCtxGetCurrent)(CUcontext*);
  CUresult (*cuCtxPushCurrent)(CUcontext);
  CUresult (*cuCtxPopCurrent)(CUcontext*);
  CUresult (*cuLibraryLoadData)(CUlibrary*, const void* code, int* jit_options, void** jit_values,
                                unsigned jit_count, int* options, void** values, unsigned count);
  CUresult (*cuLibraryGetKernel)(CUkernel*, CUlibrary, const char* name);
  CUresult (*cuKernelSetAttribute)(int attribute, int value, CUkernel, CUdevice);
  CUresult (*cuKernelGetFunction)(CUfunction*, CUkernel);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig*, CUfunction, void** params, void** extra);
  CUresult (*cuMemsetD32Async)(CUdeviceptr, unsigned value, size_t count, CUstream);
  CUresult (*cuMemcpyDtoHAsync)(void*, CUdeviceptr, size_t bytes, CUstream);
  CUresult (*cuStreamSynchronize)(CUstream);
  CUresult (*cuStreamIsCapturing)(CUstream, int* status);
  CUresult (*cuThreadExchangeStreamCaptureMode)(int* mode);

  // Throws Error unless `result` is success; `doing` says what `function` was called for.
  template <typename... Parts>
  void check(CUresult result, const char* function, const Parts&... doing) const {
    if (result != CUDA_SUCCESS) fail(describe(result, function), " while ", join(doing...));
  }

 private:
  Driver();

  template <typename Function>
  void find(Function*& function, const char* symbol);
  std::string describe(CUresult result, const char* function) const;

  void* library_;
};

}  // namespace tbe_aot
