#include "checkpoint/torch/pickle_classes.h"

namespace tercio::checkpoint {
namespace {

struct KnownRow {
  std::string_view name;
  KnownName known;
};

constexpr KnownRow kKnownNames[] = {
    {"collections.OrderedDict", {PickleCallable::kOrderedDict}},
    // Pickles of protocols 0 to 2 name Python's own functions as Python 2 did.
    {"builtins.set", {PickleCallable::kSequence}},
    {"builtins.frozenset", {PickleCallable::kSequence}},
    {"builtins.getattr", {PickleCallable::kGetAttribute}},
    {"builtins.object", {PickleCallable::kPlainClass}},
    {"__builtin__.set", {PickleCallable::kSequence}},
    {"__builtin__.frozenset", {PickleCallable::kSequence}},
    {"__builtin__.getattr", {PickleCallable::kGetAttribute}},
    {"__builtin__.object", {PickleCallable::kPlainClass}},
    {"copyreg._reconstructor", {PickleCallable::kReconstruct}},
    {"copy_reg._reconstructor", {PickleCallable::kReconstruct}},
    {"_codecs.encode", {PickleCallable::kEncode}},

    {"torch._utils._rebuild_tensor", {PickleCallable::kTensor}},
    {"torch._utils._rebuild_tensor_v2", {PickleCallable::kTensor}},
    {"torch._utils._rebuild_tensor_v3", {PickleCallable::kTensorOfDtype}},
    {"torch._utils._rebuild_parameter", {PickleCallable::kParameter}},
    {"torch._utils._rebuild_parameter_with_state", {PickleCallable::kParameter}},
    {"torch._tensor._rebuild_from_type_v2", {PickleCallable::kTyped}},
    {"torch.Tensor", {PickleCallable::kPlainClass}},
    {"torch.nn.parameter.Parameter", {PickleCallable::kPlainClass}},
    {"torch.Size", {PickleCallable::kSequence}},
    {"torch.device", {PickleCallable::kOpaque}},

    {"torch.DoubleStorage", {PickleCallable::kStorage, "F64"}},
    {"torch.FloatStorage", {PickleCallable::kStorage, "F32"}},
    {"torch.HalfStorage", {PickleCallable::kStorage, "F16"}},
    {"torch.BFloat16Storage", {PickleCallable::kStorage, "BF16"}},
    {"torch.LongStorage", {PickleCallable::kStorage, "I64"}},
    {"torch.IntStorage", {PickleCallable::kStorage, "I32"}},
    {"torch.ShortStorage", {PickleCallable::kStorage, "I16"}},
    {"torch.CharStorage", {PickleCallable::kStorage, "I8"}},
    {"torch.ByteStorage", {PickleCallable::kStorage, "U8"}},
    {"torch.BoolStorage", {PickleCallable::kStorage, "BOOL"}},
    {"torch.UntypedStorage", {PickleCallable::kStorage, "U8"}},
    {"torch.storage.UntypedStorage", {PickleCallable::kStorage, "U8"}},
    {"torch.storage._UntypedStorage", {PickleCallable::kStorage, "U8"}},

    {"torch.float64", {PickleCallable::kNone, "F64"}},
    {"torch.float32", {PickleCallable::kNone, "F32"}},
    {"torch.float16", {PickleCallable::kNone, "F16"}},
    {"torch.bfloat16", {PickleCallable::kNone, "BF16"}},
    {"torch.float8_e5m2", {PickleCallable::kNone, "F8_E5M2"}},
    {"torch.float8_e4m3fn", {PickleCallable::kNone, "F8_E4M3"}},
    {"torch.int64", {PickleCallable::kNone, "I64"}},
    {"torch.int32", {PickleCallable::kNone, "I32"}},
    {"torch.int16", {PickleCallable::kNone, "I16"}},
    {"torch.int8", {PickleCallable::kNone, "I8"}},
    {"torch.uint64", {PickleCallable::kNone, "U64"}},
    {"torch.uint32", {PickleCallable::kNone, "U32"}},
    {"torch.uint16", {PickleCallable::kNone, "U16"}},
    {"torch.uint8", {PickleCallable::kNone, "U8"}},
    {"torch.bool", {PickleCallable::kNone, "BOOL"}},
    {"torch.complex64", {PickleCallable::kNone}},
    {"torch.complex128", {PickleCallable::kNone}},

    // What training scripts keep beside weights. numpy has renamed its module of arrays.
    {"numpy.ndarray", {PickleCallable::kOpaque}},
    {"numpy.dtype", {PickleCallable::kOpaque}},
    {"numpy.core.multiarray.scalar", {PickleCallable::kOpaque}},
    {"numpy.core.multiarray._reconstruct", {PickleCallable::kOpaque}},
    {"numpy.core.numeric._frombuffer", {PickleCallable::kOpaque}},
    {"numpy._core.multiarray.scalar", {PickleCallable::kOpaque}},
    {"numpy._core.multiarray._reconstruct", {PickleCallable::kOpaque}},
    {"numpy._core.numeric._frombuffer", {PickleCallable::kOpaque}},
    {"argparse.Namespace", {PickleCallable::kNamespace}},
    {"types.SimpleNamespace", {PickleCallable::kNamespace}},
    {"signal.Signals", {PickleCallable::kEnum}},
    {"_io.BytesIO", {PickleCallable::kNamespace}},
};

}  // namespace

std::optional<KnownName> FindKnownName(std::string_view name) {
  for (const KnownRow& row : kKnownNames) {
    if (row.name == name) return row.known;
  }
  // Megatron-LM's arguments hold members of enums whose modules change from version to version. Its
  // optimizers of 2019 hold their loss scaler, of a module that lay beside it.
  if (name.substr(0, 9) == "megatron." || name.substr(0, 17) == "fp16.loss_scaler.") {
    return KnownName{PickleCallable::kEnum};
  }
  return std::nullopt;
}

}  // namespace tercio::checkpoint
