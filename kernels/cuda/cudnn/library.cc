#include "kernels/cuda/cudnn/library.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace tercio::kernels::cuda {
namespace {

constexpr char kName[] = "libcudnn.so.9";

#ifdef TERCIO_CUDA_EMULATED
void* Open() { return emulation::OpenCudnn(); }
void* Find(void* library, const char* name) { return emulation::FindInCudnn(library, name); }
const char* Problem() { return "the emulation is configured to have none"; }
#else
void* Open() { return dlopen(kName, RTLD_NOW | RTLD_LOCAL); }
void* Find(void* library, const char* name) { return dlsym(library, name); }
const char* Problem() { return dlerror(); }
#endif

std::string Version(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

CudnnLibrary LoadCudnn() {
  CudnnLibrary library;
  void* opened = Open();
  if (opened == nullptr) {
    library.missing = Problem();
    return library;
  }
  library.missing.clear();
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(Find(opened, name));
    if (function == nullptr) library.missing = std::string(kName) + " has no " + name;
  };
  find("cudnnGetVersion", library.get_version);
  find("cudnnGetErrorString", library.get_error_string);
  find("cudnnGetLastErrorString", library.get_last_error_string);
  find("cudnnCreate", library.create);
  find("cudnnDestroy", library.destroy);
  find("cudnnSetStream", library.set_stream);
  find("cudnnBackendCreateDescriptor", library.create_descriptor);
  find("cudnnBackendDestroyDescriptor", library.destroy_descriptor);
  find("cudnnBackendSetAttribute", library.set_attribute);
  find("cudnnBackendGetAttribute", library.get_attribute);
  find("cudnnBackendFinalize", library.finalize);
  find("cudnnBackendExecute", library.execute);
  if (!library) return library;
  library.version = library.get_version();
  if (library.version < kLeastCudnnVersion) {
    library.missing = Version(library.version) + " is older than " + Version(kLeastCudnnVersion);
  }
  return library;
}

std::string NameOf(const CudnnLibrary& library) {
  return library ? "cuDNN " + Version(library.version) : "no cuDNN: " + library.missing;
}

std::string Explain(const CudnnLibrary& library, cudnnStatus_t status) {
  char words[512] = "";
  library.get_last_error_string(words, sizeof(words));
  std::string text = library.get_error_string(status);
  if (words[0] != '\0') text += std::string(": ") + words;
  return text;
}

}  // namespace tercio::kernels::cuda
