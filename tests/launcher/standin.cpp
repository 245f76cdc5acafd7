// A libcuda.so.1 without a GPU. It records what it is asked, checks what a driver would check,
// fails where a test wants it to, and "loads" the fake cubins of artifacts.py. Device memory is
// host memory.
//
// Environment: STANDIN_DEVICES, such as "9.0 NVIDIA H200;10.0 NVIDIA B200" (default: one H200).
// A test in the same process reaches the functions standin_* at the end of this file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kNotInitialized = 3;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidImage = 200;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureModeGlobal = 0;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kOverlapAttribute = 6;
constexpr int kMultiprocessors = 132;  // Of every device.
constexpr unsigned kDefaultShared = 48 * 1024;
constexpr unsigned kMaxShared = 227 * 1024;

struct Device {
  int major = 0;
  int minor = 0;
  std::string name;
};

struct Context {
  int device;
};

struct Library {
  std::string entry;
  std::vector<size_t> param_sizes;
  std::string variant;
};

struct Kernel {
  Library* library;
  std::map<int, unsigned> max_shared;  // By device.
};

struct Function {
  Kernel* kernel;
  int device;
};

// As cuda.h has them.
struct LaunchAttribute {
  int id;
  int padding;
  int value[16];
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct Failure {
  int result;
  int skip;  // Calls that still succeed.
};

struct State {
  std::mutex mutex;
  bool initialized = false;
  std::vector<Device> devices;
  std::vector<std::unique_ptr<Context>> contexts;  // Primary, by device.
  std::vector<std::unique_ptr<Library>> libraries;
  std::map<Library*, std::unique_ptr<Kernel>> kernels;
  std::map<std::pair<Kernel*, int>, std::unique_ptr<Function>> functions;
  std::map<std::string, Failure> failures;
  std::map<void*, bool> capturing;
  std::vector<std::string> records;  // JSON objects.
  std::string answer;
};

State& state() {
  static State& instance = *[] {
    auto* made = new State;
    const char* text = std::getenv("STANDIN_DEVICES");
    std::istringstream list(text == nullptr ? "9.0 NVIDIA H200" : text);
    for (std::string item; std::getline(list, item, ';');) {
      Device device;
      char dot = 0;
      std::istringstream fields(item);
      fields >> device.major >> dot >> device.minor >> std::ws;
      std::getline(fields, device.name);
      made->contexts.push_back(
          std::make_unique<Context>(Context{static_cast<int>(made->devices.size())}));
      made->devices.push_back(device);
    }
    return made;
  }();
  return instance;
}

thread_local std::vector<Context*> context_stack;
thread_local int capture_mode = kCaptureModeGlobal;

Context* current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

int current_device() { return current_context() == nullptr ? -1 : current_context()->device; }

// Records a call and says what it returns; `fields` continues the JSON object. The mutex is held.
int record(const std::string& function, const std::string& fields = "") {
  State& s = state();
  int result = kSuccess;
  const auto failure = s.failures.find(function);
  if (failure != s.failures.end()) {
    if (failure->second.skip == 0) {
      result = failure->second.result;
    } else {
      --failure->second.skip;
    }
  }
  if (result == kSuccess && function != "cuInit" && !s.initialized) result = kNotInitialized;
  std::ostringstream json;
  json << "{\"function\": \"" << function << "\", \"device\": " << current_device() << fields
       << ", \"result\": " << result << "}";
  s.records.push_back(json.str());
  return result;
}

bool any_capture() {
  for (const auto& [stream, active] : state().capturing) {
    if (active) return true;
  }
  return false;
}

std::string hex(const void* data, size_t size) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < size; ++i) {
    const auto byte = static_cast<const unsigned char*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

bool valid_device(int device) {
  return device >= 0 && device < static_cast<int>(state().devices.size());
}

using Lock = std::lock_guard<std::mutex>;

}  // namespace

