#include "kernels/cuda/cudnn/library.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

namespace tercio::kernels::cuda {
namespace {

// The major version is part of the name, since another one has another interface.
constexpr char kName[] = "libcudnn.so.9";

#ifdef TERCIO_CUDA_EMULATED
void* Open() { return emulation::OpenCudnn(); }
void* Find(void* library, const char* name) { return emulation::FindInCudnn(library, name); }
const char* Problem() { return "the emulation is configured to have none"; }
#else
// RTLD_LOCAL keeps the library's symbols from replacing those of the program.
void* Open() { return dlopen(kName, RTLD_NOW | RTLD_LOCAL); }
void* Find(void* library, const char* name) { return dlsym(library, name); }
const char* Problem() { return dlerror(); }
#endif

std::string Version(size_t version) {
  // Version 9 counts 10,000 for the major and 100 for the minor number.
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

CudnnLibrary LoadCudnn() {
  CudnnLibrary library;
  void* opened = Open();
  // A missing library is no error: the caller has a kernel of its own, and reports the reason once.
  if (opened == nullptr) {
    library.missing = Problem();
    return library;
  }
  library.missing.clear();
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(Find(opened, name));
    // The last missing name is reported; any one of them rules the library out.
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
  // Without all functions even the version cannot be asked for.
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
  // The words of the last error say more than the status, but are empty for some.
  library.get_last_error_string(words, sizeof(words));
  std::string text = library.get_error_string(status);
  if (words[0] != '\0') text += std::string(": ") + words;
  return text;
}

}  // namespace tercio::kernels::cuda
