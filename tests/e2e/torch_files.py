"""Files of torch.save without torch: Python's pickle writes them, with stand-ins for the few names of torch that they hold."""

import collections
import io
import json
import pickle
import struct
import sys
import types
import zipfile

STORAGES = {"F32": ("FloatStorage", 4), "F16": ("HalfStorage", 2), "U8": ("ByteStorage", 1)}


class _Names:
    """What pickle looks up as torch and torch._utils."""

    def __init__(self):
        self.torch, self.utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
        for name, _ in STORAGES.values():
            setattr(self.torch, name, type(name, (), {"__module__": "torch"}))
        self.utils._rebuild_tensor_v2 = lambda *arguments: None
        self.utils._rebuild_tensor_v2.__module__ = "torch._utils"
        self.utils._rebuild_tensor_v2.__qualname__ = self.utils._rebuild_tensor_v2.__name__ = "_rebuild_tensor_v2"

    def __enter__(self):
        self.before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
        sys.modules.update({"torch": self.torch, "torch._utils": self.utils})
        return self

    def __exit__(self, *_):
        for name, module in self.before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class _Storage:
    def __init__(self, names, key, dtype, content):
        kind, size = STORAGES[dtype]
        self.content, self.elements = content, len(content) // size
        self.id = ("storage", getattr(names.torch, kind), key, "cpu", self.elements)


class _Tensor:
    def __init__(self, names, storage, shape):
        strides = [1] * len(shape)
        for i in range(len(shape) - 1, 0, -1):
            strides[i - 1] = strides[i] * shape[i]
        self.reduced = (names.utils._rebuild_tensor_v2,
                        (storage, 0, tuple(shape), tuple(strides), False, collections.OrderedDict()))

    def __reduce_ex__(self, _):
        return self.reduced


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        return obj.id if isinstance(obj, _Storage) else None


def _pickled(value):
    out = io.BytesIO()
    _Pickler(out, protocol=2).dump(value)
    return out.getvalue()


def save(tensors, path, stream=False):
    """tensors: name -> (dtype, shape, bytes), as safetensors names the dtype; stream: the form before archives."""
    with _Names() as names:
        storages = [_Storage(names, str(i), dtype, content) for i, (dtype, _, content) in enumerate(tensors.values())]
        state = collections.OrderedDict((name, _Tensor(names, storage, shape))
                                        for (name, (_, shape, _)), storage in zip(tensors.items(), storages))
        content = _pickled(state)
    if not stream:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("pytorch_model/data.pkl", content)
            for storage in storages:
                archive.writestr("pytorch_model/data/" + storage.id[2], storage.content)
            archive.writestr("pytorch_model/version", "3\n")
        return
    with open(path, "wb") as file:
        for value in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}):
            file.write(pickle.dumps(value, protocol=2))
        file.write(content + pickle.dumps([storage.id[2] for storage in storages], protocol=2))
        for storage in storages:
            file.write(struct.pack("<q", storage.elements) + storage.content)


def read_safetensors(path):
    """The same map from a file of safetensors."""
    with open(path, "rb") as file:
        content = file.read()
    begin = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
            for name, entry in header.items()}
