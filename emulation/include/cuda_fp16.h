// CUDA's header of this name, for programs without CUDA.
#pragma once

#include "emulation/half_types.h"
