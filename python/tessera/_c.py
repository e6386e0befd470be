"""The C interface (include/tessera/tessera.h) in ctypes: structs, constants, and the library itself.

Owns the invariant that every struct here has the layout of the header; a test compares both with the C compiler.
ctypes.CDLL releases the GIL for the time of each call.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

OK, INVALID_ARGUMENT, UNSUPPORTED, WORKSPACE_TOO_SMALL, NO_DEVICE, DEVICE_ERROR, OUT_OF_MEMORY, INTERNAL = range(8)
FORWARD, BACKWARD = range(2)
F64, F32, F16, BF16, E4M3, INT8, U8 = range(1, 8)
DENSE, PACKED, PAGED = range(3)
BOTTOM_RIGHT, TOP_LEFT = range(2)
FLAG_LSE = 0x1
FLAG_D_LSE = 0x2
FLAG_ALIBI = 0x4
FLAG_SINKS = 0x8
FLAG_D_SINKS = 0x10
FLAG_BIAS = 0x20
FLAG_D_BIAS = 0x40
FLAG_SEQUSED_Q = 0x80
FLAG_SEQUSED_K = 0x100
FLAG_LEFTPAD = 0x200
FLAG_BATCH_IDX = 0x400
FLAG_DETERMINISTIC = 0x800
FLAG_BATCH_INVARIANT = 0x1000
FLAG_V_MEAN = 0x2000


def _fields(ctype, names: str):
    return [(name, ctype) for name in names.split()]


class Status(ctypes.Structure):
    _fields_ = [("code", c_int32), ("message", c_char * 252)]


class Desc(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("align", c_int32), ("stride", c_int64 * 4)]


class ProblemStruct(ctypes.Structure):
    _fields_ = (
        [("size", c_size_t)]
        + _fields(c_int32, "pass device")
        + _fields(c_int64, "batch batch_kv seqlen_q seqlen_k total_q total_k num_pages max_pages page_table_stride")
        + _fields(c_int64, "alibi_stride v_mean_stride left right")
        + _fields(c_int32, "heads_q heads_kv head_dim_qk head_dim_v layout_q layout_kv page_size mask_alignment")
        + _fields(c_double, "scale softcap")
        + [("flags", c_uint64)]
        + _fields(Desc, "q k v o bias d_o dq dk dv d_bias q_scale k_scale v_scale")
        + _fields(c_int32, "q_scale_rows k_scale_rows v_scale_rows v_order num_splits sm_margin threads isa")
        + [("kernel", c_char * 64), ("device_name", c_char * 32)]
    )


class Tensors(ctypes.Structure):
    _fields_ = [("size", c_size_t)] + _fields(
        c_void_p,
        "q k v o lse cu_seqlens_q cu_seqlens_k seqused_q seqused_k page_table leftpad batch_idx alibi_slopes sinks "
        "q_scale k_scale v_scale v_mean bias d_o d_lse dq dk dv d_bias d_sinks append",
    )


class Executor(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("context", c_void_p),
        ("parallel", c_void_p),
    ]


class Exec(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("cuda_stream", c_void_p), ("executor", POINTER(Executor))]


class MergeArgs(ctypes.Structure):
    _fields_ = (
        [("size", c_size_t)]
        + _fields(c_int64, "states batch seqlen_q")
        + _fields(c_int32, "heads head_dim_v dtype out_dtype device reserved")
        + _fields(c_void_p, "o lse o_out lse_out d_o_out d_lse_out d_o d_lse")
    )


class AppendArgs(ctypes.Structure):
    _fields_ = (
        [("size", c_size_t)]
        + _fields(c_int64, "seqlen_new total_new rotary_seqlen")
        + _fields(c_int32, "rotary_dim rotary_interleaved")
        + _fields(Desc, "k_new v_new q_out")
        + _fields(c_void_p, "k_new_data v_new_data rotary_cos rotary_sin cu_seqlens_new k_cache v_cache q_rotated")
    )


class QuantizeArgs(ctypes.Structure):
    _fields_ = (
        [("size", c_size_t)]
        + _fields(c_int64, "batch seqlen total")
        + [("seed", c_uint64)]
        + _fields(c_int32, "heads head_dim device layout scale_rows order hadamard subtract_mean")
        + _fields(Desc, "x y scale")
        + _fields(c_void_p, "x_data cu_seqlens y_data scale_data mean")
    )


# The C name of each struct, for the layout test.
STRUCTS = {
    "tessera_status": Status,
    "tessera_desc": Desc,
    "tessera_problem": ProblemStruct,
    "tessera_tensors": Tensors,
    "tessera_executor": Executor,
    "tessera_exec": Exec,
    "tessera_merge_args": MergeArgs,
    "tessera_append_args": AppendArgs,
    "tessera_quantize_args": QuantizeArgs,
}

# name: (result type, argument types). Pointers to structs are passed with ctypes.byref.
FUNCTIONS = {
    "tessera_problem_init": (None, [POINTER(ProblemStruct), c_size_t]),
    "tessera_problem_parse": (c_int, [c_char_p, POINTER(ProblemStruct), POINTER(Status)]),
    "tessera_problem_format": (c_size_t, [POINTER(ProblemStruct), c_char_p, c_size_t]),
    "tessera_supports": (c_int, [POINTER(ProblemStruct), c_char_p, c_size_t]),
    "tessera_plan_create": (c_int, [POINTER(ProblemStruct), POINTER(c_void_p), POINTER(Status)]),
    "tessera_plan_destroy": (None, [c_void_p]),
    "tessera_plan_workspace": (c_size_t, [c_void_p]),
    "tessera_plan_kernel": (c_char_p, [c_void_p]),
    "tessera_plan_passed_over": (c_int, [c_void_p, POINTER(c_char_p)]),
    "tessera_plan_explain": (c_size_t, [c_void_p, c_int, c_char_p, c_size_t]),
    "tessera_plan_run": (c_int, [c_void_p, POINTER(Tensors), c_void_p, c_size_t, POINTER(Exec), POINTER(Status)]),
    "tessera_check_metadata": (c_int, [c_void_p, POINTER(Tensors), POINTER(Exec), POINTER(Status)]),
    "tessera_merge": (c_int, [POINTER(MergeArgs), POINTER(Exec), POINTER(Status)]),
    "tessera_merge_backward": (c_int, [POINTER(MergeArgs), POINTER(Exec), POINTER(Status)]),
    "tessera_append": (
        c_int,
        [POINTER(ProblemStruct), POINTER(Tensors), POINTER(AppendArgs), POINTER(Exec), POINTER(Status)],
    ),
    "tessera_quantize": (c_int, [POINTER(QuantizeArgs), POINTER(Exec), POINTER(Status)]),
    "tessera_devices": (c_size_t, [c_int, c_char_p, c_size_t]),
    "tessera_version": (c_uint32, []),
}


def candidates() -> list[Path]:
    """Where the library is looked for, in order: $TESSERA_LIBRARY alone if set; else beside this file (a wheel), then
    the builds of the source tree that holds this file."""
    named = os.environ.get("TESSERA_LIBRARY")
    if named:
        return [Path(named).absolute()]  # a bare file name would be looked for in the system's folders alone
    package = Path(__file__).resolve().parent
    paths = [package / "libtessera.so"]
    root = package.parents[1]
    if (root / "include" / "tessera" / "tessera.h").is_file():
        paths += [root / "build" / preset / "libtessera.so" for preset in ("cuda", "release", "cpu")]
    return paths


def load() -> tuple[ctypes.CDLL, Path]:
    """The library with its prototypes set, and its path. ImportError names every path that was tried."""
    paths = candidates()
    path = next((p for p in paths if p.is_file()), None)
    if path is None:
        tried = ", ".join(str(p) for p in paths)
        raise ImportError(f"tessera: no shared library; tried {tried} (set TESSERA_LIBRARY to its path)")
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"tessera: {path} is not a usable library: {error}") from error
    return library, path


lib, library_path = load()
