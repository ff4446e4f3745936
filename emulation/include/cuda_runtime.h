// CUDA's header of this name, for programs without CUDA. The build rules (bazel/cuda.bzl) put this
// folder on the include path of emulated targets only.
#pragma once

#define TERCIO_CUDA_EMULATED 1

#include "emulation/device_functions.h"
#include "emulation/runtime_api.h"
#include "emulation/vector_types.h"
