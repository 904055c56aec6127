"""The environment variables that a sandboxed driver receives: only those that configure libraries.

An application's environment may contain tokens and passwords, which a driver must not see.
"""

import os
from collections.abc import Mapping

MORE = "NNHAL_ENVIRONMENT"  # additional names that a driver receives: NAME,NAME
NAMES = frozenset(
    (
        *("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "TMPDIR", "TZ", "TZDIR", "USER", "VIRTUAL_ENV"),
        *("COVERAGE_PROCESS_START", "GLIBC_TUNABLES", "LISTEN_FDNAMES", "LISTEN_FDS", "LISTEN_PID"),
    )
)
PREFIXES = (
    *("LC_", "LD_", "MALLOC_", "NNHAL_", "PYTHON", "XDG_"),  # the system, Python, nnhal
    *("ASAN_", "LSAN_", "TSAN_", "UBSAN_", "COV_"),  # sanitizers and coverage
    *("BLIS_", "GOMP_", "GOTO_", "KMP_", "MKL_", "NUMEXPR_", "OMP_", "OPENBLAS_", "TBB_"),  # threads and kernels
    *("DNNL_", "ONEDNN_", "ONNXRUNTIME_", "OPENVINO_", "ORT_", "OV_", "TF_", "TFLITE_", "XNNPACK_"),  # engines
    *("CUDA_", "GPU_", "HIP_", "HSA_", "NVIDIA_", "OCL_", "ROCR_", "VK_", "ZE_", "ZES_"),  # accelerators
)


def allowed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of an environment that a driver receives."""
    more = environment.get(MORE, "").split(",")
    return {
        name: value for name, value in environment.items() if name in NAMES or name in more or name.startswith(PREFIXES)
    }


def forget() -> None:
    """Remove all other variables from this process's environment."""
    for name in os.environ.keys() - allowed(os.environ).keys():
        del os.environ[name]
