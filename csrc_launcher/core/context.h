// Makes a device's primary context current for a scope, and leaves what was current as it was.
#pragma once

#include "core/cuda_abi.h"
#include "core/driver.h"

namespace tbe_aot {

class ContextGuard {
 public:
  // Pushes `context` unless it is current already, as it is when torch is on the tensor's device.
  ContextGuard(const Driver& driver, CUcontext context) : driver_(driver) {
    CUcontext current = nullptr;
    driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent",
                 "asking for the current context");
    if (current == context) return;
    driver.check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent",
                 "making the device's primary context current");
    pushed_ = true;
  }
  ~ContextGuard() {
    CUcontext popped = nullptr;
    // A failure could only be reported by throwing from a destructor; the driver's next call shows
    // it.
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
  }
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Lets this thread load code although a stream of the process is being captured: loading allocates,
// which the default capture mode forbids.
class RelaxedCaptureGuard {
 public:
  explicit RelaxedCaptureGuard(const Driver& driver) : driver_(driver) {
    driver.check(driver.cuThreadExchangeStreamCaptureMode(&mode_),
                 "cuThreadExchangeStreamCaptureMode", "preparing to load a kernel");
  }
  ~RelaxedCaptureGuard() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCaptureGuard(const RelaxedCaptureGuard&) = delete;
  RelaxedCaptureGuard& operator=(const RelaxedCaptureGuard&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // After construction: the mode to go back to.
};

}  // namespace tbe_aot
