// cuDNN 9, loaded at run time: a trainer starts without it as well, and reports that it is missing.
// Only the functions of the graph API's C interface; types are those of the toolkit's headers.
//
// Threads: LoadCudnn by any thread; the functions are the library's (objects of one thread each).
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tercio::kernels::cuda {

// The oldest version that is used. Before it, gradients of sequences that no tile divides were
// wrong without a mask of lengths (NVIDIA's cudnn-frontend puts one there up to 9.15).
inline constexpr size_t kLeastCudnnVersion = 91600;

struct CudnnLibrary {
  // Null if cuDNN is not used; then `missing` holds the reason.
  explicit operator bool() const { return missing.empty(); }
  std::string missing = "not loaded";
  size_t version = 0;  // 91900: 9.19.0

  decltype(&::cudnnGetVersion) get_version = nullptr;
  decltype(&::cudnnGetErrorString) get_error_string = nullptr;
  decltype(&::cudnnGetLastErrorString) get_last_error_string = nullptr;
  decltype(&::cudnnCreate) create = nullptr;
  decltype(&::cudnnDestroy) destroy = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) set_attribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) get_attribute = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
};

// Looks for "libcudnn.so.9" where the linker does (the program's own path first, then
// LD_LIBRARY_PATH and the system's). It stays loaded until the process ends.
CudnnLibrary LoadCudnn();

// "cuDNN 9.19.0", or "no cuDNN: " and the reason.
std::string NameOf(const CudnnLibrary& library);

// The library's name for a status, and its own words about its last error on this thread.
std::string Explain(const CudnnLibrary& library, cudnnStatus_t status);

}  // namespace tercio::kernels::cuda
