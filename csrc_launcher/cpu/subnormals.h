// Subnormal numbers, in threads that were told to take them for zero.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tbe_aot::cpu {

// While it lives, subnormal numbers count in this thread, whatever torch.set_flush_denormal said:
// that setting belongs to a thread, and a result must not depend on the thread of the pool that
// computes it. Widening float16 goes through subnormal floats, too.
class SubnormalsCount {
 public:
  SubnormalsCount(const SubnormalsCount&) = delete;
  SubnormalsCount& operator=(const SubnormalsCount&) = delete;
#if defined(__x86_64__)
  SubnormalsCount() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kFlush); }
  ~SubnormalsCount() { _mm_setcsr(before_); }

 private:
  // "Flush to zero" and "denormals are zero".
  static constexpr unsigned kFlush = 0x8000 | 0x0040;
  unsigned before_;
#else
  SubnormalsCount() = default;
#endif
};

}  // namespace tbe_aot::cpu