extern "C" {

int cuInit(unsigned) {
  const Lock lock(state().mutex);
  const int result = record("cuInit");
  if (result == kSuccess) state().initialized = true;
  return result;
}

int cuGetErrorName(int result, const char** name) {
  *name = result == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_OF_STANDIN";
  return kSuccess;
}

int cuGetErrorString(int, const char** text) {
  *text = "as the test asked";
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  const Lock lock(state().mutex);
  *count = static_cast<int>(state().devices.size());
  return record("cuDeviceGetCount");
}

int cuDeviceGet(int* device, int ordinal) {
  const Lock lock(state().mutex);
  const int result = record("cuDeviceGet");
  if (result == kSuccess && !valid_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return result;
}

int cuDeviceGetName(char* name, int size, int device) {
  const Lock lock(state().mutex);
  const int result = record("cuDeviceGetName");
  if (result == kSuccess) std::strncpy(name, state().devices[device].name.c_str(), size - 1);
  return result;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const Lock lock(state().mutex);
  const int result = record("cuDeviceGetAttribute", join(", \"attribute\": ", attribute));
  if (result != kSuccess) return result;
  switch (attribute) {
    case 16:
      *value = kMultiprocessors;
      return result;
    case 75:
      *value = state().devices[device].major;
      return result;
    case 76:
      *value = state().devices[device].minor;
      return result;
    default:
      return kInvalidValue;
  }
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  const Lock lock(state().mutex);
  const int result = record("cuDevicePrimaryCtxRetain", join(", \"of\": ", device));
  if (result == kSuccess) *context = state().contexts[device].get();
  return result;
}

int cuCtxGetCurrent(Context** context) {
  const Lock lock(state().mutex);
  *context = current_context();
  return record("cuCtxGetCurrent");
}

int cuCtxPushCurrent_v2(Context* context) {
  const Lock lock(state().mutex);
  const int result = record("cuCtxPushCurrent", join(", \"of\": ", context->device));
  if (result == kSuccess) context_stack.push_back(context);
  return result;
}

int cuCtxPopCurrent_v2(Context** context) {
  const Lock lock(state().mutex);
  const int result = record("cuCtxPopCurrent");
  if (result != kSuccess) return result;
  if (context_stack.empty()) return kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return result;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  const Lock lock(state().mutex);
  const int result = record("cuThreadExchangeStreamCaptureMode");
  if (result == kSuccess) std::swap(*mode, capture_mode);
  return result;
}

int cuLibraryLoadData(Library** library, const void* code, int*, void**, unsigned, int*, void**,
                      unsigned) {
  const Lock lock(state().mutex);
  std::istringstream text(std::string(static_cast<const char*>(code)));
  auto made = std::make_unique<Library>();
  std::string magic;
  std::string sizes;
  std::getline(text, magic);
  std::getline(text, made->entry);
  std::getline(text, sizes);
  std::getline(text, made->variant);
  std::istringstream numbers(sizes);
  for (size_t size = 0; numbers >> size;) made->param_sizes.push_back(size);
  const int result = record("cuLibraryLoadData", join(", \"cubin\": \"", made->variant, "\""));
  if (result != kSuccess) return result;
  if (any_capture() && capture_mode != kCaptureModeRelaxed) return kCaptureUnsupported;
  if (magic != "fake cubin") return kInvalidImage;
  *library = made.get();
  state().libraries.push_back(std::move(made));
  return result;
}

int cuLibraryGetKernel(Kernel** kernel, Library* library, const char* name) {
  const Lock lock(state().mutex);
  const int result = record("cuLibraryGetKernel", join(", \"entry\": \"", name, "\""));
  if (result != kSuccess) return result;
  if (library->entry != name) return kNotFound;
  std::unique_ptr<Kernel>& slot = state().kernels[library];
  if (slot == nullptr) slot = std::make_unique<Kernel>(Kernel{library, {}});
  *kernel = slot.get();
  return result;
}

int cuKernelSetAttribute(int attribute, int value, Kernel* kernel, int device) {
  const Lock lock(state().mutex);
  const int result =
      record("cuKernelSetAttribute", join(", \"attribute\": ", attribute, ", \"value\": ", value,
                                          ", \"cubin\": \"", kernel->library->variant, "\""));
  if (result != kSuccess) return result;
  if (attribute != 8 || value < 0 || static_cast<unsigned>(value) > kMaxShared) {
    return kInvalidValue;
  }
  kernel->max_shared[device] = static_cast<unsigned>(value);
  return result;
}

int cuKernelGetFunction(Function** function, Kernel* kernel) {
  const Lock lock(state().mutex);
  const int result =
      record("cuKernelGetFunction", join(", \"cubin\": \"", kernel->library->variant, "\""));
  if (result != kSuccess) return result;
  if (current_context() == nullptr) return kInvalidContext;
  if (any_capture() && capture_mode != kCaptureModeRelaxed) return kCaptureUnsupported;
  std::unique_ptr<Function>& slot = state().functions[{kernel, current_device()}];
  if (slot == nullptr) slot = std::make_unique<Function>(Function{kernel, current_device()});
  *function = slot.get();
  return result;
}

int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** params, void** extra) {
  const Lock lock(state().mutex);
  const Library& library = *function->kernel->library;
  std::string args;
  for (size_t i = 0; i < library.param_sizes.size(); ++i) {
    args += join(i == 0 ? "" : ", ", "\"", hex(params[i], library.param_sizes[i]), "\"");
  }
  bool overlaps = false;
  bool known_attributes = true;
  for (unsigned i = 0; i < config->attribute_count; ++i) {
    known_attributes = known_attributes && config->attributes[i].id == kOverlapAttribute;
    overlaps = config->attributes[i].value[0] == 1;
  }
  const unsigned* grid = config->grid;
  const unsigned* block = config->block;
  const int result = record(
      "cuLaunchKernelEx",
      join(", \"cubin\": \"", library.variant, "\", \"grid\": [", grid[0], ", ", grid[1], ", ",
           grid[2], "], \"block\": [", block[0], ", ", block[1], ", ", block[2],
           "], \"shared\": ", config->shared_bytes, ", \"overlaps\": ", overlaps ? "true" : "false",
           ", \"stream\": ", reinterpret_cast<uintptr_t>(config->stream), ", \"args\": [", args,
           "]"));
  if (result != kSuccess) return result;
  if (function->device != current_device()) return kInvalidContext;
  if (extra != nullptr || !known_attributes) return kInvalidValue;
  if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0 || grid[0] > INT32_MAX || grid[1] > 65535 ||
      grid[2] > 65535 || block[0] == 0 || block[0] * block[1] * block[2] > 1024) {
    return kInvalidValue;
  }
  const auto allowed = function->kernel->max_shared.find(function->device);
  const bool asked = allowed != function->kernel->max_shared.end();
  if (config->shared_bytes > (asked ? allowed->second : kDefaultShared)) return kInvalidValue;
  return result;
}

