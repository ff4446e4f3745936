// CUDA's header of this name, for programs without CUDA.
#pragma once

#include "emulation/eight_bit_types.h"
