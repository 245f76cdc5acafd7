// The one exception of the core. It is a std::runtime_error, so that whoever does not know this
// class (LibTorch, pybind11) still shows its message.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace tbe_aot {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Joins its arguments into one string.
template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws an Error that says `parts` joined.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(join(parts...));
}

}  // namespace tbe_aot