int cuMemsetD32Async(unsigned long long address, unsigned value, size_t count, void* stream) {
  const Lock lock(state().mutex);
  const int result =
      record("cuMemsetD32Async",
             join(", \"address\": ", address, ", \"value\": ", value, ", \"count\": ", count,
                  ", \"stream\": ", reinterpret_cast<uintptr_t>(stream)));
  return result == kSuccess && current_context() == nullptr ? kInvalidContext : result;
}

int cuMemcpyDtoHAsync_v2(void* destination, unsigned long long source, size_t bytes, void* stream) {
  const Lock lock(state().mutex);
  const int result =
      record("cuMemcpyDtoHAsync",
             join(", \"bytes\": ", bytes, ", \"stream\": ", reinterpret_cast<uintptr_t>(stream)));
  if (result != kSuccess) return result;
  if (current_context() == nullptr) return kInvalidContext;
  if (state().capturing[stream]) return kCaptureUnsupported;
  std::memcpy(destination, reinterpret_cast<const void*>(source), bytes);
  return result;
}

int cuStreamSynchronize(void* stream) {
  const Lock lock(state().mutex);
  const int result =
      record("cuStreamSynchronize", join(", \"stream\": ", reinterpret_cast<uintptr_t>(stream)));
  return result == kSuccess && state().capturing[stream] ? kCaptureUnsupported : result;
}

int cuStreamIsCapturing(void* stream, int* status) {
  const Lock lock(state().mutex);
  const int result =
      record("cuStreamIsCapturing", join(", \"stream\": ", reinterpret_cast<uintptr_t>(stream)));
  if (result != kSuccess) return result;
  if (current_context() == nullptr) return kInvalidHandle;
  *status = state().capturing[stream] ? 1 : 0;
  return result;
}

// All records so far as a JSON array; they are forgotten.
const char* standin_take_records() {
  const Lock lock(state().mutex);
  State& s = state();
  s.answer = "[";
  for (size_t i = 0; i < s.records.size(); ++i) s.answer += (i == 0 ? "" : ",\n") + s.records[i];
  s.answer += "]";
  s.records.clear();
  return s.answer.c_str();
}

// Calls of `function` return `result` from now on, after `skip` more good ones; 0 ends that.
void standin_fail(const char* function, int result, int skip) {
  const Lock lock(state().mutex);
  if (result == kSuccess) {
    state().failures.erase(function);
  } else {
    state().failures[function] = {result, skip};
  }
}

void standin_capture(void* stream, int active) {
  const Lock lock(state().mutex);
  state().capturing[stream] = active != 0;
}

// Makes the primary context of a device current, as torch's device guard does; -1: none.
void standin_set_current(int device) {
  const Lock lock(state().mutex);
  context_stack.clear();
  if (device >= 0) context_stack.push_back(state().contexts[device].get());
}

// The device of this thread's current context, or -1, and how many contexts are stacked.
int standin_current() {
  const Lock lock(state().mutex);
  return current_device();
}

int standin_stacked() { return static_cast<int>(context_stack.size()); }

}  // extern "C"
