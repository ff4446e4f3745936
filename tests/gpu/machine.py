"""What this machine has: GPUs, the driver, NVIDIA's libraries, PyTorch."""

import ctypes
import glob
import importlib.util
import os
import subprocess
import sys

# Folders of NVIDIA's libraries that no wheel and no loader's cache tells.
_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/cuda/lib64", "/usr/local/cuda/lib")
# The first part that the name contains counts, so longer ones come before those that they contain. NVIDIA's data sheets.
_BANDWIDTHS = {"GH200 144G": 4.9e12, "GH200": 4e12, "H100 NVL": 3.9e12, "H100 PCIe": 2e12, "H100": 3.35e12, "H200": 4.8e12,
               "A100-SXM4-80GB": 2.039e12}  # bytes a second
_RATES = {"GH200": 990e12, "H200 NVL": 835e12, "H100 NVL": 835e12, "H100 PCIe": 756e12, "H100": 989e12, "H200": 989e12, "H800": 989e12,
          "A100": 312e12}  # bf16 products, dense


def library_folders():
    """Where NVIDIA's libraries may be, best first: what the caller says, the toolkit, the wheels of this Python."""
    named = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    home = os.environ.get("CUDA_HOME")
    wheels = [folder for path in sys.path for folder in sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))]
    folders = named + ([os.path.join(home, "lib64"), os.path.join(home, "lib")] if home else []) + wheels + list(_FOLDERS)
    return list(dict.fromkeys(folder for folder in folders if os.path.isdir(folder)))


def missing_libraries(program, environment):
    """Names of the shared libraries that the loader does not find for a program."""
    traced = subprocess.run([program], capture_output=True, text=True, check=False,
                            env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"})
    return [line.split()[0] for line in traced.stdout.splitlines() if "not found" in line] + \
        ([traced.stderr.strip()] if traced.returncode != 0 else [])


def load(name, folders):
    """The library as ctypes sees it, from the first of the folders that has it, else from where the loader looks; or None."""
    for candidate in (*(os.path.join(folder, name) for folder in folders), name):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Driver:
    """NVIDIA's management library (NVML API Reference); `gpus` is empty where there is none."""

    def __init__(self, folders):
        self.gpus = []
        self.version = None
        self._nvml = load("libnvidia-ml.so.1", folders)
        if self._nvml is None or self._nvml.nvmlInit_v2() != 0:
            return
        text = ctypes.create_string_buffer(96)
        if self._nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            self.version = text.value.decode()
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return
        for index in range(count.value):
            handle, memory = ctypes.c_void_p(), _Memory()
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
                continue
            self._nvml.nvmlDeviceGetName(handle, text, 96)
            self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            self.gpus.append({"name": text.value.decode(), "memory_bytes": memory.total, "handle": handle})

    def used_bytes(self, index=0):
        memory = _Memory()
        self._nvml.nvmlDeviceGetMemoryInfo(self.gpus[index]["handle"], ctypes.byref(memory))
        return memory.used

    def busy_percent(self, index=0):
        """Share of the last sample period in which a kernel ran; None where the driver does not say."""
        ask = getattr(self._nvml, "nvmlDeviceGetUtilizationRates", None)
        rates = _Utilization()
        if ask is None or ask(self.gpus[index]["handle"], ctypes.byref(rates)) != 0:
            return None
        return rates.gpu

    def peak_flops(self):
        return self._figure(_RATES)

    def peak_bandwidth(self):
        return self._figure(_BANDWIDTHS)

    def _figure(self, figures):
        """Of the first GPU's model; None where it is not known."""
        name = self.gpus[0]["name"] if self.gpus else ""
        return next((figure for part, figure in figures.items() if part in name), None)


def library_versions(folders):
    """As the libraries themselves say; only those that are there."""
    versions = {}

    def ask(key, library, function, as_pointer):
        found = load(library, folders)
        if found is None:
            return
        call = getattr(found, function)
        if as_pointer:
            number = ctypes.c_int()
            call(ctypes.byref(number))
            versions[key] = number.value
        else:
            call.restype = ctypes.c_size_t
            versions[key] = call()

    ask("cudart", "libcudart.so.13", "cudaRuntimeGetVersion", True)
    ask("cublaslt", "libcublasLt.so.13", "cublasLtGetVersion", False)
    ask("cudnn", "libcudnn.so.9", "cudnnGetVersion", False)
    ask("nccl", "libnccl.so.2", "ncclGetVersion", True)
    return versions


def has_torch():
    return importlib.util.find_spec("torch") is not None
