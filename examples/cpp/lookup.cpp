// Runs a scripted TableBatchedEmbeddingBags in a process without Python.
//
//   lookup <libtbe_aot.so> <module.pt> [cuda]
//
// Loading the library registers the operators that the module calls; it needs nothing but LibTorch,
// and finds its kernels beside itself. The program looks up rows 0, 1, 2, ..., one per bag and two
// bags per feature, and prints the pooled rows.
#include <dlfcn.h>
#include <torch/script.h>

#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>

namespace {

constexpr int64_t kBags = 2;

void load_operators(const char* path) {
  // Never closed: torch keeps pointers to the operators.
  if (dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) throw std::runtime_error(dlerror());
}

torch::Tensor look_up(torch::jit::script::Module& module, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const int64_t features = module.attr("features").toTensor().size(0);
  const auto options = torch::TensorOptions().dtype(torch::kInt64).device(device);
  const torch::Tensor indices = torch::arange(features * kBags, options);
  const torch::Tensor offsets = torch::arange(features * kBags + 1, options);
  return module.forward({indices, offsets}).toTensor();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: lookup <libtbe_aot.so> <module.pt> [cuda]\n";
    return 2;
  }
  try {
    load_operators(argv[1]);
    const torch::Device device = argc > 3 ? torch::Device(argv[3]) : torch::Device(torch::kCPU);
    torch::jit::script::Module module = torch::jit::load(argv[2], device);
    const torch::Tensor pooled = look_up(module, device).to(torch::kCPU, torch::kFloat32);
    for (int64_t bag = 0; bag < pooled.size(0); ++bag) {
      for (int64_t column = 0; column < pooled.size(1); ++column) {
        std::cout << (column == 0 ? "" : " ") << pooled[bag][column].item<float>();
      }
      std::cout << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
